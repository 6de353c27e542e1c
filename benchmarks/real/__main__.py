"""Fetch, build and judge the models, and print the results."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from benchmarks.real.judging import AT_LAYERS, MODELS, RESULTS, describe, judge_all
from benchmarks.real.pairs import pairs
from benchmarks.real.sources import UnavailableError
from benchmarks.real.table import summary, table
from benchmarks.real.workshop import models
from benchmarks.zoo.run import read_lines


def main() -> None:
    """Run one part, or all."""
    from transformers.utils import logging

    parser = argparse.ArgumentParser(prog="python -m benchmarks.real", description=__doc__)
    parser.add_argument("part", nargs="?", choices=("build", "judge", "table", "all"), default="all")
    parser.add_argument(
        "--base", action="append", help="only pairs and models with this base, e.g. smollm2-135m-instruct"
    )
    parser.add_argument("--kind", action="append", help="only pairs of this kind, e.g. attack")
    parser.add_argument("--level", choices=("auto", "layers"), default="auto", help="level of the comparisons")
    parser.add_argument("--all", action="store_true", help="compare every relative with every other base, not a sample")
    parser.add_argument("--again", action="store_true", help="also judge pairs that have a line in the results")
    parser.add_argument("--results", type=Path, metavar="FILE", help="results file (default: the file of the level)")
    arguments = parser.parse_args()
    results = arguments.results or (RESULTS if arguments.level == "auto" else AT_LAYERS)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    chosen = [
        pair
        for pair in pairs(every=arguments.all)
        if (not arguments.base or {pair.a.base, pair.b.base} <= set(arguments.base))
        and (not arguments.kind or pair.kind in arguments.kind)
    ]
    if arguments.part in ("build", "all"):
        wanted = {model for pair in chosen for model in (pair.a, pair.b)}
        described = []
        for model in models():
            if model in wanted:
                try:
                    described.append(describe(model))
                except UnavailableError as exc:
                    print(f"skipped {model.name}: {exc}", flush=True)
        known = {row["model"]: row for row in read_lines(MODELS)} | {row["model"]: row for row in described}
        MODELS.write_text("".join(json.dumps(row) + "\n" for row in known.values()), encoding="utf-8")
    if arguments.part in ("judge", "all"):
        judge_all(chosen, results, level=arguments.level, again=arguments.again)
    if arguments.part in ("table", "all"):
        rows = read_lines(results)
        print(table(rows), summary(rows), sep="\n\n")


if __name__ == "__main__":
    main()
