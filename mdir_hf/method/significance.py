"""Bound the p-value of a matching's trace from above (the central formula), and count matchings.

docs/method/bound.md gives the null hypothesis and the proof. The paper's ``ln d! - c^2/2`` is the special case of
a square, full-rank factor and a full matching; its epsilon is proved to be 0. All values are natural logarithms, at
most 0, and are never exponentiated.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

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

    Look s uses the share 1/(s(s+1)) of alpha; these shares sum to at most 1 (docs/method/numbering.md, "Choices").
    """
    return math.log(number * (number + 1))
