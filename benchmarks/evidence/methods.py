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
    return f"{row['settled_by']}{n_matched}, {p}, {row['bytes_read'] / 1e6:.0f} MB"


def _why_missed(missed: Sequence[Row]) -> str:
    if not missed:
        return "None is missed."
    published: dict[str, dict[str, None]] = {}
    for row in missed:
        if row["published"]:
            published.setdefault(row["done"], {})[f"`{row['reason'] or row['verdict']}`"] = None
    hard = dict.fromkeys(row["done"] for row in missed if not row["published"])
    texts = []
    if published:
        listed = "; ".join(f"{done} ({', '.join(reasons)})" for done, reasons in published.items())
        texts.append(
            f"The earlier rule missed these published methods: {listed}. A draft model of EAGLE-1 has only "
            "the embeddings of its base."
        )
    if hard:
        texts.append(
            f"Level `auto` misses these hard edits: {'; '.join(hard)}. Only level `layers`, which was run on SmolLM2, "
            "tests Q, O, gate and down separately. If a gate or a third of the neurons is kept, more neurons have "
            "their own number than chance allows, but too few are certain, so the verdict is `inconclusive`."
        )
    return " ".join(texts)
