"""Measure which share of relatives is found, by how far they are from their base.

``python -m benchmarks power`` takes an hour of one core.

Each relative is drawn and compared ten times, each time with a fresh sample. The base of the first four kinds is
SmolLM2-135M-Instruct (read from a GGUF file of Q4_1, in BF16); the base of the last one is the demo's.

- *noise*: normal noise on every matrix, in units of its root mean square.
- *mixed*: every matrix becomes a mean of itself and a normal matrix of its size, which has this share.
- *replaced*: this share of the neurons of every layer is drawn anew, at the size of the others, in place.
- *pruned*: this share of the neurons of every layer is cut out, so that the others have new numbers.
- *trained at RATE*: steps of AdamW on prose, with this largest learning rate; the base was trained on code.

A report without a match predicts how similar a copy would have to be (``excludes``). The strongest noise that it
excludes is stored with the rows of noise and mixtures.
"""

from __future__ import annotations

import json
import math
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from statistics import median

import torch
from safetensors.torch import load_file, save_file

from benchmarks.real.bases import base_folder
from benchmarks.real.sources import cache_root
from benchmarks.runner import Benchmark, Case, Row
from mdir_hf import HomologyChecker, HomologyReport

BASE = "smollm2-135m-instruct"
DRAWS = 10
RATES, STEPS = (1e-3, 3e-3, 1e-2), (100, 1000)

Weights = dict[str, torch.Tensor]
Change = Callable[[Weights, float, torch.Generator], Weights]


def _drawn_like(weight: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return weight.square().mean().sqrt() * torch.randn(weight.shape, generator=generator)


def with_noise(weights: Weights, size: float, generator: torch.Generator) -> Weights:
    """Add noise to every matrix."""
    return {
        name: weight + size * _drawn_like(weight, generator) if weight.ndim == 2 else weight
        for name, weight in weights.items()
    }


def mixed(weights: Weights, share: float, generator: torch.Generator) -> Weights:
    """Mix every matrix with a normal one."""
    return {
        name: (1.0 - share) * weight + share * _drawn_like(weight, generator) if weight.ndim == 2 else weight
        for name, weight in weights.items()
    }


def _neurons(weights: Weights) -> Iterator[tuple[dict[str, int], int]]:
    """Yield the matrices of each MLP with the dimension of their neurons, and the number of neurons."""
    for name, weight in weights.items():
        if name.endswith("mlp.up_proj.weight"):
            up, gate, down = (name.replace("up_proj", role) for role in ("up_proj", "gate_proj", "down_proj"))
            yield {gate: 0, up: 0, down: 1}, weight.shape[0]


def replaced(weights: Weights, share: float, generator: torch.Generator) -> Weights:
    """Draw some neurons of every layer anew."""
    changed = dict(weights)
    for matrices, n_neurons in _neurons(weights):
        numbers = torch.randperm(n_neurons, generator=generator)[: round(share * n_neurons)]
        for name, dim in matrices.items():
            drawn = _drawn_like(weights[name], generator)
            changed[name] = weights[name].index_copy(dim, numbers, drawn.index_select(dim, numbers))
    return changed


def pruned(weights: Weights, share: float, generator: torch.Generator) -> Weights:
    """Cut some neurons out of every layer."""
    changed = dict(weights)
    for matrices, n_neurons in _neurons(weights):
        kept = torch.randperm(n_neurons, generator=generator)[round(share * n_neurons) :].sort().values
        for name, dim in matrices.items():
            changed[name] = weights[name].index_select(dim, kept)
    return changed


CHANGES: dict[str, tuple[Change, tuple[float, ...]]] = {
    "noise": (with_noise, (1.0, 2.0, 3.0, 3.25, 3.5, 3.75, 4.0, 5.0, 6.0, 8.0)),
    "mixed": (mixed, (0.25, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85)),
    "replaced": (replaced, (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)),
    "pruned": (pruned, (0.1, 0.25, 0.5, 0.75, 0.9, 0.95)),
}


def row_of(kind: str, amount: float, reports: list[HomologyReport], n_bytes: int) -> Row:
    """Summarise the comparisons of one kind and amount."""
    found = [report for report in reports if report.verdict == "homologous"]
    bounds = [report.log10_p for report in found if report.log10_p is not None]
    missed = [report.excludes.neurons for report in reports if report.excludes and report.excludes.neurons]
    return {
        "kind": kind,
        "amount": amount,
        "compared": len(reports),
        "found": len(found),
        "log10_p": median(bounds) if bounds else None,
        "settled_by": Counter(report.settled_by.value for report in found if report.settled_by is not None),
        "read": round(sum(report.io.bytes_read for report in reports) / len(reports)),
        "bytes": n_bytes,
        "excluded_noise": round(math.sqrt(1.0 / max(missed) ** 2 - 1.0), 2) if missed else None,
    }


@cache
def _base_weights() -> Weights:
    return {name: weight.float() for name, weight in load_file(base_folder(BASE) / "model.safetensors").items()}


def of_weights(kind: str, amount: float) -> Row:
    """Change the weights of the real base by this amount."""
    base, reports = base_folder(BASE), []
    checker = HomologyChecker.from_pretrained(base)
    for draw in range(DRAWS):
        changed = CHANGES[kind][0](_base_weights(), amount, torch.Generator().manual_seed(draw))
        with tempfile.TemporaryDirectory() as folder:
            written = Path(folder, "changed")
            _write(base, changed, written)
            reports.append(checker.compare(written, progress=False))
            n_bytes = (written / "model.safetensors").stat().st_size
    return row_of(kind, amount, reports, n_bytes)


def _write(base: Path, weights: Weights, folder: Path) -> None:
    shutil.copytree(base, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    config = json.loads((base / "config.json").read_text(encoding="utf-8"))
    config["intermediate_size"] = next(n_neurons for _, n_neurons in _neurons(weights))
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    stored = {name: weight.bfloat16().contiguous() for name, weight in weights.items()}
    save_file(stored, folder / "model.safetensors", {"format": "pt"})


def of_training(rate: float, steps: int) -> Row:
    """Train the base of the demo further."""
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

    from mdir_hf.demo.lineage import build_lineage
    from mdir_hf.demo.training import encode, read_corpus, seeded_single_thread, train

    base = build_lineage(cache_root() / "demo").folder / "demo" / "base"
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(base)
    with seeded_single_thread(0):
        train(model, encode(tokenizer.backend_tokenizer, read_corpus().prose.learnt), steps=steps, learning_rate=rate)
    checker = HomologyChecker.from_pretrained(base)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        reports = [checker.compare(folder, progress=False) for _ in range(DRAWS)]
        return row_of(f"trained at {rate:g}", steps, reports, Path(folder, "model.safetensors").stat().st_size)


def cases() -> Iterator[Case]:
    """Yield a case for each kind and amount."""
    for kind, (_, amounts) in CHANGES.items():
        for amount in amounts:
            yield Case((kind, amount), partial(of_weights, kind, amount))
    for rate in RATES:
        for steps in STEPS:
            yield Case((f"trained at {rate:g}", steps), partial(of_training, rate, steps))


POWER = Benchmark("power", "share of relatives found, by how far they are from their base", ("kind", "amount"), cases)
