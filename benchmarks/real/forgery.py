"""Measure the cost of evading detection and of forging a relation, on SmolLM2-135M-Instruct.

*losses* measures nats per token on held-out text, for the model and for attacked copies. *evading* makes attacks
stronger than :mod:`benchmarks.real.relatives` until one is not found, each with its loss and verdict. *repairing*
trains an attacked model for as many steps as a model with random weights, and measures the remaining damage and the
verdict. *forging* plants parts of the model into an unrelated model of the same shape, and compares the pair.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from benchmarks.real.attacks import redrawn
from benchmarks.real.bases import load, save
from benchmarks.real.relatives import EDITS, Edited, edited, noise, one_after_the_other
from benchmarks.real.trained import BATCH_SIZE, SEQUENCE_LENGTH, TRAINED, held_out_loss, learn, tokens_of
from benchmarks.real.workshop import SMALL, Model, built
from benchmarks.runner import Benchmark, Case, Row
from mdir_hf import HomologyChecker
from mdir_hf.demo.training import mean_loss, seeded_single_thread
from mdir_hf.method.matching import IntArray

if TYPE_CHECKING:
    from transformers import PreTrainedModel

N_SEQUENCES = 2
"""Number of sequences of 128 tokens; few are enough, because an attack costs whole nats."""

Weights = dict[str, torch.Tensor]
ATTACKS = (
    *(
        "base",
        "random",
        "rotated",
        "hidden",
        "rescaled",
        "split-neurons",
        "split-ups",
        "outliers",
        "noisy-axes",
        "without-top-16",
    ),
    *("with-rank-16", "noise-1", "noise-3", "noise-10", "noise-20", "rotated-noise-1", "swapped-embeddings"),
)


def _further(name: str, first: str, size: float, done: str) -> Edited:
    return Edited(name, done, one_after_the_other(EDITS[first].edit, noise(size)), is_attack=True)


def _redrawn(*roles: str) -> Edited:
    done = f"all disguises at once, then {', '.join(role.upper() for role in roles)} of every layer drawn anew"
    edit = one_after_the_other(EDITS["hidden"].edit, redrawn(*roles))
    return Edited(f"hidden-new-{'-'.join(roles)}", done, edit, is_attack=True)


FURTHER = (
    _further("hidden-noise-1", "hidden", 1.0, "all disguises at once, then noise of 1 RMS"),
    _further("hidden-noise-0.3", "hidden", 0.3, "all disguises at once, then noise of 0.3 RMS"),
    _further("rotated-noise-3", "rotated", 3.0, "residual stream rotated, then noise of 3 RMS"),
    Edited("noise-40", "noise of 40 RMS on every matrix", noise(40.0), is_attack=True),
    _redrawn("v", "k", "up"),
)


REPAIRED = (FURTHER[-1], FURTHER[0])
"""Weakest known attack that leaves no material for a map of the layers, and the next weaker one."""
REPAIR_RATE = 1e-3
"""Peak learning rate and steps of the repair, equal to the training of the model with random weights."""


def with_rows(n: int) -> Callable[[Weights, Weights], None]:
    """Copy some rows of the embedding."""

    def plant(stranger: Weights, model: Weights) -> None:
        name = "model.embed_tokens.weight"
        chosen = torch.randperm(len(model[name]), generator=torch.Generator().manual_seed(1))[:n]
        stranger[name][chosen] = _scaled(model[name], stranger[name])[chosen]

    return plant


def with_axes(n: int) -> Callable[[Weights, Weights], None]:
    """Copy some channels of the embedding."""

    def plant(stranger: Weights, model: Weights) -> None:
        name = "model.embed_tokens.weight"
        chosen = torch.randperm(model[name].shape[1], generator=torch.Generator().manual_seed(1))[:n]
        stranger[name][:, chosen] = _scaled(model[name], stranger[name])[:, chosen]

    return plant


def with_layers(n: int) -> Callable[[Weights, Weights], None]:
    """Copy some whole layers."""

    def plant(stranger: Weights, model: Weights) -> None:
        for name in model:
            if any(name.startswith(f"model.layers.{10 + layer}.") for layer in range(n)):
                stranger[name] = model[name].clone()

    return plant


def with_neurons(numbers: IntArray) -> Callable[[Weights, Weights], None]:
    """Copy the inputs of some neurons of layer 10; their outputs are not used."""

    def plant(stranger: Weights, model: Weights) -> None:
        layer = "model.layers.10."
        gain = f"{layer}post_attention_layernorm.weight"
        scale = model[gain].float() / stranger[gain].float()
        for name in (f"{layer}mlp.gate_proj.weight", f"{layer}mlp.up_proj.weight"):
            stranger[name][numbers] = (model[name][numbers].float() * scale).to(stranger[name].dtype)
        stranger[f"{layer}mlp.down_proj.weight"][:, numbers] = 0.0

    return plant


def _scaled(rows: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return rows * (like.float().square().mean().sqrt() / rows.float().square().mean().sqrt()).to(rows.dtype)


PLANTED = {
    "64 of 49,152 rows of the embedding": with_rows(64),
    "1,000 rows": with_rows(1000),
    "10,000 rows": with_rows(10_000),
    "4 of 576 channels of the embedding": with_axes(4),
    "64 channels": with_axes(64),
    "1 of 30 layers": with_layers(1),
    "128 of 1,536 neurons of one layer": with_neurons(np.random.default_rng(0).permutation(1536)[:128]),
    "768 of 1,536 neurons of one layer": with_neurons(np.random.default_rng(0).permutation(1536)[:768]),
}


def losses(member: str) -> Row:
    """Measure the loss of the model or of an existing derivative."""
    model = Model(SMALL, member)
    return {"part": "losses", "name": model.name, "loss": _loss(load(built(model)))}


def evading(how: Edited) -> Row:
    """Apply a stronger attack, and measure loss and verdict."""
    made = edited(load(built(Model(SMALL))), how)
    row = {"part": "evading", "name": how.name, "done": how.done, "loss": _loss(made)}
    return {**row, **_compared_with_original(made)}


def laundered() -> Row:
    """Hide a copy in every way that costs nothing, and leave the tokenizer as it was over reordered rows."""
    how = EDITS["decoy"]
    made = edited(load(built(Model(SMALL))), how)
    row = {"part": "evading", "name": "laundered", "done": f"{how.done}, false tokens", "loss": _loss(made)}
    order = torch.randperm(made.config.vocab_size, generator=torch.Generator().manual_seed(0))
    for rows in {made.get_input_embeddings().weight, made.get_output_embeddings().weight}:
        rows.data = rows.data[order]
    return {**row, **_compared_with_original(made)}


def repairing(how: Edited | None) -> Row:
    """Repair an attacked model by training; without an attack, measure the model itself."""
    base, steps = built(Model(SMALL)), TRAINED["from-random"].steps
    tokenizer = Tokenizer.from_file(str(base / "tokenizer.json"))
    row: Row = {"part": "repairing", "steps": steps, "tokens": steps * BATCH_SIZE * SEQUENCE_LENGTH}
    row |= {"name": "base", "done": "nothing"} if how is None else {"name": how.name, "done": how.done}
    with seeded_single_thread(11):
        made = load(base) if how is None else edited(load(base), how)
        row["loss"] = round(held_out_loss(made, tokenizer), 3)
        if how is None:
            return {**row, "repaired": None}
        learn(made, tokenizer, steps, REPAIR_RATE)
        row["repaired"] = round(held_out_loss(made, tokenizer), 3)
        return {**row, **_compared_with_original(made)}


def forging(name: str) -> Row:
    """Plant parts of the model into a stranger, and compare the pair."""
    stranger = built(Model(SMALL, "from-random"))
    weights = load_file(stranger / "model.safetensors")
    PLANTED[name](weights, load_file(built(Model(SMALL)) / "model.safetensors"))
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "made"
        shutil.copytree(stranger, made)
        save_file(weights, made / "model.safetensors")
        return {"part": "forging", "name": name, **_judged(made)}


def _loss(model: Any) -> float:
    tokenizer = Tokenizer.from_file(str(built(Model(SMALL)) / "tokenizer.json"))
    tokens = tokens_of(tokenizer, held_out=True)
    with seeded_single_thread(11):
        return round(mean_loss(model, tokens, sequence_length=SEQUENCE_LENGTH, n_sequences=N_SEQUENCES), 3)


def _compared_with_original(model: PreTrainedModel) -> Row:
    with tempfile.TemporaryDirectory() as folder:
        save(model, built(Model(SMALL)), Path(folder) / "made")
        return _judged(Path(folder) / "made")


def _judged(made: Path) -> Row:
    began = time.process_time()
    checker = HomologyChecker.from_pretrained(str(built(Model(SMALL))), use_caches=False)
    report = checker.compare(str(made), progress=False)
    return {
        "verdict": report.verdict.value,
        "reason": report.reason,
        "log10_p": report.log10_p,
        "settled_by": report.settled_by,
        "cpu_s": round(time.process_time() - began, 1),
    }


def cases() -> Iterator[Case]:
    """Yield the measurements of each part."""
    for member in ATTACKS:
        yield Case(("losses", Model(SMALL, member).name), partial(losses, member))
    for how in FURTHER:
        yield Case(("evading", how.name), partial(evading, how))
    yield Case(("evading", "laundered"), laundered)
    for attack in (None, *REPAIRED):
        yield Case(("repairing", "base" if attack is None else attack.name), partial(repairing, attack))
    for name in PLANTED:
        yield Case(("forging", name), partial(forging, name))


REAL_FORGERY = Benchmark(
    "real-forgery", "what evading detection costs, and what a forgery must copy", ("part", "name"), cases
)
