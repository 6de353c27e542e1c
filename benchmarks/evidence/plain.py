"""Section on MDIR as printed: the paper's algorithms and the checker on the same pairs."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.evidence.tables import Results
from benchmarks.runner import Row, table

LOG10_ALPHA = -10.0
GROUPS = {
    "zoo": "The zoo",
    "real": "Real models and models made from them",
    "framed": "Framed strangers, and soups (related), each with its victim",
}


def plain_section(results: Results) -> str:
    """Tabulate counts of each group, the pairs on which the two differ, and all real pairs."""
    rows = results["plain-mdir"]
    groups = {name: [row for row in rows if row["group"] == name] for name in GROUPS}
    real = groups["real"]
    return "\n\n".join(
        [
            "## MDIR as printed",
            "Algorithms 1 and 2 were run as the paper prints them (`benchmarks/peers/plain_mdir.py`): on all common "
            "tokens, and on V of every pair of layers behind $U_E$, with p by the paper's formula. A pair is related "
            f"if the smaller p is below 1e-10. The {len(rows)} pairs are all pairs whose models were on disk "
            "(`python -m benchmarks plain-mdir`). The checker's verdicts come from the result files. *Framed* "
            "strangers were made to deceive methods that read embeddings or layers; the paper does not claim to resist "
            "them. Algorithm 3 analyses layers that match and does not affect the decision.",
            table(
                "pairs | related | found as printed | found by the checker | strangers | accused as printed | "
                "accused by the checker",
                [_counts(GROUPS[name], group) for name, group in groups.items() if group],
            ),
            "Pairs without an answer: " + (_unanswered(rows) or "none") + ".",
            _cost(rows),
            "### Where the two differ",
            "*Embeddings*: log10 p of Algorithm 1. *Layers*: the smallest log10 p of Algorithm 2.",
            table(
                "pair | related | kind | trace | rank | embeddings | layers | checker",
                [_cells(row) for row in rows if _differs(row)],
            ),
            "### All real pairs",
            table("pair | related | kind | trace | rank | embeddings | layers | checker", map(_cells, real)),
        ]
    )


def is_found(row: Row) -> bool:
    """Return whether MDIR as printed calls a pair related."""
    numbers = [row.get("embedding_log10_p"), row.get("layers_log10_p")]
    return any(number is not None and number < LOG10_ALPHA for number in numbers)


def is_ours(row: Row) -> bool:
    """Return whether the checker calls a pair related."""
    return any(result["verdict"] == "homologous" for result in row["ours"].values())


def _differs(row: Row) -> bool:
    return is_found(row) is not is_ours(row)


def _counts(title: str, rows: Sequence[Row]) -> list[str]:
    related = [row for row in rows if row["related"]]
    strangers = [row for row in rows if not row["related"]]
    return [
        title,
        str(len(related)),
        str(sum(map(is_found, related))),
        str(sum(map(is_ours, related))),
        str(len(strangers)),
        str(sum(map(is_found, strangers))),
        str(sum(map(is_ours, strangers))),
    ]


def _unanswered(rows: Sequence[Row]) -> str:
    return "; ".join(f"{row['name']} ({row['reason']})" for row in rows if row.get("reason"))


def _cost(rows: Sequence[Row]) -> str:
    """Compare median bytes and seconds of both methods on the real pairs."""
    both = [row for row in rows if row["group"] == "real" and "cpu_s" in row and row["ours"]["auto"].get("cpu_s")]
    if not both:
        return ""

    def middle(values: Sequence[float]) -> float:
        return sorted(values)[len(values) // 2]

    printed = [row["bytes_of_weights"] / 1e6 for row in both], [row["cpu_s"] for row in both]
    of_checker = (
        [row["ours"]["auto"]["bytes_read"] / 1e6 for row in both],
        [row["ours"]["auto"]["cpu_s"] for row in both],
    )
    return (
        f"On the real pairs, MDIR as printed reads {middle(printed[0]):,.0f} MB of weights (Q, K, V, Up and the "
        f"embeddings of both models) and takes {middle(printed[1]):.0f} s of processor time; the checker reads "
        f"{middle(of_checker[0]):,.0f} MB and takes {middle(of_checker[1]):.1f} s (medians)."
    )


def _cells(row: Row) -> list[str]:
    verdicts = "; ".join(
        f"{level}: {result['verdict']}" + (f" ({result['reason']})" if result.get("reason") else "")
        for level, result in row["ours"].items()
    )

    def p(number: float | None) -> str:
        return "–" if number is None else f"{number:,.0f}"

    trace = "–" if row.get("trace") is None else f"{row['trace']:.1f}"
    return [
        row["name"].replace("|", "and"),
        "yes" if row["related"] else "no",
        row["done"],
        trace,
        str(row.get("rank", "–")),
        p(row.get("embedding_log10_p")),
        p(row.get("layers_log10_p")),
        verdicts,
    ]
