"""Reduce an n x n matrix to a size that can be plotted, keeping isolated peaks."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

PICTURE_SIZE = 256
"""Number of cells per side: each still has its own pixel on a picture as wide as a phone."""

Channels = npt.NDArray[np.int64]


def reduce_peaks(
    matrix: torch.Tensor,
    *,
    rows: Channels | None = None,
    columns: Channels | None = None,
    max_size: int = PICTURE_SIZE,
) -> npt.NDArray[np.float32]:
    """Return the largest absolute value of each block of a matrix, optionally with reordered rows and columns.

    Averaging, and the resampling of plotting libraries, would hide the single entries of a permutation.

    Args:
        matrix: ``(n, m)``, any floating dtype.
        rows: Order of the rows, a permutation of 0 … n - 1. None: unchanged.
        columns: Order of the columns. None: unchanged.
        max_size: Maximum size of either side of the result.

    Returns:
        ``(<= max_size, <= max_size)`` float32, non-negative. Cost O(n m); memory, one block of rows.
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
    """Order the channels of two models so that matched ones are on the diagonal.

    Args:
        channels: ``(2, m)``, matched channels of the reference and of the candidate, each at most once.
        n_rows: Channels of the reference.
        n_columns: Channels of the candidate.

    Returns:
        Rows and columns: first the matched ones in the order of the reference, then those without a partner.
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
