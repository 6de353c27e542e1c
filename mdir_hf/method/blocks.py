"""Test a polar factor for a permutation of attention heads, up to the transformations allowed inside each head.

For a head map sigma, the allowed transformations span a linear space of matrices, the *pattern*: ``d x d`` blocks if
heads may be rotated freely, or ``a + bJ`` in each frequency plane if rotations must commute with RoPE. The statistic is
the energy of U inside the pattern of the best sigma.

**Bound.** Let ``U = A F B^T`` be a (truncated) polar factor, with B Haar-distributed on O(m) given A and F. This is the
left invariance of the model with m rows (:data:`~mdir_hf.method.gauge.LEFT_INVARIANCE`). For a fixed sigma, let E_k be
an orthonormal basis of its pattern and ``T = sum_k <E_k, U>^2``. With g standard Gaussian and ``G = sum g_k E_k``,
``exp(sT) = E_g exp(sqrt(2s) <G, U>)`` (Hubbard-Stratonovich). ``<G, U> = Tr(X O)`` with O Haar and ``|X|_F^2 = <G, K
G>``, ``K = U U^T``. So by the moment bound of docs/moment-bound.md, ``E exp(sT) <= E_g exp((s/m) g^T Q g) = prod_i (1 -
2 s q_i / m)^(-1/2)``, with q_i the eigenvalues of ``Q_kl = <E_k, K E_l>``. They lie in [0, 1] because K is a
projection, and ``q -> -log(1 - yq)`` is convex and 0 at 0, so ``E exp(sT) <= (1 - 2s/m)^(-N/2)`` with ``N = tr Q =
sum_k <E_k, K E_k>``. Chernoff with ``x = m T / N`` gives:

    ln p <= ln #sigma - (N/2) (x - 1 - ln x)   for x > 1, else 0.

The other model's invariance gives the same bound with ``K = U^T U`` and its own m. The weaker of the two bounds holds
whichever model is invariant.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from mdir_hf.method.assignment import best_assignment
from mdir_hf.method.significance import log_n_matchings

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class HeadPattern:
    """Energy of U inside the pattern of each pair of heads, and the other inputs to the bound.

    Attributes:
        scores: ``(H_reference, H_candidate)``, energy of each pair.
        reference_energy: ``(H_reference,)``, contribution of each head to N if the candidate is the invariant model.
        candidate_energy: ``(H_candidate,)``, contribution of each head to N if the reference is the invariant model.
        n_reference: m, number of rows of U.
        n_candidate: m', number of columns of U.
    """

    scores: FloatArray
    reference_energy: FloatArray
    candidate_energy: FloatArray
    n_reference: int
    n_candidate: int


def log_p_pattern(statistic: float, *, energy: float, n_haar: int, log_n_maps: float) -> float:
    """Bound the probability that unrelated models reach this pattern energy under any head map.

    Return the natural log of the bound, at most 0.

    Args:
        statistic: T of the head map, which may be chosen in any way.
        energy: N, trace of ``U U^T`` compressed to the pattern.
        n_haar: m, dimension of the side that is rotated under the null hypothesis.
        log_n_maps: Natural log of the number of possible maps.
    """
    if energy <= 0.0 or statistic <= 0.0:
        return 0.0
    x = n_haar * statistic / energy
    if x <= 1.0:
        return 0.0
    return min(0.0, log_n_maps - 0.5 * energy * (x - 1.0 - math.log(x)))


def log_p_head_map(
    pattern: HeadPattern, reference: IntArray, candidate: IntArray, log_n_maps: float
) -> tuple[float, float]:
    """Bound the p-value of a head map, given as ``(k,)`` reference heads and their ``(k,)`` candidate partners.

    Returns:
        T and the natural log of the weaker of its two bounds.
    """
    statistic = float(pattern.scores[reference, candidate].sum())
    sides = (
        (pattern.reference_energy[reference], pattern.n_candidate),
        (pattern.candidate_energy[candidate], pattern.n_reference),
    )
    return statistic, max(
        log_p_pattern(statistic, energy=float(energies.sum()), n_haar=n_haar, log_n_maps=log_n_maps)
        for energies, n_haar in sides
    )


def best_head_map(pattern: HeadPattern) -> tuple[IntArray, IntArray, float]:
    """Match each head of the model with fewer heads to a head of the other model, maximising T.

    Returns:
        Reference heads in ascending order, their partners, and the natural log of the number of possible maps.
    """
    reference, candidate = best_assignment(pattern.scores)
    narrow, wide = sorted(pattern.scores.shape)
    return reference.astype(np.int64), candidate.astype(np.int64), log_n_matchings(narrow, wide, narrow)


def block_pattern(polar: torch.Tensor, n_heads_reference: int, n_heads_candidate: int) -> HeadPattern:
    """Compute pattern energies for heads that may be rotated freely (docs/method/layers.md).

    ``polar`` is U, ``(H d, H' d')``, a partial isometry.
    """
    n_reference, n_candidate = polar.shape
    d, d_other = n_reference // n_heads_reference, n_candidate // n_heads_candidate
    squares = polar.double().square().reshape(n_heads_reference, d, n_heads_candidate, d_other)
    scores = squares.sum(dim=(1, 3)).cpu().numpy()
    return HeadPattern(
        scores=scores,
        reference_energy=scores.sum(axis=1) * d_other,
        candidate_energy=scores.sum(axis=0) * d,
        n_reference=n_reference,
        n_candidate=n_candidate,
    )
