"""Prepares embedding rows, in ways that commute with every rotation of the residual stream.

Only preprocessings f with f(E Q) = f(E) Q keep the null distribution exact (docs/method/bound.md): choosing and
dropping rows by their lengths, centring, normalising rows, whitening. Scaling or clipping columns does not, and is
not done. Each may look at both models, as long as it turns with the one whose rotation invariance the null rests on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

NEGLIGIBLE_NORM = 1e-6
"""Rows shorter than this share of the median, before or after centring, are empty (never trained, padding)."""

LONGEST = 1e3
"""Rows longer than so many medians are left out: a few that nobody uses, made huge, would be the mean of all."""


@dataclass(frozen=True, slots=True, eq=False)
class RowStandard:
    """What a block of rows was measured by, so that others can be measured alike.

    Attributes:
        reference_mean: ``(n_reference,)``, what is subtracted.
        candidate_mean: ``(n_candidate,)``.
        shortest: Shortest length that counts as a row: of the reference before and after centring, and of the
            candidate before and after centring.
    """

    reference_mean: torch.Tensor
    candidate_mean: torch.Tensor
    shortest: tuple[float, float, float, float]


@dataclass(frozen=True, slots=True, eq=False)
class PairedRows:
    """Centred, unit-length rows of both models on the same tokens.

    Attributes:
        reference: ``(r, n_reference)``, float64 unless asked otherwise.
        candidate: ``(r, n_candidate)``, the same.
        kept: ``(r_given,)`` bool, the rows that were neither empty nor far too long, nor non-finite, in either model.
        standard: What they were measured by.
    """

    reference: torch.Tensor
    candidate: torch.Tensor
    kept: torch.Tensor
    standard: RowStandard


def pair_rows(
    reference: torch.Tensor,
    candidate: torch.Tensor,
    *,
    like: RowStandard | None = None,
    dtype: torch.dtype = torch.float64,
) -> PairedRows:
    """Drop the rows that are empty, far too long or not finite in either model, centre both blocks, normalise the rest.

    Args:
        reference: ``(r, n_reference)``, any floating dtype. Not modified.
        candidate: ``(r, n_candidate)``, the same tokens in the same order.
        like: Use these means and shortest lengths instead of the blocks' own. A stream that is cut into
            blocks gives the same rows wherever it is cut only if it measures them all by one sample.
        dtype: What to compute in.

    Returns:
        The paired rows, possibly none. Cost O(r n); memory the two results.
    """
    x, y = _own_copy(reference, dtype), _own_copy(candidate, dtype)  # from here on everything happens in place
    x_raw, y_raw = x.norm(dim=1), y.norm(dim=1)
    raw = (_shortest(x_raw), _shortest(y_raw)) if like is None else (like.shortest[0], like.shortest[2])
    kept = _usual(x_raw, raw[0]) & _usual(y_raw, raw[1])
    if not bool(kept.all()):
        x, y = x[kept], y[kept]
    if like is not None:
        x_mean, y_mean = like.reference_mean.to(dtype), like.candidate_mean.to(dtype)
    elif len(x):
        x_mean, y_mean = x.mean(dim=0), y.mean(dim=0)
    else:
        x_mean, y_mean = x.new_zeros(x.shape[1]), y.new_zeros(y.shape[1])
    x_norm, y_norm = x.sub_(x_mean).norm(dim=1), y.sub_(y_mean).norm(dim=1)
    if like is None:
        centred = (_shortest_centred(x_norm, raw[0]), _shortest_centred(y_norm, raw[1]))
    else:
        centred = (like.shortest[1], like.shortest[3])
    still = (x_norm > centred[0]) & (y_norm > centred[1])
    if not bool(still.all()):
        x, y, x_norm, y_norm = x[still], y[still], x_norm[still], y_norm[still]
        kept[kept.clone()] = still
    x.div_(x_norm[:, None])
    y.div_(y_norm[:, None])
    return PairedRows(x, y, kept, RowStandard(x_mean, y_mean, (raw[0], centred[0], raw[1], centred[1])))


def long_rows(rows: torch.Tensor) -> torch.Tensor:
    """Tell which rows :func:`pair_rows` leaves out for their length, as measured by these rows: ``(r,)`` bool.

    Args:
        rows: ``(r, n)``, any floating dtype. Not copied whole.
    """
    norms = torch.cat([block.double().norm(dim=1) for block in torch.split(rows, 512)])
    shortest = _shortest(norms)
    return torch.zeros_like(norms, dtype=torch.bool) if shortest == 0.0 else norms > _longest(shortest)


def usual_rows(rows: torch.Tensor) -> torch.Tensor:
    """Tell which rows of one model :func:`pair_rows` keeps, as far as that hangs on them: ``(r,)`` bool.

    Args:
        rows: ``(r, n)``, any floating dtype. Not modified. Memory: a copy in float64.
    """
    own = _own_copy(rows, torch.float64)
    norms = own.norm(dim=1)
    shortest = _shortest(norms)
    kept = _usual(norms, shortest)
    if bool(kept.any()):
        lengths = own.sub_(own[kept].mean(dim=0)).norm(dim=1)
        kept &= lengths > _shortest_centred(lengths[kept], shortest)
    return kept


def _own_copy(rows: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    # Row by row in memory: sums over a row, and so the last bit of p, do not depend on how the rows were stored.
    return rows.detach().to(dtype, copy=True, memory_format=torch.contiguous_format)


def _shortest(norms: torch.Tensor) -> float:
    finite = norms[torch.isfinite(norms)]
    return NEGLIGIBLE_NORM * float(finite.median()) if len(finite) else 0.0


def _longest(shortest: float) -> float:
    return shortest * (LONGEST / NEGLIGIBLE_NORM) if shortest > 0.0 else math.inf


def _shortest_centred(norms: torch.Tensor, shortest: float) -> float:
    # A row that equals the mean up to rounding is as empty as one of zeros: measure it against the raw lengths too.
    return max(_shortest(norms), 64.0 * torch.finfo(norms.dtype).eps / NEGLIGIBLE_NORM * shortest)


def _usual(norms: torch.Tensor, shortest: float) -> torch.Tensor:
    """Neither empty, nor so long that the mean of all rows would be that of a few."""
    return torch.isfinite(norms) & (norms > shortest) & (norms <= _longest(shortest))
