"""Judge edits of SmolLM2-135M by the rules of the second witness, beside the earlier verdicts.

    python -m benchmarks.real.witness

Only models that ``benchmarks/real`` has built are judged (``python -m benchmarks.real build`` builds them). A line for
each pair is kept in ``benchmarks/results/second-witness.jsonl``. The script takes a few minutes on one core.
"""

from __future__ import annotations

import json
import time

from benchmarks.real.judging import RESULTS as BEFORE
from benchmarks.real.sources import cache_root
from benchmarks.zoo.run import read_lines
from mdir_hf import compare

RESULTS = BEFORE.with_name("second-witness.jsonl")
BASE = "smollm2-135m-instruct"
MEMBERS = (
    *("permuted", "signed", "half-width", "half-depth", "upscaled", "heads-neurons", "values-turned", "new-embeddings"),
    *("rotated", "hidden", "noise-1", "noise-3", "noise-6", "noise-10", "noise-20"),
)
STRANGER = "qwen2.5-coder-0.5b-instruct"


def main() -> None:
    """Judge the pairs, store and print the results."""
    before = {(row["a"], row["b"]): row for row in read_lines(BEFORE)}
    places = [(f"{BASE}/{member}", cache_root() / "models" / BASE / member) for member in MEMBERS]
    places.append((STRANGER, cache_root() / "models" / STRANGER / "base"))
    rows = []
    for name, place in places:
        if not place.is_dir():
            print(f"skipped {name}: not built", flush=True)
            continue
        start = time.process_time()
        report = compare(cache_root() / "models" / BASE / "base", place, progress=False)
        old, neurons = before.get((BASE, name), {}), report.neurons
        row = {
            "a": BASE,
            "b": name,
            "verdict": report.verdict.value,
            "reason": report.reason,
            "log10_p": report.log10_p,
            "assumption": report.assumption,
            "settled_by": report.settled_by,
            "layers_that_match": 0 if neurons is None else len(neurons.matches),
            "is_searched": neurons is not None and neurons.is_searched,
            "bytes_read": report.io.bytes_read,
            "cpu_s": round(time.process_time() - start, 1),
            "verdict_before": old.get("verdict"),
            "log10_p_before": old.get("log10_p"),
            "assumption_before": old.get("assumption"),
            "bytes_read_before": old.get("bytes_read"),
        }
        rows.append(row)
        print(json.dumps(row), flush=True)
    RESULTS.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


if __name__ == "__main__":
    main()
