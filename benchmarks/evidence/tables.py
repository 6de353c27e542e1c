"""Read result files and format Markdown tables."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

Row = dict[str, Any]
Results = dict[str, list[Row]]
LOG10_ALPHA = -10.0
RESULTS = Path(__file__).parents[1] / "results"


def read_results(folder: Path = RESULTS) -> Results:
    """Read every result file, by its name without suffix."""
    results = {}
    for path in sorted(folder.glob("*.json*")):
        text = path.read_text(encoding="utf-8")
        results[path.stem] = (
            [json.loads(line) for line in text.splitlines()] if path.suffix == ".jsonl" else json.loads(text)
        )
    return results


def read_written(folder: Path = RESULTS) -> dict[str, str]:
    """Read the Markdown sections that other scripts have written, by name."""
    return {path.stem: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.md"))}


def log10_p_of(row: Mapping[str, Any]) -> float:
    """Return log10 p of a pair, log10 alpha if it is homologous without a bound, or 0 if nothing is significant."""
    if row["log10_p"] is not None:
        return float(row["log10_p"])
    return LOG10_ALPHA if row["verdict"] == "homologous" else 0.0


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Format a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
