"""Draw matched layers as two columns, with a line for each match."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from mdir_hf.names import shown_name
from mdir_hf.render.figures.sheet import HEAD, SHORTEST, SMALL_SIZE, WIDTH, add_axes, new_sheet
from mdir_hf.render.figures.theme import Theme

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from mdir_hf.report import HomologyReport, LayersResult

TALLEST, ROW = 5.4, 0.22
"""Maximum height of a column, and of one layer in it, in inches."""

NUMBERED = 0.13
"""Minimum height of a layer, in inches, for numbering all layers; otherwise, every fifth is numbered."""

_LEFT, _BELOW, _GAP = 1.0, 0.36, 3.0


def draw_layer_flow(report: HomologyReport, layers: LayersResult, theme: Theme) -> Figure:
    """Draw each match as a line from a reference layer (left) to a candidate layer (right).

    Further matches of a reference layer are dashed; unmatched layers are hollow.
    """
    reference_layers, candidate_layers = layers.reference_layers, layers.candidate_layers
    row = min(ROW, TALLEST / max(len(reference_layers), len(candidate_layers)))
    height = max(SHORTEST, row * max(len(reference_layers), len(candidate_layers)))
    times = Counter(match.reference for match in layers.matches)
    n_repeated = sum(n > 1 for n in times.values())
    n_absent = len(set(reference_layers) - set(times))
    n_new = len(candidate_layers) - len(layers.matches)
    title = f"{len(layers.matches)} matches: {layers.pattern.words}"
    subtitle = (
        "one line for each match of a layer; dashed: a further match of the same layer\n"
        f"hollow: without a match, {n_absent} of {len(reference_layers)} left and "
        f"{n_new} of {len(candidate_layers)} right"
    )
    figure = new_sheet(theme, HEAD + height + _BELOW, title, subtitle)
    axes = add_axes(figure, theme, _LEFT, _BELOW, WIDTH - 2 * _LEFT, height)
    seen: Counter[int] = Counter()
    for i, j, _ in layers.matches:
        if i not in reference_layers or j not in candidate_layers:
            continue
        axes.plot(
            [0.0, 1.0],
            [reference_layers.index(i), candidate_layers.index(j)],
            color=theme.observed,
            linewidth=1.1,
            linestyle=(0, (3, 2)) if seen[i] else "-",
            zorder=2,
        )
        seen[i] += 1
    matched = {match.candidate for match in layers.matches}
    for x, numbers, is_matched in ((0.0, reference_layers, times.keys()), (1.0, candidate_layers, matched)):
        for filled in (True, False):
            places = [place for place, layer in enumerate(numbers) if (layer in is_matched) is filled]
            axes.plot(
                [x] * len(places),
                places,
                marker="o",
                linestyle="none",
                markersize=min(4.5, 50.0 * row),
                markerfacecolor=theme.ink if filled else theme.paper,
                markeredgecolor=theme.ink if filled else theme.null,
                markeredgewidth=1.0,
                zorder=3,
                clip_on=False,
            )
    step = 1 if row >= NUMBERED else 5
    axes.set_xlim(-0.03, 1.03)
    axes.set_ylim(max(len(reference_layers), len(candidate_layers)) - 0.5, -0.5)
    axes.set_yticks(range(0, len(reference_layers), step), [str(layer) for layer in reference_layers[::step]])
    right = axes.secondary_yaxis("right")
    right.set_yticks(range(0, len(candidate_layers), step), [str(layer) for layer in candidate_layers[::step]])
    right.tick_params(colors=theme.muted, labelcolor=theme.ink, labelsize=SMALL_SIZE, length=0)
    axes.tick_params(axis="y", length=0)
    axes.set_xticks([0.0, 1.0], ["reference", "candidate"])
    for spine in (*axes.spines.values(), *right.spines.values()):
        spine.set_visible(False)
    figure.set_label(
        f"Flow of layers from {shown_name(report.reference.repo)} to {shown_name(report.candidate.repo)}: "
        f"{len(layers.matches)} of {len(candidate_layers)} layers have a match; "
        f"{n_repeated} layers of the reference match more "
        f"than once and {n_absent} of {len(reference_layers)} match none."
    )
    return figure
