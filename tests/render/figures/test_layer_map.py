"""The map of layers: every size, ancestors at the layers they are, numbers where they fit."""

from __future__ import annotations

import numpy as np
import pytest

from mdir_hf.render.figures import figure_bytes
from mdir_hf.render.figures.layer_map import short_number
from tests.render.figures.drawn_reports import NO_ARRAYS, a_layer_map, a_report

pytest.importorskip("matplotlib")


def layer_axes(layers):
    figure = a_report(layers=layers, modules=None, arrays=NO_ARRAYS, embedding=None, unembedding=None).figures()[
        "layers"
    ]
    return figure, figure.axes[0]


@pytest.mark.parametrize(("size", "dark"), [((1, 1), False), ((1, 128), True), ((128, 2), False), ((32, 48), False)])
def test_any_number_of_layers_is_drawn(size, dark):
    report = a_report(layers=a_layer_map(*size), modules=None, arrays=NO_ARRAYS, embedding=None, unembedding=None)
    figure = report.figures(dark=dark)["layers"]

    assert figure.axes[0].get_images()[0].get_array().shape == size
    assert len(figure.axes[0].lines) == min(size)  # one mark for each ancestor
    assert figure_bytes(figure, "png").startswith(b"\x89PNG")


def test_marks_stand_on_the_layers_of_a_hybrid():
    # Layers 1, 3 and 5 of the reference, and 0, 2 of the candidate, have attention at all.
    layers = a_layer_map(
        3, 2, reference_layers=[1, 3, 5], candidate_layers=[0, 2], matches=[[3, 0, -40.0], [5, 2, -30.0]]
    )
    _, axes = layer_axes(layers)

    marks = sorted((float(line.get_ydata()[0]), float(line.get_xdata()[0])) for line in axes.lines)
    assert marks == [(1.0, 0.0), (2.0, 1.0)]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["1", "3", "5"]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["0", "2"]


def test_small_maps_have_numbers_and_large_ones_have_none():
    _, small = layer_axes(a_layer_map(3, 3))
    _, large = layer_axes(a_layer_map(40, 40))

    assert sorted(text.get_text() for text in small.texts) == sorted(["40", "41", "42", "1.5", *["0"] * 5])
    assert list(large.texts) == []


def test_shades_grow_from_nothing_to_thousands():
    matrix = [[0.0, -1.0, -20.0, -7000.0, -42_000.0]]
    _, axes = layer_axes(a_layer_map(1, 5, matrix=matrix, matches=[]))
    shades = np.asarray(axes.get_images()[0].get_array())[0]

    assert shades[0] == 0.0 and shades[-1] == 1.0
    assert (np.diff(shades) > 0.03).all()  # each told from the next


def test_the_pattern_is_said_in_words():
    figure, _ = layer_axes(a_layer_map(2, 4, pattern="repeated"))

    assert "layers were repeated" in figure.get_label() and "layers were repeated" in figure.texts[1].get_text()


@pytest.mark.parametrize(
    ("evidence", "text"),
    [(0.0, "0"), (-0.0, "0"), (0.04, "0"), (0.4, "0.4"), (1.0, "1"), (37.4, "37"), (7642.1, "7642"), (22_345.0, "22k")],
)
def test_numbers_are_short(evidence, text):
    assert short_number(evidence) == text
