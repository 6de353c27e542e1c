"""Section on the second witness: verdicts on edits of a real model before and after the rule."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.evidence.tables import Results, Row, table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HEADER = [
    "candidate",
    "verdict",
    "log10 p",
    "rests on",
    "layers that match",
    "read",
    "verdict before",
    "p before",
    "read before",
]


def witness_section(results: Results, figures: dict[str, Figure]) -> str:
    """Tabulate the re-judged pairs and list the changed verdicts."""
    del figures
    rows = results["second-witness"]
    changed = [row for row in rows if row["verdict"] != row["verdict_before"]]
    listed = "; ".join(f"{row['b']} ({row['reason']})" for row in changed) or "none"
    return "\n\n".join(
        [
            "## The second witness on a real model",
            "SmolLM2-135M-Instruct (read from a Q4_1 GGUF file, written as BF16) was compared with edits of it and "
            "with a stranger, by the rules of the second witness and by the earlier rules "
            f"(`python -m benchmarks.real.witness`). {len(rows) - len(changed)} of {len(rows)} verdicts are the same; "
            f"changed: {listed}. A *p before* that rests on calibration was printed although it bounds no probability; "
            "now no p is printed in that case. Local files are read across gaps of 128 KiB, so more bytes are counted "
            "than over HTTP.",
            table(HEADER, map(_cells, rows)),
        ]
    )


def _cells(row: Row) -> list[str]:
    def bound(log10_p: float | None) -> str:
        return "none" if log10_p is None else f"{log10_p:,.0f}".replace("-0", "0")

    matches = f"{row['layers_that_match']}{' (searched)' if row['is_searched'] and row['layers_that_match'] else ''}"
    return [
        row["b"],
        row["verdict"] if row["reason"] is None else f"{row['verdict']} ({row['reason']})",
        bound(row["log10_p"]),
        row["assumption"] or "",
        matches,
        f"{row['bytes_read'] / 1e6:.0f} MB",
        row["verdict_before"] or "",
        f"{bound(row['log10_p_before'])} ({row['assumption_before'] or '-'})",
        f"{(row['bytes_read_before'] or 0) / 1e6:.0f} MB",
    ]
