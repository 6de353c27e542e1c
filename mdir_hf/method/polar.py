"""Polar factors of cross products, truncated to the rank the data has.

``Ortho(M) = U V^T`` from the SVD ``M = U S V^T`` (paper, section on matrix analysis). For ``M = X^T Y`` it is the
rotation that takes X closest to Y: the solution of the orthogonal Procrustes problem. Where M has no full rank only the
directions with a singular value count. To complete them with some basis of the null space puts structure into the
factor that is in neither model; a basis can be chosen that makes strangers significant.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from mdir_hf.method.decompositions import thin_svd
from mdir_hf.method.products import cross_product
from mdir_hf.processor import all_cores

FLOAT64_CHANNELS = 1024
"""Up to this width everything is float64, p exact to rounding; beyond, float32 (half the memory, thrice the speed)."""

RELATIVE_RANK_TOLERANCE = {
    # Singular values below this share of the largest are rounding, not data: about sqrt(n) eps for n in the thousands.
    torch.float64: 1e-13,
    torch.float32: 3e-6,
}

SVD_OPERATIONS, EIGH_OPERATIONS = 20.0, 9.0
"""Floating-point operations of a decomposition of an n x n matrix, in n^3; of a thin one of m rows, in m n^2."""

GRAM_FLOOR, GRAM_CLEAR = 1e-13, 1e-8
"""Relative eigenvalues of a float64 Gram matrix: rounding below the first, good to eight digits above the second."""


@dataclass(frozen=True, slots=True, eq=False)
class PolarFactor:
    """The truncated polar factor of a cross product.

    Attributes:
        matrix: U, ``(n_reference, n_candidate)``, a partial isometry.
        rank: Its rank; ``|U|_F^2`` equals it.
    """

    matrix: torch.Tensor
    rank: int


@dataclass(frozen=True, slots=True, eq=False)
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


@dataclass(frozen=True, slots=True, eq=False)
class Whitener:
    """What whitens with a sample of rows.

    Attributes:
        scale: ``(k,)``, the singular values of the sample.
        right: ``(n, k)``, the directions that it spans.
    """

    scale: torch.Tensor
    right: torch.Tensor


def polar_factor(cross: torch.Tensor) -> PolarFactor:
    """Return Ortho(M) of a cross product, truncated to its rank.

    Args:
        cross: M, ``(n_reference, n_candidate)``, float32 or float64.

    Returns:
        The factor, in the dtype of ``cross``. Cost O(n_reference n_candidate min(n_reference, n_candidate)), one SVD.

    Raises:
        ValueError: If M holds values that are not finite.
    """
    left, scale, right = _thin_svd(cross)
    rank = _rank(scale)
    if rank == 0:
        return PolarFactor(torch.zeros_like(cross), 0)
    matrix = cross_product(left[:, :rank].t(), right[:, :rank].t())
    return PolarFactor(matrix, rank)


def row_factors(rows: torch.Tensor) -> RowFactors:
    """Factorise ``(r, n)`` rows, r <= n or not, keeping only directions above rounding. Cost O(r n min(r, n))."""
    if rows.dtype is torch.float64 and rows.shape[0] < rows.shape[1]:
        quick = _factors_by_gram(rows)
        if quick is not None:
            return quick
    left, scale, right = _thin_svd(rows)
    rank = _rank(scale)
    return RowFactors(left[:, :rank], scale[:rank], right[:, :rank])


def _factors_by_gram(rows: torch.Tensor) -> RowFactors | None:
    """Factorise few long float64 rows through their r x r Gram matrix, three times faster than an SVD.

    A Gram matrix squares the condition: eigenvalues below 1e-13 of the largest are rounding, and directions are good to
    1e-16 over the relative eigenvalue. Returns None where one lies between, so that the SVD has to decide.
    """
    n_rows, width = rows.shape
    with all_cores(2.0 * n_rows**2 * width + EIGH_OPERATIONS * n_rows**3, rows.device):
        energies, left = torch.linalg.eigh(rows @ rows.t())
    energies, left = energies.flip(0), left.flip(1)
    largest = float(energies[0]) if len(energies) else 0.0
    if not largest > 0.0:  # nothing there, or not finite
        return None
    rank = int((energies > GRAM_FLOOR * largest).sum())
    if float(energies[rank - 1]) < GRAM_CLEAR * largest:
        return None
    scale = energies[:rank].sqrt()
    with all_cores(2.0 * n_rows * rank * width, rows.device):
        right = rows.t() @ left[:, :rank]
    return RowFactors(left[:, :rank], scale, right / scale)


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
    core = cross_product(reference.left, candidate.left)
    if not whitened:
        core = reference.scale[:, None] * core * candidate.scale[None, :]
    return _turned(polar_factor(core), reference.right, candidate.right)


def whitener(rows: torch.Tensor) -> Whitener:
    """Return what whitens with ``(r, n)`` rows, ``W = (X^T X)^(-1/2)`` where X has rank. Cost O(r n min(r, n))."""
    factors = row_factors(rows)
    return Whitener(factors.scale, factors.right)


def whitened_core(cross: torch.Tensor, reference: Whitener, candidate: Whitener) -> torch.Tensor:
    """Return ``W_x M W_y`` between the directions that two samples of rows span.

    Args:
        cross: M over all rows, ``(n_reference, n_candidate)``.
        reference: Of the reference's sample.
        candidate: Of the candidate's sample.

    Returns:
        ``(k_reference, k_candidate)``, in the dtype of ``cross``. Cost O(n^2 k) for samples of rank k.
    """
    half = cross_product(reference.right.to(cross.dtype), cross_product(cross.t(), candidate.right.to(cross.dtype)))
    return half.div_(reference.scale[:, None]).div_(candidate.scale[None, :])


def whitened_polar_factor(core: torch.Tensor, reference: Whitener, candidate: Whitener) -> PolarFactor:
    """Return ``Ortho(W_x M W_y)``, both sides whitened by a sample of rows.

    A function of the sample that turns with it, so the null stays exact whatever the sample is; one with fewer rows
    than channels restricts the view to the directions it spans, and makes it cheaper.

    Args:
        core: What :func:`whitened_core` returns; a step of its own, so that M need not be kept during this one.
        reference: Of the reference's sample.
        candidate: Of the candidate's sample.

    Returns:
        The factor, ``(n_reference, n_candidate)``. Cost O(n^2 k + k^3) for samples of rank k.
    """
    return _turned(polar_factor(core), reference.right, candidate.right)


def _turned(small: PolarFactor, left: torch.Tensor, right: torch.Tensor) -> PolarFactor:
    """Take a factor between two bases to the channels."""
    if max(left.shape[0], right.shape[0]) > FLOAT64_CHANNELS:
        left, right = left.float(), right.float()  # a well-conditioned product: float32 costs 1e-7 of an entry
    matrix = cross_product(small.matrix.to(left.dtype), left.t())  # (k_y, n_x)
    return PolarFactor(cross_product(matrix, right.t()), small.rank)


def _thin_svd(matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return left, scale and right (not transposed) of the thin SVD, or say why there is none."""
    # LAPACK is several times slower on a wide matrix than on its transpose (measured: 12 s against 3 s, 1024 x 4096).
    is_wide = matrix.shape[0] < matrix.shape[1]
    tall = matrix.t() if is_wide else matrix
    if not bool(torch.isfinite(tall.sum())) and not bool(torch.isfinite(tall).all()):
        raise ValueError(f"cannot factorise a {tuple(matrix.shape)} matrix with values that are not finite")
    with all_cores(SVD_OPERATIONS * tall.shape[0] * tall.shape[1] ** 2, tall.device):
        left, scale, right_t = thin_svd(tall)
    return (right_t.t(), scale, left) if is_wide else (left, scale, right_t.t())


def _rank(scale: torch.Tensor) -> int:
    if scale.numel() == 0 or float(scale[0]) <= 0.0:
        return 0
    return int((scale > RELATIVE_RANK_TOLERANCE[scale.dtype] * scale[0]).sum())
