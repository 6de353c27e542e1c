"""Compare framed models with their victims, and count neurons for fresh samples."""

from __future__ import annotations

import json
import time
from functools import lru_cache
from pathlib import Path
from typing import Any

from benchmarks.real.bases import load
from benchmarks.real.framing.arranging import layer_pairs
from benchmarks.real.framing.cases import Case, built, cases, folder_of
from benchmarks.real.framing.counts import fresh_counts
from benchmarks.zoo.run import read_lines
from benchmarks.zoo.stack import Stack, take_apart
from mdir_hf import HomologyChecker, MdirError

RESULTS = Path(__file__).parents[2] / "results" / "framing.jsonl"
LEVELS = ("auto", "layers")
N_SAMPLES = 20


def counts(case: Case) -> dict[str, Any]:
    """Count neurons of fresh samples that have their own partner, over a few layers."""
    victim, framed = _stack(folder_of(case.victim)), take_apart(load(built(case)))
    pairs = layer_pairs(victim, framed)
    return fresh_counts(victim, framed, pairs[:: max(1, len(pairs) // 6)], n_samples=N_SAMPLES)


def verdict(case: Case, level: str) -> dict[str, Any]:
    """Compare a framed model with its victim at one level."""
    began = time.process_time()
    checker = HomologyChecker.from_pretrained(str(folder_of(case.victim)), use_caches=False)
    try:
        report = checker.compare(str(built(case)), level=level, progress=False)
    except MdirError as exc:
        return {"verdict": "error", "error": type(exc).__name__}
    row = {key: report.to_dict()[key] for key in ("verdict", "reason", "log10_p", "assumption", "settled_by")}
    if report.projections is not None:
        outcomes = {outcome.value: n for outcome, n in report.projections.counts().items()}
        row["table"] = {"is_confirmed": report.projections.is_confirmed, "outcomes": outcomes}
    return {**row, "cpu_s": round(time.process_time() - began, 1)}


def judged(case: Case, *, levels: tuple[str, ...] = LEVELS, known: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return a line of the results.

    Args:
        case: The framed model.
        levels: Levels of the comparisons.
        known: An earlier line; its counts and other levels are kept.
    """
    record = json.loads((built(case) / "framed.json").read_text(encoding="utf-8"))
    known = known or {}
    return {
        "name": case.name,
        "victim": case.victim,
        "stranger": case.stranger,
        "done": case.done,
        "copied": case.copied,
        "related": case.is_related,
        **record,
        "counts": known.get("counts") or counts(case),
        **{level: known[level] for level in LEVELS if level in known},
        **{level: verdict(case, level) for level in levels},
    }


def write(row: dict[str, Any], results: Path = RESULTS) -> None:
    """Replace the line of the same name, or add one."""
    lines = {line["name"]: line for line in read_lines(results) if line["name"] in cases()} | {row["name"]: row}
    results.write_text("".join(json.dumps(line) + "\n" for line in lines.values()), encoding="utf-8")


@lru_cache(maxsize=2)
def _stack(folder: Path) -> Stack:
    return take_apart(load(folder))
