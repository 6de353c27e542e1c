"""Section on published methods applied to real models."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.evidence.tables import Results
from benchmarks.runner import Row, table

BASES = {"smollm2-135m-instruct": "SmolLM2-135M", "qwen2.5-coder-0.5b-instruct": "Qwen2.5-Coder-0.5B"}


def methods_section(results: Results) -> str:
    """Tabulate the conclusive step, log10 p and MB read for each method and base."""
    rows = results["real-methods"]
    related = [row for row in rows if row["related"]]
    strangers = [row for row in rows if not row["related"]]
    missed = [row for row in related if row["verdict"] != "homologous"]
    names = dict.fromkeys(row["method"] for row in rows)
    published = {row["method"] for row in rows if row["published"]}
    kinds = [(base, left) for base in BASES for left in ("all", "layers")]
    cells = [
        [
            next(row["done"] for row in rows if row["method"] == name),
            *(_cell(rows, name, base, left) for base, left in kinds),
            _cell(rows, name, list(BASES)[1], "stranger"),
        ]
        for name in names
    ]
    head = [f"{BASES[base]}, {'as it is' if left == 'all' else 'layers alone'}" for base, left in kinds]
    return "\n\n".join(
        [
            "## What published methods leave",
            f"{len(published)} published methods were applied to two real models, along with "
            f"{len(names) - len(published)} other edits that were designed to be hard (`python -m "
            "benchmarks real-methods`). No model is trained: if a method trains, its starting point is compared. If a "
            "method makes choices by running the model, we make them by size or at random, except for the bases of "
            "SliceGPT. *As it is*: the result of the method, compared with its base. *Layers alone*: the embeddings "
            "are drawn anew as well, and the residual stream is rotated if the method preserves most of the layers. A "
            "cell shows the step that settled the pair, log10 p, and MB read, including tokenizers. *Stranger*: the "
            f"result of the method on SmolLM2, compared with Qwen. **{_found(related, True)} relatives by published "
            f"methods are found, {_found(related, False)} by the other edits, and "
            f"{sum(row['verdict'] == 'homologous' for row in strangers)} of {len(strangers)} strangers.** A newly "
            "drawn draft layer of EAGLE would share nothing with its base, so the row compares a copied one.",
            table(["method", *head, "stranger"], cells),
            _why_missed(missed),
        ]
    )


def _found(related: Sequence[Row], is_published: bool) -> str:
    chosen = [row for row in related if row["published"] is is_published]
    return f"{sum(row['verdict'] == 'homologous' for row in chosen)} of {len(chosen)}"


def _cell(rows: Sequence[Row], name: str, base: str, left: str) -> str:
    row = next((row for row in rows if (row["method"], row["base"], row["left"]) == (name, base, left)), None)
    if row is None:
        return "–"
    if row["verdict"] == "error":
        return f"error: {row['error']}"
    return row["verdict"] if left == "stranger" else _result_text(row)


def _result_text(row: Row) -> str:
    if row["verdict"] != "homologous":
        return f"**{row['verdict']}**"
    p = "no p" if row["log10_p"] is None else f"{row['log10_p']:,.0f}"
    return f"{row['settled_by']}, {p}, {row['bytes_read'] / 1e6:.0f} MB"


def _why_missed(missed: Sequence[Row]) -> str:
    if not missed:
        return "None is missed."
    reasons: dict[bool, dict[str, dict[str, None]]] = {True: {}, False: {}}
    for row in missed:
        reasons[row["published"]].setdefault(row["done"], {})[f"`{row['reason'] or row['verdict']}`"] = None
    texts = []
    for is_published, kind in ((True, "published methods"), (False, "edits that were designed to be hard")):
        listed = "; ".join(f"{done} ({', '.join(told)})" for done, told in reasons[is_published].items())
        texts.append(f"Missed {kind}: {listed or 'none'}.")
    return " ".join(texts)
