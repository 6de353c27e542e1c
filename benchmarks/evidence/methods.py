"""The section on published methods applied to real models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from benchmarks.evidence.tables import Results, Row, table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BASES = {"smollm2-135m-instruct": "SmolLM2-135M", "qwen2.5-coder-0.5b-instruct": "Qwen2.5-Coder-0.5B"}
BY = {"screen": "channels", "embedding": "channels", "unembedding": "head", "neurons": "neurons", "layers": "layer map"}


def methods_section(results: Results, figures: dict[str, Figure]) -> str:
    """Conclusive test, log10 p and MB read, for each method and base."""
    del figures
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
            f"{len(published)} published methods on two real models, and {len(names) - len(published)} other edits, "
            "made to be hard (`python -m benchmarks.real.methods`). Nothing is trained: if a "
            "method trains, its starting point is compared. Choices that a method makes by running the model are made "
            "by size or by chance, save the bases of SliceGPT. *As it is*: its result, compared with its base. "
            "*Layers alone*: the embeddings are drawn anew as well, and the residual stream is rotated if the method "
            "leaves most of the layers. A cell says what settled it, log10 p, and MB read, tokenizers among them. "
            "Strangers: what the method makes of SmolLM2, compared with Qwen. "
            f"**{_found(related, True)} relatives by published methods are found, {_found(related, False)} by the "
            f"others, {sum(row['verdict'] == 'homologous' for row in strangers)} of {len(strangers)} strangers are.** "
            "A draft layer of EAGLE that was drawn anew shares nothing with its base; the row compares a copied one.",
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
    if row["verdict"] != "homologous" and "at_level_layers" in row:
        return f"**{row['verdict']}**; at level layers: {_result_text(row['at_level_layers'])}"
    return row["verdict"] if left == "stranger" else _result_text(row)


def _result_text(row: Row) -> str:
    if row["verdict"] != "homologous":
        return f"**{row['verdict']}**"
    layers, neurons = row["layers"], row["neurons"]
    n_matched = ""
    if row["settled_by"] == "layers":
        n_matched = f", {layers['n_matched']} of {layers['n_layers']}"
    if row["settled_by"] == "neurons":
        n_matched = f", {neurons['n_matched']} layer{'s' * (neurons['n_matched'] != 1)}"
    p = "by calibration" if row["log10_p"] is None else f"{row['log10_p']:,.0f}"
    return f"{BY[row['settled_by']]}{n_matched}, {p}, {row['bytes_read'] / 1e6:.0f} MB"


def _why_missed(missed: Sequence[Row]) -> str:
    if not missed:
        return "None was missed."
    published: dict[str, dict[str, None]] = {}
    for row in missed:
        if row["published"]:
            published.setdefault(row["done"], {})[f"`{row['reason'] or row['verdict']}`"] = None
    hard = dict.fromkeys(row["done"] for row in missed if not row["published"])
    texts = []
    if published:
        listed = "; ".join(f"{done} ({', '.join(reasons)})" for done, reasons in published.items())
        texts.append(
            f"These published methods leave no second witness: {listed}. QuaRot rotates the inputs of down, so neurons "
            "agree by gate and up alone. A draft model of EAGLE-1 has only the embeddings of its base."
        )
    if hard:
        texts.append(
            f"Level auto misses these edits that were made to be hard: {'; '.join(hard)}. Q, O, gate and down are "
            "tested by themselves only at level layers, which was run on SmolLM2. If a gate or a third of the neurons "
            "is kept, more neurons have their own number than chance allows, and too few are certain: `inconclusive`."
        )
    return " ".join(texts)
