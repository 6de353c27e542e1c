"""Section on p by the numbers of neurons: the observed tail beside the bound."""

from __future__ import annotations

import math

from scipy.stats import binom

from benchmarks.evidence.tables import Results
from benchmarks.runner import table

CONTROL = "noisy copies"


def numbers_section(results: Results) -> str:
    """Compare counts of equal numbers in independent layers with the bound, overall and by kind."""
    rows = [row for row in results["neuron-null"] if row["kind"] != CONTROL]
    control = next(row for row in results["neuron-null"] if row["kind"] == CONTROL)
    n_pairs = sum(row["pairs"] for row in rows)
    most_own = max(row["most_own"] for row in rows)
    tail = []
    for k in range(1, most_own + 2):
        allowed = 1.0 / math.factorial(k)
        low, high = map(int, binom.interval(0.99, n_pairs, allowed))
        observed = sum(sum(row["own"][k:]) for row in rows)
        tail.append([str(k), f"{n_pairs * allowed:,.0f}", f"{low:,} to {high:,}", f"{observed:,}"])
    by_kind = [
        [row["kind"], f"{row['pairs']:,}", str(row["most_own"]), str(row["most_certain"]), str(row["matches"])]
        for row in (*rows, control)
    ]
    return "\n\n".join(
        [
            "## The tail of p",
            f"**{n_pairs:,} pairs of independent layers, and {sum(row['matches'] for row in rows)} match**: drawn from "
            "distributions that are hard for the method, trained by one recipe in one order of text, and layers of "
            "real models (`python -m benchmarks neuron-null` describes each kind). In each pair, 64 neurons are "
            "tested; k of them have the same number as their partner. The bound on p is 1/k!, and alpha 1e-10 needs "
            f"k of at least 14; the largest is {most_own}.",
            table("k at least | pairs that the bound allows | 99 % binomial band of the bound | observed", tail),
            "Pairs of trained and of real layers share layers, but the numbering of each is independent, so pairs are "
            "pairwise independent and a count has the variance of a binomial. A count may be below the band, because "
            "the bound is not exact: it allows any choice of partners.",
            table("kind | pairs | largest k | most certain neurons of 64 | matches", by_kind),
        ]
    )
