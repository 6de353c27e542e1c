"""Build framed models, and store them with a record of the change of their logits."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from tokenizers import Tokenizer

from benchmarks.folders import build_once
from benchmarks.real.bases import load, save
from benchmarks.real.framing import arranging, copies, students, turning
from benchmarks.real.framing.arranging import BOTH_ENDS, EVERYTHING, LAYERS_ONLY, READS_ONLY, TOKENS_ONLY, Weighing
from benchmarks.real.framing.copies import Planted
from benchmarks.real.relatives import rebuilt
from benchmarks.real.sources import cache_root
from benchmarks.real.workshop import MIDDLE, SMALL, common_ids
from benchmarks.real.workshop import Model as RealModel
from benchmarks.real.workshop import built as built_real
from benchmarks.zoo.build import FULL
from benchmarks.zoo.build import built as built_zoo
from benchmarks.zoo.members import Model as ZooModel
from benchmarks.zoo.stack import Stack, take_apart
from mdir_hf.demo.training import seeded_single_thread

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Ids = tuple[torch.Tensor, torch.Tensor]
LLAMA, OTHER_SEED, QWEN3, GPT2, GPT2_OTHER = "llama", "llama-other-seed", "qwen3", "gpt2", "gpt2-other-seed"
SLIM = "llama-slim"
ZOO = {
    LLAMA: ("llama", "base"),
    OTHER_SEED: ("llama", "other-seed"),
    QWEN3: ("qwen3", "base"),
    GPT2: ("gpt2", "base"),
    GPT2_OTHER: ("gpt2", "other-seed"),
}
REAL = {SMALL: RealModel(SMALL), MIDDLE: RealModel(MIDDLE)}
N_SLIM = 96
"""Number of neurons of a stranger with room for copies."""


@dataclass(frozen=True)
class Case:
    """One framed model.

    Attributes:
        name: Name of the model and of its folder.
        victim: Model that it is compared with.
        stranger: Model that was prepared; None for a student.
        done: Preparation, as a phrase.
        copied: Copied weights of the victim, or ``nothing``.
        is_related: Whether the two are relatives by definition.
        make: Makes the model.
        keeps_function: Whether it computes the same function as the stranger.
    """

    name: str
    victim: str
    stranger: str | None
    done: str
    copied: str
    is_related: bool
    make: Callable[[], PreTrainedModel]
    keeps_function: bool = True


def root() -> Path:
    """Return the folder of framed models."""
    return Path(os.environ.get("MDIR_HF_FRAMING_CACHE") or cache_root() / "framing")


def folder_of(name: str) -> Path:
    """Return the folder of a victim or stranger, and build it if missing."""
    if name in ZOO:
        return built_zoo(ZooModel(*ZOO[name]), FULL)
    if name in REAL:
        return built_real(REAL[name])
    if name == SLIM:
        return build_once(root() / name, _build_slim)
    return built(cases()[name])


def built(case: Case) -> Path:
    """Return the folder of a framed model, and build it with ``framed.json`` (change of logits) if missing."""
    return build_once(root() / case.name, partial(_build, case))


def _build(case: Case, folder: Path) -> None:
    with seeded_single_thread(11):
        model = case.make().float().eval()
    tokens_of = folder_of(case.stranger or case.victim)
    record: dict[str, Any] = {}
    if case.stranger and case.keeps_function:
        record = moved_logits(load(folder_of(case.stranger)), model)
    save(model, tokens_of, folder)
    if record:
        record["in_bf16"] = moved_logits(load(folder_of(case.stranger or "")), load(folder))["logits_moved"]
    (folder / "framed.json").write_text(json.dumps(record), encoding="utf-8")


def _build_slim(folder: Path) -> None:
    with seeded_single_thread(5):
        model = students.trained(students.new_llama(41, n_neurons=N_SLIM), steps=students.STEPS)
    save(model, folder_of(LLAMA), folder)


@torch.no_grad()
def moved_logits(before: PreTrainedModel, after: PreTrainedModel) -> dict[str, Any]:
    """Return the largest difference of two models' logits on random tokens, and the largest logit."""
    ids = torch.randint(before.config.vocab_size, (2, 48), generator=torch.Generator().manual_seed(1))
    a, b = before(input_ids=ids).logits, after(input_ids=ids).logits
    b = b[..., : a.shape[-1]]
    return {"logits_moved": float((a - b).abs().max()), "largest_logit": float(a.abs().max())}


@lru_cache(maxsize=4)
def _victim(name: str) -> Stack:
    return take_apart(load(folder_of(name)))


def ids_of(victim: str, stranger: str, *, share: float = 1.0) -> Ids:
    """Return ids of common tokens, or of a random share of them."""
    folders = folder_of(victim), folder_of(stranger)
    a, b = common_ids(*folders)
    n = [Tokenizer.from_file(str(each / "tokenizer.json")).get_vocab_size() for each in folders]
    if (n[0] == n[1] == len(a)) and bool((a == b).all()):
        a = b = torch.arange(n[0])
    drawn = torch.randperm(len(a), generator=torch.Generator().manual_seed(9))[: round(share * len(a))]
    return a[drawn], b[drawn]


def _opened(victim: str, stranger: str) -> tuple[PreTrainedModel, Stack, Stack]:
    """Return the stranger, its folded weights (widened to the victim's width if narrower), and the victim's weights."""
    model, target = load(folder_of(stranger)), _victim(victim)
    stack = turning.folded(take_apart(model))
    if stack.embedding.shape[1] < target.embedding.shape[1]:
        model.config.rms_norm_eps *= stack.embedding.shape[1] / target.embedding.shape[1]
        stack = turning.widened(stack, target.embedding.shape[1])
    return model, stack, target


def turned(victim: str, stranger: str) -> PreTrainedModel:
    """Rotate the stream of a stranger by a rotation that is fitted on all common tokens."""
    model, stack, target = _opened(victim, stranger)
    return rebuilt(
        model, turning.turned(stack, arranging.fitted_turn(target, stack, ids_of(victim, stranger), TOKENS_ONLY))
    )


def arranged(
    victim: str,
    stranger: str,
    weighing: Weighing,
    *,
    rounds: int = 5,
    known_seed: int | None = None,
    n_layers: int | None = None,
) -> PreTrainedModel:
    """Arrange the basis, neurons, signs and heads of a stranger; the basis for all or only for the first layers."""
    model, stack, target = _opened(victim, stranger)
    known = None
    if known_seed is not None:
        n = len(target.blocks[0].up.weight)
        known = np.random.default_rng(known_seed).permutation(n)[:192]
    plan = arranging.arranged(
        target,
        stack,
        ids_of(victim, stranger),
        weighing,
        rounds=rounds,
        places=arranging.layer_pairs(target, stack)[:n_layers],
        known=known,
    )
    stack = turning.turned(arranging.with_neurons(stack, plan), plan.turn)
    return rebuilt(model, arranging.with_heads(target, stack))


def renumbered(victim: str, stranger: str) -> PreTrainedModel:
    """Put the channels, signs and neurons of a stranger in the order of the best assignment."""
    from scipy.optimize import linear_sum_assignment

    model, stack, target = _opened(victim, stranger)
    cross = arranging.token_cross(target, stack, ids_of(victim, stranger), BOTH_ENDS)
    if turning.has_layer_norm(stack):
        cross = cross.clamp(min=0.0)  # with a LayerNorm, signs are not free
    rows, columns = linear_sum_assignment(cross.abs().numpy(), maximize=True)
    turn = torch.zeros(cross.shape[1], cross.shape[1], dtype=torch.float64)
    rest = np.setdiff1d(np.arange(cross.shape[1]), columns)
    turn[columns, rows] = torch.where(cross[rows, columns] < 0.0, -1.0, 1.0).double()
    turn[rest, torch.arange(len(rows), len(rows) + len(rest))] = 1.0
    stack = turning.turned(stack, turn)
    plan = arranging.arranged(target, stack, ids_of(victim, stranger), READS_ONLY, rounds=0)
    return rebuilt(model, arranging.with_neurons(stack, plan))


def planted(victim: str, stranger: str, how: Planted) -> PreTrainedModel:
    """Rotate a stranger towards the victim, and plant neurons of the victim."""
    model, stack, target = _opened(victim, stranger)
    stack = turning.turned(stack, arranging.fitted_turn(target, stack, ids_of(victim, stranger), BOTH_ENDS))
    return rebuilt(model, copies.planted(target, stack, how, arranging.layer_pairs(target, stack)))


def quiet_layers(victim: str, stranger: str, *, gain: float) -> PreTrainedModel:
    """Insert layers of the victim that read almost nothing."""
    model, stack, target = _opened(victim, stranger)
    stack = turning.turned(stack, arranging.fitted_turn(target, stack, ids_of(victim, stranger), BOTH_ENDS))
    return rebuilt(model, copies.with_quiet_layers(target, stack, gain))


def taught(loss: students.Loss, *, steps: int = students.STEPS) -> PreTrainedModel:
    """Train a student of the tiny Llama from random weights."""
    return students.taught(students.new_llama(202), load(folder_of(LLAMA)), loss, steps=steps)


@lru_cache(maxsize=1)
def cases() -> dict[str, Case]:
    """Return every case by name; the import is late because the list needs the functions above."""
    from benchmarks.real.framing.listed import listed

    return {case.name: case for case in listed()}


__all__ = ["BOTH_ENDS", "EVERYTHING", "LAYERS_ONLY", "READS_ONLY", "TOKENS_ONLY", "Case", "built", "cases", "folder_of"]
