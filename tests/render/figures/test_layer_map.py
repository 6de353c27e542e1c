"""The map of layers: all sizes, ancestors at the right layers, numbers if they fit."""

import numpy as np
import pytest

from mdir_hf.render.figures import figure_bytes
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


def test_shades_grow_from_nothing_to_thousands():
    matrix = [[0.0, -1.0, -20.0, -7000.0, -42_000.0]]
    _, axes = layer_axes(a_layer_map(1, 5, matrix=matrix, matches=[]))
    shades = np.asarray(axes.get_images()[0].get_array())[0]

    assert shades[0] == 0.0 and shades[-1] == 1.0
    assert (np.diff(shades) > 0.03).all()  # adjacent ones are distinguishable
