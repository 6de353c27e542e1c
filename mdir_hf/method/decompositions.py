"""Singular value decompositions with a fallback for matrices on which LAPACK fails."""

from __future__ import annotations

import numpy as np
import scipy.linalg
import torch


def thin_svd(matrices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return left, scale and right^T of the thin SVD of one matrix or a stack of matrices.

    Divide and conquer, LAPACK's fast method, fails on some matrices: in float32 on graded spectra, and in oneMKL also
    in float64 if all singular values are equal, as for the product of two orthonormal bases of one model (observed on
    the values of Qwen2.5-0.5B and a copy). These matrices are decomposed again by the slower QR iteration in float64.

    Args:
        matrices: ``(..., m, n)``, float32 or float64, finite.

    Returns:
        ``(..., m, k)``, ``(..., k)`` descending and ``(..., k, n)``, k = min(m, n), in the dtype of ``matrices``. Cost
        O(m n k) each.
    """
    try:
        left, scale, right_t = torch.linalg.svd(matrices, full_matrices=False)
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
        return _by_qr_iteration(matrices)
    return left, scale, right_t


def _by_qr_iteration(matrices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    stack = matrices.detach().double().cpu().reshape(-1, *matrices.shape[-2:]).numpy()
    factors = [scipy.linalg.svd(matrix, full_matrices=False, lapack_driver="gesvd") for matrix in stack]
    left, scale, right_t = (
        torch.from_numpy(np.stack(parts)).to(matrices).reshape(*matrices.shape[:-2], *parts[0].shape)
        for parts in zip(*factors, strict=True)
    )
    return left, scale, right_t


def orthonormal_rows(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Centre rows, scale them to unit length, and return orthonormal bases of their span: ``(r, k)``, ``(n, k)``."""
    centred = rows.double()  # a float64 copy, because squares may overflow float32
    centred -= centred.mean(dim=0)
    centred /= centred.norm(dim=1, keepdim=True)
    energies, left = torch.linalg.eigh(centred @ centred.T)
    is_above_rounding = energies > 1e-6 * energies[-1]
    left = left[:, is_above_rounding]
    return left.float(), ((centred.T @ left) / energies[is_above_rounding].sqrt()).float()
