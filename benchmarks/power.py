"""Measure which share of relatives is found, by how far they are from their base.

python -m benchmarks.power [--only KIND] [--results FILE]

Each relative is drawn and compared ten times, each time with a fresh sample. The base of the first four kinds is
SmolLM2-135M-Instruct (read from a GGUF file of Q4_1, in BF16); the base of the last one is the demo's.

- *noise*: normal noise on every matrix, in units of its root mean square.
- *mixed*: every matrix becomes a mean of itself and a normal matrix of its size, which has this share.
- *replaced*: this share of the neurons of every layer is drawn anew, at the size of the others, in place.
- *pruned*: this share of the neurons of every layer is cut out, so that the others have new numbers.
- *trained at RATE*: steps of AdamW on prose, with this largest learning rate; the base was trained on code.

A report without a match predicts how similar a copy would have to be (``excludes``). The strongest noise that it
excludes is stored with the rows of noise and mixtures. An hour of one core.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from benchmarks.real.bases import base_folder
from benchmarks.real.sources import cache_root
from benchmarks.zoo.run import read_lines
from mdir_hf import HomologyChecker, HomologyReport

RESULTS = Path(__file__).parent / "results" / "power.jsonl"
BASE = "smollm2-135m-instruct"
DRAWS = 10
RATES, STEPS = (1e-3, 3e-3, 1e-2), (100, 300, 1000, 3000)

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
    "noise": (with_noise, (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0)),
    "mixed": (mixed, (0.25, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85)),
    "replaced": (replaced, (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)),
    "pruned": (pruned, (0.1, 0.25, 0.5, 0.75, 0.9, 0.95)),
}


def row_of(kind: str, amount: float, reports: list[HomologyReport], n_bytes: int) -> dict[str, Any]:
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


def of_weights(kind: str) -> Iterator[dict[str, Any]]:
    """Change the weights of the real base, and yield a row for each amount."""
    change, amounts = CHANGES[kind]
    base = base_folder(BASE)
    checker = HomologyChecker.from_pretrained(base)
    weights = {name: weight.float() for name, weight in load_file(base / "model.safetensors").items()}
    for amount in amounts:
        reports = []
        for draw in range(DRAWS):
            changed = change(weights, amount, torch.Generator().manual_seed(draw))
            with tempfile.TemporaryDirectory() as folder:
                written = Path(folder, "changed")
                _write(base, changed, written)
                reports.append(checker.compare(written, progress=False))
                n_bytes = (written / "model.safetensors").stat().st_size
        yield row_of(kind, amount, reports, n_bytes)


def _write(base: Path, weights: Weights, folder: Path) -> None:
    shutil.copytree(base, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    config = json.loads((base / "config.json").read_text(encoding="utf-8"))
    config["intermediate_size"] = next(n_neurons for _, n_neurons in _neurons(weights))
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    stored = {name: weight.bfloat16().contiguous() for name, weight in weights.items()}
    save_file(stored, folder / "model.safetensors", {"format": "pt"})


def of_training(rate: float) -> Iterator[dict[str, Any]]:
    """Train the base of the demo further, and yield a row for each number of steps."""
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

    from mdir_hf.demo.lineage import build_lineage
    from mdir_hf.demo.training import encode, read_corpus, seeded_single_thread, train

    base = build_lineage(cache_root() / "demo").folder / "demo" / "base"
    checker = HomologyChecker.from_pretrained(base)
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(base)
    rows, n_done = [], 0

    def compare_now() -> None:
        nonlocal n_done
        n_done += 1
        if n_done not in STEPS:
            return
        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
            reports = [checker.compare(folder, progress=False) for _ in range(DRAWS)]
            n_bytes = Path(folder, "model.safetensors").stat().st_size
        rows.append(row_of(f"trained at {rate:g}", n_done, reports, n_bytes))

    with seeded_single_thread(0):
        tokens = encode(tokenizer.backend_tokenizer, read_corpus().prose.learnt)
        train(model, tokens, steps=max(STEPS), learning_rate=rate, on_step=compare_now)
    yield from rows


KINDS: dict[str, Callable[[], Iterator[dict[str, Any]]]] = {
    **{kind: (lambda kind=kind: of_weights(kind)) for kind in CHANGES},  # type: ignore[misc]
    **{f"trained at {rate:g}": (lambda rate=rate: of_training(rate)) for rate in RATES},  # type: ignore[misc]
}


def main() -> None:
    """Measure the chosen kinds; print each row, and store it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=tuple(KINDS), metavar="KIND")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="FILE")
    arguments = parser.parse_args()
    for kind in arguments.only or KINDS:
        for row in KINDS[kind]():
            stored = {(old["kind"], old["amount"]): old for old in read_lines(arguments.results)}
            stored[row["kind"], row["amount"]] = row
            print(json.dumps(row), flush=True)
            text = "".join(json.dumps(each) + "\n" for each in stored.values())
            arguments.results.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
