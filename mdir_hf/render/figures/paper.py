"""A figure for a paper: as wide as a column, without the head, which the caption says better."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from mdir_hf.errors import InputError
from mdir_hf.render.figures.sheet import HEAD, WIDTH

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FigureStyle = Literal["screen", "column", "page"]
"""``screen``: with its finding as title. For a paper, without: ``column``, 3.35 inches wide, or ``page``, 6.9."""

WIDTHS = {"column": 3.35, "page": 6.9}
"""Inches of one column and of two."""

SMALLEST_POINTS = 5.0
"""Text is not smaller in print: what most journals ask for."""

BAR_LABEL = 0.3
"""Inches of the head that stay: the label of a bar of shades stands there."""


def expect_style(style: str) -> None:
    """Check the name of a style.

    Raises:
        InputError: If no figure has that name.
    """
    if style != "screen" and style not in WIDTHS:
        raise InputError(f"there is no style {style!r} of figures; there are screen, column and page")


def for_paper(figure: Figure, style: FigureStyle) -> Figure:
    """Take the head off a figure and bring it to the width of a column, its text and lines with it.

    Args:
        figure: As :mod:`~mdir_hf.render.figures.sheet` makes it; it is changed. Its label stays, as a caption.
        style: ``column`` or ``page``; at ``screen`` it stays as it is.
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
