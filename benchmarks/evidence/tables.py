"""Read result files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.runner import RESULTS, Row, read_lines

Results = dict[str, list[Row]]
LOG10_ALPHA = -10.0


def read_results(folder: Path = RESULTS) -> Results:
    """Read every result file, by its name without suffix."""
    return {path.stem: read_lines(path) for path in sorted(folder.glob("*.jsonl"))}


def log10_p_of(row: Mapping[str, Any]) -> float:
    """Return log10 p of a pair, log10 alpha if it is homologous without a bound, or 0 if nothing is significant."""
    if row["log10_p"] is not None:
        return float(row["log10_p"])
    return LOG10_ALPHA if row["verdict"] == "homologous" else 0.0
