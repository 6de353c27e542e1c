"""Write the page."""

from __future__ import annotations

import io
from pathlib import Path

from benchmarks.evidence.page import make_evidence
from benchmarks.evidence.tables import read_results, read_written

DOCS = Path(__file__).parents[2] / "docs"


def main() -> None:
    """Write the page and its figures."""
    evidence = make_evidence(read_results(), read_written())
    (DOCS / "evidence.md").write_text(evidence.text, encoding="utf-8")
    for name, figure in evidence.figures.items():
        data = io.BytesIO()
        figure.savefig(data, format="png", dpi=80, metadata={"Software": None})
        (DOCS / "images" / name).write_bytes(data.getvalue())
    print(f"docs/evidence.md and {len(evidence.figures)} figures")


if __name__ == "__main__":
    main()
