"""Adapts a figure for a paper: the width of a column, without the head."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from mdir_hf.errors import InputError
from mdir_hf.render.figures.sheet import HEAD, WIDTH

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FigureStyle = Literal["screen", "column", "page"]
"""``screen`` has the finding as its title. For a paper, without title: ``column`` (3.35 inches) or ``page`` (6.9)."""

WIDTHS = {"column": 3.35, "page": 6.9}
"""Widths of one column and of two, in inches."""

SMALLEST_POINTS = 5.0
"""Smallest text size in print, as most journals require."""

BAR_LABEL = 0.3
"""Inches of the head that remain, for the label of the colour bar."""


def expect_style(style: str) -> None:
    """Validate the name of a style.

    Raises:
        InputError: If it is unknown.
    """
    if style != "screen" and style not in WIDTHS:
        raise InputError(f"there is no figure style {style!r}; use screen, column or page")


def for_paper(figure: Figure, style: FigureStyle) -> Figure:
    """Remove the head of a figure, in place, and scale it to a column.

    Its label stays, as a caption. ``screen`` changes nothing.
    """
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
