"""The paper's noise tables on real models: trace, p, cosine, REEF and perplexity beside the paper's numbers.

The noise is E' = E + level * RMS(E) * N for the embedding, which is also the head of both models. The paper reports
perplexity on LAMBADA and accuracy on MMLU; this script reports perplexity on text that comes with Python.
"""

from __future__ import annotations

import copy
import math
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.paper.output import rounded, table
from benchmarks.peers.inference import load_tokenizer, statements
from benchmarks.peers.reads import Reads
from benchmarks.peers.reef import Reef
from benchmarks.real.bases import base_folder, load, save
from benchmarks.runner import Benchmark, Case, Row
from mdir_hf.demo.training import mean_loss, seeded_single_thread
from mdir_hf.method.paper import algorithm_1
from mdir_hf.method.significance import LN10

if TYPE_CHECKING:
    from transformers import PreTrainedModel

LEVELS = (0.0, 0.1, 0.3, 1.0, 3.0)
"""The paper's levels."""

MODELS = {
    "smollm2-135m-instruct": "SmolLM2-135M-Instruct",
    "qwen2.5-coder-0.5b-instruct": "Qwen2.5-Coder-0.5B-Instruct",
}
RUNS = frozenset({"smollm2-135m-instruct"})
"""Models that also run on text, for REEF and perplexity; larger models would take hours on one core."""

PAPER = {
    "Qwen3-0.6B-Base (paper)": {
        "trace": (1024, 1023.98, 1023.82, 1021.96, 1005.6),
        "normalized_trace": (1, 0.99998, 0.9998, 0.998, 0.982),
        "cosine": (1, 0.995, 0.958, 0.707, 0.316),
        "reef": (1, 0.997, 0.973, 0.582, 0.291),
        "perplexity": (9.6, 11.0, 24.7, 31_412, 4e16),
    },
    "Llama-3.2-3B (paper)": {
        "trace": (3072, 3071.77, 3069.88, 3048.44, 2859.64),
        "normalized_trace": (1, 0.99992, 0.9993, 0.992, 0.931),
        "cosine": (1, 0.995, 0.958, 0.707, 0.316),
        "reef": (1, 0.9986, 0.985, 0.721, 0.455),
        "perplexity": (3.95, 3.98, 4.36, 37.9, 5e12),
    },
}
KEYS = {
    "trace": "trace",
    "normalized_trace": "normalized trace",
    "log10_p": "log10 p, Algorithm 1 by the paper's formula",
    "cosine": "cosine of embeddings",
    "reef": "CKA (REEF)",
    "perplexity": "perplexity",
}
N_SEQUENCES, SEQUENCE_LENGTH = 16, 128


def rows_of(folder: Path, *, reads_text: bool) -> list[dict[str, Any]]:
    """Measure a model at each level of noise."""
    clean = load(folder)
    embedding = clean.get_input_embeddings().weight.detach()
    tokenizer = load_tokenizer(folder, Reads())
    text = " ".join(statements()[-1000:])
    tokens = torch.tensor(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])
    fingerprint = Reef().fingerprint(folder) if reads_text else None
    rows = []
    for level in LEVELS:
        noisy = add_noise(clean, level)
        changed = noisy.get_input_embeddings().weight.detach()
        row: dict[str, Any] = {"level": level, **printed_row(embedding, changed)}
        if reads_text:
            with tempfile.TemporaryDirectory() as place:
                save(noisy, folder, Path(place) / "noisy")
                score = Reef().score(fingerprint, Reef().fingerprint(Path(place) / "noisy")).score
            with seeded_single_thread(0):
                loss = mean_loss(noisy, tokens, sequence_length=SEQUENCE_LENGTH, n_sequences=N_SEQUENCES)
            row |= {"reef": None if score is None else round(score, 4), "perplexity": rounded(math.exp(loss), 1)}
        rows.append(row)
    return rows


@torch.no_grad()
def add_noise(model: PreTrainedModel, level: float) -> PreTrainedModel:
    """Return a copy with Gaussian noise on embedding and head; ``level`` is relative to their root mean square."""
    made = copy.deepcopy(model)
    with seeded_single_thread(0):
        matrices = [made.get_input_embeddings().weight]
        if not model.config.tie_word_embeddings:
            matrices.append(made.get_output_embeddings().weight)
        for matrix in matrices:
            matrix.add_(level * matrix.square().mean().sqrt() * torch.randn(matrix.shape))
    return made


def printed_row(first: torch.Tensor, second: torch.Tensor) -> dict[str, float]:
    """Return the result of Algorithm 1 on two embeddings with the same tokens, and their cosine."""
    match, _ = algorithm_1(zip(first.split(8192), second.split(8192), strict=True))
    products = [
        sum(float((x.double() * y.double()).sum()) for x, y in zip(a.split(8192), b.split(8192), strict=True))
        for a, b in ((first, second), (first, first), (second, second))
    ]
    return {
        "trace": round(match.trace, 2),
        "normalized_trace": round(match.trace / first.shape[1], 5),
        "log10_p": round(min(0.0, match.log_p) / LN10, 1),
        "cosine": round(products[0] / math.sqrt(products[1] * products[2]), 4),
    }


def section_of(models: Sequence[Row]) -> str:
    """Format the results as a section of Markdown."""
    parts = [
        "## Noise on the embeddings of real models (the paper's tables 3a and 3b)",
        "Algorithm 1 was run as printed on all tokens of the vocabulary, with noise on the embedding, which is also "
        f"the head. The paper measures perplexity on LAMBADA. Here it is measured on {N_SEQUENCES * SEQUENCE_LENGTH:,} "
        "tokens of text that comes with Python, so only its growth can be compared.",
    ]
    for key, label in KEYS.items():
        rows = [
            [f"{model['name']} (here, n = {model['width']})", *(_shown(row.get(key)) for row in model["rows"])]
            for model in models
            if any(key in row for row in model["rows"])
        ]
        rows += [[name, *map(_shown, columns[key])] for name, columns in PAPER.items() if key in columns]
        parts.append(f"**{label[:1].upper()}{label[1:]}**\n\n" + table(["noise / RMS", *map(str, LEVELS)], rows))
    unread = [model["name"] for model in models if "perplexity" not in model["rows"][0]]
    if unread:
        parts.append(f"{' and '.join(unread)} did not run on text, which takes hours on one core.")
    return "\n\n".join(parts)


def _shown(value: float | None) -> str:
    if value is None:
        return "—"
    return f"{value:.0e}" if value >= 1e7 else f"{value:,.0f}" if abs(value) >= 3000 else f"{value:g}"


def measured(name: str) -> Row:
    """Return the line of a model."""
    rows = rows_of(base_folder(name), reads_text=name in RUNS)
    width = round(rows[0]["trace"] / rows[0]["normalized_trace"])
    return {"key": name, "name": MODELS[name], "width": width, "rows": rows}


NOISE_REAL = Benchmark(
    "paper-noise-real",
    "tables 3a and 3b of the paper: trace and usefulness under noise, on real models",
    ("key",),
    lambda: (Case((name,), partial(measured, name)) for name in MODELS),
)
