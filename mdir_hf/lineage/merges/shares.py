"""Estimate the share of each parent in each layer of a merge, by least squares on some entries of every weight.

Linear merges, SLERP, TIES, DARE and task arithmetic keep the order of channels, so a layer of the merge is close to a
weighted sum of the parents' layers. The residual shows how close.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

SAME = 1e-5
"""Parents whose relative difference is smaller count as equal; their shares cannot be determined."""


@dataclass(frozen=True, slots=True)
class LayerShares:
    """Shares in one layer of a merge.

    Attributes:
        layer: Layer number.
        shares: Share of each source, in order; they sum to 1. None if the sources are equal.
        errors: Standard error of each share. None if the sources are equal.
        left_over: Residual that no weighted sum of the sources explains, relative to the size of the layer: 0 for a
            linear merge.
    """

    layer: int
    shares: tuple[float, ...] | None
    errors: tuple[float, ...] | None
    left_over: float


def shares_of(layer: int, merged: Sequence[torch.Tensor], sources: Sequence[Sequence[torch.Tensor]]) -> LayerShares:
    """Fit a layer of a merge as a weighted sum of its parents' layers, with weights that sum to 1.

    Args:
        layer: Layer number.
        merged: Entries of each weight of the layer.
        sources: The same entries of each source, in the same order.

    Returns:
        The shares. All weights count equally, regardless of their size. Cost: O(entries x sources^2).
    """
    scales = [float(weight.double().square().mean().sqrt()) or 1.0 for weight in merged]

    def flat(weights: Sequence[torch.Tensor]) -> torch.Tensor:
        return torch.cat([w.double().reshape(-1) / scale for w, scale in zip(weights, scales, strict=True)])

    y, (first, *others) = flat(merged), [flat(weights) for weights in sources]
    size = float(y.norm()) or 1.0
    if not others:
        return LayerShares(layer, (1.0,), (0.0,), float((y - first).norm()) / size)
    design = torch.stack([other - first for other in others], dim=1)
    left, sizes, right = torch.linalg.svd(design, full_matrices=False)
    if float(sizes[-1]) < SAME * size:
        fitted = left @ (left.T @ (y - first)) if float(sizes[0]) >= SAME * size else torch.zeros_like(y)
        return LayerShares(layer, None, None, float((y - first - fitted).norm()) / size)
    weights = right.T @ ((left.T @ (y - first)) / sizes)
    rest = y - first - design @ weights
    covariance = (right.T / sizes.square()) @ right * float(rest.square().sum()) / max(1, len(y) - len(others))
    ones = torch.ones(len(others), dtype=torch.float64)
    variances = torch.cat([(ones @ covariance @ ones)[None], covariance.diagonal()]).clamp_min(0)
    shares = torch.cat([1 - weights.sum()[None], weights])
    return LayerShares(layer, tuple(shares.tolist()), tuple(variances.sqrt().tolist()), float(rest.norm()) / size)
