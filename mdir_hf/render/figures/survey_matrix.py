"""Draw a survey as a matrix of every model against every other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from mdir_hf.errors import InputError
from mdir_hf.names import shown_name, without_folders
from mdir_hf.render.figures.layer_map import short_number
from mdir_hf.render.figures.sheet import (
    HEAD,
    POINTS,
    SMALL_SIZE,
    WIDTH,
    add_axes,
    drawing,
    evidence_ticks,
    fill_cells,
    fitted,
    new_sheet,
    shade_bar,
    write_in_cell,
)
from mdir_hf.render.figures.theme import EVIDENCE_TICKS, Theme, evidence_shade, ink_on, theme_of
from mdir_hf.report import Verdict
from mdir_hf.report.words import ICON, counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SIDE = 6.6
"""Side of a large matrix, in inches; smaller matrices have cells of LARGEST_CELL."""

LARGEST_CELL = 0.5

NUMBERED = 0.38
"""Minimum size, in inches, of cells that show a number beside the symbol."""

NAMED = 0.095
"""Minimum height, in inches, of rows that have their own names. Beyond about seventy models, only groups are named."""

SYMBOLED = 0.06
"""Minimum size, in inches, of cells that have a symbol."""

_NAMES = 2.3
_RIGHT = 0.9

_FILL = {Verdict.HOMOLOGOUS: "full", Verdict.NO_EVIDENCE: "none", Verdict.INCONCLUSIVE: "left"}

_LEGEND = (
    (Verdict.HOMOLOGOUS, "shared ancestry"),
    (Verdict.INCONCLUSIVE, "inconclusive"),
)


def draw_survey_matrix(
    names: Sequence[str],
    log10_p: Sequence[Sequence[float]],
    verdicts: Sequence[Sequence[str | None]],
    *,
    bounds: Sequence[Sequence[bool]] | None = None,
    layers: Sequence[Sequence[bool]] | None = None,
    groups: Sequence[Sequence[str]] | None = None,
    dark: bool = False,
) -> Figure:
    """Draw each pair's agreement as a shade and its verdict as a symbol, and groups as frames.

    For n names, ``log10_p`` (symmetric), ``verdicts``, ``bounds`` and ``layers`` are n x n. A verdict is None if the
    pair was not compared. log10 p is printed only if ``bounds`` says that it is a bound. Pairs without a finding are
    hatched unless ``layers`` says that their layers were compared. Models are in the order of ``groups``, if given,
    otherwise of ``names``.

    Raises:
        InputError: If sizes or names do not match, or matplotlib is not installed.
    """
    n = len(names)
    bounds, layers = ([[False] * n] * n if matrix is None else matrix for matrix in (bounds, layers))
    squares = _Squares(log10_p, verdicts, bounds, layers)
    if not n or any(len(rows) != n or any(len(row) != n for row in rows) for rows in squares):
        raise InputError(f"a survey of {n} models needs at least one model, and {n} x {n} p-values and verdicts")
    if groups is not None and sorted(name for group in groups for name in group) != sorted(names):
        raise InputError("every model of a survey must be in exactly one of its groups")
    place_of = {name: place for place, name in enumerate(names)}
    if groups is not None and len(place_of) < n:
        raise InputError("two models of a survey with groups have the same name")
    order = list(range(n)) if groups is None else [place_of[name] for group in groups for name in group]
    theme = theme_of(dark=dark)
    with drawing():
        return _draw(names, squares, groups, order, theme)


class _Squares(NamedTuple):
    log10_p: Sequence[Sequence[float]]
    verdicts: Sequence[Sequence[str | None]]
    bounds: Sequence[Sequence[bool]]
    layers: Sequence[Sequence[bool]]


def _draw(
    names: Sequence[str],
    squares: _Squares,
    groups: Sequence[Sequence[str]] | None,
    order: Sequence[int],
    theme: Theme,
) -> Figure:
    from matplotlib.patches import Rectangle

    n = len(order)
    compared = [(i, j) for i in range(n) for j in range(i) if squares.verdicts[i][j] is not None]
    n_related = sum(squares.verdicts[i][j] == Verdict.HOMOLOGOUS.value for i, j in compared)
    title = f"{n_related} of {len(compared)} compared pairs share weight ancestry"
    families = [] if groups is None else [group for group in groups if len(group) > 1]
    in_groups = "" if groups is None else f". Frames: {counted(len(families), 'group')} of relatives"
    cell = min(LARGEST_CELL, SIDE / n)
    side = cell * n
    width = max(WIDTH, _NAMES + side + _RIGHT)
    below = 0.9 if cell >= NAMED else 0.65
    numbers = (
        "\nNumbers: −log10 p, if it bounds a probability" if cell >= NUMBERED and any(map(any, squares.bounds)) else ""
    )
    figure = new_sheet(
        theme,
        HEAD + side + below,
        title,
        f"How much agrees, each model against each{in_groups}{numbers}",
        width=width,
    )
    axes = add_axes(figure, theme, _NAMES, below, side, side)
    _draw_cells(axes, theme, squares, order, cell)
    start = 0
    for size in map(len, groups or ()):
        if size > 1:
            thick = 1.8 if cell > 0.15 else 1.0
            frame = Rectangle((start - 0.5, start - 0.5), size, size, fill=False, edgecolor=theme.null, linewidth=thick)
            frame.set(clip_on=False, zorder=4)
            axes.add_patch(frame)
        start += size
    _name_rows(axes, theme, names, groups, order, cell)
    bar_height = max(min(side, 3.0), 0.9)
    ticks = EVIDENCE_TICKS if bar_height > 1.5 else EVIDENCE_TICKS[::2]
    bar = (_NAMES + side + 0.14, below + side - bar_height, 0.12, bar_height)
    shade_bar(figure, theme, bar, ticks=evidence_ticks(ticks), label="agreement")
    shown = _LEGEND if cell >= SYMBOLED else _LEGEND[-1:]
    none = ICON[Verdict.NO_EVIDENCE]
    marked = f"{none} hatched" if cell >= SYMBOLED else "without a shade"
    legend = "     ".join((*(f"{ICON[verdict]} {text}" for verdict, text in shown), "blank: not compared"))
    legend += f"\n{marked}: not found by embeddings or a few neurons; layers not compared"
    if any(map(any, squares.layers)) and cell >= SYMBOLED:
        legend += f"     {none} not found by layers either"
    figure.text(0.15 / width, 0.14 / figure.get_size_inches()[1], legend, color=theme.ink, fontsize=SMALL_SIZE)
    largest = max(families, key=len, default=[])
    most = f", the largest of {len(largest)}" if largest else ""
    grouped = "" if groups is None else f" They form {counted(len(families), 'group')} of two or more{most}."
    figure.set_label(f"Matrix of {counted(n, 'model')}: {title}.{grouped}")
    return figure


def _draw_cells(
    axes: Axes,
    theme: Theme,
    squares: _Squares,
    order: Sequence[int],
    cell: float,
) -> None:
    import numpy as np
    from matplotlib.patches import PathPatch, Rectangle
    from matplotlib.path import Path
    from matplotlib.transforms import Affine2D

    n = len(order)
    shades = np.full((n, n), np.nan)
    symbols: dict[tuple[Verdict, str], list[tuple[float, float]]] = {}
    not_found: list[tuple[float, float]] = []
    for row, i in enumerate(order):
        for column, j in enumerate(order):
            value = squares.verdicts[i][j]
            if i == j:
                axes.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, color=theme.grid, linewidth=0))
                continue
            if value is None:
                continue
            verdict = Verdict(value)
            is_found = verdict is not Verdict.NO_EVIDENCE
            if not is_found and not squares.layers[i][j]:
                not_found.append((column - 0.5, row - 0.5))
            shades[row, column] = evidence_shade(squares.log10_p[i][j] if is_found else 0.0)
            ink = ink_on(theme, float(shades[row, column]))
            is_numbered = cell >= NUMBERED and verdict is Verdict.HOMOLOGOUS and squares.bounds[i][j]
            if cell >= SYMBOLED or verdict is Verdict.INCONCLUSIVE:
                symbols.setdefault((verdict, ink), []).append((column, row - 0.18 * is_numbered))
            if is_numbered:
                write_in_cell(
                    axes, column, row + 0.2, short_number(math.floor(-squares.log10_p[i][j])), ink, SMALL_SIZE
                )
    if not_found and cell >= SYMBOLED:
        cell_path = Path.unit_rectangle()
        # One patch for all cells, because hundreds of models have tens of thousands of cells.
        all_ = Path.make_compound_path(*(cell_path.transformed(Affine2D().translate(x, y)) for x, y in not_found))
        axes.add_patch(PathPatch(all_, facecolor="none", edgecolor=theme.hatch, linewidth=0.0, hatch="/////"))
    size = POINTS * (min(0.1, 0.52 * cell) if cell >= SYMBOLED else 0.6 * cell)
    for (verdict, ink), places in symbols.items():
        axes.plot(
            *zip(*places, strict=True),
            linestyle="none",
            marker="o",
            markersize=size,
            color=ink,
            fillstyle=_FILL[verdict],
            markeredgewidth=0.09 * size,
            markerfacecoloralt="none",
        )
    fill_cells(axes, theme, np.ma.masked_invalid(shades), (-0.5, n - 0.5, n - 0.5, -0.5))


def _name_rows(
    axes: Axes,
    theme: Theme,
    names: Sequence[str],
    groups: Sequence[Sequence[str]] | None,
    order: Sequence[int],
    cell: float,
) -> None:
    """Label rows with numbers and names or, if rows are too short, label groups with first model and size."""
    n = len(order)
    room = (_NAMES - 0.25) * POINTS
    if cell >= NAMED:
        size = min(SMALL_SIZE + 0.5, 0.72 * cell * POINTS)
        short = without_folders(names)
        labels = [fitted(f"{shown_name(short[i])}  {row + 1}", room, size) for row, i in enumerate(order)]
        axes.set_yticks(range(n), labels, fontsize=size)
        step = next(s for s in (1, 2, 5, 10) if s * cell >= 0.17 or s == 10)
        axes.set_xticks(range(0, n, step), [str(column + 1) for column in range(0, n, step)])
        axes.set_xlabel("number of the model", color=theme.ink, fontsize=SMALL_SIZE)
        return
    places, labels, start = [], [], 0
    for group in groups or ():
        # Only groups at least as high as their label are labelled.
        if len(group) * cell >= 0.12:
            places.append(start + (len(group) - 1) / 2)
            labels.append(fitted(f"{shown_name(group[0])} +{len(group) - 1}", room, SMALL_SIZE))
        start += len(group)
    axes.set_yticks(places, labels)
    axes.set_xticks([])
