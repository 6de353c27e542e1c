"""The power of a test that found nothing: the strongest noise under which a copy is still significant.

A relative is modelled as a copy with independent noise: ``Y = X P + k N`` with rows ``x`` and ``n`` of the same root
mean square, after centring; k is the noise in units of the weights' own RMS. Up to rotations, which leave U alone,
``X^T Y = S (S + k G)`` with S the singular values of X and G Gaussian. So the share of the trace that a copy keeps,
``c/n``, depends on k and on the rows per channel alone. It is computed on a small factor of that shape, and put into
the bound of :mod:`~mdir_hf.method.significance` at the true size.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import torch

from mdir_hf.method.significance import log_cost_of_look, log_n_choices, log_n_matchings

N_SIMULATED = 96
"""Channels of the wider model in the factor that stands for U: its trace over n is within 0.007 of that of 512."""

MOST_ROWS_PER_CHANNEL = 16.0
"""Beyond this many rows a channel, more of them act as less noise: the noise enters as k / sqrt(rows)."""

SAFETY = 0.8
"""What is left of the expected trace for what the model leaves out: spectra and row lengths of real weights (they
take up to 8 % off) and chance. Relatives planted into real weights at the stated noise are found 99 times of 100."""

LOWER_HALF_MEAN = 0.798
"""Mean of the lower half of standard normal numbers, negated: what the matched entries lose without their best half."""

TAIL = 2.33
"""Standard deviations below its mean that a normal number lies above 99 times of 100."""

STRONGEST = 1000.0
"""No noise beyond this is stated."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a test.

    Attributes:
        n_narrow: Channels of the narrower side.
        n_wide: Channels of the wider side.
        n_rows: Rows that the test has looked at.
    """

    n_narrow: int
    n_wide: int
    n_rows: int


def strongest_noise(shape: Shape, *, log_level: float, in_order: bool = False, must_be_robust: bool = True) -> float:
    """Find the strongest noise under which a copy would be significant, by bisection.

    Args:
        shape: Sizes of the test; centring takes one row.
        log_level: Natural log of the level after everything that p is multiplied by.
        in_order: Whether the copy has its channels where they were (the identity, which pays no count of matchings,
            with its sign test), or in any order.
        must_be_robust: Whether it must be significant without its best half of channels, too.

    Returns:
        k, in units of the weights' own RMS; 0 where not even a plain copy would be significant. Cost: some twenty
        polar factors of :data:`N_SIMULATED` channels, less where the same was asked before.
    """
    return _strongest(lambda noise: _is_found(noise, shape, log_level, in_order, must_be_robust))


def strongest_noise_of_pairs(shape: Shape, *, n_pairs: int, log_level: float) -> float:
    """Find the strongest noise under which some shared rows of two samples would be significant.

    Args:
        shape: Rows of the smaller and of the larger sample; ``n_rows`` is the width of their rows, plus one.
        n_pairs: How many rows they share.
        log_level: Natural log of the level after everything that p is multiplied by.

    Returns:
        k, as :func:`strongest_noise`.
    """
    n, n_wide = shape.n_narrow, shape.n_wide

    def is_found(noise: float) -> bool:
        share, _ = expected_trace(noise, (shape.n_rows - 1) / n_wide, n / n_wide)
        mean = SAFETY * share
        of_columns = n_pairs * (mean**2 + (1.0 - mean**2) * n / n_wide)
        exponent = 0.5 * (n_pairs * mean) ** 2 * n / of_columns
        return log_n_matchings(n, n_wide, n_pairs, signed=True) - exponent < log_level

    return _strongest(is_found)


def noise_of_few_rows(rows: torch.Tensor, *, log_level: float) -> float:
    """Find the strongest noise under which a copy with its channels in order would be significant on few rows.

    The polar factor of r rows, r below the width n, is that of the whitened rows: its trace is the sum over the
    eigenvalues of their Gram matrix of ``sqrt(v / (v + k^2 m))``, m their mean. A simulation of few channels, as for
    :func:`strongest_noise`, has too few rows to show it.

    Args:
        rows: ``(r, n)``, r at least 2: those of the model that is copied.
        log_level: Natural log of the level after everything that p is multiplied by.

    Returns:
        k, as :func:`strongest_noise`. Cost O(r^2 n + r^3).
    """
    centred = rows.double() - rows.double().mean(dim=0)
    centred = centred / centred.norm(dim=1, keepdim=True).clamp(min=1e-12)
    energies = torch.linalg.eigvalsh(centred @ centred.T)[1:].clamp(min=0.0)  # one is taken by centring
    rank, width = len(energies), rows.shape[1]
    # ln p <= -c^2 n / 2r; by chance the trace of strangers is sqrt(r / n), and so is what a copy may lack of its mean.
    needed = math.sqrt(-2.0 * log_level * rank / width) + TAIL * math.sqrt(rank / width)

    def is_found(noise: float) -> bool:
        shares = energies / (energies + noise**2 * energies.mean()).clamp(min=1e-300)
        return SAFETY * float(shares.sqrt().sum()) > needed

    return _strongest(is_found)


def _strongest(is_found: Callable[[float], bool]) -> float:
    """The largest noise that is found, by bisection; 0 where none is."""
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


def noise_of_looks(shape: Shape, *, alpha: float, n_tests: int, n_looks: int, in_order: bool = False) -> float:
    """Find the strongest noise under which a copy would be significant at the last of some looks at an embedding.

    Args:
        shape: Sizes of that look.
        alpha: The level of significance.
        n_tests: By how many tests p is multiplied.
        n_looks: How many looks there were, this one among them.
        in_order: As for :func:`strongest_noise`.
    """
    level = math.log(alpha) - math.log(n_tests) - log_cost_of_look(n_looks)
    return strongest_noise(shape, log_level=level, in_order=in_order)


def _is_found(noise: float, shape: Shape, log_level: float, in_order: bool, must_be_robust: bool) -> bool:
    n, n_wide = shape.n_narrow, shape.n_wide
    share, rank_share = expected_trace(noise, (shape.n_rows - 1) / n_wide, n / n_wide)
    mean, energy = SAFETY * share, rank_share * n  # of a matched entry; sum of squares of U
    spread = math.sqrt((energy - n * mean**2) / (n * n_wide))  # mean^2 is below SAFETY^2 rank_share: above 0
    mean = max(0.0, mean - TAIL * spread / math.sqrt(n))  # by chance the trace is less
    half = n // 2
    lower = max(0.0, mean - LOWER_HALF_MEAN * spread)
    # The matched columns of the wider side hold their share of the energy, and what the trace itself makes of it.
    of_columns = n * mean**2 + (energy - n * mean**2) * n / n_wide
    per_energy = n / of_columns  # at most n_wide / energy, that of all columns
    whole = 0.5 * (n * mean) ** 2 * per_energy
    robust = 0.5 * ((n - half) * lower) ** 2 * per_energy * n / (n - half)
    if in_order:
        votes = n * math.erf(mean / spread / math.sqrt(2.0))
        by_half = robust - log_n_choices(n, n - half)
        return -whole < log_level and (
            not must_be_robust or max(by_half, votes**2 / (2 * n)) - math.log(2.0) > -log_level
        )
    counted = log_n_matchings(n, n_wide, n) - whole
    without_best = log_n_matchings(n, n_wide, n - half) - robust
    return counted < log_level and (not must_be_robust or without_best < log_level)


@lru_cache(maxsize=4096)
def expected_trace(noise: float, rows_per_channel: float, width_share: float = 1.0) -> tuple[float, float]:
    """Share of the trace of the polar factor that a copy under noise keeps, and the rank over the channels.

    Args:
        noise: k.
        rows_per_channel: Rows over channels of the wider model.
        width_share: Channels of the narrower model over those of the wider one, in (0, 1].

    Returns:
        ``c / n_narrow`` and ``rank / n_narrow``. Cost O(N_SIMULATED^2 rows_per_channel) for the first, small, call.
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
    # The noise has a trace of its own, of the size of one channel, which strong noise would be judged by: a copy and
    # its negative under the same noise have it in common.
    trace = 0.5 * (_trace_of_polar(x, added + x[:, :n]) - _trace_of_polar(x, added - x[:, :n]))
    return trace / n * min(1.0, rows_per_channel * n_wide / n_rows), min(n, n_rows) / n


def _trace_of_polar(x: torch.Tensor, y: torch.Tensor) -> float:
    left, values, right = torch.linalg.svd(y.T @ x, full_matrices=False)
    polar = (left * (values > 1e-9 * values[0])) @ right
    return float(polar[:, : y.shape[1]].diagonal().sum())
