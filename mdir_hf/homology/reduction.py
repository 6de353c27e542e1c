"""Making an n x n matrix small enough to draw without losing what matters: isolated peaks."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

PICTURE_SIZE = 384


def reduce_peaks(matrix: torch.Tensor, *, max_size: int = PICTURE_SIZE) -> npt.NDArray[np.float32]:
    """Return the largest absolute value of each block of a matrix.

    Averaging, and the resampling of plotting libraries, hide the single entries that make a permutation.

    Args:
        matrix: ``(n, m)``, any floating dtype.
        max_size: Neither side of the result is longer.

    Returns:
        ``(<= max_size, <= max_size)`` float32, non-negative. Cost O(n m).
    """
    heights, widths = (_edges(size, max_size) for size in matrix.shape)
    values = matrix.detach().abs().float().cpu().numpy()
    rows = np.maximum.reduceat(values, heights, axis=0)
    reduced: npt.NDArray[np.float32] = np.maximum.reduceat(rows, widths, axis=1)
    return reduced


def _edges(size: int, max_size: int) -> npt.NDArray[np.intp]:
    n_blocks = min(size, max_size)
    return (np.arange(n_blocks) * size // n_blocks).astype(np.intp)
