"""Observed values against chance, and evidence by number of tokens."""

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
    # Distinguishable without colour: observed bars are plain, placebos are hatched.
    assert [bar.get_hatch() is None for bar in axes.patches] == [True, False, False]
    assert axes.lines[0].get_xdata()[0] == 1.0


def test_a_trace_that_was_not_computed_is_shown_as_such():
    figure = figures_of(embedding=a_matrix(trace=None, threshold=None))["null"]

    assert "not solved for" in figure.axes[0].texts[0].get_text()
    assert figure_bytes(figure, "svg")


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
