"""Draw the drift of each projection as the cosines of its sampled rows, layer by layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mdir_hf.names import shown_name
from mdir_hf.render.figures.sheet import HEAD, SMALL_SIZE, WIDTH, add_axes, new_sheet
from mdir_hf.render.figures.theme import Theme
from mdir_hf.report import ModuleRole, Outcome, ProjectionResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from mdir_hf.report import HomologyReport, LayerTable

BAND, GAP = 0.46, 0.14
"""Height of one projection's axes, and of the gap below, in inches."""

NUMBERED_LAYERS = 16
"""All layers are numbered if there are at most this many; otherwise, every fifth is."""

_MARGIN, _LEFT, _RIGHT, _BELOW = 0.15, 1.5, 0.18, 0.42

WITHOUT_PARTNER = (Outcome.REPLACED, Outcome.NO_AGREEMENT)


def draw_layer_drift(report: HomologyReport, table: LayerTable, theme: Theme) -> Figure:
    """Draw one band per projection, with the mean, median and deciles of its rows' cosines.

    The dot for the mean is filled if rows agree.
    """
    bands = drift_bands(table)
    layers = sorted({result.layer.candidate for result in table.results})
    results = [result for band in bands.values() for result in band]
    agreeing = [result for result in results if result.outcome not in WITHOUT_PARTNER]
    lowest = min((result.deciles[0] for result in results if result.deciles), default=0.0)
    floor = min(0.9, lowest - 0.05)
    height = HEAD + len(bands) * (BAND + GAP) - GAP + _BELOW
    figure = new_sheet(theme, height, _title(agreeing, len(results)), _SUBTITLE)
    top = height - HEAD
    for at, (role, band) in enumerate(bands.items()):
        axes = add_axes(figure, theme, _LEFT, top - BAND, WIDTH - _LEFT - _RIGHT, BAND)
        _draw_band(axes, theme, band)
        middle = (top - 0.5 * BAND) / height
        figure.text(_MARGIN / WIDTH, middle, role.words, color=theme.ink, fontsize=SMALL_SIZE, va="center")
        axes.set_xlim(layers[0] - 0.7, layers[-1] + 0.7)
        axes.set_ylim(floor, 1.0 + 0.12 * (1.0 - floor))
        axes.set_yticks([floor, 1.0], [f"{floor:.2f}", "1"])
        step = 1 if len(layers) <= NUMBERED_LAYERS else 5
        is_last = at == len(bands) - 1
        axes.set_xticks(layers[::step], [str(layer) for layer in layers[::step]])
        axes.tick_params(axis="x", labelbottom=is_last, length=2.5 if is_last else 0.0)
        top -= BAND + GAP
    figure.axes[-1].set_xlabel("layer of the candidate", color=theme.ink, fontsize=SMALL_SIZE)
    figure.set_label(_alt_text(report, agreeing, len(results)))
    return figure


def drift_bands(table: LayerTable) -> dict[ModuleRole, list[ProjectionResult]]:
    """Return the results with cosines, grouped by projection and sorted by candidate layer."""
    compared = [result for result in table.results if result.cosine is not None]
    bands = {role: [result for result in compared if result.role is role] for role in ModuleRole}
    return {role: sorted(band, key=lambda result: result.layer.candidate) for role, band in bands.items() if band}


_SUBTITLE = (
    "cosine of sampled rows with their partners: mean (dot), median (line), first to ninth\n"
    "decile (shade); hollow: nothing agrees; 1 minus the cosine is the drift"
)


def _draw_band(axes: Axes, theme: Theme, band: Sequence[ProjectionResult]) -> None:
    places = [result.layer.candidate for result in band]
    deciles = [result.deciles or (result.cosine,) * 9 for result in band]
    low, middle, high = ([float(layer_deciles[at] or 0.0) for layer_deciles in deciles] for at in (0, 4, 8))
    axes.vlines(places, low, high, color=theme.observed, alpha=0.35, linewidth=4.0, zorder=1)
    axes.plot(places, middle, color=theme.observed, linewidth=1.0, zorder=2)
    for is_alike in (True, False):
        chosen = [result for result in band if (result.outcome not in WITHOUT_PARTNER) is is_alike]
        axes.plot(
            [result.layer.candidate for result in chosen],
            [result.cosine or 0.0 for result in chosen],
            marker="o",
            linestyle="none",
            markersize=3.2,
            markerfacecolor=theme.ink if is_alike else theme.paper,
            markeredgecolor=theme.ink if is_alike else theme.null,
            markeredgewidth=1.0,
            zorder=3,
            clip_on=False,
        )


def _title(agreeing: Sequence[ProjectionResult], n_results: int) -> str:
    if not agreeing:
        return f"None of {n_results} projections agrees"
    return f"{len(agreeing)} of {n_results} projections agree, mean cosine {_mean(agreeing):.3f}"


def _alt_text(report: HomologyReport, agreeing: Sequence[ProjectionResult], n_results: int) -> str:
    names = f"{shown_name(report.candidate.repo)} from {shown_name(report.reference.repo)}"
    text = f"Drift of the layers of {names}: {len(agreeing)} of {n_results} compared projections agree"
    if not agreeing:
        return f"{text}."
    lowest = min(agreeing, key=lambda result: result.cosine or 0.0)
    return (
        f"{text}; the mean cosine of their rows is {_mean(agreeing):.3f}, and the lowest is {lowest.cosine:.3f}, of "
        f"{lowest.role.words} in layer {lowest.layer.candidate}."
    )


def _mean(results: Sequence[ProjectionResult]) -> float:
    return sum(result.cosine or 0.0 for result in results) / len(results)
