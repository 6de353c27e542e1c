"""Train models to resemble a victim, and strangers of other shapes, in seconds on one core each."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from benchmarks.zoo.build import BATCH_SIZE, FULL, SEQUENCE_LENGTH, Text, text_of
from benchmarks.zoo.stack import Shape, new_model
from mdir_hf.demo.training import optimize, train

if TYPE_CHECKING:
    from transformers import PreTrainedModel

RATE = 3e-3
STEPS = 150


@dataclass(frozen=True)
class Loss:
    """Weights of the terms of a student's loss.

    Attributes:
        logits: Weight of the divergence of next-token distributions.
        states: Weight of the squared error of all hidden states.
        last: Weight of the squared error of the last hidden state.
        embeddings: Weight of the squared error of the embeddings.
    """

    logits: float = 0.0
    states: float = 0.0
    last: float = 0.0
    embeddings: float = 0.0


def text() -> Text:
    """Return the text of the zoo's Llama."""
    return text_of("bpe", FULL.shape.vocabulary)


def new_llama(seed: int, **sizes: int) -> PreTrainedModel:
    """Return a Llama of the zoo at initialisation, optionally with other sizes."""
    shape = Shape(**{**asdict(FULL.shape), "vocabulary": text().tokenizer.get_vocab_size(), **sizes})
    torch.manual_seed(seed)
    return new_model("llama", shape)


def trained(model: PreTrainedModel, *, steps: int, order: int = 0, kind: str = "code") -> PreTrainedModel:
    """Train a model on the zoo's text."""
    train(
        model,
        text().learnt[kind],
        steps=steps,
        learning_rate=RATE,
        batch=(BATCH_SIZE, SEQUENCE_LENGTH),
        order_seed=order,
    )
    return model


def taught(student: PreTrainedModel, teacher: PreTrainedModel, loss: Loss, *, steps: int = STEPS) -> PreTrainedModel:
    """Train a student towards a teacher of the same width and depth."""
    next_batch = _batches(text().learnt["code"], order=8)

    def next_loss() -> torch.Tensor:
        batch = next_batch()
        with torch.no_grad():
            target = teacher(input_ids=batch, use_cache=False, output_hidden_states=True)
        guess = student(input_ids=batch, use_cache=False, output_hidden_states=True)
        total = torch.zeros(())
        if loss.logits:
            pair = (functional.log_softmax(each.logits, -1) for each in (guess, target))
            total = total + loss.logits * functional.kl_div(*pair, log_target=True, reduction="batchmean") / (
                SEQUENCE_LENGTH
            )
        states = list(zip(guess.hidden_states, target.hidden_states, strict=True))
        chosen = states if loss.states else states[-1:] if loss.last else states[:1]
        weight = loss.states or loss.last or loss.embeddings
        if weight:
            total = total + weight * sum(_error(a, b) for a, b in chosen) / len(chosen)
        return total

    optimize(student, next_loss, steps=steps, learning_rate=RATE)
    return student


def _error(guess: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return functional.mse_loss(guess, target) / target.square().mean()


def masked(seed: int, *, share_kept: float, steps: int = STEPS, mask_seed: int = 77) -> PreTrainedModel:
    """Train a model under a random mask of all matrices, including embedding and head."""
    model = new_llama(seed)
    drawn = torch.Generator().manual_seed(mask_seed)
    masks = {
        name: (torch.rand(weight.shape, generator=drawn) < share_kept).float()
        for name, weight in model.named_parameters()
        if weight.ndim == 2
    }

    @torch.no_grad()
    def apply() -> None:
        for name, weight in model.named_parameters():
            if name in masks:
                weight *= masks[name]

    apply()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name in masks:
                weight /= share_kept**0.5
    _train_on_code(model, steps, seed, apply)
    return model


def deterministic(order: int, *, steps: int = STEPS) -> PreTrainedModel:
    """Train a model whose matrices all begin as the same cosine transforms, whatever the seed."""
    model = new_llama(0)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim == 2:
                rows, columns = (torch.arange(n) for n in weight.shape)
                waves = ((rows[:, None] + 0.5) * columns * (math.pi / len(rows))).cos()
                weight.copy_(waves * (2.0**0.5 * weight.std()))
    return trained(model, steps=steps, order=order)


def with_first_embeddings_of(victim_seed: int, seed: int, *, steps: int = STEPS) -> PreTrainedModel:
    """Train a stranger that starts with the victim's initial embedding."""
    model, origin = new_llama(seed), new_llama(victim_seed)
    with torch.no_grad():
        model.get_input_embeddings().weight.copy_(origin.get_input_embeddings().weight)
    return trained(model, steps=steps, order=1, kind="prose")


@torch.no_grad()
def soup(victim: PreTrainedModel, stranger: PreTrainedModel, share: float) -> PreTrainedModel:
    """Mix the weights of two models."""
    made = copy.deepcopy(stranger)
    for mixed, weight in zip(made.parameters(), victim.parameters(), strict=True):
        mixed.lerp_(weight, share)
    return made


def _batches(tokens: torch.Tensor, order: int) -> Callable[[], torch.Tensor]:
    drawn = torch.Generator().manual_seed(order)

    def next_batch() -> torch.Tensor:
        starts = torch.randint(tokens.numel() - SEQUENCE_LENGTH, (BATCH_SIZE,), generator=drawn)
        return tokens[starts[:, None] + torch.arange(SEQUENCE_LENGTH)]

    return next_batch


def _train_on_code(model: PreTrainedModel, steps: int, seed: int, on_step: Callable[[], None]) -> None:
    """Train on the code of the zoo's text, and call ``on_step`` after each step."""
    train(
        model,
        text().learnt["code"],
        steps=steps,
        learning_rate=RATE,
        batch=(BATCH_SIZE, SEQUENCE_LENGTH),
        order_seed=seed,
        on_step=on_step,
    )
