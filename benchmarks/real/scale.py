"""Write the reference values that reports show next to their p: ``python -m benchmarks scale``.

They are the log10 p in ``benchmarks/results/real-pairs.jsonl``, separately for unrelated and related pairs. Pairs
whose neurons were searched for have no p. Relatives that were missed are left out, too.
"""

from __future__ import annotations

import json
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAIRS = ROOT / "benchmarks" / "results" / "real-pairs.jsonl"
TARGET = ROOT / "mdir_hf" / "render" / "real_pairs.json"


def scale_of(pairs: str) -> str:
    """Return the text of the file, given the lines of judged pairs; the smallest p comes first."""
    judged = [json.loads(line) for line in pairs.splitlines()]
    kinds = {"strangers": (False, ("no_evidence", "homologous")), "relatives": (True, ("homologous",))}
    numbers = {
        kind: sorted(
            round(pair["log10_p"], 1) + 0.0
            for pair in judged
            if pair["related"] is related and pair["verdict"] in verdicts and pair["log10_p"] is not None
        )
        for kind, (related, verdicts) in kinds.items()
    }
    return json.dumps(numbers) + "\n"


def write_scale() -> None:
    """Write the file."""
    TARGET.write_text(scale_of(PAIRS.read_text(encoding="utf-8")), encoding="utf-8")
