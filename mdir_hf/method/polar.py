"""Compute matrix products, singular value decompositions, and polar factors truncated to the data's rank.

The polar factor of ``M = U S V^T`` (SVD) is ``Ortho(M) = U V^T`` (paper, section on matrix analysis). If M is
rank-deficient, only directions with a nonzero singular value are used, because an arbitrary basis of the null space can
make unrelated models significant.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from mdir_hf.processor import all_cores


def thin_svd(matrices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Compute the thin SVD of one finite matrix or a stack of them.

    If LAPACK's divide-and-conquer algorithm fails, QR iteration in float64 is used.

    Returns:
        Left singular vectors ``(..., m, k)``, singular values ``(..., k)``, descending, and transposed right singular
        vectors ``(..., k, n)``, with k = min(m, n), in the dtype of ``matrices`` (float32 or float64).
    """
    try:
        left, scale, right_t = torch.linalg.svd(matrices, full_matrices=False)
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
        return _by_qr_iteration(matrices)
    return left, scale, right_t


def _by_qr_iteration(matrices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    from scipy.linalg import svd  # imported here, because it is hardly ever needed

    stack = matrices.detach().double().cpu().reshape(-1, *matrices.shape[-2:]).numpy()
    factors = [svd(matrix, full_matrices=False, lapack_driver="gesvd") for matrix in stack]
    left, scale, right_t = (
        torch.from_numpy(np.stack(parts)).to(matrices).reshape(*matrices.shape[:-2], *parts[0].shape)
        for parts in zip(*factors, strict=True)
    )
    return left, scale, right_t


def orthonormal_rows(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Centre and normalise rows; return orthonormal bases of their column and row spaces, ``(r, k)`` and ``(n, k)``."""
    centred = rows.double()  # a float64 copy, because squares may overflow float32
    centred -= centred.mean(dim=0)
    centred /= centred.norm(dim=1, keepdim=True)
    energies, left = torch.linalg.eigh(centred @ centred.T)
    is_above_rounding = energies > 1e-6 * energies[-1]
    left = left[:, is_above_rounding]
    return left.float(), ((centred.T @ left) / energies[is_above_rounding].sqrt()).float()


def cross_product(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Return ``left^T @ right``, ``(n, m)``, for ``(r, n)`` and ``(r, m)`` matrices of equal dtype and device.

    On CPUs, float32 products use oneDNN if available, which is sometimes faster and rounds in the same way. Takes ``2 r
    n m`` flops.
    """
    with all_cores(2.0 * left.numel() * right.shape[1], left.device):
        if left.dtype is torch.float32 and left.device.type == "cpu" and _HAS_ONEDNN:
            try:
                product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(
                    _dense(left.t()), _dense(right.t()), None, "none", [], ""
                )
            except RuntimeError:  # some builds have the operator's name but no kernel
                return left.t() @ right
            return product
        return left.t() @ right


def _dense(matrix: torch.Tensor) -> torch.Tensor:
    """Make a slice of a wider matrix contiguous, because oneDNN is very slow on slices."""
    return matrix if matrix.is_contiguous() or matrix.t().is_contiguous() else matrix.contiguous()


def _has_onednn() -> bool:
    try:
        return bool(torch.backends.mkldnn.is_available()) and hasattr(  # type: ignore[no-untyped-call]
            torch.ops.mkldnn, "_linear_pointwise"
        )
    except (AttributeError, RuntimeError):
        return False


_HAS_ONEDNN = _has_onednn()


FLOAT64_CHANNELS = 1024
"""Up to this width, computations use float64, and p is exact up to rounding. Wider models use float32, which halves
memory and is three times as fast."""

RELATIVE_RANK_TOLERANCE = {
    # Singular values below this share of the largest are rounding errors: about sqrt(n) eps for n in the thousands.
    torch.float64: 1e-13,
    torch.float32: 3e-6,
}

SVD_OPERATIONS, EIGH_OPERATIONS = 20.0, 9.0
"""Floating-point operations per decomposition, in units of n^3 for an n x n matrix, or m n^2 for m x n."""

GRAM_FLOOR, GRAM_CLEAR = 1e-13, 1e-8
"""Eigenvalues of a float64 Gram matrix, relative to the largest: below the first value, they are rounding errors; above
the second, they are accurate to eight digits."""


@dataclass(frozen=True, slots=True, eq=False)
class PolarFactor:
    """The truncated polar factor of a cross product.

    Attributes:
        matrix: U, a partial isometry, ``(n_reference, n_candidate)``.
        rank: Rank of U, ``|U|_F^2``.
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


def polar_factor(cross: torch.Tensor) -> PolarFactor:
    """Return Ortho(M) for a float32 or float64 cross product M, truncated to its rank, in the same dtype.

    Raises:
        ValueError: If M contains non-finite values.
    """
    left, scale, right = _thin_svd(cross)
    rank = _rank(scale)
    if rank == 0:
        return PolarFactor(torch.zeros_like(cross), 0)
    matrix = cross_product(left[:, :rank].t(), right[:, :rank].t())
    return PolarFactor(matrix, rank)


def row_factors(rows: torch.Tensor) -> RowFactors:
    """Factorise ``(r, n)`` rows, keeping directions above rounding error."""
    if rows.dtype is torch.float64 and rows.shape[0] < rows.shape[1]:
        quick = _factors_by_gram(rows)
        if quick is not None:
            return quick
    left, scale, right = _thin_svd(rows)
    rank = _rank(scale)
    return RowFactors(left[:, :rank], scale[:rank], right[:, :rank])


def _factors_by_gram(rows: torch.Tensor) -> RowFactors | None:
    """Factorise a few long float64 rows via their Gram matrix; return None if that would be inaccurate."""
    n_rows, width = rows.shape
    with all_cores(2.0 * n_rows**2 * width + EIGH_OPERATIONS * n_rows**3, rows.device):
        energies, left = torch.linalg.eigh(rows @ rows.t())
    energies, left = energies.flip(0), left.flip(1)
    largest = float(energies[0]) if len(energies) else 0.0
    if not largest > 0.0:  # all zero, or not finite
        return None
    rank = int((energies > GRAM_FLOOR * largest).sum())
    if float(energies[rank - 1]) < GRAM_CLEAR * largest:
        return None
    scale = energies[:rank].sqrt()
    with all_cores(2.0 * n_rows * rank * width, rows.device):
        right = rows.t() @ left[:, :rank]
    return RowFactors(left[:, :rank], scale, right / scale)


def polar_factor_of_rows(reference: RowFactors, candidate: RowFactors, *, whitened: bool) -> PolarFactor:
    """Return Ortho(X^T Y) for a few rows without an SVD of an n x n matrix.

    ``X^T Y = V_x (S_x L_x^T L_y S_y) V_y^T``, so the polar factor is ``V_x Ortho(core) V_y^T``, with a core no larger
    than the ranks. Whitening removes the scales S. Takes O(n^2 rank) time.
    """
    core = cross_product(reference.left, candidate.left)
    if not whitened:
        core = reference.scale[:, None] * core * candidate.scale[None, :]
    return _turned(polar_factor(core), reference.right, candidate.right)


def _turned(small: PolarFactor, left: torch.Tensor, right: torch.Tensor) -> PolarFactor:
    """Convert a polar factor from coordinates in two bases to channels."""
    if max(left.shape[0], right.shape[0]) > FLOAT64_CHANNELS:
        left, right = left.float(), right.float()  # the product is well-conditioned: float32 costs 1e-7 per entry
    matrix = cross_product(small.matrix.to(left.dtype), left.t())  # (k_y, n_x)
    return PolarFactor(cross_product(matrix, right.t()), small.rank)


def _thin_svd(matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return left, scale and right (not transposed) of the thin SVD."""
    # LAPACK is several times slower on a wide matrix than on its transpose (measured for 1024 x 4096: 12 s and 3 s).
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


PICTURE_SIZE = 256
"""Maximum number of cells per side of a picture, few enough for one pixel each on a phone's screen."""

Channels = npt.NDArray[np.int64]


def reduce_peaks(
    matrix: torch.Tensor,
    *,
    rows: Channels | None = None,
    columns: Channels | None = None,
    max_size: int = PICTURE_SIZE,
) -> npt.NDArray[np.float32]:
    """Shrink a reordered matrix to a picture, keeping the largest absolute value in each block.

    Averages would hide a permutation's isolated entries. ``rows`` and ``columns`` are permutations; None keeps the
    order.

    Returns:
        ``(<= max_size, <= max_size)`` float32, non-negative.
    """
    heights, widths = (_edges(size, max_size) for size in matrix.shape)
    reduced = np.empty((len(heights), len(widths)), dtype=np.float32)
    ends = [*heights[1:].tolist(), matrix.shape[0]]
    for position, (start, stop) in enumerate(zip(heights.tolist(), ends, strict=True)):
        block = matrix[start:stop] if rows is None else matrix[torch.from_numpy(rows[start:stop]).to(matrix.device)]
        peaks = block.detach().abs().amax(dim=0).float().cpu().numpy()
        reduced[position] = np.maximum.reduceat(peaks if columns is None else peaks[columns], widths)
    return reduced


def matched_order(channels: Channels, n_rows: int, n_columns: int) -> tuple[Channels, Channels]:
    """Order the channels of two models so that matched ``channels``, ``(2, m)``, are on the diagonal.

    Returns:
        The order of rows and columns: matched channels in the reference's order, then the others.
    """
    matched = channels[:, np.argsort(channels[0], kind="stable")]
    rows, columns = (
        np.concatenate([side, np.setdiff1d(np.arange(size, dtype=np.int64), side)])
        for side, size in zip(matched, (n_rows, n_columns), strict=True)
    )
    return rows, columns


def _edges(size: int, max_size: int) -> npt.NDArray[np.intp]:
    n_blocks = min(size, max_size)
    return (np.arange(n_blocks) * size // n_blocks).astype(np.intp)
