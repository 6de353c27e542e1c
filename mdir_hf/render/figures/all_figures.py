"""Draw the figures of a report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from mdir_hf.errors import InputError
from mdir_hf.names import without_folders
from mdir_hf.render.figures.layer_drift import draw_layer_drift
from mdir_hf.render.figures.layer_flow import draw_layer_flow
from mdir_hf.render.figures.layer_map import draw_layer_map, draw_neuron_map
from mdir_hf.render.figures.polar_factor import draw_polar_factor
from mdir_hf.render.figures.sheet import HEAD, WIDTH, drawing
from mdir_hf.render.figures.theme import theme_of
from mdir_hf.report.terms import LayerPattern

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from mdir_hf.report import HomologyReport

FigureStyle = Literal["screen", "column", "page"]
"""``screen`` shows the finding as the title. ``column`` and ``page`` have no title, for papers."""

WIDTHS = {"column": 3.35, "page": 6.9}
"""Widths of a column and of a page, in inches."""

SMALLEST_POINTS = 5.0
"""Smallest text size, in points, that most journals allow."""

BAR_LABEL = 0.3
"""Height, in inches, that is kept for the colour bar's label if the title is removed."""


def draw_figures(
    report: HomologyReport,
    *,
    dark: bool = False,
    style: FigureStyle = "screen",
    labels: tuple[str, str] | None = None,
) -> Mapping[str, Figure]:
    """Draw the figures for which the report has data; return them keyed by name, in reading order.

    The names are ``neurons``, ``embedding`` and ``embedding_matched`` (polar factors; not for reports from JSON),
    ``unembedding`` and ``unembedding_matched``, ``layers``, ``flow`` (unless all layers stayed in place) and ``drift``.

    Raises:
        InputError: If matplotlib is not installed or the style is unknown.
    """
    expect_style(style)
    sides = (report.reference, report.candidate)
    names = labels or without_folders([model.repo for model in sides])
    reference, candidate = (replace(model, repo=name) for model, name in zip(sides, names, strict=True))
    report = replace(report, reference=reference, candidate=candidate)
    theme = theme_of(dark=dark)
    figures: dict[str, Figure] = {}
    with drawing():
        if report.neurons is not None and report.neurons.certain:
            figures["neurons"] = draw_neuron_map(report, report.neurons, theme)
        for name in ("embedding", "unembedding"):
            for is_matched in (False, True):
                arrays = getattr(report.arrays, name)
                picture = arrays.matched if is_matched else arrays.polar
                if picture is not None:
                    key = f"{name}_matched" if is_matched else name
                    figures[key] = draw_polar_factor(report, name, picture, theme, is_matched=is_matched)
        if report.layers is not None and report.layers.matrix:
            figures["layers"] = draw_layer_map(report, report.layers, theme)
            if report.layers.matches and report.layers.pattern is not LayerPattern.IDENTITY:
                figures["flow"] = draw_layer_flow(report, report.layers, theme)
        if report.projections is not None and any(result.cosine is not None for result in report.projections.results):
            figures["drift"] = draw_layer_drift(report, report.projections, theme)
        return {name: for_paper(figure, style) for name, figure in figures.items()}


def expect_style(style: str) -> None:
    """Check a style name.

    Raises:
        InputError: If the style is unknown.
    """
    if style != "screen" and style not in WIDTHS:
        raise InputError(f"there is no figure style {style!r}; use screen, column or page")


def for_paper(figure: Figure, style: FigureStyle) -> Figure:
    """Scale a figure for print and remove its title, in place; ``screen`` leaves it unchanged."""
    from matplotlib.lines import Line2D
    from matplotlib.text import Text

    if style == "screen":
        return figure
    for text in list(figure.texts[:2]):  # title and subtitle
        text.remove()
    width, height = figure.get_size_inches()
    lower = height - HEAD + BAR_LABEL
    for axes in figure.axes:
        box = axes.get_position()
        axes.set_position((box.x0, box.y0 * height / lower, box.width, box.height * height / lower))
    for text in figure.texts:
        x, y = text.get_position()
        text.set_position((x, y * height / lower))
    scale = WIDTHS[style] / max(width, WIDTH)
    for artist in figure.findobj(Text):
        artist.set_fontsize(max(SMALLEST_POINTS, scale * artist.get_fontsize()))
    for line in figure.findobj(Line2D):
        line.set_linewidth(scale * line.get_linewidth())
        line.set_markersize(scale * line.get_markersize())
    figure.set_size_inches(scale * width, scale * lower)
    return figure
