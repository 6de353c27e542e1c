"""The drift of each projection: a band of cosines by layer, and outcomes distinguishable without colour."""

from dataclasses import replace

import pytest

from mdir_hf.render.figures import draw_figures
from mdir_hf.render.figures.theme import DARK, LIGHT
from mdir_hf.report import LayerPair, Outcome
from tests.render.figures.drawn_reports import a_report, a_table
from tests.render.figures.test_rendering import assert_everything_is_on_the_sheet

pytest.importorskip("matplotlib")


def drift_of(table, *, dark=False):
    return draw_figures(a_report(projections=table), dark=dark)["drift"]


def dots(axes):
    return {line.get_markerfacecolor(): line for line in axes.get_lines() if line.get_marker() == "o"}


@pytest.mark.parametrize("dark", [False, True])
def test_a_projection_without_a_partner_is_hollow(dark):
    theme = DARK if dark else LIGHT
    value = drift_of(a_table(), dark=dark).axes[2]
    filled, hollow = dots(value)[theme.ink], dots(value)[theme.paper]
    assert (list(filled.get_xdata()), list(filled.get_ydata())) == ([0, 2], [0.98, 0.98])
    assert (list(hollow.get_xdata()), list(hollow.get_ydata())) == ([1], [0.01])


def test_a_layer_that_was_not_compared_has_no_mark():
    down = drift_of(a_table()).axes[4]
    assert [x for line in dots(down).values() for x in line.get_xdata()] == [0, 1]


def test_all_bands_have_one_scale_that_holds_the_lowest_decile():
    figure = drift_of(a_table())
    assert len({axes.get_ylim() for axes in figure.axes}) == 1
    assert figure.axes[0].get_ylim()[0] < 0.0 < 1.0 < figure.axes[0].get_ylim()[1]


def test_small_changes_of_a_fine_tune_fill_the_band():
    table = a_table()
    kept = tuple(result for result in table.results if result.outcome is Outcome.KEPT)
    assert drift_of(replace(table, results=kept)).axes[0].get_ylim()[0] == pytest.approx(0.9)


def test_a_deep_model_still_fits():
    (first, *_) = a_table().results
    deep = tuple(replace(first, layer=LayerPair(at, at)) for at in range(126))
    figure = drift_of(a_table(results=deep))
    assert_everything_is_on_the_sheet(figure)
    assert [text.get_text() for text in figure.axes[0].get_xticklabels()][:3] == ["0", "5", "10"]


def test_everything_is_on_the_sheet():
    assert_everything_is_on_the_sheet(drift_of(a_table()))


def test_a_table_without_cosines_has_no_figure():
    empty = tuple(replace(result, cosine=None, deciles=()) for result in a_table().results)
    assert "drift" not in a_report(projections=a_table(results=empty)).figures()
