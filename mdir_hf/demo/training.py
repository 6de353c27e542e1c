"""A short, plain training loop for a causal language model."""

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
    """The ids of all texts, one after the other.

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
    """Train on random stretches of a text, as :func:`optimize` does.

    Nothing here draws from torch's global generator: two models trained with the same ``order_seed`` on the same tokens
    see the same batches in the same order, whatever they were initialised with.

    Args:
        model: A transformers causal LM in float32; trained in place. Its configuration should have no dropout.
        tokens: Int64 tensor of shape (n_tokens,), longer than ``sequence_length``.
        steps: Optimiser steps, at least 1.
        learning_rate: The peak.
        batch_size: Sequences per step.
        sequence_length: Tokens per sequence.
        order_seed: Chooses where the sequences of each step begin.
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
    """Minimise any loss with AdamW, a linear warm-up over the first twentieth and a cosine to a tenth of the peak.

    Args:
        model: Trained in place; parameters that take no gradient stay as they are.
        next_loss: Called once a step, for a scalar with a graph to the parameters.
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
    """Mean loss in nats per token over sequences spread evenly over ``tokens``, int64 of shape (n_tokens,)."""
    starts = torch.linspace(0, tokens.numel() - sequence_length, n_sequences).long()
    batch = tokens[starts[:, None] + torch.arange(sequence_length)]  # (n_sequences, sequence_length)
    model.eval()
    return float(model(input_ids=batch, labels=batch, use_cache=False).loss)


@contextmanager
def seeded_single_thread(seed: int) -> Iterator[None]:
    """Seed torch's global generator, from which models are drawn, and compute on one thread; put both back at the end.

    One thread, because at these sizes two gain little, and lose much where anything else uses the cores (a step of
    0.13 s took 2.6 s on two cores at load 10); and because sums then come out alike on every number of cores.
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
    # Matrices decay, gains and biases do not: decayed gains would shrink the residual stream they scale.
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    groups: list[dict[str, Any]] = [{"params": matrices, "weight_decay": 0.1}]
    return [*groups, {"params": vectors, "weight_decay": 0.0}] if vectors else groups


def _share_of_peak(step: int, steps: int) -> float:
    warm_up = max(1, steps // 20)
    if step < warm_up:
        return (step + 1) / warm_up
    return 0.1 + 0.45 * (1 + math.cos(math.pi * (step - warm_up) / max(1, steps - warm_up)))
