"""Dendrograms of a survey: leaves in the order of the tree, equal copies, names of any kind, sizes of any number."""

from __future__ import annotations

import numpy as np
import pytest

from mdir_hf.errors import InputError
from mdir_hf.render.figures import dendrogram_cells, draw_dendrogram, figure_bytes
from mdir_hf.render.figures.dendrogram import MOST_ROWS

pytest.importorskip("matplotlib")

APART = np.array([[0.0, 0.5, 0.1], [0.5, 0.0, 0.5], [0.1, 0.5, 0.0]])


def names_of(figure):
    return [label.get_text() for label in figure.axes[0].get_yticklabels()]


def test_cells_lie_on_the_leaves_and_between_the_joins():
    groups = [(["a", "far", "b"], APART), (["x", "y"], [[0.0, 0.3], [0.3, 0.0]])]
    figure = draw_dendrogram(groups)
    axes = figure.axes[0]
    for grid in dendrogram_cells(groups, figure):
        left, top, width, height = grid.box
        assert sum(grid.widths) == pytest.approx(1.0)
        ends = np.cumsum(grid.widths)
        for end, join in zip(ends[:-1], grid.columns[1:], strict=True):
            drawn = figure.transFigure.inverted().transform(axes.transData.transform((float(join), 0.0)))
            assert left + width * end == pytest.approx(drawn[0], abs=1e-3)
        labels = {text.get_text(): text.get_position()[1] for text in axes.get_yticklabels()}
        for row, name in enumerate(grid.rows):
            middle = figure.transFigure.inverted().transform(axes.transData.transform((0.1, labels[name])))[1]
            assert 1.0 - (top + height * (row + 0.5) / len(grid.rows)) == pytest.approx(middle, abs=1e-6)


@pytest.mark.parametrize(("n", "dark"), [(2, False), (40, True)])
def test_equal_copies_and_hostile_names_are_drawn(n, dark):
    rng = np.random.default_rng(0)
    points = rng.normal(size=(n, 8))
    points[1] = points[0]
    apart = np.linalg.norm(points[:, None] - points[None], axis=2)
    names = [
        "<b>$x$\u202e",
        *(f"owner-{at}/model-with-a-name-longer-than-any-figure-has-room-for" for at in range(1, n)),
    ]
    first, second = (figure_bytes(draw_dendrogram([(names, apart)], dark=dark), "svg") for _ in range(2))
    assert first == second
    assert b"<b>" not in first


def test_what_does_not_fit_on_a_sheet_is_counted():
    size = MOST_ROWS // 2 + 1
    big = (1.0 - np.eye(size), [f"m{at}" for at in range(size)])
    figure = draw_dendrogram([(big[1], big[0])] * 2)
    assert len(names_of(figure)) == size
    assert any("1 groups left out" in text.get_text() for text in figure.texts)


@pytest.mark.parametrize("groups", [[], [(["a"], [[0.0]])], [(["a", "b"], [[0.0]])]])
def test_what_is_no_group_is_said(groups):
    with pytest.raises(InputError, match="m x m distances"):
        draw_dendrogram(groups)
