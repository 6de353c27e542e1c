"""Texts and positions of the cells of a figure."""

import numpy as np
import pytest

from mdir_hf.render.figures import figure_cells
from mdir_hf.report import MatrixArrays, ReportArrays
from tests.render.figures.drawn_reports import HOSTILE_NAMES, PERMUTATION, WIDTH, a_layer_map, a_model, a_report

pytest.importorskip("matplotlib")


@pytest.fixture(scope="module")
def report():
    return a_report()


@pytest.fixture(scope="module")
def grids(report):
    return {name: figure_cells(report, name, figure) for name, figure in report.figures().items()}


def test_figures_of_cells_have_them_and_charts_have_none(grids):
    assert {name for name, found in grids.items() if found} == {
        *("neurons", "embedding", "embedding_matched", "unembedding", "unembedding_matched", "layers", "flow", "drift")
    }


def test_a_grid_covers_its_axes(report, grids):
    for name, figure in report.figures().items():
        for grid, axes in zip(grids[name], figure.axes, strict=False):
            left, top, width, height = grid.box
            place = axes.get_position()
            assert (left, width) == pytest.approx((place.x0, place.width))
            assert (top, height) == pytest.approx((1.0 - place.y1, place.height))
            shape = (len(grid.rows), len(grid.columns))
            assert grid.values is None or grid.values.shape == shape
            assert grid.texts is None or (len(grid.texts), {*map(len, grid.texts)}) == (shape[0], {shape[1]})


def test_a_cell_of_channels_names_those_that_match(grids):
    (grid,) = grids["embedding"]
    assert grid.sides == ("channel {} of owner/base", "channel {} of me/tuned")
    assert {(row, column) for row, column, _ in grid.notes} == {(i, int(j)) for i, j in enumerate(PERMUTATION)}
    assert all(grid.values[row, column] > 0.9 for row, column, _ in grid.notes)
    (matched,) = grids["embedding_matched"]
    assert matched.notes == () and matched.sides[0].startswith("place ")


@pytest.mark.parametrize("n", [5, 7, 24])
def test_a_block_names_every_channel_once(n):
    channels = np.stack([np.arange(WIDTH), PERMUTATION])
    arrays = MatrixArrays(np.zeros((n, n), dtype=np.float32), None, channels)
    report = a_report(arrays=ReportArrays(arrays))
    (grid,) = figure_cells(report, "embedding", report.figures()["embedding"])
    named = []
    for label in grid.rows:
        first, _, last = label.partition(" to ")
        named += range(int(first), int(last or first) + 1)
    assert named == list(range(WIDTH))
    for row, column, note in grid.notes:
        i, j = (int(word) for word in note.split() if word.isdigit())
        for place, label in ((i, grid.rows[row]), (j, grid.columns[column])):
            first, _, last = label.partition(" to ")
            assert int(first) <= place <= int(last or first)


def test_labels_beside_a_grid_name_each_row_and_column_and_cover_the_labels_of_the_figure(report, grids):
    for name in ("neurons", "embedding", "layers", "flow"):
        figure = report.figures()[name]
        width = figure.get_size_inches()[0] * 72.0
        for at, grid in enumerate(grids[name]):
            strips = {strip.side: strip for strip in grid.ticks}
            for side, strip in strips.items():
                assert len(strip.labels) == len(grid.columns if side == "bottom" else grid.rows)
            axes = figure.axes[at]
            low, high = sorted(axes.get_ylim())
            labels = zip(axes.get_yticks(), axes.get_yticklabels(), strict=True)
            drawn = [label.get_text() for place, label in labels if low <= place <= high]
            assert set(drawn) <= set(strips["left"].labels)
            assert strips["left"].depth * width > max(len(text) for text in drawn) * 4.0
    assert grids["embedding_matched"][0].ticks == ()  # positions are not channels
    assert {strip.side for strip in grids["flow"][0].ticks} == {"left", "right"}


def test_a_cell_of_layers_gives_its_p_and_says_which_match(grids):
    (grid,) = grids["layers"]
    assert grid.values[1, 1] == -41.0
    assert (1, 1, "they match, log10 p -41") in grid.notes
    (flow,) = grids["flow"]
    assert flow.texts[1] == ("matches layer 1 of owner/base, log10 p -41",)


def test_the_cells_of_hybrids_are_named_by_their_layers():
    layers = a_layer_map(
        2, 2, pattern="partial", reference_layers=(3, 7), candidate_layers=(1, 5), matches=((7, 5, -50.0),)
    )
    report = a_report(layers=layers, modules=None)
    figures = report.figures()
    (grid,) = figure_cells(report, "layers", figures["layers"])
    assert (grid.rows, grid.columns) == (("3", "7"), ("1", "5"))
    assert [note[:2] for note in grid.notes] == [(1, 1)]
    (flow,) = figure_cells(report, "flow", figures["flow"])
    assert flow.texts == (("matches none",), ("matches layer 7 of owner/base, log10 p -50",))


@pytest.mark.parametrize("name", HOSTILE_NAMES[1::3], ids=range(1, len(HOSTILE_NAMES), 3))
def test_a_name_leaves_one_place_for_a_label(name):
    report = a_report(reference=a_model(name), arrays=ReportArrays(), embedding=None, unembedding=None, modules=None)
    (grid,) = figure_cells(report, "layers", report.figures()["layers"])
    assert all(side.count("{}") == 1 and side.isprintable() for side in grid.sides)


def test_a_cell_of_drift_gives_the_outcome_and_its_cosines(report, grids):
    by_role = {grid.rows[0]: grid for grid in grids["drift"]}
    assert list(by_role) == ["query", "key", "value", "MLP gate", "MLP down"]
    assert by_role["MLP gate"].columns == ("0", "1", "2")
    assert by_role["MLP gate"].texts[0][2] == "kept in part (50%), mean cosine 0.500, deciles 0.100 to 0.900"
    assert by_role["value"].texts[0][1] == "replaced, mean cosine 0.010, deciles 0.000 to 0.000"
    assert by_role["MLP down"].texts[0][2] == "not compared"
    assert sum(by_role["query"].widths) == pytest.approx(1.0)
