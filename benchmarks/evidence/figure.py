"""Figure of the evidence page: p of relatives and strangers by kind, beside the scores of peers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from benchmarks.evidence.tables import Results, log10_p_of
from mdir_hf.render.figures.sheet import HEAD, SMALL_SIZE, add_axes, drawing, new_sheet
from mdir_hf.render.figures.theme import Theme, theme_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

KINDS = ("format", "copy", "training", "third party", "edit", "attack", "stranger")
ROW = 0.34
WIDTH = 9.6


def draw_evidence(results: Results) -> Figure:
    """Draw every pair of real models, with p and with the score of each peer."""
    pairs, peers = results["real-pairs"], results["real-peers"]
    theme = theme_of(dark=False)
    kinds = [kind for kind in KINDS if any(row["kind"] == kind for row in pairs)]
    names = list(dict.fromkeys(row["peer"] for row in peers))
    n_strangers = sum(not row["related"] for row in pairs)
    n_given = len({(row["a"], row["b"]) for row in peers if row["kind"] == "stranger"})
    values = {kind: [max(0.0, -log10_p_of(row)) for row in pairs if row["kind"] == kind] for kind in kinds}
    height = ROW * len(kinds)
    with drawing():
        figure = new_sheet(
            theme,
            HEAD + height + 0.75,
            f"Real models: {sum(map(len, values.values())) - n_strangers} related pairs, {n_strangers} of strangers",
            "Each mark is a pair; rings are strangers. Left: −log10 p (some pairs have no bound); the line is alpha.\n"
            "Right: scores of other methods; the line is their highest stranger. They were run on "
            f"{n_given} pairs of strangers and on no formats.",
            width=WIDTH,
        )
        axes = add_axes(figure, theme, 1.0, 0.55, 4.0, height)
        _marks(axes, theme, values)
        axes.set_xscale("symlog", linthresh=1.0, linscale=0.4)
        axes.set_xlim(-0.5, 3e5)
        axes.minorticks_off()
        axes.axvline(10.0, color=theme.null, linewidth=1.0, zorder=1)
        axes.set_xticks([0, 10, 100, 1_000, 10_000, 100_000], ["0", "10", "100", "1,000", "10⁴", "10⁵"])
        axes.set_xlabel("mdir-hf: −log10 p", color=theme.ink, fontsize=SMALL_SIZE)
        axes.set_yticks(range(len(kinds)), [f"{kind} ({len(of_kind)})" for kind, of_kind in values.items()])
        left = 5.2
        width = (WIDTH - left - 0.15) / max(1, len(names))
        for at, name in enumerate(names):
            axes = add_axes(figure, theme, left + at * width, 0.55, width - 0.12, height)
            scored = [row for row in peers if row["peer"] == name and row["score"] is not None]
            scores = {kind: [row["score"] for row in scored if row["kind"] == kind] for kind in kinds}
            _marks(axes, theme, scores)
            if scores["stranger"]:
                axes.axvline(max(scores["stranger"]), color=theme.null, linewidth=1.0, zorder=1)
            axes.set_xlim(-0.1, 1.1)
            axes.set_xticks([0, 1], ["0", "1"])
            axes.set_xlabel(name.replace(", ", ",\n"), color=theme.ink, fontsize=SMALL_SIZE)
            axes.set_yticks([])
    figure.set_label("p of every pair of real models by kind, and the scores of other methods on the same pairs")
    return figure


def _marks(axes: Axes, theme: Theme, values: dict[str, list[float]]) -> None:
    """Draw one row of marks for each kind, the first on top."""
    for row, (kind, of_kind) in enumerate(values.items()):
        order = np.argsort(of_kind)
        spread = np.empty(len(of_kind))
        spread[order] = [((7 * at) % 11 - 5) / 16 for at in range(len(of_kind))]
        is_stranger = kind == "stranger"
        axes.plot(
            of_kind,
            row + spread,
            linestyle="none",
            marker="o",
            markersize=4.5,
            markeredgewidth=0.9,
            color=theme.null if is_stranger else theme.observed,
            markerfacecolor="none" if is_stranger else theme.observed,
            alpha=0.8,
        )
    axes.set_ylim(len(values) - 0.5, -0.5)
    axes.grid(visible=True, axis="x", color=theme.grid, linewidth=0.6)
