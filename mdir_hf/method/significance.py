"""Bound the p-value of a matching's trace from above (the central formula), and combine p-values.

docs/method/bound.md gives the null hypothesis and the proof. The paper's ``ln d! - c^2/2`` is the special case of
a square, full-rank factor and a full matching; its epsilon is proved to be 0. The cells of a layer map are not
independent, so verdicts use combinations that are valid under any dependence; only Fisher's sum requires independence.
All values are natural logarithms, at most 0, and are never exponentiated.

References: B. Rüger, Metrika 25 (1978); G. Hommel, Biometrical Journal 25 (1983); Y. Benjamini and R. Heller,
Biometrics 64 (2008), for the partial conjunction.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from scipy.special import gammaln, logsumexp

LN10 = math.log(10.0)


def log_p_matching(
    trace: float,
    *,
    sizes: tuple[int, int],
    energies: tuple[float, float],
    n_matched: int | None = None,
    signed: bool = False,
    is_fixed: bool = False,
    is_cut: bool = True,
) -> float:
    """Bound the probability that unrelated models reach this trace, over all possible matchings.

    ``ln p <= ln #matchings - min(n_wide c^2 / 2 e_narrow, n_narrow c^2 / 2 e_wide)``.

    The first term holds if the wider model is rotation invariant, the second if the narrower one is.

    Args:
        trace: c, the sum of the matched entries (of their absolute values if ``signed``).
        sizes: ``(n_narrow, n_wide)``, numbers of channels on the narrower and wider sides of U.
        energies: ``(e_narrow, e_wide)``, sums of squares of U over the matched channels of the narrower and wider
            sides.
        n_matched: Number of matched pairs, fixed in advance. None means a full matching of the narrower side.
        signed: Whether each pair may also be matched with a minus sign.
        is_fixed: Whether the matching was fixed before reading the weights. If so, the bound is corrected only for the
            choice of its pairs.
        is_cut: Whether to cap the bound at p = 1.

    Returns:
        Natural log of the bound; at most 0 if ``is_cut``.

    Raises:
        ValueError: If the sizes contradict each other.

    References:
        docs/method/bound.md; paper, Algorithm 1 and the section on the p-value.
    """
    (n_narrow, n_wide), (narrow_energy, wide_energy) = sizes, energies
    m = n_narrow if n_matched is None else n_matched
    if not 0 <= m <= n_narrow <= n_wide:
        raise ValueError(f"expected 0 <= n_matched <= n_narrow <= n_wide, got {m}, {n_narrow}, {n_wide}")
    bound = log_n_choices(n_narrow, m) if is_fixed else log_n_matchings(n_narrow, n_wide, m, signed=signed)
    if m > 0 and trace > 0.0 and narrow_energy > 0.0 and wide_energy > 0.0:
        bound -= 0.5 * trace * trace * min(n_wide / narrow_energy, n_narrow / wide_energy)
    return min(0.0, bound) if is_cut else bound


def log_n_matchings(n_narrow: int, n_wide: int, n_matched: int, *, signed: bool = False) -> float:
    """Return the log of the number of ways to match ``n_matched`` channels injectively.

    ``C(n1, m) n2! / (n2 - m)!``, times ``2^m`` if signs are free. For m = n1 = n2 it is ln n!.
    """
    place_them = math.lgamma(n_wide + 1) - math.lgamma(n_wide - n_matched + 1)
    return log_n_choices(n_narrow, n_matched) + place_them + (n_matched * math.log(2.0) if signed else 0.0)


def log_n_choices(n: int, n_chosen: int) -> float:
    """Return the log of the number of ways to choose m of n, ``ln C(n, m)``."""
    return math.lgamma(n + 1) - math.lgamma(n_chosen + 1) - math.lgamma(n - n_chosen + 1)


def log_p_signs(entries: npt.ArrayLike) -> float:
    """Bound the p-value of a sign test over the entries of a matching fixed in advance.

    ``ln p <= -v^2 / 2m`` for m nonzero entries with v more positive than negative ones (Hoeffding). The only assumption
    is that sign changes of single residual channels leave the distribution of one model unchanged. A few large
    entries contribute only a few signs (docs/method/bound.md, "Channels in their own order").
    """
    signs = np.sign(np.asarray(entries, dtype=np.float64))
    n_signs, excess = int(np.count_nonzero(signs)), float(signs.sum())
    return -(excess**2) / (2 * n_signs) if excess > 0.0 else 0.0


def log_p_entry(
    entry: npt.ArrayLike, *, line_energy: npt.ArrayLike, n_haar: int, n_comparisons: int
) -> npt.NDArray[np.float64]:
    """Bound the p-values of single entries of U.

    ``line_energy`` is the sum of squares of each entry's row or column of U, on the side that is not rotated.
    ``n_haar`` is the dimension of the rotated side, and ``n_comparisons`` is the number of entries from which each was
    selected.
    """
    u, energy = np.asarray(entry, dtype=np.float64), np.asarray(line_energy, dtype=np.float64)
    exponent = 0.5 * n_haar * np.clip(u, 0.0, None) ** 2 / np.maximum(energy, 1e-300)
    bound: npt.NDArray[np.float64] = np.minimum(0.0, math.log(n_comparisons) - exponent)
    return bound


def log_cost_of_look(number: int) -> float:
    """Return the log of the factor that corrects the p of look number s = 1, 2, ...: ``ln s(s+1)``.

    Look s uses the share 1/(s(s+1)) of alpha; these shares sum to at most 1 (docs/method/rows.md, "Looks").
    """
    return math.log(number * (number + 1))


def log_p_looks(log_p_by_look: list[float]) -> float:
    """Combine successive looks at growing data: ``min_s [ln p_s + ln s(s+1)]``, s = 1, 2, ...

    The result is valid for any stopping time, under any dependence.
    """
    return min((min(0.0, p + log_cost_of_look(s)) for s, p in enumerate(log_p_by_look, start=1)), default=0.0)


FloatArray = npt.NDArray[np.float64]


def log_p_of_best(log_p: float, n_tests: int) -> float:
    """Correct the smallest of ``n_tests`` p-values for selection (Bonferroni), under any dependence."""
    return min(0.0, log_p + math.log(n_tests))


def log_p_rueger(log_p: Sequence[float] | FloatArray, k: int) -> float:
    """Test the global null with the k-th smallest of L p-values, ``(L / k) p_(k)``, under any dependence.

    k must be fixed in advance.

    Raises:
        ValueError: If k is not in [1, L].
    """
    ascending = np.sort(np.asarray(log_p, dtype=np.float64))
    if not 1 <= k <= len(ascending):
        raise ValueError(f"expected 1 <= k <= {len(ascending)} p-values, got k = {k}")
    return min(0.0, float(ascending[k - 1]) + math.log(len(ascending) / k))


def log_p_hommel(log_p: Sequence[float] | FloatArray) -> float:
    """Test the global null with the best k, ``(1 + 1/2 + ... + 1/L) min_k (L / k) p_(k)``.

    Use this for maps in which only some layers are related.
    """
    ascending = np.sort(np.asarray(log_p, dtype=np.float64))
    ranks = np.arange(1, len(ascending) + 1, dtype=np.float64)
    best = float(np.min(ascending + np.log(len(ascending) / ranks)))
    return min(0.0, best + math.log(float(np.sum(1.0 / ranks))))


def count_related(log_p: Sequence[float] | FloatArray, log_alpha: float) -> int:
    """Return a lower bound on the number of false null hypotheses, at confidence 1 - alpha, under any dependence.

    The partial conjunction p-value of "fewer than k of L nulls are false" is ``(L - k + 1) p_(k)``. The hypotheses for
    successive k are nested, so each is tested in order at the full level.
    """
    ascending = np.sort(np.asarray(log_p, dtype=np.float64))
    n = len(ascending)
    for k, value in enumerate(ascending, start=1):
        if float(value) + math.log(n - k + 1) > log_alpha:
            return k - 1
    return n


def log_p_fisher(log_p: Sequence[float] | FloatArray) -> float:
    """Combine independent p-values: ``Q(k, x)`` with ``x = -sum ln p``, the upper tail of a Gamma(k) variable.

    The result is valid ONLY if the p-values are independent under the null.
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
    """Bound the p-value of Fisher's sum along an ordered matching found by a search.

    ``min(L, L') C(L, k) C(L', k) Q(k, x)`` is the union bound over k and all ordered maps with k pairs. The p-values
    along any FIXED ordered map must be independent under the null, which holds if each layer's matrix is left-invariant
    given all the others.
    """
    k = len(log_p_pairs)
    if k == 0:
        return 0.0
    log_n_maps = log_n_ordered_maps(n_reference, n_candidate, k) + math.log(min(n_reference, n_candidate))
    return min(0.0, log_p_fisher(log_p_pairs) + log_n_maps)


def log_p_by_layer(log_p: FloatArray) -> FloatArray:
    """Return one corrected p-value per layer of the shallower model: the smallest over its possible partners.

    ``log_p`` is ``(L, L')``. A square map has one p-value per candidate layer.
    """
    n_reference, n_candidate = log_p.shape
    by_candidate = n_candidate <= n_reference
    best = log_p.min(axis=0 if by_candidate else 1)
    log_p_of_layers: FloatArray = np.minimum(0.0, best + math.log(n_reference if by_candidate else n_candidate))
    return log_p_of_layers
