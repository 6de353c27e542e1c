"""Figures as bytes and as elements of a page, with any names of models."""

import html.parser
import re
import xml.etree.ElementTree as ET

import pytest

from mdir_hf.errors import InputError
from mdir_hf.render.figures import draw_survey_matrix, figure_bytes, figure_img
from mdir_hf.render.figures.layer_map import draw_layer_map
from mdir_hf.render.figures.polar_factor import draw_polar_factor
from mdir_hf.render.figures.sheet import drawing, fitted, text_width
from mdir_hf.render.figures.theme import DARK, LIGHT, colour_map, ink_on
from tests.render.figures.drawn_reports import HOSTILE_IN_FIGURES, a_model, a_report

pytest.importorskip("matplotlib")

SVG = "{http://www.w3.org/2000/svg}"
DRAWN = {"svg", "title", "desc", "defs", "style", "g", "path", "use", "image", "clipPath", "rect", "pattern"}


def hostile_report(name, **fields):
    return a_report(reference=a_model(name), candidate=a_model(name[::-1]), **fields)


def figures_with_names(report):
    names = [report.reference.repo, report.candidate.repo]
    with drawing():
        yield draw_polar_factor(report, "embedding", report.arrays.embedding.polar, LIGHT, is_matched=False)
        yield draw_layer_map(report, report.layers, LIGHT)
    yield draw_survey_matrix(names, [[0.0, -30.0]] * 2, [["homologous"] * 2] * 2)


def text_boxes(figure):
    """Return the boxes of all texts of a figure in inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.text import Text

    with drawing():
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
        for text in figure.findobj(Text):
            if text.get_visible() and text.get_text().strip():
                box = text.get_window_extent(canvas.get_renderer())
                if box.width:
                    yield (
                        text.get_text(),
                        box.x0 / figure.dpi,
                        box.y0 / figure.dpi,
                        box.x1 / figure.dpi,
                        box.y1 / figure.dpi,
                    )


def assert_everything_is_on_the_sheet(figure):
    width, height = figure.get_size_inches()
    for text, left, bottom, right, top in text_boxes(figure):
        # 0.02 inches allow for antialiasing and letters that overhang their box.
        assert left > -0.02 and bottom > -0.02 and right < width + 0.02 and top < height + 0.02, text


@pytest.mark.parametrize("name", HOSTILE_IN_FIGURES)
def test_hostile_names_break_no_figure(name):
    for figure in figures_with_names(hostile_report(name)):
        assert_everything_is_on_the_sheet(figure)
        svg = figure_bytes(figure, "svg")
        root = ET.fromstring(svg)
        assert {element.tag.removeprefix(SVG) for element in root.iter()} <= DRAWN
        assert not [name for element in root.iter() for name in element.attrib if name.lower().startswith("on")]
        assert root.find(f"{SVG}desc").text == figure.get_label()
        assert len(figure.get_label()) < 700


@pytest.mark.parametrize("widths", [(16_384, 16_384), (64, 8192), (1, 1)])
def test_no_text_leaves_the_sheet_at_any_width(widths):
    models = {
        "reference": a_model("W" * 300, hidden_size=widths[0]),
        "candidate": a_model("me/b", hidden_size=widths[1]),
    }
    figures = a_report(**models).figures()
    for name in ("embedding", "embedding_matched"):
        assert_everything_is_on_the_sheet(figures[name])


def test_a_missing_glyph_is_a_square_and_the_line_fits():
    with drawing():
        assert fitted("a模b", 100.0, 8.0) == "a□b"
        assert fitted("e\u0301", 100.0, 8.0) in ("e\u0301", "e")
        for room in (20.0, 40.0, 100.0, 300.0):
            shown = fitted("owner/" + "W" * 400 + "-end", room, 8.0)
            assert text_width(shown, 8.0) <= room and "…" in shown
        assert fitted("owner/" + "W" * 400 + "-end", 100.0, 8.0).endswith("-end")


def test_an_svg_says_what_it_shows_and_refers_to_nothing_outside():
    figure = a_report().figures()["neurons"]
    svg = figure_bytes(figure, "svg").decode()
    root = ET.fromstring(svg)

    assert root.attrib["role"] == "img" and root.attrib["aria-labelledby"] == "title desc"
    assert root.find(f"{SVG}title").text == "2 of 2 compared layers have a partner"
    assert root.find(f"{SVG}desc").text == figure.get_label()
    assert "DOCTYPE" not in svg and "metadata" not in svg
    links = [v for element in root.iter() for k, v in element.attrib.items() if k.endswith("href")]
    assert links and all(link.startswith(("#", "data:image/png")) for link in links)
    assert set(re.findall(r"https?://[^\"'\s<]+", svg)) <= {
        "http://www.w3.org/2000/svg",
        "http://www.w3.org/1999/xlink",
    }  # names, not addresses


def test_another_format_is_refused():
    with pytest.raises(InputError, match="svg or png"):
        figure_bytes(a_report().figures()["neurons"], "pdf")


class Elements(html.parser.HTMLParser):
    """A parser that lists the elements of a page."""

    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))


def elements(markup):
    parser = Elements()
    parser.feed(markup)
    return parser.found


def test_a_figure_of_other_code_is_rendered():
    from matplotlib.figure import Figure

    figure = Figure()
    figure.set_label('a "label"')

    assert 'alt="a &quot;label&quot;"' in figure_img(figure)
    assert b'<title id="title">a "label"</title>' in figure_bytes(figure, "svg")


def luminance(rgb):
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in rgb]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def rgb(colour):
    return tuple(int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))


@pytest.mark.parametrize("theme", [LIGHT, DARK])
def test_shades_read_in_greyscale_and_text_on_them_is_legible(theme):
    colours = colour_map(theme)
    shades = [tuple(colours(k / 100)[:3]) for k in range(101)]
    greys = [luminance(shade) for shade in shades]

    assert greys == sorted(greys) or greys == sorted(greys, reverse=True)
    # WCAG requires 4.5 : 1 for text of this size.
    assert all(contrast(rgb(ink_on(theme, k / 100)), shade) >= 4.5 for k, shade in enumerate(shades))
    for text in (theme.ink, theme.muted, theme.null, theme.observed):
        assert contrast(rgb(text), rgb(theme.paper)) >= 4.5
