"""Measure how far each of a model's weights has moved since it was sampled.

``d2``, the mean squared difference per entry, accumulates over independent steps (docs/method/many.md). The trace of
the polar factor, divided by its rank, is 1 if no weight has moved, and approaches 0 as the base is forgotten.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any

import torch

from mdir_hf.method.polar import thin_svd

CHANNELS = 32
"""Maximum number of channels in the polar factor; the SVD of a 32 x 32 matrix takes a tenth of a millisecond."""


@dataclass(frozen=True, slots=True)
class PartDrift:
    """How far a weight has moved.

    Attributes:
        layer: Layer number; None for embeddings.
        role: ``embedding``, ``unembedding``, ``q``, ``k``, ``v``, ``o``, ``gate``, ``up``, ``down``, …
        d2: Mean squared difference per entry, in squared weight units.
        relative: Square root of ``d2``, divided by the root mean square of the base's entries.
        trace_over_rank: Trace of the polar factor between base and model, divided by its rank; at most 1.
    """

    layer: int | None
    role: str
    d2: float
    relative: float
    trace_over_rank: float


@dataclass(frozen=True, slots=True)
class Drift:
    """How far each weight has moved; ``step`` is the training step, if known."""

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
        """Mean of ``trace_over_rank`` over the weights."""
        return _mean(part.trace_over_rank for part in self.parts)

    def by_role(self) -> Mapping[str, Drift]:
        """Return the drift of each role, combining all layers."""
        return self._by(lambda part: part.role)

    def by_layer(self) -> Mapping[int, Drift]:
        """Return the drift of each layer, combining its roles."""
        return self._by(lambda part: part.layer)

    def values(self, *, layers: bool = True) -> dict[str, float]:
        """Return values to log, keyed by name: overall, for each role and, optionally, for each layer.

        The names are ``lineage/d2``, ``lineage/relative`` and ``lineage/trace_over_rank``. Roles and layers have only
        ``d2`` and ``trace_over_rank``, named ``lineage/role/q/…`` and ``lineage/layer/07/…``.
        """
        values = {"lineage/d2": self.d2, "lineage/relative": self.relative}
        values["lineage/trace_over_rank"] = self.trace_over_rank
        groups = {f"role/{role}": drift for role, drift in self.by_role().items()}
        if layers:
            groups |= {f"layer/{layer:02}": drift for layer, drift in self.by_layer().items()}
        for name, drift in groups.items():
            values |= {f"lineage/{name}/d2": drift.d2, f"lineage/{name}/trace_over_rank": drift.trace_over_rank}
        return values

    def _by(self, key: Callable[[PartDrift], Hashable]) -> Mapping[Any, Drift]:
        groups: dict[Hashable, list[PartDrift]] = defaultdict(list)
        for part in self.parts:
            if key(part) is not None:
                groups[key(part)].append(part)
        return {name: Drift(self.step, tuple(parts)) for name, parts in groups.items()}


def traces_over_rank(base: Sequence[torch.Tensor], now: Sequence[torch.Tensor]) -> list[float]:
    """For each pair of samples, return the trace of the polar factor of ``X^T Y`` divided by its rank, at most 1.

    The shorter side of a sample is treated as channels; only the first :data:`CHANNELS` are used.
    """
    by_width: dict[int, list[int]] = defaultdict(list)
    for at, sample in enumerate(base):
        by_width[min(CHANNELS, *sample.shape)].append(at)
    results = [0.0] * len(base)
    for width, places in by_width.items():
        products = torch.stack([_channels(base[at], width).T @ _channels(now[at], width) for at in places])
        left, sizes, right = thin_svd(products)
        # Directions of zero size are arbitrary in U and V and would add a random trace.
        counts = sizes > sizes[:, :1] * width * torch.finfo(sizes.dtype).eps
        traces = torch.einsum("mij,mj,mji->m", left, counts.to(left.dtype), right)
        for at, trace, rank in zip(places, traces.tolist(), counts.sum(1).tolist(), strict=True):
            results[at] = trace / rank if rank else 0.0
    return results


def _channels(sample: torch.Tensor, n_channels: int) -> torch.Tensor:
    rows = (sample if sample.shape[0] >= sample.shape[1] else sample.T)[:, :n_channels]
    size = rows.abs().amax()  # avoids overflow in products; the polar factor does not change
    return rows / size if size > 0 else rows


def _mean(values: Iterable[float]) -> float:
    numbers = list(values)
    return sum(numbers) / len(numbers) if numbers else 0.0
