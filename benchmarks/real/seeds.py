"""Compares real pairs with many seeds: the verdict, the assumption and the p of a pair must not depend on them.

    python -m benchmarks.real.seeds [--seeds 20] [--pair smollm2-135m-instruct/noise-3 …]

Each comparison draws its own neurons from the entropy of the system, and rows of the embeddings from the seed. A line
for each pair: the verdicts, the assumptions, and the smallest and largest log10 p. Seconds for a near copy, a minute
and more for a hidden one.
"""

from __future__ import annotations

import argparse
from collections import Counter

from benchmarks.real.workshop import Model, built
from mdir_hf import HomologyReport, compare

BASE = "smollm2-135m-instruct/base"
PAIRS = tuple(
    f"smollm2-135m-instruct/{name}"
    for name in (
        "permuted",
        "signed",
        "noise-1",
        "noise-3",
        "half-width",
        "half-depth",
        "heads-neurons",
        "new-embeddings",
    )
)


def folder(name: str) -> str:
    """The folder of a model, ``base/member``; it is built if it is not there."""
    base, member = name.split("/")
    return str(built(Model(base) if member == "base" else Model(base, member)))


def line_of(name: str, reports: list[HomologyReport]) -> str:
    """One line on all comparisons of a pair."""
    verdicts = Counter(report.verdict.value for report in reports)
    assumptions = Counter(str(report.assumption) for report in reports)
    bounds = [report.log10_p for report in reports if report.log10_p is not None]
    spread = f"log10 p {min(bounds):.1f} to {max(bounds):.1f}" if bounds else "no bound"
    return f"{name}: {dict(verdicts)}, {dict(assumptions)}, {spread}"


def main() -> None:
    """Compare, and print a line for each pair."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.real.seeds", description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--pair", action="append", help="base/member of the workshop, compared with SmolLM2-135M")
    arguments = parser.parse_args()
    reference = folder(BASE)
    for name in arguments.pair or PAIRS:
        candidate = folder(name)
        reports = [compare(reference, candidate, seed=seed, progress=False) for seed in range(arguments.seeds)]
        print(line_of(name, reports), flush=True)


if __name__ == "__main__":
    main()
