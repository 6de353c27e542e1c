"""Prepare embedding rows without breaking the rotation symmetry of the residual stream.

The null hypothesis is exact only if preprocessing f satisfies f(E Q) = f(E) Q for every rotation Q
(docs/method/bound.md). Rows may be selected by length, centred, normalised or whitened, but columns may not be scaled.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

NEGLIGIBLE_NORM = 1e-6
"""Rows shorter than this share of the median length, before or after centring, are treated as empty (padding, or never
trained)."""

LONGEST = 1e3
"""Rows longer than this multiple of the median are excluded, because a few huge unused rows would dominate the mean."""


@dataclass(frozen=True, slots=True, eq=False)
class PairedRows:
    """Centred, unit-length rows of both models for the same tokens.

    Attributes:
        reference: ``(r, n_reference)``, float64.
        candidate: ``(r, n_candidate)``, float64.
        is_kept: ``(r_given,)`` bool, False for rows that are empty, too long or not finite in either model.
    """

    reference: torch.Tensor
    candidate: torch.Tensor
    is_kept: torch.Tensor


def pair_rows(reference: torch.Tensor, candidate: torch.Tensor) -> PairedRows:
    """Centre and normalise both blocks, excluding rows that are empty, too long or not finite in either model.

    Returns:
        The paired rows, possibly none.
    """
    x, y = _own_copy(reference), _own_copy(candidate)  # all further steps are in place
    x_raw, y_raw = x.norm(dim=1), y.norm(dim=1)
    x_shortest, y_shortest = _shortest(x_raw), _shortest(y_raw)
    is_usual = _usual(x_raw, x_shortest) & _usual(y_raw, y_shortest)
    if not bool(is_usual.all()):
        x, y = x[is_usual], y[is_usual]
    if len(x):
        x.sub_(x.mean(dim=0))
        y.sub_(y.mean(dim=0))
    x_norm, y_norm = x.norm(dim=1), y.norm(dim=1)
    still = (x_norm > _shortest_centred(x_norm, x_shortest)) & (y_norm > _shortest_centred(y_norm, y_shortest))
    if not bool(still.all()):
        x, y, x_norm, y_norm = x[still], y[still], x_norm[still], y_norm[still]
        is_usual[is_usual.clone()] = still
    x.div_(x_norm[:, None])
    y.div_(y_norm[:, None])
    return PairedRows(x, y, is_usual)


def long_rows(rows: torch.Tensor) -> torch.Tensor:
    """Return an ``(r,)`` mask of the rows that :func:`pair_rows` drops as too long."""
    norms = torch.cat([block.double().norm(dim=1) for block in torch.split(rows, 512)])
    shortest = _shortest(norms)
    return torch.zeros_like(norms, dtype=torch.bool) if shortest == 0.0 else norms > _longest(shortest)


def usual_rows(rows: torch.Tensor) -> torch.Tensor:
    """Return an ``(r,)`` mask of the rows that :func:`pair_rows` would keep based on one model alone."""
    copied = _own_copy(rows)
    norms = copied.norm(dim=1)
    shortest = _shortest(norms)
    is_usual = _usual(norms, shortest)
    if bool(is_usual.any()):
        lengths = copied.sub_(copied[is_usual].mean(dim=0)).norm(dim=1)
        is_usual &= lengths > _shortest_centred(lengths[is_usual], shortest)
    return is_usual


def _own_copy(rows: torch.Tensor) -> torch.Tensor:
    # Contiguous rows make sums, and so the last bit of p, independent of how the rows were stored.
    return rows.detach().to(torch.float64, copy=True, memory_format=torch.contiguous_format)


def _shortest(norms: torch.Tensor) -> float:
    finite = norms[torch.isfinite(norms)]
    return NEGLIGIBLE_NORM * float(finite.median()) if len(finite) else 0.0


def _longest(shortest: float) -> float:
    return shortest * (LONGEST / NEGLIGIBLE_NORM) if shortest > 0.0 else math.inf


def _shortest_centred(norms: torch.Tensor, shortest: float) -> float:
    # A row that equals the mean up to rounding is also empty, so compare it with the raw lengths, too.
    return max(_shortest(norms), 64.0 * torch.finfo(norms.dtype).eps / NEGLIGIBLE_NORM * shortest)


def _usual(norms: torch.Tensor, shortest: float) -> torch.Tensor:
    """Return a mask of rows that are neither empty nor so long that they dominate the mean."""
    return torch.isfinite(norms) & (norms > shortest) & (norms <= _longest(shortest))
