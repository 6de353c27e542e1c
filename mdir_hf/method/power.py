"""Compute the power of a negative result: the strongest noise at which a copy would still be detected.

A relative is modelled as a copy with independent noise, ``Y = X P + k N``, with k in units of the weights' own RMS. Up
to rotations, which do not change the trace, ``X^T Y = S (S + k G)``, with S the singular values of X and G Gaussian.
The share of the trace that remains under noise depends on k and the number of rows per channel. It is simulated at a
small size and used in the bound at the true size.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import torch

from mdir_hf.method.significance import log_n_matchings

N_SIMULATED = 96
"""Number of simulated channels of the wider model. The trace per channel is within 0.007 of its value for 512."""

MOST_ROWS_PER_CHANNEL = 16.0
"""Above this many rows per channel, additional rows are modelled as weaker noise, ``k / sqrt(rows)``."""

SAFETY = 0.8
"""Safety factor on the expected trace, for effects that the simulation ignores: chance, and the spectra and row lengths
of real weights (up to 8%). Relatives planted in real weights at the reported noise are found in 99 of 100 cases."""

LOWER_HALF_MEAN = 0.798
"""Drop in the mean of normally distributed entries, in standard deviations, when the best half is removed."""

TAIL = 2.33
"""A normal variable is at least this many standard deviations below its mean in 1 of 100 cases."""

STRONGEST = 1000.0
"""Maximum reported noise."""


@dataclass(frozen=True, slots=True)
class MatrixSizes:
    """Numbers of channels of the narrower and the wider model in a test, and number of rows used."""

    n_narrow: int
    n_wide: int
    n_rows: int


def strongest_noise(shape: MatrixSizes, *, log_level: float) -> float:
    """Find the strongest noise at which a copy with channels in any order would be significant, by bisection.

    ``log_level`` is the natural log of the significance level after all corrections. The copy must be significant
    without the best half of the channels, too.

    Returns:
        k, or 0 if not even an exact copy would be significant.
    """
    return _strongest(lambda noise: _is_found(noise, shape, log_level))


def noise_of_few_rows(rows: torch.Tensor, *, log_level: float) -> float:
    """Find the strongest noise, k, at which a few rows reveal a copy with channels in their original order.

    For r rows, 2 <= r < n, the trace of the polar factor is the sum of ``sqrt(v / (v + k^2 m))`` over the eigenvalues v
    of the Gram matrix, whose mean is m.
    """
    centred = rows.double() - rows.double().mean(dim=0)
    centred = centred / centred.norm(dim=1, keepdim=True).clamp(min=1e-12)
    energies = torch.linalg.eigvalsh(centred @ centred.T)[1:].clamp(min=0.0)  # centring removes one dimension
    rank, width = len(energies), rows.shape[1]
    # ln p <= -c^2 n / 2r. The trace of unrelated models fluctuates by sqrt(r / n), and so may a copy's.
    needed = math.sqrt(-2.0 * log_level * rank / width) + TAIL * math.sqrt(rank / width)

    def is_found(noise: float) -> bool:
        shares = energies / (energies + noise**2 * energies.mean()).clamp(min=1e-300)
        return SAFETY * float(shares.sqrt().sum()) > needed

    return _strongest(is_found)


def _strongest(is_found: Callable[[float], bool]) -> float:
    if not is_found(0.0):
        return 0.0
    least, most = 0.0, STRONGEST
    if is_found(most):
        return STRONGEST
    while most - least > 0.01 * max(1.0, most):
        middle = 0.5 * (least + most) if least < 1.0 else math.sqrt(least * most)
        if is_found(middle):
            least = middle
        else:
            most = middle
    return least


def _is_found(noise: float, shape: MatrixSizes, log_level: float) -> bool:
    n, n_wide = shape.n_narrow, shape.n_wide
    share, rank_share = expected_trace(noise, (shape.n_rows - 1) / n_wide, n / n_wide)
    mean, energy = SAFETY * share, rank_share * n  # mean of a matched entry; sum of squares of U
    spread = math.sqrt((energy - n * mean**2) / (n * n_wide))  # positive, because mean^2 is below SAFETY^2 rank_share
    mean = max(0.0, mean - TAIL * spread / math.sqrt(n))  # chance may lower the trace
    half = n // 2
    lower = max(0.0, mean - LOWER_HALF_MEAN * spread)
    # The matched columns of the wider side have their share of the energy, plus the contribution of the trace itself.
    of_columns = n * mean**2 + (energy - n * mean**2) * n / n_wide
    per_energy = n / of_columns  # at most n_wide / energy, the value for all columns
    whole = 0.5 * (n * mean) ** 2 * per_energy
    robust = 0.5 * ((n - half) * lower) ** 2 * per_energy * n / (n - half)
    counted = log_n_matchings(n, n_wide, n) - whole
    without_best = log_n_matchings(n, n_wide, n - half) - robust
    return counted < log_level and without_best < log_level


@lru_cache(maxsize=4096)
def expected_trace(noise: float, rows_per_channel: float, width_share: float = 1.0) -> tuple[float, float]:
    """Simulate a copy with noise k, and return the trace and rank of the polar factor, both per channel.

    ``rows_per_channel`` refers to the wider model; ``width_share`` is the narrower width divided by the wider one.
    Results are cached.
    """
    n_wide = N_SIMULATED
    n = max(2, round(width_share * n_wide))
    if rows_per_channel > MOST_ROWS_PER_CHANNEL:
        noise *= math.sqrt(MOST_ROWS_PER_CHANNEL / rows_per_channel)
        rows_per_channel = MOST_ROWS_PER_CHANNEL
    n_rows = max(1, round(rows_per_channel * n_wide))
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n_rows, n_wide, generator=generator, dtype=torch.float64)
    added = noise * torch.randn(n_rows, n, generator=generator, dtype=torch.float64)
    # The noise itself adds about one channel to the trace, which would dominate if noise is strong. It adds the same to
    # a copy and to its negative, so this cancels in the difference.
    trace = 0.5 * (_trace_of_polar(x, added + x[:, :n]) - _trace_of_polar(x, added - x[:, :n]))
    return trace / n * min(1.0, rows_per_channel * n_wide / n_rows), min(n, n_rows) / n


def _trace_of_polar(x: torch.Tensor, y: torch.Tensor) -> float:
    left, values, right = torch.linalg.svd(y.T @ x, full_matrices=False)
    polar = (left * (values > 1e-9 * values[0])) @ right
    return float(polar[:, : y.shape[1]].diagonal().sum())
