"""Section on calibration: p-values of independent models."""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.evidence.tables import Results
from benchmarks.runner import Row, table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LEVELS = ("0.3", "0.1", "0.03", "0.01", "0.001")
ADVERSARIAL = ("principal axes", "varimax axes")


def calibration_section(results: Results) -> str:
    """Compare p-values of independent models with their bounds."""
    rows = results["calibration-pairs"]
    ordinary = ordinary_pairs(results)
    adversarial = [row for row in rows if set(ADVERSARIAL) & set(row["populations"])]
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
            f"**{len(ordinary):,} pairs of {n_models} models**, each trained from its own initialisation (width 64; "
            "same text in the same order, other text, half trained, untrained, outlier channels in the same places, "
            f"another architecture): **{wrong} called homologous**, "
            f"{sum(row['verdict'] == 'inconclusive' for row in ordinary)} inconclusive, smallest reported log10 p "
            f"{min(row['log10_p'] for row in ordinary):.1f}. For tests that search for a matching, ln p before it is "
            f"capped at 0 is at least {min(row['ln_p_uncut'] for row in ordinary):.1f} (four searches each; ln 1e-10 "
            "is -23.0).",
            populations_table(rows, results["calibration-models"]),
            "### A test that can fail",
            "If the test searches for a matching, the bound is so far from the values of strangers that counts of "
            "small p say little about it. The test of channels in their own order is sharper: it has one matching, "
            "fixed in advance, and no factor of n!. Its ln p is -z²/2, and z has mean 0 and standard deviation 1 if "
            f"one model's axes are random. The measured mean is {z.mean():.3f} and the standard deviation "
            f"{z.std():.3f}. The sign test, with one sign per channel, must be significant as well (64 channels; "
            f"positive signs minus negative ones). Its mean is {votes.mean():.2f}, its standard deviation "
            f"{votes.std():.2f} (8 for random signs), and its maximum {votes.max()} of 64; alpha requires more than "
            "54.",
            table("p at most | allowed by the bound | expected if z is normal | 99 % binomial band | observed", body),
            "Pairs share models. If every model's axes are random, traces are still pairwise independent, so a count "
            "has the variance of a binomial. The band also assumes the shape of a binomial.",
            "For n = 2 to 6, the whole bound with its n! matchings is tight enough to be tested. The table shows the "
            "share of Haar matrices whose best matching has p at or below the level.",
            table(["n", "matrices", *(f"p <= {level}" for level in LEVELS)], haar),
            "### Axes that strangers share",
            adversarial_text(adversarial),
            "![Two histograms over independent pairs: z of the fixed matching under the normal curve, and ln p before "
            "it is capped at 0, with all values above 0](images/evidence-calibration.png)",
        ]
    )


def ordinary_pairs(results: Results) -> list[Row]:
    """Return the pairs whose models were not rotated after training."""
    return [row for row in results["calibration-pairs"] if not set(ADVERSARIAL) & set(row["populations"])]


def populations_table(rows: list[Row], specimens: list[Row]) -> str:
    """Tabulate pairs by the populations of both models; mixed ordinary pairs share one row."""
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
    header = "both models are | held-out loss | pairs | ln p, smallest | 5 % | median | homologous | inconclusive"
    return table(header, body)


def adversarial_text(rows: list[Row]) -> str:
    """Describe the results on models in principal or varimax axes."""
    wrong = sum(row["verdict"] == "homologous" for row in rows)
    both = [row for row in rows if set(row["populations"]) <= set(ADVERSARIAL)]
    wrong_both = sum(row["verdict"] == "homologous" for row in both)
    return (
        "Sixteen more models were rotated after training, into the principal axes of their embeddings (as a slicing "
        "tool does) or into varimax axes, which follow features. In such bases, strangers may share axes without "
        "sharing a weight, and in the worst case no test of axes can tell this from a copy. The verdict is homologous "
        f"for {wrong} of the {len(rows):,} pairs with such a model, and for {wrong_both} of the {len(both)} pairs with "
        "two of them. The smallest ln p of a search before it is capped is "
        f"{min(row['ln_p_uncut'] for row in rows):.1f}; {sum(row['verdict'] == 'inconclusive' for row in rows)} pairs "
        f"are inconclusive. For the fixed matching, z is at most {max(row['z'] for row in rows):.1f} with standard "
        f"deviation {np.std([row['z'] for row in rows]):.2f}, and positive signs outnumber negative ones by at most "
        f"{max(row['votes'] for row in rows)}. Axes in the same order do not make channels agree."
    )


def normal_tail(x: float) -> float:
    """Return P[z >= x] for a standard normal z."""
    return 0.5 * math.erfc(x / math.sqrt(2))


def binomial_band(n: int, rate: float, *, level: float = 0.99) -> tuple[int, int]:
    """Return the interval that holds a binomial count with probability ``level``."""
    from scipy.stats import binom

    low, high = binom.interval(level, n, rate)
    return int(low), int(high)


def draw_calibration(results: Results) -> Figure:
    """Draw z of the fixed matching, and ln p before it is capped at 0."""
    rows = ordinary_pairs(results)
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
    right.set_xlabel("ln p of the embedding test, before it is capped at 0")
    right.legend()
    return figure
