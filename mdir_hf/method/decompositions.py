"""Singular value decompositions that converge."""

from __future__ import annotations

import numpy as np
import scipy.linalg
import torch


def thin_svd(matrices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return left, scale and right^T of the thin SVD of one matrix or of a stack of them.

    Divide and conquer, the fast method of LAPACK, gives up on some matrices: in float32 on graded spectra, and in
    oneMKL also in float64 where all singular values are equal, as of the product of two orthonormal bases of one model
    (seen on the values of Qwen2.5-0.5B and a copy). Those are done again by QR iteration in float64, which is slower.

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
    """Centre rows, scale them to one length, and return orthonormal bases of what they span: ``(r, k)``, ``(n, k)``."""
    centred = rows.double()  # a copy, whatever they are kept in: squares of what float32 holds pass what it holds
    centred -= centred.mean(dim=0)
    centred /= centred.norm(dim=1, keepdim=True)
    energies, left = torch.linalg.eigh(centred @ centred.T)
    kept = energies > 1e-6 * energies[-1]
    left = left[:, kept]
    return left.float(), ((centred.T @ left) / energies[kept].sqrt()).float()
