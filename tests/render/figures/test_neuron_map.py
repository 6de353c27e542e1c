"""The map of neurons: a number for each pair of layers, and a ring for each match."""

import numpy as np
import pytest

from mdir_hf.render.figures import figure_bytes, figure_cells
from tests.render.figures.drawn_reports import NO_ARRAYS, a_report, some_neurons

pytest.importorskip("matplotlib")


def drawn(neurons, *, dark=False):
    report = a_report(neurons=neurons, layers=None, modules=None, arrays=NO_ARRAYS, embedding=None, unembedding=None)
    return report, report.figures(dark=dark)["neurons"]


def test_shades_are_shares_of_the_tested_neurons_and_matches_have_a_ring():
    _, figure = drawn(some_neurons())
    axes = figure.axes[0]

    np.testing.assert_allclose(axes.get_images()[0].get_array(), np.array([[32, 0], [0, 31]]) / 32)
    assert [(line.get_xdata()[0], line.get_ydata()[0]) for line in axes.lines] == [(0, 0), (1, 1)]
    assert {text.get_text() for text in axes.texts} == {"32", "0", "31"}
    assert "63 of 64 tested neurons are copies" in figure.get_label()


def test_a_figure_without_matches_states_the_largest_number():
    _, figure = drawn(some_neurons(matches=(), certain=((2, 1), (0, 3)), log10_p=0.0))

    assert "no pair of layers" in figure.get_label() and "at most 3 of 32 neurons" in figure.get_label()


@pytest.mark.parametrize(("n", "dark"), [(1, False), (64, True)])
def test_any_number_of_layers_is_drawn(n, dark):
    layers = tuple(range(n))
    counts = ((1,) * n,) * n
    neurons = some_neurons(
        reference_layers=layers, candidate_layers=layers, own_number=counts, certain=counts, matches=()
    )
    _, figure = drawn(neurons, dark=dark)

    assert figure_bytes(figure, "png").startswith(b"\x89PNG")


def test_a_cell_gives_its_number_and_says_whether_the_layers_match():
    report, figure = drawn(some_neurons())
    (grid,) = figure_cells(report, "neurons", figure)

    assert grid.rows == grid.columns == ("0", "2")
    assert grid.texts == (
        ("32 of 32 neurons are copies", "0 of 32 neurons are copies"),
        ("0 of 32 neurons are copies", "31 of 32 neurons are copies"),
    )
    assert grid.notes == ((0, 0, "the two layers match"), (1, 1, "the two layers match"))
