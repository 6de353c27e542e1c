"""A short training loop for causal language models."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedModel


def encode(tokenizer: Tokenizer, texts: Sequence[str]) -> torch.Tensor:
    """Return the token ids of all texts, concatenated.

    Returns:
        Int64 tensor of shape (n_tokens,).
    """
    return torch.tensor(
        [token for encoding in tokenizer.encode_batch(texts) for token in encoding.ids], dtype=torch.int64
    )


def train(
    model: PreTrainedModel,
    tokens: torch.Tensor,
    *,
    steps: int,
    learning_rate: float = 3e-3,
    batch_size: int = 8,
    sequence_length: int = 128,
    order_seed: int = 0,
    on_step: Callable[[], None] | None = None,
) -> list[float]:
    """Train on random excerpts of a text with :func:`optimize`.

    Nothing here draws from torch's global generator: models trained with the same ``order_seed`` on the same tokens see
    the same batches in the same order.

    Args:
        model: A transformers causal LM in float32, without dropout; trained in place.
        tokens: Int64 tensor of shape (n_tokens,), longer than ``sequence_length``.
        steps: Optimiser steps, at least 1.
        learning_rate: The peak.
        batch_size: Sequences per step.
        sequence_length: Tokens per sequence.
        order_seed: Seed for the positions of the sequences.
        on_step: Called after each step.

    Returns:
        The loss of each step in nats per token, before that step's update.
    """
    order = torch.Generator().manual_seed(order_seed)

    def loss_of_next_batch() -> torch.Tensor:
        starts = torch.randint(tokens.numel() - sequence_length, (batch_size,), generator=order)
        batch = tokens[starts[:, None] + torch.arange(sequence_length)]  # (batch_size, sequence_length)
        loss: torch.Tensor = model(input_ids=batch, labels=batch, use_cache=False).loss
        return loss

    return optimize(model, loss_of_next_batch, steps=steps, learning_rate=learning_rate, on_step=on_step)


def optimize(
    model: torch.nn.Module,
    next_loss: Callable[[], torch.Tensor],
    *,
    steps: int,
    learning_rate: float,
    on_step: Callable[[], None] | None = None,
) -> list[float]:
    """Minimise a loss with AdamW, a linear warm-up over the first 5 % and a cosine decay to a tenth of the peak.

    Args:
        model: Trained in place; parameters without gradient do not change.
        next_loss: Called once per step; returns a scalar with a graph.
        steps: Optimiser steps, at least 1.
        learning_rate: The peak.
        on_step: Called after each step.

    Returns:
        The loss of each step, before that step's update.
    """
    optimizer = torch.optim.AdamW(_decay_groups(model), lr=learning_rate, betas=(0.9, 0.95), fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _share_of_peak(step, steps))
    losses = []
    model.train()
    for _ in range(steps):
        loss = next_loss()
        optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
        if on_step is not None:
            on_step()
    model.eval()
    return losses


@torch.no_grad()
def mean_loss(
    model: PreTrainedModel, tokens: torch.Tensor, *, sequence_length: int = 128, n_sequences: int = 64
) -> float:
    """Mean loss in nats per token over evenly spaced sequences of ``tokens``, int64 of shape (n_tokens,)."""
    starts = torch.linspace(0, tokens.numel() - sequence_length, n_sequences).long()
    batch = tokens[starts[:, None] + torch.arange(sequence_length)]  # (n_sequences, sequence_length)
    model.eval()
    return float(model(input_ids=batch, labels=batch, use_cache=False).loss)


@contextmanager
def seeded_single_thread(seed: int) -> Iterator[None]:
    """Seed torch's global generator and compute on one thread; restore both afterwards.

    At these sizes two threads gain little, and lose much if another program uses the cores (a step of 0.13 s took 2.6 s
    on two cores at load 10). With one thread, sums are also the same on any number of cores.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            yield
    finally:
        torch.set_num_threads(threads)


def _decay_groups(model: torch.nn.Module) -> list[dict[str, Any]]:
    # No weight decay on gains and biases: it would shrink the residual stream.
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    groups: list[dict[str, Any]] = [{"params": matrices, "weight_decay": 0.1}]
    return [*groups, {"params": vectors, "weight_decay": 0.0}] if vectors else groups


def _share_of_peak(step: int, steps: int) -> float:
    warm_up = max(1, steps // 20)
    if step < warm_up:
        return (step + 1) / warm_up
    return 0.1 + 0.45 * (1 + math.cos(math.pi * (step - warm_up) / max(1, steps - warm_up)))
