"""Section on power: which relatives are found, by how far they are from their base."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.evidence.tables import Results
from benchmarks.runner import Row, table
from mdir_hf.render.figures.sheet import HEAD, SMALL_SIZE, add_axes, drawing, new_sheet
from mdir_hf.render.figures.theme import theme_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MEANINGS = {
    "noise": "noise on every matrix, in RMS of its weights",
    "mixed": "share of random weights mixed into every matrix",
    "replaced": "share of the neurons of every layer drawn anew",
    "pruned": "share of the neurons of every layer cut out",
    "trained": "further steps of training",
}
"""Meaning of the amount of each kind, without the learning rate."""


def power_section(results: Results) -> str:
    """Tabulate the share of relatives found by kind and amount."""
    rows = results["power"]
    excluded = min(row["excluded_noise"] for row in rows if row["kind"] == "noise" and row["excluded_noise"])
    return "\n\n".join(
        [
            "## Which relatives are found",
            "Copies of SmolLM2-135M-Instruct (BF16, read back from a GGUF file of Q4_1) were changed, and a model of "
            "three million parameters, the demo's base, was trained further on another text. Every kind and amount "
            f"was drawn and compared {rows[0]['compared']} times, each time with a fresh sample of neurons "
            "(`python -m benchmarks power`).",
            "![Share of relatives found, by noise, by share of neurons, and by steps of training]"
            "(images/evidence-power.png)",
            f"A report without a match says which copies it excludes. At the largest noise, it excludes copies with "
            f"noise of up to {excluded} RMS: copies with three times as much are found, too, so the statement is "
            "careful. Mixing a share s of random weights into a matrix is noise of s / (1 - s).",
            *(_table(kind, of_kind) for kind, of_kind in _by_kind(rows).items()),
        ]
    )


def _by_kind(rows: list[Row]) -> dict[str, list[Row]]:
    """Return the rows of each kind, smallest amount first."""
    kinds = dict.fromkeys(row["kind"] for row in rows)
    return {kind: sorted((row for row in rows if row["kind"] == kind), key=lambda row: row["amount"]) for kind in kinds}


def _table(kind: str, rows: list[Row]) -> str:
    heading = f"### {kind[:1].upper()}{kind[1:]}\n\n{_meaning(kind)}:\n\n"
    return heading + table(
        f"amount | found | median log10 p | settled by | read, MB of {max(row['bytes'] for row in rows) / 1e6:,.0f}",
        [
            [
                f"{row['amount']:,g}",
                f"{row['found']} of {row['compared']}",
                "" if row["log10_p"] is None else f"{row['log10_p']:,.0f}",
                ", ".join(f"{step} {n}" for step, n in row["settled_by"].items()),
                f"{row['read'] / 1e6:.1f}",
            ]
            for row in rows
        ],
    )


def _meaning(kind: str) -> str:
    meaning = MEANINGS[kind.split()[0]]
    return f"{meaning[:1].upper()}{meaning[1:]}"


def draw_power(results: Results) -> Figure:
    """Draw the share of relatives found against noise, shares of neurons, and steps of training."""
    theme = theme_of(dark=False)
    by_kind = _by_kind(results["power"])
    excluded = min(row["excluded_noise"] for row in by_kind["noise"] if row["excluded_noise"])
    panels = (
        (MEANINGS["noise"], [("noise", "noise")]),
        ("share of the neurons of every layer", [("replaced", "replaced"), ("pruned", "cut out")]),
        ("steps of training", [(kind, kind.replace("trained at", "rate")) for kind in by_kind if "trained" in kind]),
    )
    with drawing():
        figure = new_sheet(
            theme,
            HEAD + 2.6,
            "Share of relatives found",
            "Ten draws and samples each. Left and middle: SmolLM2-135M-Instruct; right: a model of three million\n"
            "parameters. The dashed line is the noise up to which a report without a match excludes copies.",
            width=9.6,
        )
        for at, (label, curves) in enumerate(panels):
            axes = add_axes(figure, theme, 0.55 + 3.05 * at, 0.55, 2.6, 1.9)
            measured = [curve for curve in curves if curve[0] in by_kind]
            for (kind, name), style in zip(measured, ("-", "--", ":"), strict=False):
                amounts = [row["amount"] for row in by_kind[kind]]
                shares = [row["found"] / row["compared"] for row in by_kind[kind]]
                axes.plot(amounts, shares, style, marker="o", markersize=3.5, color=theme.observed, label=name)
            if label.startswith("steps"):
                axes.set_xscale("log")
            if len(curves) > 1:
                axes.legend(fontsize=SMALL_SIZE, frameon=False, labelcolor=theme.ink, loc="lower left")
            elif label == MEANINGS["noise"]:
                axes.axvline(excluded, color=theme.null, linestyle="--", linewidth=1.0)
            axes.set_ylim(-0.05, 1.05)
            axes.set_xlabel(label, color=theme.ink, fontsize=SMALL_SIZE)
            axes.grid(visible=True, color=theme.grid, linewidth=0.6)
    figure.set_label("Share of relatives found, by noise, by share of neurons, and by steps of training")
    return figure
