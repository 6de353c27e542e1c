"""Decide from sampled rows of two models whether a wide matrix is worth reading.

If two layers share m neurons, R rows of one layer and r of the other contain ``R r / m`` pairs on average. A pair is
one large entry of the polar factor of ``W_R W'_r^T``; a matching of any few pairs has a valid bound
(docs/method/bound.md). The rows are chosen independently of the weights.

A significant screen starts a map of whole matrices and is no evidence by itself: unrelated models share a few features,
which a bound on few pairs would count.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch

from mdir_hf.method.combine import log_p_by_layer, log_p_hommel, log_p_rueger
from mdir_hf.method.layer_screen import polar_factors_of_wide
from mdir_hf.method.products import cross_product
from mdir_hf.method.significance import log_p_matching

SHARED_ROWS = 6.0
"""Mean number of row pairs that a layer and its reordered copy share in their samples; 1 in 400 shares none."""

FEWEST_ROWS = 64
"""Minimum number of rows in a sample; fewer than in the screen of a layer map would save nothing."""

IntArray = npt.NDArray[np.int64]


def sample_sizes(n_channels: int) -> tuple[int, int]:
    """Return how many rows to read from each layer: for the model with few layers, and for the other.

    Args:
        n_channels: Rows of the wider matrix, m.

    Returns:
        ``(2 r, r)`` with ``2 r^2 / m`` expected pairs, both at most m. Fewer rows are read from the model with more
        layers.
    """
    r = max(FEWEST_ROWS, math.ceil(math.sqrt(SHARED_ROWS * n_channels / 2.0)))
    return min(n_channels, 2 * r), min(n_channels, r)


def sampled_rows(n_channels: int, n_rows: int, *, n_groups: int, run: int, seed: int) -> IntArray:
    """Choose rows of a matrix: one run of neighbours per head, or a single run if rows have no heads.

    The runs have the same position in all heads, and a smaller sample is the beginning of a larger one. So layers with
    the same row order share all sampled rows, and so do layers whose heads alone were moved, if the larger sample has a
    run in every head.

    Args:
        n_channels: Rows of the matrix.
        n_rows: Maximum number of rows to choose.
        n_groups: Number of heads, or 1.
        run: Adjacent rows per run, at most the rows of a head.
        seed: Seed of the position.

    Returns:
        Row numbers, ascending, ``(<= n_rows,)``.
    """
    size = n_channels // n_groups
    run = min(run, size)
    place = float(torch.rand((), generator=torch.Generator().manual_seed(seed)))
    starts = size * np.arange(n_groups, dtype=np.int64) + int(place * (size - run))
    return (starts[:, None] + np.arange(run, dtype=np.int64)).ravel()[:n_rows]


def screen_rows(few: torch.Tensor, many: torch.Tensor) -> npt.NDArray[np.float64]:
    """Test sampled rows of every layer of one model against sampled rows of every layer of the other.

    Args:
        few: ``(l, R, n)`` unit rows of the model with few layers.
        many: ``(L, r, n)`` unit rows of the other model, in the same residual basis.

    Returns:
        ``(L, l)`` natural logs of p, each valid by itself under the null of the layers. Cost ``2 L l R r n`` flops.
    """
    n_many, r, width = many.shape
    cells = np.zeros((n_many, len(few)))
    rows = many.reshape(-1, width).T
    for j, layer in enumerate(few):
        cross = cross_product(rows, layer.T).view(n_many, r, -1)
        is_tall = r > cross.shape[2]
        polar = polar_factors_of_wide(cross.mT.contiguous() if is_tall else cross)
        cells[:, j] = [log_p_of_pairs(factor) for factor in polar]
    return cells


def log_p_of_pairs(polar: torch.Tensor) -> float:
    """Evaluate the largest entries of a polar factor: 1, 2, 4, ... of them, no two in one row or column.

    Args:
        polar: U, ``(r, R)`` with r <= R.

    Returns:
        Natural log of p, at most 0, corrected for the numbers of entries tried; signs are free. The bound is for a
        partial matching of that many pairs, over all of them (docs/method/bound.md).
    """
    n_narrow, n_wide = polar.shape
    best, where = (part.cpu().numpy() for part in polar.abs().max(dim=1))
    order = np.argsort(-best, kind="stable")
    _, first = np.unique(where[order], return_index=True)
    rows = order[np.sort(first)]
    energy = polar.double().square()
    of_rows = energy.sum(dim=1).cpu().numpy()[rows].cumsum()
    of_columns = energy.sum(dim=0).cpu().numpy()[where[rows]].cumsum()
    traces = best[rows].astype(np.float64).cumsum()
    counts = [2**i for i in range(len(rows).bit_length())]
    tried = [
        log_p_matching(
            float(traces[k - 1]),
            n_narrow=n_narrow,
            n_wide=n_wide,
            narrow_energy=float(of_rows[k - 1]),
            wide_energy=float(of_columns[k - 1]),
            n_matched=k,
            signed=True,
        )
        for k in counts
        if k <= len(rows)
    ]
    return min(0.0, min(tried, default=0.0) + math.log(max(1, len(tried))))


def log_p_of_screen(cells: npt.NDArray[np.float64], *, any_part: bool) -> float:
    """Reduce the cells of a screen to one p: that half of the layers have a partner, or any of them.

    Args:
        cells: ``(L, l)`` natural logs.
        any_part: Whether a part of the layers is enough. After a fitted rotation only the test of the whole counts.
    """
    by_layer = log_p_by_layer(cells)
    return log_p_hommel(by_layer) if any_part else log_p_rueger(by_layer, (len(by_layer) + 1) // 2)
