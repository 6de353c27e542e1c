"""Logarithmic tails of the distributions that peers use, because p-values of copies would underflow."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from scipy import special, stats


def spearman_log_p(order: npt.NDArray[np.int64]) -> float:
    """Return the natural log of the two-sided p of Spearman's correlation of a permutation with its positions.

    Args:
        order: A permutation of 0 … n - 1, or any n distinct numbers.

    Returns:
        The value by Student's approximation, as in scipy, but at least ln(2 / n!), the minimum of a permutation test.
    """
    n = len(order)
    rho = float(np.corrcoef(stats.rankdata(order), np.arange(n))[0, 1])
    floor = math.log(2) - math.lgamma(n + 1)
    a, x = (n - 2) / 2, max(1.0 - rho * rho, 0.0)
    if x == 0.0:
        return floor
    p = float(special.betainc(a, 0.5, x))
    if p > 1e-290:
        return min(0.0, max(floor, math.log(p)))
    series = math.log(float(special.hyp2f1(a + 0.5, 1.0, a + 1.0, x)))
    return max(floor, a * math.log(x) + 0.5 * math.log1p(-x) - math.log(a) - float(special.betaln(a, 0.5)) + series)


def fisher_log_p(log_p: Sequence[float]) -> float:
    """Return the natural log of p of Fisher's combination of independent p-values, given their natural logs."""
    y = -sum(log_p)
    if y <= 0:
        return 0.0
    k = np.arange(len(log_p))
    return min(0.0, float(special.logsumexp(k * math.log(y) - special.gammaln(k + 1)) - y))
