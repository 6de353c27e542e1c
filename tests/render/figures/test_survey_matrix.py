"""The matrix of a survey: order, symbols, frames, and sizes from one model to hundreds."""

import numpy as np
import pytest

from mdir_hf.errors import InputError
from mdir_hf.render.figures import draw_survey_matrix, figure_bytes
from mdir_hf.render.figures.theme import evidence_shade

pytest.importorskip("matplotlib")

NAMES = ["a", "b", "c"]
LOG10_P = [[0.0, -50.0, -2.0], [-50.0, 0.0, 0.0], [-2.0, 0.0, 0.0]]
VERDICTS = [[None, "homologous", "inconclusive"], ["homologous", None, None], ["inconclusive", None, None]]


def symbols(axes):
    """Return the fill style of the mark by (row, column)."""
    return {
        (round(y + 0.18), round(x)): line.get_fillstyle()
        for line in axes.lines
        for x, y in zip(line.get_xdata(), line.get_ydata(), strict=True)
    }


def test_shades_symbols_and_gaps_stand_in_the_order_of_the_groups():
    figure = draw_survey_matrix(NAMES, LOG10_P, VERDICTS, groups=[["c"], ["b", "a"]])
    axes = figure.axes[0]
    shades = axes.get_images()[0].get_array()

    assert [label.get_text() for label in axes.get_yticklabels()] == ["c  1", "b  2", "a  3"]
    assert shades[1, 2] == pytest.approx(evidence_shade(-50.0)) and shades[0, 2] == pytest.approx(evidence_shade(-2.0))
    assert shades.mask[0, 1] and shades.mask[1, 0]  # never compared
    assert symbols(axes) == {(1, 2): "full", (2, 1): "full", (0, 2): "left", (2, 0): "left"}
    assert [(patch.get_x(), patch.get_width()) for patch in axes.patches if not patch.get_fill()] == [(0.5, 2)]
    assert not any(patch.get_hatch() for patch in axes.patches)


@pytest.mark.parametrize(("n", "dark"), [(1, False), (2, True), (90, False), (300, False)])
def test_any_number_of_models_is_drawn(n, dark):
    names = [f"owner-{i}/model-{i}" for i in range(n)]
    related = np.arange(n)[:, None] // 20 == np.arange(n)[None, :] // 20
    verdicts = np.where(related, "homologous", "no_evidence").astype(object)
    verdicts[0, -1] = verdicts[-1, 0] = "inconclusive"
    figure = draw_survey_matrix(
        names,
        np.where(related, -7000.0, 0.0),
        verdicts,
        groups=[names[k : k + 20] for k in range(0, n, 20)],
        dark=dark,
    )

    assert max(figure.get_size_inches()) < 11
    assert figure_bytes(figure, "png").startswith(b"\x89PNG")


def test_indistinguishable_names_need_no_groups():
    draw_survey_matrix(["a", "a"], [[0.0] * 2] * 2, [["no_evidence"] * 2] * 2)
    with pytest.raises(InputError, match="same name"):
        draw_survey_matrix(["a", "a"], [[0.0] * 2] * 2, [["no_evidence"] * 2] * 2, groups=[["a", "a"]])


@pytest.mark.parametrize(
    ("names", "log10_p", "verdicts", "groups"),
    [
        ([], [], [], None),
        (["a", "b"], [[0.0]], [["no_evidence"] * 2] * 2, None),
        (["a", "b"], [[0.0] * 2] * 2, [["no_evidence"]] * 2, None),
        (["a", "b"], [[0.0] * 2] * 2, [["no_evidence"] * 2] * 2, [["a"]]),
        (["a", "b"], [[0.0] * 2] * 2, [["no_evidence"] * 2] * 2, [["a", "b"], ["b"]]),
    ],
)
def test_inconsistent_arguments_are_refused(names, log10_p, verdicts, groups):
    with pytest.raises(InputError, match="survey"):
        draw_survey_matrix(names, log10_p, verdicts, groups=groups)
