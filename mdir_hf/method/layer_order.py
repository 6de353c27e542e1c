"""Describe the order, runs and pattern of matched layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

Pattern = Literal["none", "identity", "pruned", "repeated", "reordered", "partial", "sampled"]


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
