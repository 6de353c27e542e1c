"""Decide cheaply which cells of a layer map need the full test, and whether a wide matrix is worth reading.

**Cells.** A random set S of d0 output channels of every reference layer is tested against all channels of a candidate
layer. Under the null, the rows of ``U_S = Ortho(W_S W'^T)`` are uniform on a sphere, so the distribution of the sum of
row maxima is known.

- A cell within the null distribution gets p = 1, so the screen creates no false positives and needs no correction.
- A cell whose d0-channel bound is significant always passes.
- Unequal norms shift the scores of a whole column. A cell that looks like most of its column therefore gets p = 1,
  unless its own bound is significant or it is the best of its column.
- A cell may fail the screen even though its FULL test would be significant. A significant trace c needs
  a share q >= c/d of the channels. If they are scattered at random, S misses them with probability at most
  ``(1 - q)^d0``, 7e-4 at d = 1024 and d0 = 64.

**Matrices.** If two layers share m neurons, R sampled rows of one layer and r of the other contain ``R r / m`` matching
pairs on average. Each pair is one large entry of the polar factor of ``W_R W'_r^T``. A matching of a few pairs has a
valid bound (docs/method/bound.md), but is not evidence of shared ancestry, because unrelated models share a few
features.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt
import torch
from scipy.special import gammaln, log_ndtr

from mdir_hf.method.polar import RELATIVE_RANK_TOLERANCE, cross_product
from mdir_hf.method.significance import log_p_by_layer, log_p_hommel, log_p_matching, log_p_rueger

SCREEN_CHANNELS = 64
"""Number of output channels per reference layer that the screen uses."""

RUN_CHANNELS = 4
"""Number of adjacent channels per run. Longer runs need fewer requests but can miss a shared part of a layer: runs of
16 missed a block of rows that two models shared because of a common seed (docs/LOG.md, 2026-11-22)."""

NULL_Z = 4.0
"""Sums of row maxima up to this many standard deviations above the null mean are treated as null."""

MIN_LAYERS_FOR_BULK = 8
"""Minimum number of reference layers for estimating a candidate layer's null distribution from its own cells."""


@dataclass(frozen=True, slots=True)
class ScreenedColumn:
    """Results of screening all reference layers against one candidate layer.

    Attributes:
        polar: ``(L, d0, d_candidate)`` polar factors of the screened rows.
        z: ``(L,)`` standard scores of the sums of row maxima; the larger of the unsigned and signed scores.
        is_null: ``(L,)``, whether each cell is within the null distribution.
        is_bulk: ``(L,)``, whether each cell looks like most of its column.
    """

    polar: torch.Tensor
    z: npt.NDArray[np.float64]
    is_null: npt.NDArray[np.bool_]
    is_bulk: npt.NDArray[np.bool_]


def screen_channels(n_channels: int, n_screened: int, *, seed: int) -> torch.Tensor:
    """Draw the channels to screen, the same for all layers of one width.

    The channels form runs of neighbours; each run needs one read.
    """
    if n_screened >= n_channels:
        return torch.arange(n_channels)
    n_runs = -(-n_screened // RUN_CHANNELS)
    stride = n_channels // n_runs
    run = min(stride, -(-n_screened // n_runs))
    generator = torch.Generator().manual_seed(seed)
    starts = torch.randint(stride - run + 1, (n_runs,), generator=generator) + stride * torch.arange(n_runs)
    return (starts[:, None] + torch.arange(run)).flatten()[:n_screened]


def screen_column(rows: torch.Tensor, candidate: torch.Tensor, *, signed: bool) -> ScreenedColumn:
    """Screen one candidate layer ``(d_candidate, n)`` against the screened rows ``(L, d0, n)`` of all reference layers.

    Fewer rows are used if the candidate has fewer than d0 channels.
    """
    n_layers, n_screened, n = rows.shape
    n_screened = min(n_screened, candidate.shape[0])
    cross = cross_product(rows[:, :n_screened].reshape(-1, n).T, candidate.to(rows.dtype).T)
    cross = cross.view(n_layers, n_screened, -1)
    polar = polar_factors_of_wide(cross)
    least, above = torch.aminmax(polar, dim=2)
    norms = torch.linalg.vector_norm(polar, dim=2)
    z = _z_of_row_maxima(above, norms, polar.shape[2], signed=False)
    if signed:
        z = np.maximum(z, _z_of_row_maxima(torch.maximum(above, -least), norms, polar.shape[2], signed=True))
    return ScreenedColumn(polar, z, z < NULL_Z, _is_bulk(z))


def polar_factors_of_wide(cross: torch.Tensor) -> torch.Tensor:
    """Return ``(M M^T)^(-1/2) M`` for matrices ``(batch, d0, d)``, d0 <= d, each truncated to its rank.

    Gram matrices are float64, because they square the condition number.
    """
    wide = cross.double()
    values, vectors = torch.linalg.eigh(wide @ wide.mT)
    floor = (RELATIVE_RANK_TOLERANCE[torch.float32] ** 2 * values[:, -1:]).clamp(min=1e-300)
    inverse_root = torch.where(values > floor, values.clamp(min=1e-300).rsqrt(), torch.zeros_like(values))
    root: torch.Tensor = (vectors * inverse_root[:, None, :]) @ vectors.mT
    return root.to(cross.dtype) @ cross


@cache
def row_maximum_moments(n: int, *, signed: bool) -> tuple[float, float]:
    """Return the mean and standard deviation of the largest (absolute) coordinate of a uniform unit vector in R^n.

    Both are integrated numerically, with an error below 1e-6.
    """
    x = np.linspace(-10.0, 10.0, 20001)
    if signed:
        x = x[x > 0.0]
        log_inside = np.log1p(-2.0 * np.exp(log_ndtr(-x)))
        cdf = np.exp(n * log_inside)
    else:
        cdf = np.exp(n * log_ndtr(x))
    mass = np.diff(cdf, prepend=0.0)
    middle = x - 0.5 * (x[1] - x[0])
    norm = math.sqrt(2.0) * math.exp(float(gammaln((n + 1) / 2.0) - gammaln(n / 2.0)))
    mean = float(np.sum(mass * middle)) / norm
    mean_square = float(np.sum(mass * middle**2)) / n
    return mean, math.sqrt(max(mean_square - mean * mean, 1e-300))


def _z_of_row_maxima(maxima: torch.Tensor, norms: torch.Tensor, n: int, *, signed: bool) -> npt.NDArray[np.float64]:
    mean, sd = row_maximum_moments(n, signed=signed)
    excess = (maxima.double() - mean * norms.double()).sum(dim=1)
    spread = sd * torch.linalg.vector_norm(norms.double(), dim=1).clamp(min=1e-12)
    z: npt.NDArray[np.float64] = (excess / spread).cpu().numpy()
    return z


def _is_bulk(z: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    """Mark cells that look like most of their column, but never the best cell."""
    if len(z) < MIN_LAYERS_FOR_BULK:
        return np.zeros(len(z), dtype=np.bool_)
    median = float(np.median(z))
    spread = 1.4826 * float(np.median(np.abs(z - median)))
    bulk: npt.NDArray[np.bool_] = z < median + NULL_Z * max(spread, 1.0)
    bulk[int(np.argmax(z))] = False
    return bulk


SHARED_ROWS = 6.0
"""Mean number of rows that the samples of a layer and its reordered copy share; 1 in 400 copies shares none."""

FEWEST_ROWS = 64
"""Minimum number of rows in a sample. The screen of a layer map reads this many anyway."""

IntArray = npt.NDArray[np.int64]


def sample_sizes(n_channels: int) -> tuple[int, int]:
    """Return how many rows to read per layer, for the model with fewer layers and for the other.

    Returns:
        ``(2 r, r)``, both at most m, the number of rows; on average, the samples share ``2 r^2 / m`` rows.
    """
    r = max(FEWEST_ROWS, math.ceil(math.sqrt(SHARED_ROWS * n_channels / 2.0)))
    return min(n_channels, 2 * r), min(n_channels, r)


def sampled_rows(n_channels: int, n_rows: int, *, n_groups: int, run: int, seed: int) -> IntArray:
    """Choose one run of neighbouring rows in each of ``n_groups`` groups of equal size, such as heads.

    Runs have the same position in all groups, and a smaller sample is the beginning of a larger one. Layers with the
    same row order therefore share all rows, and layers with moved heads often do.
    """
    size = n_channels // n_groups
    run = min(run, size)
    place = float(torch.rand((), generator=torch.Generator().manual_seed(seed)))
    starts = size * np.arange(n_groups, dtype=np.int64) + int(place * (size - run))
    return (starts[:, None] + np.arange(run, dtype=np.int64)).ravel()[:n_rows]


def screen_rows(few: torch.Tensor, many: torch.Tensor) -> npt.NDArray[np.float64]:
    """Test sampled unit rows of one model's layers, ``(l, R, n)``, against the other model's, ``(L, r, n)``.

    Returns:
        ``(L, l)`` natural logs of p, each valid by itself under the layers' null hypothesis. Takes ``2 L l R r n``
        flops.
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
    """Bound p for the 1, 2, 4, ... largest entries of U, ``(r, R)`` with r <= R, at most one per row and column.

    Return the natural log of the smallest p, corrected for the number of sizes tried. Entries may have either sign.
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
    log_p_by_count = [
        log_p_matching(
            float(traces[k - 1]),
            sizes=(n_narrow, n_wide),
            energies=(float(of_rows[k - 1]), float(of_columns[k - 1])),
            n_matched=k,
            signed=True,
        )
        for k in counts
        if k <= len(rows)
    ]
    return min(0.0, min(log_p_by_count, default=0.0) + math.log(max(1, len(log_p_by_count))))


def log_p_of_screen(cells: npt.NDArray[np.float64], *, any_part: bool) -> float:
    """Combine a screen's cells ``(L, l)`` into one p.

    Test whether half of the layers have a partner or, if ``any_part``, whether any layer does.
    """
    by_layer = log_p_by_layer(cells)
    return log_p_hommel(by_layer) if any_part else log_p_rueger(by_layer, (len(by_layer) + 1) // 2)
