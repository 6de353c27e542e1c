"""The flow of layers: a line for each match, and kinds distinguishable without colour."""

import pytest

from tests.render.figures.drawn_reports import a_layer_map, a_report

pytest.importorskip("matplotlib")


def flow_of(pairs, n_reference, n_candidate, pattern):
    matches = tuple((i, j, -40.0) for i, j in pairs)
    layers = a_layer_map(n_reference, n_candidate, matches=matches, pattern=pattern)
    return a_report(layers=layers, modules=None).figures()["flow"]


def lines(figure):
    return [line for line in figure.axes[0].get_lines() if list(line.get_xdata()) == [0.0, 1.0]]


def test_a_deep_model_still_fits():
    figure = flow_of([(k, k) for k in range(120)], 120, 120, "reordered")
    assert figure.get_size_inches()[1] < 8
    assert len(lines(figure)) == 120
