"""Observed against chance, and evidence against tokens."""

from __future__ import annotations

import dataclasses

import pytest

from mdir_hf.render.figures import figure_bytes
from mdir_hf.render.figures.theme import evidence_shade
from mdir_hf.report import Placebos
from tests.render.figures.drawn_reports import NO_ARRAYS, a_matrix, a_placebo, a_report

pytest.importorskip("matplotlib")


def figures_of(**fields):
    return a_report(**{"unembedding": None, "layers": None, "modules": None, "arrays": NO_ARRAYS, **fields}).figures()


def test_bars_are_traces_over_their_own_thresholds():
    placebo = Placebos(a_placebo(ratio=0.9), dataclasses.replace(a_placebo(), trace=4.0, threshold=8.0), (0.0, 0.0))
    axes = figures_of(embedding=a_matrix(trace=23.9, threshold=10.0, placebo=placebo))["null"].axes[0]

    assert [bar.get_width() for bar in axes.patches] == pytest.approx([2.39, 0.9, 0.5])
    assert [text.get_text() for text in axes.texts] == ["2.39", "0.90", "0.50"]
    # Told apart without colour: what was observed is plain, placebos are hatched.
    assert [bar.get_hatch() is None for bar in axes.patches] == [True, False, False]
    assert axes.lines[0].get_xdata()[0] == 1.0


def test_a_significant_placebo_is_said():
    placebo = Placebos(a_placebo(ratio=1.7, log10_p=-9.0), a_placebo(), (9.0, 9.0))

    assert "a placebo reaches 1.7 times it" in figures_of(embedding=a_matrix(placebo=placebo))["null"].get_label()


def test_a_trace_that_was_not_solved_for_is_said():
    figure = figures_of(embedding=a_matrix(trace=None, threshold=None))["null"]

    assert "not solved for" in figure.axes[0].texts[0].get_text()
    assert figure_bytes(figure, "svg")


@pytest.mark.parametrize("ratio", [0.05, 0.86, 0.99, 1.0, 1.01, 16.7])
def test_numbers_stand_clear_of_the_dashed_line(ratio):
    figure = figures_of(embedding=a_matrix(trace=10.0 * ratio, threshold=10.0))["null"]
    axes = figure.axes[0]
    renderer = figure.canvas.get_renderer() if hasattr(figure.canvas, "get_renderer") else _renderer(figure)
    line = axes.transData.transform((1.0, 0.0))[0]
    for text in axes.texts:
        box = text.get_window_extent(renderer)
        assert box.x1 < line or box.x0 > line


def _renderer(figure):
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    return FigureCanvasAgg(figure).get_renderer()


@pytest.mark.parametrize(
    "looks",
    [
        ((512, 0.0),),
        ((512, -7000.0),),
        ((1, -0.0), (2, -0.3)),
        ((0, 0.0),),
        tuple((128 * 2**k, -10.0 * k) for k in range(12)),
        ((4096, -1.0), (4100, -2.0)),
        ((512, -22_000.0), (512, -22_000.0)),
    ],
)
def test_looks_of_any_size_are_drawn(looks):
    figure = figures_of(embedding=a_matrix(looks=looks, log10_p=min(p for _, p in looks)))["looks"]
    line, level = figure.axes[0].lines

    assert list(line.get_ydata()) == [evidence_shade(p) for _, p in looks]
    low, high = figure.axes[0].get_ylim()
    assert low < min(line.get_ydata()) and high > max(line.get_ydata())
    assert level.get_ydata()[0] == pytest.approx(evidence_shade(-10.0))  # alpha = 1e-10
    assert figure_bytes(figure, "png")


def test_the_first_significant_look_is_the_title():
    significant = figures_of()["looks"]
    silent = figures_of(embedding=a_matrix(looks=((128, 0.0), (256, -9.0))))["looks"]

    assert significant.texts[0].get_text() == "Significant with 128 common tokens"
    assert silent.texts[0].get_text() == "Not significant at any look"


def test_two_matrices_are_told_apart_by_mark_and_line():
    axes = figures_of(unembedding=a_matrix())["looks"].axes[0]
    one, other, _ = axes.lines

    assert one.get_marker() != other.get_marker() and one.get_linestyle() != other.get_linestyle()
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["embedding", "unembedding"]
