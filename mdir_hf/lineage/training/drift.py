"""Measures how far the weights of a model have moved since a sample of them was taken, part by part.

Two numbers for each part. ``d2``, the mean squared difference per entry, adds up along independent steps and is what
family trees are built of (docs/method/many.md). Trace over rank is that of the polar factor of Algorithm 1, on
some of the channels in their own order: 1 where nothing has moved, and towards 0 as the base is forgotten.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any

import torch

from mdir_hf.method.decompositions import thin_svd

CHANNELS = 32
"""Of the channels of a sample as many make the polar factor: an SVD of 32 x 32 takes a tenth of a millisecond."""


@dataclass(frozen=True, slots=True)
class PartDrift:
    """How far one weight has moved.

    Attributes:
        layer: Number of its layer; None for the embeddings.
        role: What it does: ``embedding``, ``unembedding``, ``q``, ``k``, ``v``, ``o``, ``gate``, ``up``, ``down``, …
        d2: Mean squared difference per entry, in squared weight units.
        relative: Root of ``d2`` over the root mean square of the base's entries.
        trace_over_rank: Of the polar factor between base and model, at most 1.
    """

    layer: int | None
    role: str
    d2: float
    relative: float
    trace_over_rank: float


@dataclass(frozen=True, slots=True)
class Drift:
    """How far a model has moved from its base at one step.

    Attributes:
        step: Which step; None where nobody said.
        parts: Every weight that is watched.
    """

    step: int | None
    parts: tuple[PartDrift, ...]

    @property
    def d2(self) -> float:
        """Mean of ``d2`` over the weights."""
        return _mean(part.d2 for part in self.parts)

    @property
    def relative(self) -> float:
        """Root mean square of ``relative`` over the weights."""
        return sqrt(_mean(part.relative**2 for part in self.parts))

    @property
    def trace_over_rank(self) -> float:
        """Mean of the trace over rank over the weights."""
        return _mean(part.trace_over_rank for part in self.parts)

    def by_role(self) -> Mapping[str, Drift]:
        """The same for each role, over all layers."""
        return self._by(lambda part: part.role)

    def by_layer(self) -> Mapping[int, Drift]:
        """The same for each layer, over its roles."""
        return self._by(lambda part: part.layer)

    def values(self, *, layers: bool = True) -> dict[str, float]:
        """Numbers by name, as trackers of experiments take them.

        Args:
            layers: Whether each layer has values of its own, besides each role.

        Returns:
            ``lineage/d2``, ``lineage/relative`` and ``lineage/trace_over_rank``, then the first and the last of them as
            ``lineage/role/q/…`` and ``lineage/layer/07/…``.
        """
        found = {"lineage/d2": self.d2, "lineage/relative": self.relative}
        found["lineage/trace_over_rank"] = self.trace_over_rank
        groups = {f"role/{role}": drift for role, drift in self.by_role().items()}
        if layers:
            groups |= {f"layer/{layer:02}": drift for layer, drift in self.by_layer().items()}
        for name, drift in groups.items():
            found |= {f"lineage/{name}/d2": drift.d2, f"lineage/{name}/trace_over_rank": drift.trace_over_rank}
        return found

    def _by(self, key: Callable[[PartDrift], Hashable]) -> Mapping[Any, Drift]:
        groups: dict[Hashable, list[PartDrift]] = defaultdict(list)
        for part in self.parts:
            if key(part) is not None:
                groups[key(part)].append(part)
        return {name: Drift(self.step, tuple(parts)) for name, parts in groups.items()}


def traces_over_rank(base: Sequence[torch.Tensor], now: Sequence[torch.Tensor]) -> list[float]:
    """Return, for each pair of samples, the trace of the polar factor of ``X^T Y`` over its rank.

    Args:
        base: X, each ``(rows, columns)`` float32, or transposed: the shorter side has the channels, of which the first
            :data:`CHANNELS` count, the longer side what they are seen on.
        now: Y, of the same shapes.

    Returns:
        Numbers of at most 1. Cost: one SVD of at most 32 x 32 for each, those of one size at once.
    """
    by_width: dict[int, list[int]] = defaultdict(list)
    for at, sample in enumerate(base):
        by_width[min(CHANNELS, *sample.shape)].append(at)
    found = [0.0] * len(base)
    for width, places in by_width.items():
        products = torch.stack([_channels(base[at], width).T @ _channels(now[at], width) for at in places])
        left, sizes, right = thin_svd(products)
        # Directions without size are arbitrary in U and V, and would add a random trace.
        counts = sizes > sizes[:, :1] * width * torch.finfo(sizes.dtype).eps
        traces = torch.einsum("mij,mj,mji->m", left, counts.to(left.dtype), right)
        for at, trace, rank in zip(places, traces.tolist(), counts.sum(1).tolist(), strict=True):
            found[at] = trace / rank if rank else 0.0
    return found


def _channels(sample: torch.Tensor, n_channels: int) -> torch.Tensor:
    chosen = (sample if sample.shape[0] >= sample.shape[1] else sample.T)[:, :n_channels]
    size = chosen.abs().amax()  # products of numbers of any size stay numbers, and the polar factor is the same
    return chosen / size if size > 0 else chosen


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return sum(listed) / len(listed) if listed else 0.0
