"""Write the numbers that reports place their p beside: ``python -m benchmarks.real.scale``.

They are the log10 p of ``benchmarks/results/real-pairs.jsonl``, strangers and relatives apart.
"""

from __future__ import annotations

import json
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAIRS = ROOT / "benchmarks" / "results" / "real-pairs.jsonl"
TARGET = ROOT / "mdir_hf" / "render" / "real_pairs.json"


def scale_of(pairs: str) -> str:
    """Return the file's text, of the lines of judged pairs: those that were answered, the strongest evidence first."""
    judged = [json.loads(line) for line in pairs.splitlines()]
    kinds = {"strangers": False, "relatives": True}
    numbers = {
        kind: sorted(
            round(pair["log10_p"], 1) + 0.0
            for pair in judged
            if pair["related"] is related and pair["verdict"] != "inconclusive"
        )
        for kind, related in kinds.items()
    }
    return json.dumps(numbers) + "\n"


if __name__ == "__main__":
    TARGET.write_text(scale_of(PAIRS.read_text(encoding="utf-8")), encoding="utf-8")
