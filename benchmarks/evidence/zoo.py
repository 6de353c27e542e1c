"""Section on the zoo: its members, the decisions on pairs, and the missed pairs with reasons."""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.evidence.tables import Results, log10_p_of
from benchmarks.metrics import decisions, upper_bound_of_rate
from benchmarks.runner import Row, table
from benchmarks.zoo.members import FAMILIES, MEMBERS, models

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def zoo_section(results: Results) -> str:
    """Describe the members of the zoo and the checker's decisions."""
    rows = [row for row in results["zoo-pairs"] if row["level"] == "auto"]
    counted = decisions((row["verdict"] == "homologous" for row in rows), (row["related"] for row in rows))
    n_strangers = counted.false_positives + counted.true_negatives
    n_related = counted.true_positives + counted.false_negatives
    bound = upper_bound_of_rate(counted.false_positives, n_strangers)
    minutes = sum(row["cpu_s"] for row in results["zoo-models"]) / 60
    inconclusive = sum(row["verdict"] == "inconclusive" for row in rows)
    parts = [
        "## The zoo",
        f"The zoo has {len(results['zoo-models'])} models of {len(FAMILIES)} families, trained in {minutes:.0f} "
        f"minutes on one core. The {len(rows)} pairs are all pairs within a family, and each base with every model of "
        "the other families.",
        f"- **{counted.false_positives} of {n_strangers} unrelated pairs** are called homologous. If the pairs were "
        f"independent, the rate would be below {bound:.2g} at 95 % confidence; they are not, because they share "
        "models.",
        f"- **{counted.true_positives} of {n_related} related pairs** are found; the missed pairs are listed below.",
        f"- {inconclusive} verdicts are `inconclusive`; they count as not found.",
        "### What the models are",
        members_table(results["zoo-models"]),
        "Losses are in nats per token on held-out text of the kind that the model was trained on last. They cannot be "
        "compared across tokenizers. The losses of `noised` and `retokenised` show the damage done by the edit.",
        "### Each base and its descendants",
        "The table shows log10 p at level `auto` and the step that settled the pair; `-` if no step did. Strangers are "
        "in italics. *MDIR, Algorithm 1*: log10 p over all common tokens by the paper's formula (`python -m "
        "benchmarks plain-mdir`), 0 if it is not below 1.",
        base_table(rows, results.get("plain-mdir", [])),
        twins_text(rows),
        "![Matrix of all pairs within each of the four families: all related pairs except the marked ones are found, "
        "and no pair with a stranger is](images/evidence-zoo.png)",
        "### By relation",
        "Each row counts the pairs of a member within its family.",
        relation_table(rows),
        "### Related, and not found",
        missed_text(rows),
        "### Level `layers`",
        levels_text(results["zoo-pairs"]),
        maps_text(results["zoo-pairs"]),
    ]
    return "\n\n".join(parts)


def members_table(rows: list[Row]) -> str:
    """Tabulate the held-out loss of each member in each family."""
    loss = {row["model"]: row.get("held_out_loss") for row in rows}
    body = []
    for name, member in MEMBERS.items():
        there = [f"{family}/{name}" in loss for family in FAMILIES]
        cells = [
            "" if not here else "stored" if loss[f"{family}/{name}"] is None else f"{loss[f'{family}/{name}']:.2f}"
            for family, here in zip(FAMILIES, there, strict=True)
        ]
        seed = "" if member.seed is None else f", seed {member.seed}"
        origin = f"from {' and '.join(member.parents)}" if member.parents else f"from scratch{seed}"
        body.append([name, f"{member.done} ({origin})", *cells])
    families = [f"{family.name}, {family.tokenizer}, {family.text}" for family in FAMILIES.values()]
    return table(["member", "how it was made", *families], body)


def base_table(rows: list[Row], as_printed: list[Row]) -> str:
    """Tabulate log10 p of each member against its base, by the checker and as the paper prints it."""
    known = {frozenset((row["a"], row["b"])): row for row in rows}
    printed = {
        frozenset(row["name"].split(" | ")): f"{row['embedding_log10_p']:,.0f}"
        for row in as_printed
        if row["group"] == "zoo" and row.get("embedding_log10_p") is not None
    }
    body = []
    for name in MEMBERS:
        if name == "base":
            continue
        cells, related = [], True
        for family in FAMILIES:
            pair = frozenset((f"{family}/base", f"{family}/{name}"))
            row = known.get(pair)
            cells += ["" if row is None else outcome(row), printed.get(pair, "")]
            related = related if row is None else row["related"]
        body.append([name if related else f"*{name}*", *cells])
    return table(["member", *(head for family in FAMILIES for head in (family, "MDIR, Algorithm 1"))], body)


def twins_text(rows: list[Row]) -> str:
    """Count the found pairs of twins with the same seed."""
    twins = [row for row in rows if row["related"] and row["a"].endswith("/base") and row["b"].endswith("/other-data")]
    return (
        "`other-data` and the base share only their initialisation. The pair counts as related, because shared "
        f"initialisation is shared weights; {sum(row['verdict'] == 'homologous' for row in twins)} of {len(twins)} are "
        "found. The training was short, and longer training is harder than anything here."
    )


def outcome(row: Row) -> str:
    """Format log10 p and the conclusive step."""
    if row["verdict"] == "inconclusive":
        return f"inconclusive: {row['reason']}"
    if row["verdict"] != "homologous":
        return "-"
    return f"{'no bound' if row['log10_p'] is None else format(row['log10_p'], ',.0f')} {row['settled_by']}"


def relation_table(rows: list[Row]) -> str:
    """Count found and missed pairs of each member within its family, and of pairs across families."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for row in rows:
        a, b = (name.split("/") for name in (row["a"], row["b"]))
        names = {row["relation"]} if a[0] != b[0] else {a[1], b[1]}
        for name in names:
            kind = "related" if row["related"] else "unrelated"
            counts[name][kind] += 1
            counts[name][f"{kind} {row['verdict']}"] += 1
    order = [*MEMBERS, *sorted(name for name in counts if name not in MEMBERS)]
    body = [
        [
            name,
            f"{counts[name]['related homologous']} of {counts[name]['related']}" if counts[name]["related"] else "",
            f"{counts[name]['unrelated homologous']} of {counts[name]['unrelated']}"
            if counts[name]["unrelated"]
            else "",
            str(counts[name]["related inconclusive"] + counts[name]["unrelated inconclusive"]),
        ]
        for name in order
        if name in counts
    ]
    return table("member | related, found | unrelated, called homologous | inconclusive", body)


def missed_text(rows: list[Row]) -> str:
    """List missed pairs."""
    missed = [row for row in rows if row["related"] and row["verdict"] != "homologous"]
    return "\n".join(f"- {pair_name(row)} ({row['verdict']})." for row in missed) or "None."


def pair_name(row: Row) -> str:
    """Format a pair as ``family: a + b``."""
    (family, a), (_, b) = (name.split("/") for name in (row["a"], row["b"]))
    return f"{family}: {a} + {b}"


def levels_text(rows: list[Row]) -> str:
    """Tabulate the pairs with a base that each level finds."""
    body = []
    chosen = {(row["a"], row["b"]) for row in rows if row["level"] == "layers"}
    if not chosen:
        return "Not run."
    for level, description in (
        ("auto", "the default"),
        ("layers", "also every projection of every layer"),
    ):
        these = [row for row in rows if row["level"] == level and (row["a"], row["b"]) in chosen]
        n_found = sum(row["verdict"] == "homologous" for row in these if row["related"])
        wrong = sum(row["verdict"] == "homologous" for row in these if not row["related"])
        related = sum(row["related"] for row in these)
        body.append(
            [
                f"`{level}`: {description}",
                f"{n_found} of {related}",
                f"{wrong} of {len(these) - related}",
                f"{statistics.median(row['cpu_s'] for row in these):.2f} s",
                f"{statistics.median(share_of_weights(row) for row in these):.0%}",
            ]
        )
    header = [
        "level (a base and its family)",
        "related, found",
        "unrelated, called homologous",
        "median time",
        "median share of weights read",
    ]
    return table(header, body)


def share_of_weights(row: Row) -> float:
    """Return the share of weight bytes that was read, without tokenizers and configs."""
    return (row["bytes_read"] - row["bytes_beside_weights"]) / row["bytes_of_weights"]


LAYERS_WERE = {
    "depth-pruned": [[0, 0], [1, 1], [3, 2]],
    "depth-upscaled": [[0, 0], [1, 1], [2, 2], [1, 3], [2, 4], [3, 5]],
}
"""Pairs of a base layer and the descendant's layer that comes from it, for families of four layers."""


def maps_text(rows: list[Row]) -> str:
    """Count the pairs in which every layer is traced to its origin."""
    maps = [
        (row["layers"], LAYERS_WERE.get(row["b"].split("/")[1], [[0, 0], [1, 1], [2, 2], [3, 3]]))
        for row in rows
        if row["level"] == "layers" and row["related"]
    ]
    right = sum(layers == was for layers, was in maps)
    return (
        f"At level `layers`, every layer is traced to its origin, and to no other layer, in {right} of the {len(maps)} "
        "related pairs with a base. These include pruned and upscaled depths."
    )


def draw_zoo(results: Results) -> Figure:
    """Draw four matrices of log(-log10 p), with wrong decisions marked."""
    from matplotlib.figure import Figure

    rows = [row for row in results["zoo-pairs"] if row["level"] == "auto"]
    known = {frozenset((row["a"], row["b"])): row for row in rows}
    figure = Figure(figsize=(13, 12), layout="constrained")
    image = None
    for axes, family in zip(figure.subplots(2, 2).flat, FAMILIES, strict=True):
        names = [model.member for model in models((family,))]
        grid = np.full((len(names), len(names)), np.nan)
        for i, a in enumerate(names):
            for j, b in enumerate(names):
                row = known.get(frozenset((f"{family}/{a}", f"{family}/{b}")))
                if row is None:
                    continue
                grid[i, j] = math.log10(max(1.0, -log10_p_of(row))) if row["verdict"] == "homologous" else 0.0
                if (row["verdict"] == "homologous") != row["related"]:
                    axes.text(j, i, "x", ha="center", va="center", color="tab:orange", fontweight="bold")
        image = axes.imshow(grid, cmap="cividis", vmin=0, vmax=4)
        axes.set_xticks(range(len(names)), names, rotation=90, fontsize=8)
        axes.set_yticks(range(len(names)), names, fontsize=8)
        axes.set_title(f"{family}: x is a decision against the label")
    figure.colorbar(image, ax=figure.axes, shrink=0.5, label="log10 of -log10 p; 0: nothing found")
    return figure
