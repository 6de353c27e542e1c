"""Format the table of results: verdicts, and the distance of each rule from its threshold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.runner import table as format_table

PAPER_P = "MDIR, Algorithm 1: log10 p by the paper's formula"

HEAD = (
    *("reference", "candidate", "kind", "verdict", "log10 p", "p rests on"),
    *(PAPER_P, "MB", "s", "trace over rank"),
    *("cosine of rows", "layers"),
)


def table(rows: Sequence[dict[str, Any]], printed: Mapping[tuple[str, str], float] | None = None) -> str:
    """Format the results as a Markdown table, relatives first, with wrong verdicts in bold.

    Args:
        rows: The results.
        printed: log10 p of Algorithm 1 as printed, by the two models; None if it was not run on any.
    """
    ordered = sorted(rows, key=lambda row: (not row["related"], row["a"], row["kind"], row["b"]))
    return format_table(HEAD, (_cells(row, printed or {}) for row in ordered), rule="---")


def summary(rows: Sequence[dict[str, Any]]) -> str:
    """Count the correct decisions of each kind."""
    lines = []
    for kind in sorted({row["kind"] for row in rows}):
        chosen = [row for row in rows if row["kind"] == kind]
        right = sum(_is_right(row) for row in chosen)
        lines.append(f"{kind}: {right} of {len(chosen)} {'no_evidence' if kind == 'stranger' else 'homologous'}")
    return "\n".join(lines)


def _is_right(row: dict[str, Any]) -> bool:
    return bool(row["verdict"] == ("homologous" if row["related"] else "no_evidence"))


def _cells(row: dict[str, Any], printed: Mapping[tuple[str, str], float]) -> list[str]:
    if "error" in row:
        return [row["a"], row["b"], row["kind"], f"**error**: {row['error']}", *[""] * (len(HEAD) - 4)]
    verdict = row["verdict"] if _is_right(row) else f"**{row['verdict']}**"
    embedding = row["embedding"] or {}
    return [
        row["a"],
        row["b"],
        row["kind"],
        verdict if row["reason"] is None else f"{verdict} ({row['reason']})",
        p_text(row),
        row.get("assumption") or "",
        paper_p(row, printed),
        f"{row['bytes_read'] / 1e6:,.0f}",
        f"{row['cpu_s']:,.0f}",
        _number(embedding.get("strength")),
        _number(embedding.get("cosine")),
        _layers(row),
    ]


def _layers(row: dict[str, Any]) -> str:
    """Format the number of matching layers, by a map of the compared layers or by neurons."""
    layers, neurons = row["layers"], row.get("neurons")
    if layers is not None:
        return f"{layers['n_matched']} of {layers['n_layers']} ({layers['residual_map']})"
    return f"{neurons['n_matched']} by neurons" if neurons is not None and neurons["n_matched"] else ""


def p_text(row: dict[str, Any]) -> str:
    """Format log10 p of a judged pair; empty if it is not a bound."""
    return "no bound" if row["log10_p"] is None or row.get("assumption") == "calibration" else f"{row['log10_p']:,.0f}"


def paper_p(row: dict[str, Any], printed: Mapping[tuple[str, str], float]) -> str:
    """Format log10 p of Algorithm 1 as printed; empty if it was not run on this pair."""
    number = printed.get((row["a"], row["b"]))
    return "" if number is None else f"{number:,.0f}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
