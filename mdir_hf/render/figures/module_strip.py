"""Draw the most significant test of each role in each matched pair of layers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from mdir_hf.names import shown_name
from mdir_hf.render.figures.layer_map import short_number
from mdir_hf.render.figures.sheet import (
    HEAD,
    POINTS,
    SMALL_SIZE,
    TEXT_SIZE,
    WIDTH,
    add_axes,
    evidence_ticks,
    fitted,
    hatched,
    new_sheet,
    shade_bar,
    text_width,
    write_in_cell,
)
from mdir_hf.render.figures.theme import EVIDENCE_TICKS, Theme, colour_map, evidence_shade, ink_on
from mdir_hf.report import ExpertsFound, LayerPair, ModuleResult, ModuleRole, ModuleTest

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from mdir_hf.report import HomologyReport

COLUMNS_OF_A_BAND = 24
WIDEST_CELL, ROW = 0.6, 0.27
"""Maximum width of a cell, and height of a row, in inches."""

NUMBERED = 0.3
"""Minimum width, in inches, of cells that show a number beside the letter."""

_LEFT, _RIGHT = 0.72, 0.82
_LAYER_ROWS = 0.36


_Cells = Mapping[tuple[ModuleRole, LayerPair], ModuleResult]
"""The most significant test of each role in each pair of layers."""


def draw_module_strip(report: HomologyReport, theme: Theme) -> Figure:
    """Draw -log10 p for each role (rows) and matched pair of layers (columns), with the test's letter."""
    cells, pairs = strip_cells(report)
    roles = [role for role in ModuleRole if any(key[0] is role for key in cells)]
    bands = bands_of(pairs)
    cell = min(WIDEST_CELL, (WIDTH - _LEFT - _RIGHT) / len(bands[0]))
    band_height = ROW * len(roles) + _LAYER_ROWS
    legend = _legend_lines(cells.values())
    legend_height = 0.2 * len(legend) + 0.12
    height = HEAD + len(bands) * band_height + 0.12 * (len(bands) - 1) + legend_height + 0.62
    n_analysed = len({pair for _, pair in cells})
    n_significant = len({pair for (_, pair), result in cells.items() if result.is_significant})
    title = f"Modules agree in {n_significant} of {n_analysed} layer pairs"
    figure = new_sheet(theme, height, title, _subtitle(len(pairs), n_analysed))
    top = height - HEAD
    for band in bands:
        bottom = top - ROW * len(roles)
        axes = add_axes(figure, theme, _LEFT, bottom, cell * len(band), ROW * len(roles))
        _draw_band(axes, theme, band, roles, cells, cell)
        top -= band_height + 0.12
    _write_counts(figure, theme, roles, cells, right=_LEFT + cell * len(bands[0]), top=height - HEAD)
    _write_legend(figure, theme, legend, bottom=0.62, height=legend_height)
    shade_bar(
        figure, theme, (_LEFT, 0.24, 2.6, 0.12), ticks=evidence_ticks(EVIDENCE_TICKS), label="−log10 p", horizontal=True
    )
    figure.set_label(_alt_text(report, cells, roles, n_analysed, n_significant, len(pairs)))
    return figure


def strip_cells(report: HomologyReport) -> tuple[_Cells, list[LayerPair]]:
    """Return the most significant test for each role and pair of layers, and all matched pairs."""
    cells: dict[tuple[ModuleRole, LayerPair], ModuleResult] = {}
    for module in report.modules or ():
        key = (module.role, module.layer)
        if key not in cells or module.log10_p < cells[key].log10_p:
            cells[key] = module
    matches = () if report.layers is None else report.layers.matches
    pairs = {pair for _, pair in cells} | {LayerPair(m.reference, m.candidate) for m in matches}
    return cells, sorted(pairs, key=lambda pair: pair[::-1])


def bands_of(pairs: Sequence[LayerPair]) -> list[Sequence[LayerPair]]:
    """Split the layer pairs into bands of similar length, to be drawn one below the other."""
    n_columns = math.ceil(len(pairs) / math.ceil(len(pairs) / COLUMNS_OF_A_BAND))
    return [pairs[start : start + n_columns] for start in range(0, len(pairs), n_columns)]


def _subtitle(n_pairs: int, n_analysed: int) -> str:
    sampled = f"\n{n_pairs - n_analysed} more pairs were matched and not analysed" if n_analysed < n_pairs else ""
    return f"−log10 p of the most significant test of each part of each pair{sampled}"


def _draw_band(
    axes: Axes,
    theme: Theme,
    band: Sequence[LayerPair],
    roles: Sequence[ModuleRole],
    cells: _Cells,
    width: float,
) -> None:
    from matplotlib.patches import Rectangle

    colours = colour_map(theme)
    for row, role in enumerate(roles):
        for column, pair in enumerate(band):
            result = cells.get((role, pair))
            if result is None:
                axes.add_patch(hatched(theme, column, row))
                continue
            shade = evidence_shade(result.log10_p)
            axes.add_patch(
                Rectangle((column, row), 1, 1, facecolor=colours(shade), edgecolor=theme.grid, linewidth=0.6)
            )
            size = min(TEXT_SIZE, 0.62 * width * POINTS)
            if not result.is_significant:
                write_in_cell(axes, column + 0.5, row + 0.5, "·", theme.muted, size + 2)
                continue
            text = result.test.letter
            if width >= NUMBERED:
                text, size = _in_cell(result), min(TEXT_SIZE - 1, width * POINTS / 4.2)
            write_in_cell(axes, column + 0.5, row + 0.52, text, ink_on(theme, shade), size)
    axes.set_xlim(0, len(band))
    axes.set_ylim(len(roles), 0)
    axes.set_yticks([row + 0.5 for row in range(len(roles))], [role.value for role in roles])
    axes.tick_params(axis="both", length=0)
    step = next(s for s in (1, 2, 4, 8) if s * width >= 0.21 or s == 8)
    places = list(range(0, len(band), step))
    axes.set_xticks([place + 0.5 for place in places], [f"{band[place][0]}\n{band[place][1]}" for place in places])
    axes.annotate(
        "reference\ncandidate",
        (0, 0),
        xycoords="axes fraction",
        xytext=(-5, -4.2),
        textcoords="offset points",
        ha="right",
        va="top",
        color=theme.muted,
        fontsize=SMALL_SIZE,
        annotation_clip=False,
    )


def _in_cell(result: ModuleResult) -> str:
    """Return the share of experts with an origin (``7/8``), or the test's letter and -log10 p."""
    if isinstance(result.found, ExpertsFound):
        return f"{len(result.found.experts)}/{result.found.n_experts}"
    return f"{result.test.letter} {short_number(-result.log10_p)}"


def _write_counts(
    figure: Figure,
    theme: Theme,
    roles: Sequence[ModuleRole],
    cells: _Cells,
    *,
    right: float,
    top: float,
) -> None:
    width, height = figure.get_size_inches()
    for row, role in enumerate(roles):
        of_role = [result for (name, _), result in cells.items() if name == role]
        text = f"{sum(result.is_significant for result in of_role)} of {len(of_role)}"
        x, y = (right + 0.08) / width, (top - (row + 0.52) * ROW) / height
        figure.text(x, y, text, color=theme.ink, fontsize=SMALL_SIZE, va="center")


def _legend_lines(cells: Iterable[ModuleResult]) -> list[str]:
    significant = {result.test for result in cells if result.is_significant}
    entries = [f"{test.letter} {test.words}" for test in ModuleTest if test in significant]
    entries += ["· not significant (p > 0.001)", "hatched: not run"]
    lines = [""]
    for entry in entries:
        longer = f"{lines[-1]}     {entry}".strip()
        if lines[-1] and text_width(longer, SMALL_SIZE) > (WIDTH - _LEFT - 0.2) * POINTS:
            lines.append(entry)
        else:
            lines[-1] = longer
    return lines


def _write_legend(figure: Figure, theme: Theme, lines: Sequence[str], *, bottom: float, height: float) -> None:
    sheet_width, sheet_height = figure.get_size_inches()
    for number, line in enumerate(lines):
        text = fitted(line, (WIDTH - _LEFT - 0.1) * POINTS, SMALL_SIZE)
        x, y = _LEFT / sheet_width, (bottom + height - 0.1 - 0.2 * number) / sheet_height
        figure.text(x, y, text, color=theme.ink, fontsize=SMALL_SIZE, va="top")


def _alt_text(
    report: HomologyReport,
    cells: _Cells,
    roles: Sequence[ModuleRole],
    n_analysed: int,
    n_significant: int,
    n_pairs: int,
) -> str:
    best = {role: min(result.log10_p for (name, _), result in cells.items() if name == role) for role in roles}
    smallest = ", ".join(f"{role} {p + 0.0:.0f}" for role, p in best.items())
    skipped = f" {n_pairs - n_analysed} matched pairs were not analysed." if n_pairs > n_analysed else ""
    return (
        f"Strip of modules of {shown_name(report.reference.repo)} and {shown_name(report.candidate.repo)}: some agree "
        f"beyond chance in {n_significant} of {n_analysed} analysed pairs of layers; "
        f"smallest log10 p by role: {smallest}.{skipped}"
    )
