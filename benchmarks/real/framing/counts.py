"""Count neurons that keep their own partner behind a rotation fitted on other neurons, for fresh samples.

The measure has two witnesses: gate and up together, and down with a separate rotation. It is deliberately independent
of the package's own rules, so that attacks are judged by it before any limit is chosen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from benchmarks.zoo.stack import Stack
from mdir_hf.method.matching import IntArray
from mdir_hf.method.neuron_numbers import OwnNumbers, in_span, match_neurons_by_number
from mdir_hf.method.neurons import unit_rows

FITTED, TESTED = 128, 64
LEAST_OUTPUT = 1e-3
"""Neurons with an output below this share of the median do not count."""


class Sides(NamedTuple):
    """Unit rows of a layer, each ``(neurons, width)``: gate and up with gains folded in, and down."""

    reads: tuple[torch.Tensor, ...]
    writes: torch.Tensor
    output: torch.Tensor


@dataclass(frozen=True)
class Counted:
    """Counts of one sample of one pair of layers."""

    reads: OwnNumbers
    writes: OwnNumbers


def sides_of(stack: Stack, place: int, *, weighed: bool = True) -> Sides:
    """Read the neurons of a layer.

    Args:
        stack: A model.
        place: Number of the layer.
        weighed: Whether channels are weighted by the square root of the size of the writes into them.
    """
    block = stack.blocks[place]
    maps = [block.up] if block.gate is None else [block.gate, block.up]
    folded = [(each.weight * block.mlp_norm.weight).float() for each in maps]
    down = block.down.weight.T.float()
    size = torch.stack([rows.norm(dim=1) for rows in (*folded, down)]).log().sum(dim=0).exp()
    scale = channel_writes(stack).sqrt() if weighed else torch.ones(down.shape[1])
    return Sides(tuple(unit_rows(rows * scale) for rows in folded), unit_rows(down), size)


def channel_writes(stack: Stack) -> torch.Tensor:
    """Compute the root mean square of all writes into each channel: by the embedding, o and down, ``(width,)``."""
    columns = [stack.embedding.float().T]
    for block in stack.blocks:
        columns += [block.o.weight.float(), block.down.weight.float()]
    return torch.stack([each.square().mean(dim=1) for each in columns]).mean(dim=0).sqrt()


def drawn(n: int, generator: np.random.Generator) -> IntArray:
    """Choose scattered neurons: first the neurons for the fit, then the neurons for the test."""
    n_tested = min(TESTED, n // 3)
    chosen: IntArray = generator.permutation(n)[: min(FITTED, n - n_tested) + n_tested].astype(np.int64)
    return chosen


def counted(reference: Sides, candidate: Sides, numbers: IntArray) -> Counted:
    """Count the neurons of one sample."""
    n_fitted = len(numbers) - min(TESTED, len(numbers) // 3)
    n_neurons = min(len(reference.writes), len(candidate.writes))

    def count(x: Sequence[torch.Tensor], y: Sequence[torch.Tensor]) -> OwnNumbers:
        pairs = (in_span([rows[numbers] for rows in side], n_fitted) for side in (x, y))
        return match_neurons_by_number(*pairs, n_fitted=n_fitted, n_neurons=n_neurons).counts

    return Counted(count(reference.reads, candidate.reads), count([reference.writes], [candidate.writes]))


def fresh_counts(
    reference: Stack, candidate: Stack, places: Sequence[tuple[int, int]], *, n_samples: int = 20
) -> dict[str, Any]:
    """Count neurons of several pairs of layers, for samples drawn from system entropy.

    Returns:
        For gate and up (``reads``) and down (``writes``): the largest and the mean number of own partners and of
        certain ones over all samples of all layers, and the number of tested neurons.
    """
    generator = np.random.default_rng()
    rows = []
    for i, j in places:
        x, y = sides_of(reference, i), sides_of(candidate, j)
        live = torch.nonzero(y.output[: len(x.output)] > LEAST_OUTPUT * y.output.median())[:, 0].numpy()
        for _ in range(n_samples):
            if len(live) < 96:
                rows.append((0, 0, 0, 0))
                continue
            result = counted(x, y, live[drawn(len(live), generator)])
            rows.append((*result.reads, *result.writes))
    table = np.array(rows)
    keys = ("reads_own", "reads_certain", "writes_own", "writes_certain")
    return {
        "tested": TESTED,
        "largest": dict(zip(keys, table.max(axis=0).tolist(), strict=True)),
        "mean": dict(zip(keys, table.mean(axis=0).round(2).tolist(), strict=True)),
        "smallest": dict(zip(keys, table.min(axis=0).tolist(), strict=True)),
    }
