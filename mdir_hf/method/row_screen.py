"""Decides from some rows of two models whether a wide matrix is worth reading.

Of m neurons that two layers share, R rows of one layer and r of the other hold ``R r / m`` pairs on average. A pair is
one large entry of the polar factor of ``W_R W'_r^T``; a matching of a few pairs, whichever they are, has a valid bound
like any other (docs/method/bound.md). Which rows are taken is settled without a look at the weights.

What is found here opens a map of whole matrices, and is no evidence itself: unrelated models share a few features, and
a bound that few pairs can carry would count them.
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
"""Pairs of rows that a layer and its copy in another order share in their samples, on average: 1 in 400 shares none."""

FEWEST_ROWS = 64
"""Rows of a sample at least: less than the screen of a layer map takes would save nothing."""

IntArray = npt.NDArray[np.int64]


def sample_sizes(n_channels: int) -> tuple[int, int]:
    """Return how many rows are read of each layer: for the model with few layers, and for the other.

    Args:
        n_channels: Rows of the wider matrix, m.

    Returns:
        ``(2 r, r)`` with ``2 r^2 / m`` pairs expected, both at most m: fewer rows of each of the many layers.
    """
    r = max(FEWEST_ROWS, math.ceil(math.sqrt(SHARED_ROWS * n_channels / 2.0)))
    return min(n_channels, 2 * r), min(n_channels, r)


def sampled_rows(n_channels: int, n_rows: int, *, n_groups: int, run: int, seed: int) -> IntArray:
    """Choose rows of a matrix: runs of neighbours, one of each head, or one run where rows have no heads.

    The runs of all heads have the same place in their heads, and a smaller sample is the beginning of a larger one. So
    layers whose rows are in one order share all of them, and so do those whose heads alone have moved, where the larger
    sample has a run of every head.

    Args:
        n_channels: Rows of the matrix.
        n_rows: How many to take, at most.
        n_groups: Heads that they divide into; 1 where they have none.
        run: Neighbouring rows in a run, at most those of a head.
        seed: Seed of the place.

    Returns:
        Row numbers, ascending, ``(<= n_rows,)``.
    """
    size = n_channels // n_groups
    run = min(run, size)
    place = float(torch.rand((), generator=torch.Generator().manual_seed(seed)))
    starts = size * np.arange(n_groups, dtype=np.int64) + int(place * (size - run))
    return (starts[:, None] + np.arange(run, dtype=np.int64)).ravel()[:n_rows]


def screen_rows(few: torch.Tensor, many: torch.Tensor) -> npt.NDArray[np.float64]:
    """Test sampled rows of every layer of one model against those of every layer of the other.

    Args:
        few: ``(l, R, n)`` rows of unit length.
        many: ``(L, r, n)`` the same, in one residual basis with ``few``.

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
    """Weigh the largest entries of a polar factor: 1, 2, 4, ... of them, no two on one line.

    Args:
        polar: U, ``(r, R)`` with r <= R.

    Returns:
        Natural log of p, at most 0, corrected for the counts of entries tried; signs are free. The bound is that of a
        partial matching of that many pairs, over all there are (docs/method/bound.md).
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
        any_part: Whether a part of the layers will do; after a fitted rotation only the reading of the whole counts.
    """
    by_layer = log_p_by_layer(cells)
    return log_p_hommel(by_layer) if any_part else log_p_rueger(by_layer, (len(by_layer) + 1) // 2)
