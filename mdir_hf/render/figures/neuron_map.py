"""Draws how many tested neurons agree, for every compared pair of layers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mdir_hf.names import shown_name
from mdir_hf.render.figures.layer_map import LARGEST_CELL, NUMBERED, SIDE, mark_partners, number_layers, word_of_mark
from mdir_hf.render.figures.sheet import (
    HEAD,
    POINTS,
    SHORTEST,
    add_axes,
    fill_cells,
    label_sides,
    new_sheet,
    shade_bar,
    write_in_cell,
)
from mdir_hf.render.figures.theme import Theme, ink_on

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from mdir_hf.report import HomologyReport, NeuronNumbers

_LEFT, _BELOW = 0.78, 0.72


def draw_neuron_map(report: HomologyReport, neurons: NeuronNumbers, theme: Theme) -> Figure:
    """Draw how many tested neurons agree in each pair of layers; a ring marks matches."""
    import numpy as np

    rows, columns = neurons.reference_layers, neurons.candidate_layers
    cell = min(LARGEST_CELL, SIDE / max(len(rows), len(columns)))
    width, height = (max(SHORTEST, cell * n) for n in (len(columns), len(rows)))
    n_matched = len({match.candidate for match in neurons.matches})
    title = f"{n_matched} of {len(columns)} layers have a partner" if n_matched else "No pair of layers agrees"
    what = "that match, in another order" if neurons.is_searched else "with their own number"
    mark = word_of_mark(cell)
    marks = f"{mark}s mark partners" if n_matched else f"a {mark} would mark a partner"
    subtitle = f"neurons {what}, of {neurons.tested} tested in each pair of layers\n{marks}; about 1 agrees by chance"
    figure = new_sheet(theme, HEAD + height + _BELOW, title, subtitle)
    axes = add_axes(figure, theme, _LEFT, _BELOW, width, height)
    counts = np.array(neurons.own_number)
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
        f"{shown_name(report.reference.repo)}; there, {neurons.own_in_matches} of "
        f"{neurons.tested * len(neurons.matches)} tested neurons agree."
        if n_matched
        else f"Neurons of the layers: no pair of layers of {shown_name(report.reference.repo)} and "
        f"{shown_name(report.candidate.repo)} agrees; at most {counts.max()} of {neurons.tested} neurons of a pair do."
    )
    return figure
