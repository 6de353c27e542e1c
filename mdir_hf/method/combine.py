"""Combine many p-values into one, with the dependence that each combination allows.

Cells of a layer map share models, so the combinations behind a verdict are valid under any dependence. Fisher's sum
needs independence. It measures the strength of an accepted map; the null of the layers implies the independence
(docs/method/layers.md). All values are natural logarithms, at most 0.

References:
    docs/method/layers.md. B. Rüger, Metrika 25 (1978); G. Hommel, Biometrical Journal 25 (1983); Y. Benjamini and R.
    Heller, Biometrics 64 (2008), for the partial conjunction.
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
    """Correct the smallest of ``n_tests`` p-values for selection (Bonferroni; any dependence)."""
    return min(0.0, log_p + math.log(n_tests))


def log_p_rueger(log_p: Sequence[float] | FloatArray, k: int) -> float:
    """Test the global null by the k-th smallest of L p-values: ``(L / k) p_(k)``.

    No test that uses only ``p_(k)`` is smaller under arbitrary dependence. It needs k small p-values, so a single
    accident cannot make it small.

    Args:
        log_p: L natural logs of valid p-values.
        k: Order statistic, fixed in advance, 1 <= k <= L. L/2 gives twice the median.

    Returns:
        Natural log of a p-value that is valid under any dependence.

    Raises:
        ValueError: If k is out of range.
    """
    ascending = np.sort(np.asarray(log_p, dtype=np.float64))
    if not 1 <= k <= len(ascending):
        raise ValueError(f"expected 1 <= k <= {len(ascending)} p-values, got k = {k}")
    return min(0.0, float(ascending[k - 1]) + math.log(len(ascending) / k))


def log_p_hommel(log_p: Sequence[float] | FloatArray) -> float:
    """Test the global null by the best k of all: ``(1 + 1/2 + ... + 1/L) min_k (L / k) p_(k)``.

    For maps with only some related layers, for which k cannot be fixed in advance. Searching over k costs ln(1 + ... +
    1/L), or 1.5 nats for 48 layers. One very small p-value is enough to make the result small.
    """
    ascending = np.sort(np.asarray(log_p, dtype=np.float64))
    ranks = np.arange(1, len(ascending) + 1, dtype=np.float64)
    best = float(np.min(ascending + np.log(len(ascending) / ranks)))
    return min(0.0, best + math.log(float(np.sum(1.0 / ranks))))


def count_related(log_p: Sequence[float] | FloatArray, log_alpha: float) -> int:
    """Return a lower bound on the number of false nulls among L hypotheses, under any dependence.

    The confidence is 1 - alpha. The partial conjunction p-value of "fewer than k nulls are false" is ``(L - k + 1)
    p_(k)``. These hypotheses are nested, so they are tested in order, each at the full level, until one is not
    rejected.

    Args:
        log_p: L natural logs of valid p-values.
        log_alpha: Natural log of the level.

    Returns:
        The largest k for which "at least k are related" can be claimed, or 0.
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
    because scipy's ``gammaincc`` underflows.
    """
    x = -float(np.sum(np.asarray(log_p, dtype=np.float64)))
    if x <= 0.0:
        return 0.0
    powers = np.arange(len(log_p), dtype=np.float64)
    return min(0.0, float(logsumexp(powers * math.log(x) - gammaln(powers + 1.0))) - x)


def log_n_ordered_maps(n_reference: int, n_candidate: int, n_pairs: int) -> float:
    """Return the log of the number of order-preserving maps with ``n_pairs`` pairs: ``C(L, k) C(L', k)``."""
    return log_n_choices(n_reference, n_pairs) + log_n_choices(n_candidate, n_pairs)


def log_p_ordered_map(log_p_pairs: Sequence[float], n_reference: int, n_candidate: int) -> float:
    """Bound Fisher's sum along an ordered matching found by a search.

    ``min(L, L') C(L, k) C(L', k) Q(k, x)``: the union over all ordered maps with k pairs and over k.

    Assumes that the p-values along any FIXED ordered map are independent under the null. This holds if each layer's
    matrix is left-invariant given all the others (docs/method/layers.md).
    """
    k = len(log_p_pairs)
    if k == 0:
        return 0.0
    searched = log_n_ordered_maps(n_reference, n_candidate, k) + math.log(min(n_reference, n_candidate))
    return min(0.0, log_p_fisher(log_p_pairs) + searched)


def log_p_by_layer(log_p: FloatArray) -> FloatArray:
    """Reduce a map to one p-value per layer of the shallower model: its best partner, corrected for the search.

    The shallower side is used because some layers of the deeper model cannot have a partner of their own. A square map
    is reduced by candidate layers.

    Args:
        log_p: ``(L, L')`` natural logs; each cell is valid by itself.

    Returns:
        ``(min(L, L'),)`` natural logs.
    """
    n_reference, n_candidate = log_p.shape
    by_candidate = n_candidate <= n_reference
    best = log_p.min(axis=0 if by_candidate else 1)
    searched: FloatArray = np.minimum(0.0, best + math.log(n_reference if by_candidate else n_candidate))
    return searched
