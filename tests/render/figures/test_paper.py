"""Figures for a paper: the width of a column, no header, custom labels, and nothing outside the sheet."""

import pytest

from mdir_hf.errors import InputError
from mdir_hf.render.figures.all_figures import SMALLEST_POINTS
from tests.render.figures.drawn_reports import a_report

pytest.importorskip("matplotlib")


@pytest.mark.parametrize(("style", "width"), [("column", 3.35), ("page", 6.9)])
def test_a_figure_is_as_wide_as_a_column(style, width, tmp_path):
    from matplotlib.text import Text

    report = a_report()
    drawn = report.figures(style=style, labels=("The base", "The copy"))
    assert drawn.keys() == report.figures().keys()
    for name, figure in drawn.items():
        assert figure.get_size_inches()[0] == pytest.approx(width)
        texts = [artist for artist in figure.findobj(Text) if artist.get_text()]
        assert min(artist.get_fontsize() for artist in texts) >= SMALLEST_POINTS
        figure.savefig(tmp_path / f"{name}.pdf")
        tight = figure.get_tightbbox()
        assert tight.y1 <= figure.get_size_inches()[1] + 0.02  # the part below the header is not cut
        assert not any(report.reference.repo in artist.get_text() for artist in texts)
    said = " ".join(artist.get_text() for artist in drawn["layers"].findobj(Text))
    assert "The base" in said and "The copy" in said


def test_an_unknown_style_is_refused():
    with pytest.raises(InputError, match="use screen, column or page"):
        a_report().figures(style="poster")
