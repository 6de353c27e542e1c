"""Dendrograms of a survey: order of leaves, equal copies, any names and any number of models."""

import numpy as np
import pytest

from mdir_hf.errors import InputError
from mdir_hf.render.figures import dendrogram_cells, draw_dendrogram, figure_bytes
from mdir_hf.render.figures.dendrogram import MOST_ROWS

pytest.importorskip("matplotlib")

APART = np.array([[0.0, 0.5, 0.1], [0.5, 0.0, 0.5], [0.1, 0.5, 0.0]])


def names_of(figure):
    return [label.get_text() for label in figure.axes[0].get_yticklabels()]


def test_the_finding_is_the_alt_text():
    figure = draw_dendrogram([(["a", "far", "b"], APART), (["x", "y"], [[0.0, 0.3], [0.3, 0.0]])], alone=4)
    assert figure.get_label() == "Dendrogram of 5 models in 2 groups. The closest are a and b, 0.1 apart."
    assert any("4 more without a relative" in text.get_text() for text in figure.texts)


def test_leaves_name_their_nearest_and_branches_their_models():
    groups = [(["a", "far", "b"], APART), (["x", "y"], [[0.0, 0.3], [0.3, 0.0]])]
    figure = draw_dendrogram(groups)
    first, second = dendrogram_cells(groups, figure)
    place = {name: row for row, name in enumerate(first.rows)}
    assert first.columns == ("", "0.1", "0.5")
    leaf, pair, all_three = first.texts[place["a"]]
    assert leaf == "a: nearest to it is b, an RMS difference of 0.1 times the RMS of their rows"
    assert set(pair.partition(":")[0].split(" and ")) == {"a", "b"} and "joined at an RMS difference of 0.1 " in pair
    assert "joined at an RMS difference of 0.5 " in all_three
    assert first.texts[place["b"]][1:] == (pair, all_three)
    assert first.texts[place["far"]][0] == first.texts[place["far"]][1]  # it joins at 0.5
    assert first.models[place["a"]][0] == ("a", "b") and set(first.models[place["b"]][1]) == {"a", "b"}
    assert "far" in first.models[place["b"]][2]
    assert {row[-1].partition(":")[0] for row in second.texts} <= {"x and y", "y and x"}


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


def test_equal_copies_are_one_branch_beside_their_names():
    groups = [(["a", "b"], [[0.0, 0.0], [0.0, 0.0]])]
    (grid,) = dendrogram_cells(groups, draw_dendrogram(groups))
    assert [row[0].partition(":")[0] for row in grid.texts] == list(grid.rows)
    assert grid.texts[0][1] == grid.texts[1][1] and "joined at an RMS difference of 0 times" in grid.texts[0][1]
    assert min(grid.widths) > 0.1


def ticks_of(figure):
    axes = figure.axes[0]
    return dict(zip(axes.get_xticks(), (label.get_text() for label in axes.get_xticklabels()), strict=True))


def test_the_left_end_of_the_axis_is_zero_if_copies_are_equal():
    equal = [[0.0, 1e-9], [1e-9, 0.0]]  # equal up to rounding
    only_equal = draw_dendrogram([(["a", "b"], equal)])
    assert list(ticks_of(only_equal).values()) == ["0"]
    assert list(ticks_of(only_equal)) == [only_equal.axes[0].get_xlim()[0]]

    mixed = draw_dendrogram([(["a", "b"], equal), (["x", "y"], [[0.0, 0.3], [0.3, 0.0]])])
    left, right = mixed.axes[0].get_xlim()
    ticks = ticks_of(mixed)
    assert ticks.pop(left) == "0" and ticks
    assert all(0.3 <= place < right and text == f"{place:g}" for place, text in ticks.items())

    apart = draw_dendrogram([(["x", "y"], [[0.0, 0.3], [0.3, 0.0]])])
    assert "0" not in ticks_of(apart).values()


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


def test_families_that_do_not_fit_on_a_sheet_are_counted():
    size = MOST_ROWS // 2 + 1
    big = (1.0 - np.eye(size), [f"m{at}" for at in range(size)])
    figure = draw_dendrogram([(big[1], big[0])] * 2)
    assert len(names_of(figure)) == size
    assert any("1 groups left out" in text.get_text() for text in figure.texts)


@pytest.mark.parametrize("groups", [[], [(["a"], [[0.0]])], [(["a", "b"], [[0.0]])]])
def test_an_invalid_group_is_reported(groups):
    with pytest.raises(InputError, match="m x m distances"):
        draw_dendrogram(groups)
