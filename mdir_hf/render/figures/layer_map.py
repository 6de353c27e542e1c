"""Draw a map of one model's layers against the other's, based on weights or neurons."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mdir_hf.names import shown_name
from mdir_hf.render.figures.sheet import (
    HEAD,
    POINTS,
    SHORTEST,
    add_axes,
    evidence_ticks,
    fill_cells,
    label_sides,
    new_sheet,
    shade_bar,
    write_in_cell,
)
from mdir_hf.render.figures.theme import EVIDENCE_TICKS, Theme, evidence_shade, ink_on
from mdir_hf.report import ResidualMap

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from mdir_hf.report import HomologyReport, LayersResult, NeuronNumbers

SIDE = 3.4
"""Longer side of the map, in inches."""

LARGEST_CELL = 0.6

NUMBERED = 0.3
"""Minimum size, in inches, of cells that show a number."""

RINGED = 0.11
"""Minimum cell size, in inches, for marking partners with a ring; smaller cells get a dot."""

_LEFT, _BELOW = 0.78, 0.72

_BASIS = {
    ResidualMap.IDENTITY: "as they are",
    ResidualMap.ROTATION: "once one model is rotated",
}


def draw_layer_map(report: HomologyReport, layers: LayersResult, theme: Theme) -> Figure:
    """Draw -log10 p of each pair of layers, with a ring at each candidate layer's partner."""
    import numpy as np

    matrix = layers.matrix
    n_rows, n_columns = len(matrix), len(matrix[0])
    rows, columns = layers.reference_layers, layers.candidate_layers
    cell = min(LARGEST_CELL, SIDE / max(n_rows, n_columns))
    width, height = (max(SHORTEST, cell * n) for n in (n_columns, n_rows))
    matches = layers.matches
    pattern = layers.pattern.words
    title = f"{len(matches)} of {n_columns} layers have a partner" if matches else "No layer was found to match"
    basis = _BASIS.get(layers.residual_map, "through the matched channels")
    subtitle = f"−log10 p by {layers.role.words}, {basis}"
    mark = word_of_mark(cell)
    subtitle += f"\n{mark}s mark partners: {pattern}" if matches else f"\na {mark} would mark a partner"
    figure = new_sheet(theme, HEAD + height + _BELOW, title, subtitle)
    axes = add_axes(figure, theme, _LEFT, _BELOW, width, height)
    shades = np.array([[evidence_shade(p) for p in row] for row in matrix])
    fill_cells(axes, theme, shades, (-0.5, n_columns - 0.5, n_rows - 0.5, -0.5))
    cells = [(rows.index(i), columns.index(j)) for i, j, _ in matches if i in rows and j in columns]
    mark_partners(axes, theme, cells, cell)
    if cell >= NUMBERED:
        for (i, j), shade in np.ndenumerate(shades):
            text = short_number(-matrix[i][j])
            colour = theme.muted if text == "0" else ink_on(theme, float(shade))
            write_in_cell(axes, j, i, text, colour, min(8.0, cell * POINTS / 3.6))
    number_layers(axes, rows, columns, width, height)
    label_sides(figure, axes, theme, "layer", report.reference.repo, report.candidate.repo)
    ticks = EVIDENCE_TICKS if height > 2.0 else EVIDENCE_TICKS[::2]
    bar = (_LEFT + width + 0.15, _BELOW, 0.13, height)
    shade_bar(figure, theme, bar, ticks=evidence_ticks(ticks), label="−log10 p")
    figure.set_label(
        f"Layer map: {len(matches)} of {n_columns} layers of {shown_name(report.candidate.repo)} have a partner "
        f"among the {n_rows} layers of {shown_name(report.reference.repo)}; {pattern}."
    )
    return figure


def draw_neuron_map(report: HomologyReport, neurons: NeuronNumbers, theme: Theme) -> Figure:
    """Draw the number of copied neurons for each pair of layers, with a ring at each match."""
    import numpy as np

    rows, columns = neurons.reference_layers, neurons.candidate_layers
    cell = min(LARGEST_CELL, SIDE / max(len(rows), len(columns)))
    width, height = (max(SHORTEST, cell * n) for n in (len(columns), len(rows)))
    n_matched = len({match.candidate for match in neurons.matches})
    title = (
        f"{n_matched} of {len(columns)} compared layers have a partner"
        if n_matched
        else "No pair of compared layers matches"
    )
    what = "copied neurons, in another order" if neurons.is_searched else "copied neurons, by number"
    mark = word_of_mark(cell)
    marks = f"{mark}s mark partners" if n_matched else f"a {mark} would mark a partner"
    subtitle = f"{what}, of {neurons.tested} tested in each pair of layers\n{marks}"
    figure = new_sheet(theme, HEAD + height + _BELOW, title, subtitle)
    axes = add_axes(figure, theme, _LEFT, _BELOW, width, height)
    counts = np.array(neurons.certain)
    shades = counts / max(1, neurons.tested)
    fill_cells(axes, theme, shades, (-0.5, len(columns) - 0.5, len(rows) - 0.5, -0.5))
    matched = [(rows.index(i), columns.index(j)) for i, j in neurons.matches]
    mark_partners(axes, theme, matched, cell)
    if cell >= NUMBERED:
        for (i, j), shade in np.ndenumerate(shades):
            colour = ink_on(theme, float(shade)) if counts[i, j] else theme.muted
            write_in_cell(axes, j, i, str(counts[i, j]), colour, min(8.0, cell * POINTS / 3.6))
    number_layers(axes, rows, columns, width, height)
    label_sides(figure, axes, theme, "layer", report.reference.repo, report.candidate.repo)
    bar = (_LEFT + width + 0.15, _BELOW, 0.13, height)
    ticks = [(share, str(round(share * neurons.tested))) for share in (0.0, 0.5, 1.0)]
    shade_bar(figure, theme, bar, ticks=ticks, label="neurons")
    figure.set_label(
        f"Neurons of the layers: {n_matched} of {len(columns)} compared layers of "
        f"{shown_name(report.candidate.repo)} have a partner among {len(rows)} layers of "
        f"{shown_name(report.reference.repo)}; there, {neurons.certain_in_matches} of "
        f"{neurons.tested * len(neurons.matches)} tested neurons are copies."
        if n_matched
        else f"Neurons of the layers: no pair of layers of {shown_name(report.reference.repo)} and "
        f"{shown_name(report.candidate.repo)} matches; at most {counts.max()} of {neurons.tested} neurons are copies."
    )
    return figure


def word_of_mark(cell: float) -> str:
    """Return the name of the partner mark for a cell size in inches."""
    return "ring" if cell >= RINGED else "dot"


def mark_partners(axes: Axes, theme: Theme, cells: Sequence[tuple[int, int]], cell: float) -> None:
    """Mark partners with a ring or dot that is visible at the cell size, in inches."""
    from matplotlib.patheffects import withStroke

    is_ringed = word_of_mark(cell) == "ring"
    size = POINTS * (min(0.86 * cell, 0.42) if is_ringed else 0.5 * cell)
    width = min(1.3, 0.12 * size + 0.25)
    for i, j in cells:
        axes.plot(
            [j],
            [i],
            marker="o",
            markersize=size,
            markerfacecolor="none" if is_ringed else theme.null,
            markeredgecolor=theme.null,
            markeredgewidth=width if is_ringed else 0.0,
            path_effects=[withStroke(linewidth=width + 1.2, foreground=theme.paper)],
            linestyle="none",
        )


def short_number(evidence: float) -> str:
    """Format -log10 p in at most four characters, such as 0, 0.4, 37, 7642 or 22k."""
    if evidence >= 9999.5:
        return f"{evidence / 1000.0:.0f}k"
    if evidence < 0.05:
        return "0"  # not "-0"
    return f"{evidence:.0f}" if evidence >= 9.5 else f"{evidence:.1f}".removesuffix(".0")


def number_layers(axes: Axes, rows: Sequence[int], columns: Sequence[int], width: float, height: float) -> None:
    """Label ticks with as many layer numbers as fit; sizes are in inches."""
    for numbers, length, put in ((columns, width, axes.set_xticks), (rows, height, axes.set_yticks)):
        step = next(s for s in (1, 2, 4, 5, 8, 10, 16, 20, 32, 64, len(numbers)) if length / len(numbers) * s >= 0.25)
        places = list(range(0, len(numbers), step))
        put(places, [str(numbers[place]) for place in places])
