"""Polar factors of cross products, truncated to the rank the data has.

``Ortho(M) = U V^T`` from the SVD ``M = U S V^T`` (paper, section on matrix analysis). Where M has no full rank only the
directions with a singular value count: completing them with the null basis that LAPACK happens to return puts
structure into the factor that is in neither model (measured: it calls strangers related).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

FLOAT64_CHANNELS = 2048
"""Up to this width the n x n matrices are float64; beyond, float32 (half the memory, twice the speed)."""

RELATIVE_RANK_TOLERANCE = {
    # Singular values below this share of the largest are rounding, not data: about sqrt(n) eps for n in the thousands.
    torch.float64: 1e-13,
    torch.float32: 3e-6,
}


@dataclass(frozen=True, slots=True)
class PolarFactor:
    """The truncated polar factor of a cross product.

    Attributes:
        matrix: U, ``(n_reference, n_candidate)``, a partial isometry.
        rank: Its rank; ``|U|_F^2`` equals it.
        condition: Largest over smallest singular value kept.
    """

    matrix: torch.Tensor
    rank: int
    condition: float


@dataclass(frozen=True, slots=True)
class RowFactors:
    """A thin factorisation ``X = left @ diag(scale) @ right^T`` of a block of rows, truncated to its rank.

    Attributes:
        left: ``(r, k)``, orthonormal columns.
        scale: ``(k,)``, descending, positive.
        right: ``(n, k)``, orthonormal columns.
    """

    left: torch.Tensor
    scale: torch.Tensor
    right: torch.Tensor


def polar_factor(cross: torch.Tensor) -> PolarFactor:
    """Return Ortho(M) of a cross product, truncated to its rank.

    Args:
        cross: M, ``(n_reference, n_candidate)``, float32 or float64.

    Returns:
        The factor, in the dtype of ``cross``. Cost O(n^3), one SVD.
    """
    left, scale, right_t = torch.linalg.svd(cross, full_matrices=False)
    rank = _rank(scale)
    if rank == 0:
        return PolarFactor(torch.zeros_like(cross), 0, float("inf"))
    return PolarFactor(left[:, :rank] @ right_t[:rank], rank, float(scale[0] / scale[rank - 1]))


def row_factors(rows: torch.Tensor) -> RowFactors:
    """Factorise ``(r, n)`` rows, r <= n or not, keeping only directions above rounding."""
    # LAPACK is several times slower on a wide matrix than on its transpose (measured: 12 s against 3 s, 1024 x 4096).
    is_wide = rows.shape[0] < rows.shape[1]
    left, scale, right_t = torch.linalg.svd(rows.T if is_wide else rows, full_matrices=False)
    rank = _rank(scale)
    long, short = left[:, :rank], right_t[:rank].T
    return RowFactors(short, scale[:rank], long) if is_wide else RowFactors(long, scale[:rank], short)


def polar_factor_of_rows(reference: RowFactors, candidate: RowFactors, *, whitened: bool) -> PolarFactor:
    """Return Ortho(X^T Y) of few rows without ever forming an SVD of an n x n matrix.

    ``X^T Y = V_x (S_x L_x^T L_y S_y) V_y^T``, so the polar factor is ``V_x Ortho(core) V_y^T`` with a core of the size
    of the rank. Whitened, the S drop out: it is the factor of the two models' own polar factors.

    Args:
        reference: Factors of X, ``(r, n_reference)``.
        candidate: Factors of Y, ``(r, n_candidate)``.
        whitened: Whether both sides are whitened first, X -> X (X^T X)^(-1/2).

    Returns:
        The factor. Cost O(n^2 rank).
    """
    core = reference.left.T @ candidate.left
    if not whitened:
        core = reference.scale[:, None] * core * candidate.scale[None, :]
    small = polar_factor(core)
    left, right = reference.right @ small.matrix, candidate.right.T
    if max(left.shape[0], right.shape[1]) > FLOAT64_CHANNELS:
        left, right = left.float(), right.float()  # a well-conditioned product: float32 costs 1e-7 of an entry
    return PolarFactor(left @ right, small.rank, small.condition)


def _rank(scale: torch.Tensor) -> int:
    if scale.numel() == 0 or float(scale[0]) <= 0.0:
        return 0
    return int((scale > RELATIVE_RANK_TOLERANCE[scale.dtype] * scale[0]).sum())
