"""Compare real pairs with many seeds; verdict, assumption and p of a pair must not depend on the seed.

    python -m benchmarks.real.seeds [--seeds 20] [--kind edit] [--base smollm2-135m-instruct] [--most-s 10] [--build]

Each comparison draws its own neurons from the entropy of the system, and rows of the embeddings from the seed. A line
for each pair goes to ``benchmarks/results/real-seeds.jsonl``: the verdicts, the assumptions, and the smallest and
largest log10 p. Pairs with a line are skipped. Without ``--build`` only models that were built before are compared
(``python -m benchmarks.real build``); with it, each missing model is built and removed after its comparisons.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import shutil
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.real.judging import RESULTS as JUDGED
from benchmarks.real.pairs import Pair, pairs
from benchmarks.real.workshop import Model, built, folder_of
from benchmarks.zoo.run import read_lines
from mdir_hf import HomologyReport, compare

RESULTS = Path(__file__).parents[1] / "results" / "real-seeds.jsonl"


def has_been_built(model: Model) -> bool:
    """Return whether a model is on this disk; fetch bases if necessary."""
    return model.member == "base" or (folder_of(model) / "made.json").is_file()


def build(model: Model) -> None:
    """Build a model in a separate process, so that the memory of its weights is freed."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=1, mp_context=context) as pool:
        pool.submit(built, model).result()


def row_of(pair: Pair, reports: list[HomologyReport]) -> dict[str, Any]:
    """Return a line on all comparisons of a pair."""
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


def main() -> None:
    """Compare, write and print a line for each pair that has none."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--kind", action="append", help="only pairs of this kind, e.g. edit")
    parser.add_argument("--base", action="append", help="only candidates made from this base")
    parser.add_argument("--most-s", type=float, help="only pairs that took fewer seconds when they were judged")
    parser.add_argument("--build", action="store_true", help="build missing models, and remove them afterwards")
    arguments = parser.parse_args()
    seconds = {(row["a"], row["b"]): row["cpu_s"] for row in read_lines(JUDGED) if row["level"] == "auto"}
    known = {(row["a"], row["b"]) for row in read_lines(RESULTS)}
    for pair in pairs():
        names = pair.a.name, pair.b.name
        is_chosen = (not arguments.kind or pair.kind in arguments.kind) and (
            not arguments.base or pair.b.base in arguments.base
        )
        is_quick = arguments.most_s is None or seconds.get(names, 0.0) < arguments.most_s
        missing = [model for model in (pair.a, pair.b) if not has_been_built(model)]
        if names in known or not (is_chosen and is_quick) or (missing and not arguments.build):
            continue
        for model in missing:
            build(model)
        folders = [str(built(model)) for model in (pair.a, pair.b)]
        reports = [compare(*folders, seed=seed, progress=False) for seed in range(arguments.seeds)]
        row = row_of(pair, reports)
        with RESULTS.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        print(json.dumps(row), flush=True)
        for model in missing:
            shutil.rmtree(folder_of(model))


if __name__ == "__main__":
    main()
