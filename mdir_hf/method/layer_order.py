"""Describe the order, runs and pattern of matched layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

Pattern = Literal["none", "identity", "pruned", "repeated", "reordered", "partial", "sampled"]


@dataclass(frozen=True, slots=True)
class LayerRun:
    """Consecutive candidate layers whose partners are consecutive reference layers, numbered from 0."""

    reference: int
    candidate: int
    length: int


def ordered_matching(log_p: npt.NDArray[np.float64], penalty: float) -> list[tuple[int, int]]:
    """Find the order-preserving matching with the most evidence (paper, "maximal ordered matching").

    ``D[i, j] = max(D[i-1, j], D[i, j-1], D[i-1, j-1] + max(0, -ln p_ij - penalty))`` for finite natural logs ``log_p``,
    ``(L, L')``. Pairs with less evidence than ``penalty`` nats are excluded.

    Returns:
        Pairs (reference layer, candidate layer), ascending in both.
    """
    gain = np.maximum(0.0, -log_p - penalty)
    n_reference, n_candidate = gain.shape
    total = np.zeros((n_reference + 1, n_candidate + 1))
    for i in range(1, n_reference + 1):
        for j in range(1, n_candidate + 1):
            total[i, j] = max(total[i - 1, j], total[i, j - 1], total[i - 1, j - 1] + gain[i - 1, j - 1])
    pairs: list[tuple[int, int]] = []
    i, j = n_reference, n_candidate
    while i > 0 and j > 0:
        if total[i, j] == total[i - 1, j]:
            i -= 1
        elif total[i, j] == total[i, j - 1]:
            j -= 1
        else:
            i, j = i - 1, j - 1
            pairs.append((i, j))
    return pairs[::-1]


def layer_runs(pairs: Sequence[tuple[int, int]]) -> tuple[LayerRun, ...]:
    """Group matched layers, sorted by candidate layer, into maximal runs that increase by one in both models."""
    runs: list[LayerRun] = []
    for reference, candidate in pairs:
        last = runs[-1] if runs else None
        if last and (reference, candidate) == (last.reference + last.length, last.candidate + last.length):
            runs[-1] = LayerRun(last.reference, last.candidate, last.length + 1)
        else:
            runs.append(LayerRun(reference, candidate, 1))
    return tuple(runs)


def classify_layers(pairs: Sequence[tuple[int, int]], n_reference: int, n_candidate: int) -> Pattern:
    """Classify how the candidate's layers relate to the reference's, by the first description that applies.

    - ``none``: no candidate layer has a partner.
    - ``partial``: only some candidate layers have a partner.
    - ``repeated``: all have a partner, but some share one (depth upscaling).
    - ``reordered``: each has its own partner, but not in the reference's order.
    - ``pruned``: each has its own partner, in order, and some reference layers are unused.
    - ``identity``: the partner of layer i is layer i, for all layers.

    ``pairs`` are (reference layer, candidate layer), sorted by candidate layer.
    """
    ancestors = [reference for reference, _ in pairs]
    if not pairs:
        return "none"
    if len(pairs) < n_candidate:
        return "partial"
    if len(set(ancestors)) < len(ancestors):
        return "repeated"
    if ancestors != sorted(ancestors):
        return "reordered"
    return "identity" if n_candidate == n_reference else "pruned"
