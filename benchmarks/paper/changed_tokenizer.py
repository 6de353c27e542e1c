"""The paper's table of a changed tokenizer: a base gets new embeddings for another tokenizer and is trained further.

The script measures the trace, p of embeddings and layers, the number of channels that the best matching maps to
themselves, p of the channels in their own order alone, and the number of them that agree in sign. The channels' own
order is a single matching, fixed in advance, so ln p <= -c^2 n / 2r needs no correction for the number of matchings.
The new embeddings take no values from the old ones.

In the paper, with 0.5 billion parameters and 12 billion tokens, no channels are significant at first, then most, then
all. Here, most are matched with themselves at the end if the body is frozen (a). If all weights of a base train at one
rate for a few minutes (b), only the layers show the ancestry, from the first step on. docs/LOG.md, 2026-11-22 and
2026-11-30, has the details.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from benchmarks.paper.models import (
    BASE,
    EMBEDDED_STEPS,
    QWEN3,
    RETOKENISED_STEPS,
    SEQUENCE_LENGTH,
    SMALL,
    TOKENS_PER_STEP,
    built,
    load,
    small_text,
    text,
)
from benchmarks.paper.output import experiment, layers_log10_p, p_text, table
from benchmarks.runner import Row
from mdir_hf import HomologyChecker
from mdir_hf.demo.training import mean_loss
from mdir_hf.method.matching import best_matching
from mdir_hf.method.polar import polar_factor
from mdir_hf.method.rows import pair_rows
from mdir_hf.method.significance import LN10
from mdir_hf.model.hub import open_repository
from mdir_hf.model.opened import Model
from mdir_hf.model.tokens import common_vocabulary

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from matplotlib.figure import Figure


ALPHA_LOG10 = -10.0


def measure() -> tuple[Row, dict[str, Figure]]:
    """Tabulate two trainings."""
    tokens_per_step = 2 * TOKENS_PER_STEP
    return {
        "frozen": {"width": SMALL.width, "rows": _rows("small", "frozen", EMBEDDED_STEPS, tokens_per_step)},
        "equal": {"width": QWEN3.width, "rows": _rows(BASE, "retokenised", RETOKENISED_STEPS, TOKENS_PER_STEP)},
    }, {}


def section_of(data: Row) -> str:
    """Format the results as a section of Markdown."""
    tables = {key: (data[key]["width"], data[key]["rows"]) for key in ("frozen", "equal")}
    words = {
        "frozen": "(a) The embeddings alone are trained. The new tokenizer is a BPE of other text",
        "equal": "(b) All weights are trained at one rate. The new tokenizer is of another kind (Unigram, not BPE)",
    }
    parts = (
        f"{words[key]}. n = {width}, {rows[0]['common_tokens']} common tokens.\n\n{_table(width, rows)}\n\n"
        + finding(width, rows)
        for key, (width, rows) in tables.items()
    )
    return (
        "## Changed tokenizer (the paper's table 4)\n\nEmbeddings are drawn anew at a thousandth of their usual size, "
        "because the paper's zeros have no gradient without biases. *Own channels* counts the channels that the best "
        "of n! matchings maps to themselves. *Own order* tests only the identity, which is fixed in advance, before "
        "correction for other tests. *Positive* counts the channels with a positive sign in that order; about half are "
        "expected by chance. *p, embeddings* is p of `compare --describe`, corrected: the better of the looks "
        "at 512 tokens and at all tokens. *Loss* is in nats per token of held-out code.\n\n" + "\n\n".join(parts)
    )


def _rows(base_name: str, name: str, steps: tuple[int, ...], tokens_per_step: int) -> list[dict[str, Any]]:
    base = built(base_name)
    learnt = text("unigram") if base_name == BASE else small_text(SMALL.vocabulary, is_other=True)
    tokens = learnt.held_out["code"]
    rows = []
    for step in steps:
        folder = built(f"{name}-{step}")
        checker = HomologyChecker.from_pretrained(base, use_caches=False)
        by_embedding = checker.compare(folder, describes=True, progress=False)
        whole = checker.compare(folder, level="layers", progress=False)
        rows.append(
            {
                "tokens": step * tokens_per_step,
                **traces(base, folder),
                "log10_p_embedding": round(by_embedding.embedding.log10_p, 1),
                "log10_p_layers": None if whole.layers is None else round(layers_log10_p(whole.layers), 1),
                "verdict": whole.verdict.value,
                "loss": round(mean_loss(load(folder), tokens, sequence_length=SEQUENCE_LENGTH, n_sequences=512), 3),
            }
        )
    return rows


def _table(width: int, rows: list[dict[str, Any]]) -> str:
    channels = f"own channels of {width} | p, own order | positive of {width}"
    header = f"tokens | trace | p, embeddings | {channels} | p, layers | loss"
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
                f"{row['loss']:g}",
            ]
            for row in rows
        ],
    )


def finding(width: int, rows: list[dict[str, Any]]) -> str:
    """Describe the results of a table, compared with the paper's.

    Args:
        width: Channels of the models.
        rows: Measurements, in the order of the training.
    """

    def first(key: str, reached: Callable[[Any], bool]) -> int | None:
        return next((row["tokens"] for row in rows if reached(row[key])), None)

    by_any = first("log10_p_embedding", lambda log10_p: log10_p < ALPHA_LOG10)
    by_own = first("log10_p_own_order", lambda log10_p: log10_p < ALPHA_LOG10)
    most = first("channels", lambda channels: channels > width // 2)
    every = first("channels", lambda channels: channels == width)
    if by_any is None:
        sentence = f"**Unlike in the paper**, these embeddings are not significant after {rows[-1]['tokens']:,} tokens."
        if by_own is not None:
            sentence += f" In their own order, channels are significant before correction from {by_own:,} tokens on."
    else:
        if by_any > rows[0]["tokens"]:
            sentence = "As in the paper, the embeddings are not significant at first. "
            sentence += f"They are significant from {by_any:,} tokens on."
        else:
            sentence = "The embeddings are significant from the first look on."
        if most is None:
            sentence += f" At most {max(row['channels'] for row in rows)} channels are matched with themselves."
        else:
            sentence += f" Most channels are matched with themselves from {most:,} tokens on, "
            sentence += f"and all from {every:,} on." if every is not None else "but never all of them."
    n_found = sum(row["verdict"] == "homologous" for row in rows)
    return f"{sentence} By its neurons, the model is homologous at {n_found} of {len(rows)} looks."


def traces(base: Path, candidate_folder: Path) -> dict[str, Any]:
    """Return the trace of Algorithm 1, channels matched with themselves, p of their own order, common tokens."""
    reference, candidate = (Model(open_repository(folder)) for folder in (base, candidate_folder))
    assert reference.vocabulary is not None
    assert candidate.vocabulary is not None
    common = common_vocabulary(
        reference.vocabulary, candidate.vocabulary, n_reference_rows=reference.n_rows, n_candidate_rows=candidate.n_rows
    )
    x, y = (
        model.tensors.read(model.anatomy.embedding.tensor).double()[torch.from_numpy(rows)]
        for model, rows in ((reference, common.reference_rows), (candidate, common.candidate_rows))
    )
    matching = best_matching(polar_factor(x.T @ y).matrix, signed=False)
    assert matching is not None
    rows = pair_rows(x, y)
    factor = polar_factor(rows.reference.T @ rows.candidate)
    diagonal = factor.matrix.diagonal()
    trace = max(0.0, float(diagonal.sum()))
    return {
        "trace": round(matching.trace, 1),
        "channels": int((matching.reference == matching.candidate).sum()),
        "trace_own_order": round(trace, 2),
        "votes": int((diagonal > 0).sum()),
        "log10_p_own_order": round(-(trace**2) * len(factor.matrix) / (2 * factor.rank) / LN10, 1),
        "common_tokens": len(common),
    }


CHANGED_TOKENIZER = experiment("changed-tokenizer", "table 4 of the paper: new embeddings during training", measure)
