"""Write the evidence pages."""

from __future__ import annotations

import io
from pathlib import Path

from benchmarks.evidence.page import PAGES, make_evidence
from benchmarks.evidence.tables import read_results, read_written

DOCS = Path(__file__).parents[2] / "docs"


def main() -> None:
    """Write the pages and their figures."""
    evidence = make_evidence(read_results(), read_written())
    (DOCS / PAGES).mkdir(exist_ok=True)
    for place, text in evidence.pages.items():
        (DOCS / place).write_text(text, encoding="utf-8")
    for name, figure in evidence.figures.items():
        data = io.BytesIO()
        figure.savefig(data, format="png", dpi=110, metadata={"Software": None})
        (DOCS / "images" / name).write_bytes(data.getvalue())
    print(f"docs/evidence.md, {len(evidence.pages) - 1} pages with all rows, {len(evidence.figures)} figures")


if __name__ == "__main__":
    main()
