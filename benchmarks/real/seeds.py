"""Compare real pairs with many seeds; verdict, assumption and p of a pair must not depend on the seed.

Each comparison draws its own neurons from the entropy of the system, and rows of the embeddings from the seed. Only
models that were built before are compared (``python -m benchmarks real-models``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import partial

from benchmarks.real.pairs import Pair, pairs
from benchmarks.real.workshop import Model, built, folder_of
from benchmarks.runner import Benchmark, Case, Row
from mdir_hf import compare

N_SEEDS = 20


def has_been_built(model: Model) -> bool:
    """Return whether a model is on this disk; fetch bases if necessary."""
    return model.member == "base" or (folder_of(model) / "made.json").is_file()


def compared(pair: Pair) -> Row:
    """Compare a pair with each seed, and return a line on all comparisons."""
    folders = [str(built(model)) for model in (pair.a, pair.b)]
    reports = [compare(*folders, seed=seed, progress=False) for seed in range(N_SEEDS)]
    bounds = [report.log10_p for report in reports if report.log10_p is not None]
    return {
        "a": pair.a.name,
        "b": pair.b.name,
        "kind": pair.kind,
        "related": pair.is_related,
        "seeds": len(reports),
        "verdicts": Counter(report.verdict.value for report in reports),
        "assumptions": Counter("none" if report.assumption is None else report.assumption.value for report in reports),
        "bounds": len(bounds),
        "log10_p": [round(min(bounds), 1), round(max(bounds), 1)] if bounds else None,
    }


def cases() -> Iterator[Case]:
    """Yield every pair of built models."""
    for pair in pairs():
        if has_been_built(pair.a) and has_been_built(pair.b):
            yield Case((pair.a.name, pair.b.name), partial(compared, pair))


REAL_SEEDS = Benchmark("real-seeds", "verdicts and p of real pairs with 20 seeds each", ("a", "b"), cases)
