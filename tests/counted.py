"""Store how often a program was tried and how often it gave a wrong answer, for the page of evidence."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any


def store_counts(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Add rows to a file with one JSON object per line; a row replaces the earlier one with the same ``what``."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    stored = {row["what"]: row for row in map(json.loads, lines)} | {row["what"]: row for row in rows}
    path.write_text("".join(json.dumps(row) + "\n" for row in stored.values()), encoding="utf-8")
