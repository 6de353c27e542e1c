"""Section on real models with long training."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from benchmarks.evidence.tables import LOG10_ALPHA, Results
from benchmarks.peers.plain_mdir import PlainMdir
from benchmarks.real.plain import SMALL
from benchmarks.real.sources import SOURCES
from benchmarks.real.table import PAPER_P, p_text, paper_p, summary
from benchmarks.real.table import table as table_of_pairs
from benchmarks.runner import Row, table


def real_section(results: Results) -> str:
    """Tabulate results on real models, and quantised copies."""
    pairs = results["real-pairs"]
    printed = printed_p(results.get("plain-mdir", []))
    models = {row["model"]: row for row in results["real-models"]}
    formats = [row for row in pairs if row["kind"] == "format"]
    strangers = [row for row in pairs if not row["related"]]
    wrong = sum(row["verdict"] == "homologous" for row in strangers)
    return "\n\n".join(
        [
            "## Real models",
            "These models were trained for a long time by others and taken from packages (`benchmarks/real`, "
            f"`make real`), or made from such models: {len(models)} in all. {sum(row['related'] for row in pairs)} "
            f"related pairs and {len(strangers)} pairs of strangers have been judged so far; **{wrong} strangers are "
            "called homologous**.",
            "GGUF files are read back as BF16, and ONNX files as F32. The F32 files are used as packaged.",
            table(
                "model | name | read from | bits per weight in the file",
                [
                    [name, source.title, source.read_from, _number(models.get(name, {}), "bits_per_weight_in_packages")]
                    for name, source in SOURCES.items()
                ],
            ),
            "\n".join(f"- {line}" for line in summary(pairs).splitlines()),
            table_of_pairs([row for row in pairs if row["kind"] != "format"], printed),
            "The column of Algorithm 1 shows log10 p as the paper defines it, from all common tokens "
            "(`python -m benchmarks plain-mdir`). It is 0 if p is not below 1, and empty if a model was not on disk "
            "when the script ran. The formula assumes that one model has no preferred axes, which is often false for "
            "trained embeddings. No verdict rests on it.",
            "### Quantised copies",
            "Bits per weight: 8 times the bytes of the weight files, divided by the number of weights. Only the GGUF "
            "files written here quantise the embedding. For the other formats, a verdict that rests on the embeddings "
            "alone has read no quantised weight. If rows do not fill the blocks of a K-quant, GGUF stores another "
            "type, as llama.cpp does.",
            table(
                [
                    "reference",
                    "format",
                    "bits per weight",
                    "embedding",
                    "layers",
                    "verdict",
                    "log10 p",
                    "p rests on",
                    PAPER_P,
                    "MB",
                    "s",
                ],
                [_format(row, models.get(row["b"], {}), printed) for row in formats],
            ),
        ]
    )


def printed_p(rows: Sequence[Row]) -> dict[tuple[str, str], float]:
    """Return log10 p of Algorithm 1 as printed for each pair of real models that has an answer."""
    found = {}
    for row in rows:
        if row["group"] == "real" and row.get("embedding_log10_p") is not None:
            found[names_of(row)] = row["embedding_log10_p"]
    return found


def names_of(row: Row) -> tuple[str, str]:
    """Return the names of the two real models in a result of MDIR as printed."""
    first, _, second = row["name"].rpartition(" | ")
    return first or SMALL, second


def real_peers_section(results: Results) -> str:
    """Tabulate how well other methods separate relatives of real models from strangers."""
    rows = rows_of_peers(results)
    head = ["peer", "relatives above every stranger", "by its threshold", "strangers", "no answer", "s"]
    return "\n\n".join(
        [
            "## Peers on real models",
            "Each peer scores some of the pairs of real models (`python -m benchmarks real-peers`). Few of these pairs "
            f"are strangers, so the first column overestimates a peer. {PlainMdir.name}: the pairs whose models were "
            "on disk (`python -m benchmarks plain-mdir`).",
            table(
                head, [peer_row(name, [row for row in rows if row["peer"] == name]) for name in peers_in_order(rows)]
            ),
        ]
    )


def rows_of_peers(results: Results) -> list[Row]:
    """Return the scores of all methods on real models, MDIR as printed first."""
    return [*printed_as_peer(results.get("plain-mdir", []), results["real-peers"]), *results["real-peers"]]


def printed_as_peer(plain: Sequence[Row], rows: Sequence[Row]) -> list[Row]:
    """Return the results of MDIR as printed on the pairs of ``rows``, in the format of a peer."""
    pairs = {(row["a"], row["b"]) for row in rows}
    return [
        {
            "peer": PlainMdir.name,
            "related": row["related"],
            "score": None if "reason" in row else -min(row["embedding_log10_p"], row["layers_log10_p"] or 0.0),
            "threshold": -LOG10_ALPHA,
            "cpu_s": row.get("cpu_s", 0.0),
        }
        for row in plain
        if row["group"] == "real" and names_of(row) in pairs
    ]


def _format(row: Row, model: Row, printed: Mapping[tuple[str, str], float]) -> list[str]:
    """Return the table row of a quantised copy; unmeasured values stay empty."""
    names = [row["a"], row["b"].partition("/")[2]]
    stored = [_number(model, "bits_per_weight"), _part(model, "embedding"), _part(model, "layers")]
    if "error" in row:
        return [*names, *stored, f"**error**: {row['error']}", "", "", "", "", ""]
    return [
        *names,
        *stored,
        row["verdict"] if row["verdict"] == "homologous" else f"**{row['verdict']}**",
        p_text(row),
        row.get("assumption") or "",
        paper_p(row, printed),
        f"{row['bytes_read'] / 1e6:,.0f}",
        f"{row['cpu_s']:,.0f}",
    ]


def _part(model: Row, part: str) -> str:
    stored = model.get(f"{part}_type", "")
    return f"{stored}, unchanged" if model.get(f"{part}_equal") else stored


def _number(model: Row, field: str) -> str:
    return f"{model[field]:.1f}" if field in model else ""


def peers_in_order(rows: list[Row]) -> list[str]:
    """Return the names of the methods, each once."""
    return list(dict.fromkeys(row["peer"] for row in rows))


def peer_row(name: str, rows: list[Row]) -> list[str]:
    """Return the row of a method: how many relatives score above every stranger, and its errors and seconds."""
    scored = [row for row in rows if row["score"] is not None]
    relatives = [row["score"] for row in scored if row["related"]]
    strangers = [row["score"] for row in scored if not row["related"]]
    highest = max(strangers, default=math.inf)
    n_related = sum(row["related"] for row in rows)
    limit = rows[0]["threshold"]
    return [
        name,
        f"{sum(score > highest for score in relatives)} of {n_related}",
        "" if limit is None else f"{sum(score >= limit for score in relatives)} of {n_related}",
        f"{len(rows) - n_related}"
        if limit is None
        else f"{len(rows) - n_related}, {sum(score >= limit for score in strangers)} called related",
        str(len(rows) - len(scored)),
        f"{sum(row['cpu_s'] for row in rows):,.0f}",
    ]
