"""The section on calibration: p-values of independent models."""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.evidence.tables import Results, Row, table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LEVELS = ("0.3", "0.1", "0.03", "0.01", "0.001")
ADVERSARIAL = ("principal axes", "varimax axes")


def calibration_section(results: Results, figures: dict[str, Figure]) -> str:
    """Where p-values of independent models lie."""
    rows = results["calibration-pairs"]
    ordinary = [row for row in rows if not set(ADVERSARIAL) & set(row["populations"])]
    adversarial = [row for row in rows if set(ADVERSARIAL) & set(row["populations"])]
    figures["evidence-calibration.png"] = draw_calibration(ordinary)
    n_models = len({row["a"] for row in ordinary} | {row["b"] for row in ordinary})
    z, votes = (np.array([row[key] for row in ordinary]) for key in ("z", "votes"))
    wrong = sum(row["verdict"] == "homologous" for row in ordinary)
    body = []
    for level in LEVELS:
        p = float(level)
        count = int((2 * np.log(1 / p) <= np.where(z > 0, z, 0) ** 2).sum())
        exact = normal_tail(math.sqrt(2 * math.log(1 / p)))
        low, high = binomial_band(len(z), exact)
        body.append([level, f"{p * len(z):.0f}", f"{exact * len(z):.1f}", f"{low} to {high}", str(count)])
    haar = [
        [f"{row['n']}", f"{row['n_draws']:,}", *(f"{row['counts'][level] / row['n_draws']:.4f}" for level in LEVELS)]
        for row in results["calibration-haar"]
    ]
    return "\n\n".join(
        [
            "## Calibration",
            f"**{len(ordinary):,} pairs of {n_models} models**, each trained from an initialisation of its own "
            "(width 64; same text in the same order, other text, half trained, untrained, outlier channels in the "
            f"same places, another architecture): **{wrong} called homologous**, "
            f"{sum(row['verdict'] == 'inconclusive' for row in ordinary)} inconclusive, smallest reported log10 p "
            f"{min(row['log10_p'] for row in ordinary):.1f}. Where a matching is searched, ln p before it is cut at 0 "
            f"is at least {min(row['ln_p_uncut'] for row in ordinary):.1f} (four searches each; ln 1e-10 is -23.0).",
            populations_table(rows, results["calibration-models"]),
            "### A test that can fail",
            "Where a matching is searched the bound is so far from what strangers reach that no count of theirs says "
            "much about it. Channels in their own order are another matter: one matching, fixed in advance, with no n! "
            "to pay, and ln p is -z²/2, where z has mean 0 and deviation 1 if one model's axes are random. Measured: "
            f"mean {z.mean():.3f}, deviation {z.std():.3f}. Their sign test, one sign a channel, must be "
            f"significant as well (64 channels; positive less negative signs): mean {votes.mean():.2f}, "
            f"deviation {votes.std():.2f} (8 if signs are tossed), at "
            f"most {votes.max()} of 64, where alpha asks for more than 54.",
            table(
                ["p at most", "the bound allows", "a normal z gives", "its 99 % binomial band", "pairs observed"], body
            ),
            "Pairs share models. If every model's axes are random, traces of pairs are still independent two by "
            "two, so that the variance of a count is that of the binomial; the band takes its shape for granted, "
            "too.",
            "At n = 2 to 6 the whole bound, n! matchings included, is near enough to be tested: share of Haar "
            "matrices whose best matching has p at or below the level.",
            table(["n", "matrices", *(f"p <= {level}" for level in LEVELS)], haar),
            "### Axes that strangers share",
            adversarial_text(adversarial),
            "![Two histograms over independent pairs: z of the fixed matching under the normal curve, and ln p "
            "before it is cut, all of it above 0](images/evidence-calibration.png)",
        ]
    )


def populations_table(rows: list[Row], specimens: list[Row]) -> str:
    """Rows by the two populations of a pair; only pairs of one kind, and all mixed ones together."""
    grouped: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        a, b = row["populations"]
        special = sorted(set(ADVERSARIAL) & {a, b})
        if a == b:
            grouped[a].append(row)
        elif len(special) == 2:
            grouped[" and ".join(special)].append(row)
        elif special:
            grouped[f"{special[0]}, with others"].append(row)
        else:
            grouped["two kinds"].append(row)
    losses: dict[str, list[float]] = defaultdict(list)
    for specimen in specimens:
        losses[specimen["population"]].append(specimen["held_out_loss"])
    body = []
    for name, these in sorted(grouped.items(), key=lambda item: (any(x in item[0] for x in ADVERSARIAL), item[0])):
        uncut = sorted(row["ln_p_uncut"] for row in these)
        verdicts = Counter(row["verdict"] for row in these)
        body.append(
            [
                name,
                f"{statistics.mean(losses[name]):.2f}" if name in losses else "",
                f"{len(these):,}",
                f"{uncut[0]:.1f}",
                f"{uncut[len(uncut) // 20]:.1f}",
                f"{statistics.median(uncut):.1f}",
                str(verdicts["homologous"]),
                str(verdicts["inconclusive"]),
            ]
        )
    header = [
        "both models are",
        "held-out loss",
        "pairs",
        "ln p, smallest",
        "5 %",
        "median",
        "homologous",
        "inconclusive",
    ]
    return table(header, body)


def adversarial_text(rows: list[Row]) -> str:
    """What the turned models show."""
    wrong = sum(row["verdict"] == "homologous" for row in rows)
    both = [row for row in rows if set(row["populations"]) <= set(ADVERSARIAL)]
    wrong_both = sum(row["verdict"] == "homologous" for row in both)
    return (
        "Sixteen more models were turned, after training, into the principal axes of their embeddings (as a slicing "
        "tool does) or into varimax axes, which follow features: bases in which two strangers may share axes "
        f"without sharing a weight, which no test of axes can tell from a copy in the worst case. Of {len(rows):,} "
        f"pairs with such a model {wrong} are called homologous, of the {len(both)} with two of them {wrong_both}; "
        f"the smallest ln p of a search before the cut is {min(row['ln_p_uncut'] for row in rows):.1f}, "
        f"{sum(row['verdict'] == 'inconclusive' for row in rows)} are inconclusive. Along the fixed matching z is at "
        f"most {max(row['z'] for row in rows):.1f}, its deviation {np.std([row['z'] for row in rows]):.2f}, and "
        f"positive signs are more than negative ones by at most {max(row['votes'] for row in rows)}: axes that are "
        "ordered alike do not make channels agree."
    )


def normal_tail(x: float) -> float:
    """P[z >= x] of a normal z."""
    return 0.5 * math.erfc(x / math.sqrt(2))


def binomial_band(n: int, rate: float, *, level: float = 0.99) -> tuple[int, int]:
    """The counts between which a binomial lies with this probability."""
    from scipy.stats import binom

    low, high = binom.interval(level, n, rate)
    return int(low), int(high)


def draw_calibration(rows: list[Row]) -> Figure:
    """Draw z of the fixed matching, and ln p before the cut."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    z = np.array([row["z"] for row in rows])
    left.hist(z, bins=60, density=True, color="tab:blue", alpha=0.7)
    grid = np.linspace(-4, 4, 200)
    left.plot(grid, np.exp(-(grid**2) / 2) / math.sqrt(2 * math.pi), color="black", label="normal")
    left.set_xlabel("z of the fixed matching")
    left.set_title(f"{len(rows):,} independent pairs")
    left.legend()
    right.hist([row["ln_p_uncut"] for row in rows], bins=60, color="tab:blue", alpha=0.7)
    right.axvline(0, color="black", linestyle="--", label="p = 1")
    right.axvline(math.log(1e-10), color="tab:orange", label="alpha = 1e-10")
    right.set_xlabel("ln p of the embedding test, before it is cut at 0")
    right.legend()
    return figure
