"""Preparing embedding rows, in ways that commute with every rotation of the residual stream.

Only preprocessings f with f(E Q) = f(E) Q keep the null distribution exact (statistics.md section 0): choosing and
dropping rows, centring, normalising rows, whitening. Scaling or clipping columns does not, and is not done.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from mdir_hf.homology.polar import RowFactors, row_factors

NEGLIGIBLE_NORM = 1e-6
"""Rows shorter than this share of the median are empty (never-trained, padding) and say nothing."""


@dataclass(frozen=True, slots=True)
class PairedRows:
    """Centred, unit-length rows of both models on the same tokens.

    Attributes:
        reference: ``(r, n_reference)`` float64.
        candidate: ``(r, n_candidate)`` float64.
        reference_mean: ``(n_reference,)``, what was subtracted.
        candidate_mean: ``(n_candidate,)``.
        kept: ``(r_given,)`` bool, the rows that were not empty in either.
    """

    reference: torch.Tensor
    candidate: torch.Tensor
    reference_mean: torch.Tensor
    candidate_mean: torch.Tensor
    kept: torch.Tensor


def pair_rows(
    reference: torch.Tensor,
    candidate: torch.Tensor,
    *,
    means: tuple[torch.Tensor, torch.Tensor] | None = None,
    dtype: torch.dtype = torch.float64,
) -> PairedRows:
    """Centre both blocks of rows, drop the rows that are empty in either, and normalise the rest.

    Args:
        reference: ``(r, n_reference)``, any floating dtype.
        candidate: ``(r, n_candidate)``, the same tokens in the same order.
        means: Subtract these instead of the blocks' own means (a stream uses the means of its sample).
        dtype: What to compute in.

    Returns:
        The paired rows. Cost O(r n).
    """
    x, y = reference.to(dtype), candidate.to(dtype)
    x_mean, y_mean = (x.mean(dim=0), y.mean(dim=0)) if means is None else (means[0].to(dtype), means[1].to(dtype))
    x, y = x - x_mean, y - y_mean
    x_norm, y_norm = x.norm(dim=1), y.norm(dim=1)
    kept = (x_norm > NEGLIGIBLE_NORM * x_norm.median()) & (y_norm > NEGLIGIBLE_NORM * y_norm.median())
    if not bool(kept.all()):
        x, y, x_norm, y_norm = x[kept], y[kept], x_norm[kept], y_norm[kept]
    return PairedRows(x / x_norm[:, None], y / y_norm[:, None], x_mean, y_mean, kept)


def whitening(rows: torch.Tensor) -> torch.Tensor:
    """Return ``(X^T X)^(-1/2)`` of a sample of rows, inverted on the directions the sample has.

    A function of the sample that turns with it, so that whitening all rows by it keeps the null exact.
    Cost O(r n^2 + n^3).
    """
    factors: RowFactors = row_factors(rows)
    return (factors.right / factors.scale) @ factors.right.T
