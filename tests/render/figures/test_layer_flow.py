"""Which layer went where: a line for each match, and kinds that are told apart without colour."""

import pytest

from mdir_hf.render.figures.theme import LIGHT
from tests.render.figures.drawn_reports import a_layer_map, a_report

pytest.importorskip("matplotlib")


def flow_of(pairs, n_reference, n_candidate, pattern):
    matches = tuple((i, j, -40.0) for i, j in pairs)
    layers = a_layer_map(n_reference, n_candidate, matches=matches, pattern=pattern)
    return a_report(layers=layers, modules=None).figures()["flow"]


def lines(figure):
    return [line for line in figure.axes[0].get_lines() if list(line.get_xdata()) == [0.0, 1.0]]


def test_each_match_is_a_line_and_further_ones_are_dashed():
    figure = flow_of([(0, 0), (1, 1), (0, 2), (1, 3)], 2, 4, "repeated")
    drawn = [(tuple(line.get_ydata()), line.is_dashed()) for line in lines(figure)]
    assert drawn == [((0, 0), False), ((1, 1), False), ((0, 2), True), ((1, 3), True)]
    assert "2 layers of the reference match more than once and 0 of 2 match none" in figure.get_label()


def test_layers_without_a_match_are_hollow():
    figure = flow_of([(0, 0), (2, 1)], 3, 3, "partial")
    (axes, *_) = figure.axes
    hollow = [
        (tuple(line.get_xdata()), tuple(line.get_ydata()))
        for line in axes.get_lines()
        if line.get_marker() == "o" and line.get_markerfacecolor() == LIGHT.paper
    ]
    assert hollow == [((0.0,), (1,)), ((1.0,), (2,))]
    assert "hollow: without a match, 1 of 3 left and 1 of 3 right" in figure.texts[1].get_text()


def test_where_nothing_matches_nothing_flows():
    silent = a_layer_map(3, 3, matches=(), pattern="none")
    assert "flow" not in a_report(layers=silent, modules=None).figures()


def test_a_deep_model_still_fits():
    figure = flow_of([(k, k) for k in range(120)], 120, 120, "reordered")
    assert figure.get_size_inches()[1] < 8
    assert len(lines(figure)) == 120
