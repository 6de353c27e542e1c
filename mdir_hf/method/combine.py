"""Combines many p-values into one: which combination holds under which dependence.

Cells of a layer map share models. What decides a verdict holds whatever the dependence between them. Fisher's sum,
which asks for independence, says how strong an accepted map is: the null of layers implies it (docs/method/layers.md).
Natural logarithms throughout, at most 0.

References:
    docs/method/layers.md. B. Rüger, Metrika 25 (1978); G. Hommel, Biometrical Journal 25 (1983);
    Y. Benjamini and R. Heller, Biometrics 64 (2008), for the partial conjunction.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from scipy.special import gammaln, logsumexp

from mdir_hf.method.significance import log_n_choices

FloatArray = npt.NDArray[np.float64]


def log_p_of_best(log_p: float, n_tests: int) -> float:
    """Correct the smallest of ``n_tests`` p-values for having been picked (Bonferroni; any dependence)."""
    return min(0.0, log_p + math.log(n_tests))


def log_p_rueger(log_p: Sequence[float] | FloatArray, k: int) -> float:
    """Test "nothing here" by the k-th smallest of L p-values: ``(L / k) p_(k)``.

    Among all tests that look only at ``p_(k)`` none is smaller under arbitrary dependence. It needs k small p-values,
    so no single accident makes it small.

    Args:
        log_p: L natural logs, each of a valid p-value.
        k: Which order statistic, fixed in advance, 1 <= k <= L. L/2 is twice the median.

    Returns:
        Natural log of a p-value that holds under any dependence.

    Raises:
        ValueError: If k is out of range.
    """
    ascending = np.sort(np.asarray(log_p, dtype=np.float64))
    if not 1 <= k <= len(ascending):
        raise ValueError(f"expected 1 <= k <= {len(ascending)} p-values, got k = {k}")
    return min(0.0, float(ascending[k - 1]) + math.log(len(ascending) / k))


def log_p_hommel(log_p: Sequence[float] | FloatArray) -> float:
    """Test "nothing here" by the best k of all: ``(1 + 1/2 + ... + 1/L) min_k (L / k) p_(k)``.

    For maps that are related in part only, where no k can be fixed in advance. Searching k costs ln(1 + ... + 1/L),
    1.5 nats for 48 layers. One very small p-value is enough to make it small.
    """
    ascending = np.sort(np.asarray(log_p, dtype=np.float64))
    ranks = np.arange(1, len(ascending) + 1, dtype=np.float64)
    best = float(np.min(ascending + np.log(len(ascending) / ranks)))
    return min(0.0, best + math.log(float(np.sum(1.0 / ranks))))


def count_related(log_p: Sequence[float] | FloatArray, log_alpha: float) -> int:
    """Bound from below how many of L hypotheses are not null, with confidence 1 - alpha, under any dependence.

    The partial conjunction p-value of "fewer than k are not null" is ``(L - k + 1) p_(k)``. These hypotheses are
    nested, so they are tested in turn, each at the full level, until the first one stands.

    Args:
        log_p: L natural logs, each of a valid p-value.
        log_alpha: Natural log of the level.

    Returns:
        The largest k such that "at least k are related" can be said, 0 if none.
    """
    ascending = np.sort(np.asarray(log_p, dtype=np.float64))
    n = len(ascending)
    for k, value in enumerate(ascending, start=1):
        if float(value) + math.log(n - k + 1) > log_alpha:
            return k - 1
    return n


def log_p_fisher(log_p: Sequence[float] | FloatArray) -> float:
    """Combine independent p-values: ``Q(k, x)`` with ``x = -sum ln p``, the upper tail of a Gamma(k) variable.

    Valid ONLY if the p-values are independent under the null (each may be conservative). Computed in the log domain,
    where scipy's ``gammaincc`` has long underflown.
    """
    x = -float(np.sum(np.asarray(log_p, dtype=np.float64)))
    if x <= 0.0:
        return 0.0
    powers = np.arange(len(log_p), dtype=np.float64)
    return min(0.0, float(logsumexp(powers * math.log(x) - gammaln(powers + 1.0))) - x)


def log_n_ordered_maps(n_reference: int, n_candidate: int, n_pairs: int) -> float:
    """Logarithm of the number of order-preserving maps with that many pairs: ``C(L, k) C(L', k)``."""
    return log_n_choices(n_reference, n_pairs) + log_n_choices(n_candidate, n_pairs)


def log_p_ordered_map(log_p_pairs: Sequence[float], n_reference: int, n_candidate: int) -> float:
    """Bound Fisher's sum along an ordered matching that was searched for.

    ``min(L, L') C(L, k) C(L', k) Q(k, x)``: the union over every ordered map with k pairs and over k.

    Assumes that the p-values along any FIXED ordered map are independent under the null: true where each layer's
    matrix is left-invariant given all the others (docs/method/layers.md).
    """
    k = len(log_p_pairs)
    if k == 0:
        return 0.0
    searched = log_n_ordered_maps(n_reference, n_candidate, k) + math.log(min(n_reference, n_candidate))
    return min(0.0, log_p_fisher(log_p_pairs) + searched)


def log_p_by_layer(log_p: FloatArray) -> FloatArray:
    """Reduce a map to one p-value per layer of the shallower model: that of its best partner, corrected for the search.

    The shallower side is the unit because the deeper one must hold layers that have no partner of their own. A square
    map counts by candidate layers.

    Args:
        log_p: ``(L, L')`` natural logs; each cell valid by itself.

    Returns:
        ``(min(L, L'),)`` natural logs.
    """
    n_reference, n_candidate = log_p.shape
    by_candidate = n_candidate <= n_reference
    best = log_p.min(axis=0 if by_candidate else 1)
    searched: FloatArray = np.minimum(0.0, best + math.log(n_reference if by_candidate else n_candidate))
    return searched
