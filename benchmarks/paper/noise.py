"""The paper's noise tables: the effect of embedding noise on the trace, on other measures, and on the model.

The noise is E' = E + level * RMS(E) * N, for both head and embedding, in two models. Besides the trace of the paper's
Algorithm 1 (raw product, all tokens), the tables show p as reported by the package, the plain cosine, HuRef's and
REEF's measures, and the perplexity on held-out text, which shows when the model becomes useless.

python -m benchmarks.paper.noise [--tiny]
"""

from __future__ import annotations

import copy
import math
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.paper.models import BASE, SEQUENCE_LENGTH, Scale, built, load, save, text
from benchmarks.paper.output import layers_log10_p, p_text, rounded, run, table
from benchmarks.peers.huref import HuRef
from benchmarks.peers.reef import Reef
from mdir_hf import HomologyChecker
from mdir_hf.demo.training import mean_loss, seeded_single_thread
from mdir_hf.method.matching import best_matching
from mdir_hf.method.polar import polar_factor

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from transformers import PreTrainedModel

LEVELS = (0.0, 0.1, 0.3, 1.0, 3.0, 6.0, 10.0, 30.0)
"""The paper's levels, and higher ones until detection fails."""

MODELS = {"a": (BASE, "Qwen3, tied"), "b": ("llama", "Llama, untied")}
KEYS = {
    "trace": "Trace (MDIR)",
    "normalized_trace": "Normalized trace",
    "log10_p": "p (mdir-hf)",
    "verdict": "verdict (mdir-hf)",
    "cosine": "Cosine of embeddings",
    "huref": "HuRef",
    "reef": "CKA (REEF)",
    "perplexity": "Perplexity",
}


def noise(scale: Scale) -> tuple[dict[str, Any], str, dict[str, Figure]]:
    """Make both tables."""
    held_out = text(scale).held_out["code"]
    by_frequency = _unigram_perplexity(scale)
    data: dict[str, Any] = {"levels": list(LEVELS), "perplexity_by_frequency_alone": round(by_frequency, 1)}
    sections = []
    for key, (name, words) in MODELS.items():
        folder = built(name, scale)
        rows = [_row(folder, level, scale, held_out) for level in LEVELS]
        width = int(load(folder).config.hidden_size)
        whole = _by_layers(folder, LEVELS[-1], scale)
        data[key] = {"model": words, "width": width, "rows": rows, "log10_p_with_layers": whole}
        shown = [[label, *(_shown(measure, row) for row in rows)] for measure, label in KEYS.items()]
        sections.append(f"({key}) {words}, n = {width}\n\n" + table(["noise / RMS", *map(str, LEVELS)], shown))
    lost = {key: _last_found(data[key]["rows"], by_frequency) for key in MODELS}
    section = (
        "## Noise on the embeddings (the paper's tables 3a and 3b)\n\n"
        + "\n\n".join(sections)
        + f"\n\nPredictions from token frequencies alone have a perplexity of {by_frequency:.0f}. "
        + " ".join(
            f"({key}) is worse than that from noise {useless:g} on, and homologous up to noise {last_found:g}."
            for key, (useless, last_found) in lost.items()
        )
        + " A verdict is inconclusive if only a few channels agree. These p are computed from embeddings alone. The "
        f"layers, which have no noise, are significant even at noise {LEVELS[-1]:g}: "
        + ", ".join(p_text(data[key]["log10_p_with_layers"]) for key in MODELS)
        + "."
    )
    return data, section, {}


def _row(folder: Path, level: float, scale: Scale, held_out: torch.Tensor) -> dict[str, Any]:
    model = load(folder)
    clean = model.get_input_embeddings().weight.detach().double()
    noisy = add_noise(model, level)
    embedding = noisy.get_input_embeddings().weight.detach().double()
    matching = best_matching(polar_factor(clean.T @ embedding).matrix, signed=False)
    assert matching is not None
    with tempfile.TemporaryDirectory() as place:
        noisy_folder = Path(place) / "noisy"
        save(noisy, text(scale), noisy_folder, [], "code")
        report = HomologyChecker.from_pretrained(folder, use_caches=False).compare(
            noisy_folder, describes=True, progress=False
        )
        peers = {
            peer: peer.score(peer.fingerprint(folder), peer.fingerprint(noisy_folder)).score
            for peer in (HuRef(), Reef())
        }
    cosine = float((clean * embedding).sum() / (clean.norm() * embedding.norm()))
    huref, reef = (None if score is None else round(score, 4) for score in peers.values())
    return {
        "level": level,
        "trace": round(matching.trace, 2),
        "normalized_trace": round(matching.trace / clean.shape[1], 5),
        "log10_p": round(0.0 if report.embedding is None else report.embedding.log10_p, 1),
        "verdict": report.verdict.value,
        "cosine": round(cosine, 4),
        "huref": huref,
        "reef": reef,
        "perplexity": rounded(math.exp(min(700.0, mean_loss(noisy, held_out, sequence_length=SEQUENCE_LENGTH))), 1),
    }


def _by_layers(folder: Path, level: float, scale: Scale) -> float:
    """Return log10 p of the layers alone."""
    with tempfile.TemporaryDirectory() as place:
        noisy_folder = Path(place) / "noisy"
        save(add_noise(load(folder), level), text(scale), noisy_folder, [], "code")
        checker = HomologyChecker.from_pretrained(folder, use_caches=False)
        layers = checker.compare(noisy_folder, level="layers", progress=False).layers
        return 0.0 if layers is None else round(layers_log10_p(layers), 1)


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


def _unigram_perplexity(scale: Scale) -> float:
    learnt = text(scale)
    counts = torch.bincount(learnt.learnt["code"], minlength=scale.qwen3.vocabulary).double() + 1
    return float((-(counts / counts.sum()).log()[learnt.held_out["code"]]).mean().exp())


def _last_found(rows: list[dict[str, Any]], useless: float) -> tuple[float, float]:
    """Return the first level at which the model is worse than token frequencies, and the last at which it is found."""
    worse = [row["level"] for row in rows if row["perplexity"] is None or row["perplexity"] > useless]
    homologous = [row["level"] for row in rows if row["verdict"] == "homologous"]
    return min(worse, default=math.inf), max(homologous, default=math.nan)


def _shown(key: str, row: dict[str, Any]) -> str:
    value = row[key]
    if value is None:
        return "—"
    if key == "log10_p":
        return p_text(value)
    if key == "verdict":
        return value.replace("_", " ")
    if key == "perplexity" and value >= 100:
        return f"{value:,.0f}" if value < 1e6 else f"{value:.0e}"
    return f"{value:g}"


if __name__ == "__main__":
    run("noise", noise)
