"""The paper's table of a changed tokenizer: a base is given new embeddings under another one and trained on.

Looked at while it trains: the trace, p of embeddings and of layers, how many channels the best matching gives to
themselves, p of the channels in their own order alone, and their votes. That order is one matching, fixed in advance,
so that ln p <= -c^2 n / 2r has no count of matchings to pay. Nothing was carried over from the old embeddings.

In the paper, at 0.5 billion parameters and 12 billion tokens, nothing is significant at first, then most channels,
then all. At sizes that a core trains in minutes the embeddings do not find back to the old basis where every weight is
trained (a), and the layers show the ancestry from the first step. Where the body is held fast (b) they do, slowly.

    python -m benchmarks.paper.changed_tokenizer [--tiny]
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from benchmarks.paper.models import BASE, TOKENS_PER_STEP, Scale, built, losses_of
from benchmarks.paper.output import p_text, run, table
from mdir_hf import HomologyChecker
from mdir_hf.comparison.model import Model
from mdir_hf.homology.matching import best_matching
from mdir_hf.homology.polar import polar_factor
from mdir_hf.homology.rows import pair_rows
from mdir_hf.homology.significance import LN10
from mdir_hf.hub import open_repository
from mdir_hf.vocabulary import common_vocabulary

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.figure import Figure


ALPHA_LOG10 = -10.0


def changed_tokenizer(scale: Scale) -> tuple[dict[str, Any], str, dict[str, Figure]]:
    """Two tables: every weight trained, and the embeddings alone."""
    tables = {
        "trained": (scale.qwen3.width, _rows(BASE, "retokenised", scale.retokenised_steps, TOKENS_PER_STEP, scale)),
        "held": (scale.small.width, _rows("small", "embedded", scale.embedded_steps, 2 * TOKENS_PER_STEP, scale)),
    }
    words = {
        "trained": "(a) Every weight trained; the new tokenizer is of another kind (Unigram for BPE)",
        "held": "(b) The body held fast; the new tokenizer is a BPE of other text",
    }
    parts = [
        f"{words[key]}. n = {width}, {rows[0]['common_tokens']} tokens in common.\n\n{_table(width, rows)}\n\n"
        + _finding(width, rows)
        for key, (width, rows) in tables.items()
    ]
    section = (
        "## Changed tokenizer (the paper's table 4)\n\n"
        "Embeddings are drawn anew at a thousandth of their size (the paper's zeros have no gradient without biases). "
        "*Own channels* are those that the best matching, of n! it could be, gives to themselves. *Own order* is the "
        "identity alone, fixed in advance, before it is corrected for other tests; *votes* are its channels with a "
        "positive sign, of which half are chance. *p, embeddings* is what `compare --level embedding` says.\n\n"
        + "\n\n".join(parts)
    )
    return {key: {"width": width, "rows": rows} for key, (width, rows) in tables.items()}, section, {}


def _rows(
    base_name: str, name: str, steps: tuple[int, ...], tokens_per_step: int, scale: Scale
) -> list[dict[str, Any]]:
    base = built(base_name, scale)
    rows = []
    for step in steps:
        folder = built(f"{name}-{step}", scale)
        checker = HomologyChecker.from_pretrained(base, use_caches=False)
        by_embedding = checker.compare(folder, level="embedding", progress=False)
        whole = checker.compare(folder, level="body", progress=False)
        rows.append(
            {
                "tokens": step * tokens_per_step,
                **_traces(base, folder),
                "log10_p_embedding": round(by_embedding.log10_p, 1),
                "verdict_embedding": by_embedding.verdict.value,
                "log10_p_layers": None if whole.layers is None else round(whole.layers["log10_p"], 1),
                "verdict": whole.verdict.value,
                "held_out_loss": round(losses_of(f"{name}-{step}", scale)["held_out"], 3),
            }
        )
    return rows


def _table(width: int, rows: list[dict[str, Any]]) -> str:
    header = [
        "tokens",
        "trace",
        "p, embeddings",
        f"own channels of {width}",
        "p, own order",
        f"votes of {width}",
        "p, layers",
        "held-out loss",
    ]
    return table(
        header,
        [
            [
                f"{row['tokens']:,}",
                f"{row['trace']:g}",
                p_text(row["log10_p_embedding"]),
                f"{row['channels']}",
                p_text(row["log10_p_own_order"]),
                f"{row['votes']}",
                "—" if row["log10_p_layers"] is None else p_text(row["log10_p_layers"]),
                f"{row['held_out_loss']:g}",
            ]
            for row in rows
        ],
    )


def _finding(width: int, rows: list[dict[str, Any]]) -> str:
    def first(key: str) -> int | None:
        return next((row["tokens"] for row in rows if (row[key] or 0.0) < ALPHA_LOG10), None)

    by_any, by_own = first("log10_p_embedding"), first("log10_p_own_order")
    if by_any is not None:
        settled = [row["tokens"] for row in rows if row["verdict_embedding"] == "homologous"]
        said = f"As in the paper, embeddings say nothing at first and are significant from {by_any:,} tokens on"
        said += f", homologous by themselves from {settled[0]:,} on" if settled else ""
        if max(row["channels"] for row in rows) < width // 2:
            said += "; unlike there, it is channels in their own order that are, and no search for an order finds one"
        said += "."
    else:
        said = (
            "**The paper's table is not reproduced at this size**: it has 10^-4750 after 3.3 billion tokens; these "
            f"embeddings are not significant after {rows[-1]['tokens']:,}."
        )
        if by_own is not None:
            said += f" In their own order, before correction, channels are from {by_own:,} tokens on."
    n_found = sum(row["verdict"] == "homologous" for row in rows)
    return f"{said} By its layers the model is called homologous at {n_found} of {len(rows)} looks."


def _traces(base: Path, other: Path) -> dict[str, Any]:
    """Trace of the paper's Algorithm 1, channels matched with themselves, p of their own order, tokens in common."""
    one, two = (Model(open_repository(folder)) for folder in (base, other))
    assert one.vocabulary is not None
    assert two.vocabulary is not None
    common = common_vocabulary(one.vocabulary, two.vocabulary, n_reference_rows=one.n_rows, n_candidate_rows=two.n_rows)
    x, y = (
        model.tensors.read(model.anatomy.embedding.tensor).double()[torch.from_numpy(rows)]
        for model, rows in ((one, common.reference_rows), (two, common.candidate_rows))
    )
    matching = best_matching(polar_factor(x.T @ y).matrix, signed=False)
    assert matching is not None
    rows = pair_rows(x, y, dtype=torch.float64)
    factor = polar_factor(rows.reference.T @ rows.candidate)
    own = factor.matrix.diagonal()
    trace = max(0.0, float(own.sum()))
    return {
        "trace": round(matching.trace, 1),
        "channels": int((matching.reference == matching.candidate).sum()),
        "trace_own_order": round(trace, 2),
        "votes": int((own > 0).sum()),
        "log10_p_own_order": round(-(trace**2) * len(factor.matrix) / (2 * factor.rank) / LN10, 1),
        "common_tokens": len(common),
    }


if __name__ == "__main__":
    run("changed-tokenizer", changed_tokenizer)
