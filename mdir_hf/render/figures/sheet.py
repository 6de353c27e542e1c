"""Lay out figures as sheets with a title, a subtitle and axes placed in inches.

No layout engine is used, so untrusted text cannot move the axes.
"""

from __future__ import annotations

import threading
import unicodedata
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

from mdir_hf.installing import require_extra
from mdir_hf.names import ELLIPSIS, shown_name
from mdir_hf.render.figures.theme import Theme, colour_map, evidence_shade

if TYPE_CHECKING:
    import numpy.typing as npt
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.ft2font import FT2Font

Box = tuple[float, float, float, float]

WIDTH = 5.0
"""Width in inches, equal to 480 CSS pixels. Text of 8 points is readable on a phone."""

HEAD = 0.86
"""Height above the axes, in inches, for the title, two subtitle lines, and the colour bar's label."""

SHORTEST = 1.5
"""Minimum side of a map in inches, so that its label fits."""

POINTS = 72.0
TITLE_SIZE, TEXT_SIZE, SMALL_SIZE = 11.0, 9.0, 8.5

FONT = "DejaVu Sans"  # comes with matplotlib, so it is the same everywhere

_MISSING = "\N{WHITE SQUARE}"
_SETTINGS = {
    "font.family": [FONT],
    "text.parse_math": False,  # dollar signs in repository names are shown literally
    "svg.hashsalt": "mdir-hf",
    "svg.fonttype": "path",
    "hatch.linewidth": 0.6,
}

# matplotlib's settings are global to the process: two threads must not change them at once.
_LOCK = threading.RLock()


@contextmanager
def drawing() -> Iterator[None]:
    """Use this package's matplotlib settings inside the block.

    Raises:
        MissingExtraError: If matplotlib is not installed.
    """
    require_extra("plot", "matplotlib", purpose="figures need matplotlib")
    import matplotlib.style

    with _LOCK, matplotlib.style.context(["default", _SETTINGS]):
        yield


def new_sheet(theme: Theme, height: float, title: str, subtitle: str, *, width: float = WIDTH) -> Figure:
    """Create a figure with a title and a subtitle of up to two lines; ``height`` includes both, in inches."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), facecolor=theme.paper)
    room = (width - 0.3) * POINTS
    top = 1.0 - 0.12 / height
    title = fitted(title, room, TITLE_SIZE, bold=True)
    figure.text(0.15 / width, top, title, color=theme.ink, fontsize=TITLE_SIZE, fontweight="bold", va="top")
    lines = "\n".join(fitted(line, room, SMALL_SIZE) for line in subtitle.splitlines())
    below = top - 0.22 / height
    figure.text(0.15 / width, below, lines, color=theme.muted, fontsize=SMALL_SIZE, va="top", linespacing=1.35)
    return figure


def add_axes(figure: Figure, theme: Theme, left: float, bottom: float, width: float, height: float) -> Axes:
    """Add axes to a figure, with position (from the lower-left corner) and size in inches."""
    sheet_width, sheet_height = figure.get_size_inches()
    box = (left / sheet_width, bottom / sheet_height, width / sheet_width, height / sheet_height)
    axes = figure.add_axes(box, facecolor=theme.paper)
    axes.tick_params(colors=theme.muted, labelcolor=theme.ink, labelsize=SMALL_SIZE, length=2.5, pad=2.5)
    for spine in axes.spines.values():
        spine.set_color(theme.grid)
        spine.set_linewidth(0.8)
        spine.set_zorder(-1)  # below the cells of a map, so that the frame does not hide the outer channels
    return axes


def label_sides(figure: Figure, axes: Axes, theme: Theme, what: str, reference: str, candidate: str) -> None:
    """Label the axes of a map: vertical for the reference, horizontal for the candidate.

    Names are shortened to fit. ``what`` is the word for a row or column.
    """
    sheet_width, sheet_height = figure.get_size_inches()
    box = axes.get_position()
    middle = sheet_width * (box.x0 + box.x1) / 2
    rooms = {"x": 2 * min(middle, sheet_width - middle) - 0.3, "y": (box.y1 - box.y0) * sheet_height}
    for side, model, name in (("x", "candidate", candidate), ("y", "reference", reference)):
        label = f"{what} of the {model}\n{fitted(shown_name(name), rooms[side] * POINTS, TEXT_SIZE)}"
        put = axes.set_xlabel if side == "x" else axes.set_ylabel
        put(label, color=theme.ink, fontsize=TEXT_SIZE, labelpad=4, linespacing=1.3)


def text_width(text: str, size: float, *, bold: bool = False) -> float:
    """Return the width of a line of text in points."""
    font = _font(bold=bold)
    font.set_size(size, 10.0 * POINTS)  # large, so that advances are not rounded to pixels
    font.set_text(text, 0.0)
    width: float = font.get_width_height()[0] / 640.0
    return width


def fitted(text: str, room: float, size: float, *, bold: bool = False) -> str:
    """Replace characters that the font lacks, and shorten a line to ``room`` points."""
    font = _font(bold=bold)
    text = "".join(_drawable(character, font) for character in text)
    if text_width(text, size, bold=bold) <= room:
        return text

    def elided(keep: int) -> str:
        return text[: keep // 2] + ELLIPSIS + text[len(text) - (keep - keep // 2) :]

    fits, too_long = 2, len(text)
    while too_long - fits > 1:
        keep = (fits + too_long) // 2
        if text_width(elided(keep), size, bold=bold) <= room:
            fits = keep
        else:
            too_long = keep
    return elided(fits) if len(text) > 3 else text


def _font(*, bold: bool) -> FT2Font:
    from matplotlib.font_manager import FontProperties, findfont, get_font

    return get_font(findfont(FontProperties(family=FONT, weight="bold" if bold else "normal")))


def _drawable(character: str, font: FT2Font) -> str:
    if font.get_char_index(ord(character)):
        return character
    # Drop a combining mark, but replace a letter.
    return "" if unicodedata.category(character).startswith("M") else _MISSING


def fill_cells(
    axes: Axes, theme: Theme, shades: npt.ArrayLike, extent: Box, *, origin: Literal["upper", "lower"] = "upper"
) -> None:
    """Fill axes with cells, one for each shade in [0, 1], without resampling."""
    cells = colour_map(theme)
    axes.imshow(
        shades, cmap=cells, vmin=0.0, vmax=1.0, extent=extent, origin=origin, aspect="auto", interpolation="none"
    )


def write_in_cell(axes: Axes, x: float, y: float, text: str, colour: str, size: float) -> None:
    """Write text centred at a position on a map."""
    axes.text(x, y, text, color=colour, fontsize=size, ha="center", va="center")


def shade_bar(
    figure: Figure,
    theme: Theme,
    box: Box,
    *,
    ticks: Sequence[tuple[float, str]],
    label: str,
) -> None:
    """Draw the colour bar beside a map.

    ``box`` is left, bottom, width and height in inches; ``ticks`` are positions in [0, 1] with labels.
    """
    import numpy as np

    axes = add_axes(figure, theme, *box)
    ramp = np.linspace(0.0, 1.0, 128)
    fill_cells(axes, theme, ramp[:, np.newaxis], (0, 1, 0, 1), origin="lower")
    axes.set_xticks([])
    axes.yaxis.tick_right()
    axes.set_yticks([place for place, _ in ticks], [text for _, text in ticks])
    axes.set_title(label, color=theme.ink, fontsize=SMALL_SIZE, loc="left", pad=5)


def evidence_ticks(ticks: Sequence[int]) -> list[tuple[float, str]]:
    """Return the position on the ramp and the label of each value of -log10 p."""
    return [(evidence_shade(-tick), spaced(tick)) for tick in ticks]


def spaced(number: int) -> str:
    """Format a number, with thousands separators if it has five or more digits, such as 4094 or 10 000."""
    return f"{number:,}".replace(",", "\N{NARROW NO-BREAK SPACE}") if number >= 10_000 else str(number)
