"""Test whether channels and neurons keep their numbers. Exact even if unrelated models share features or axes.

If models are independent, their numberings differ by a uniformly random permutation. Partners are found without using
numbers. *Own number*: k pairs have equal numbers with probability ``p <= 1 / k!``. *In order*: the longest subsequence
of K pairs in which both numbers increase has at least length l with probability ``p <= C(K, l) / l!``. Neurons have the
same symmetry in each layer: in L layers chosen in advance, k neurons have equal numbers with probability at most ``L^k
/ k!``, given the other neurons, to which a rotation is fitted. Because numbers can be forged, *certain* neurons, more
similar than any random pair would be, are also counted. docs/method/numbering.md gives the proofs. Zhu et al.,
arXiv:2502.12292 (2025), use the same symmetry to test ranks.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from mdir_hf.method.matching import CHANNEL_ALPHA, ROWS_AT_ONCE, IntArray, Matching
from mdir_hf.method.neurons import unit_rows
from mdir_hf.method.significance import LN10, log_n_choices
from mdir_hf.report import NumberingResult

TESTS = 2
"""Number of tests per numbering: equal numbers and increasing numbers. p is corrected for both."""


def numbering_of(
    polar: torch.Tensor,
    matching: Matching | None,
    channels: IntArray | None = None,
    *,
    n_tests: int = 1,
    log_cost: float = 0.0,
) -> NumberingResult:
    """Count matched channels whose numbers are equal or in order.

    Channels are matched by :func:`mutual_partners` on ``polar``, ``(k, n_candidate)``. ``channels`` are the reference
    channels of its rows, ascending; None means all. ``matching`` shows which channels are individually significant.
    p is corrected for ``n_tests`` times :data:`TESTS` tests, and for the ``log_cost`` of this look.
    """
    reference, candidate = mutual_partners(polar)
    if channels is not None:
        reference = channels[reference]
    is_own = reference == candidate
    is_in_order = np.zeros(len(reference), dtype=np.bool_)
    is_in_order[longest_increasing(candidate)] = True
    is_certain = np.zeros(len(reference), dtype=np.bool_)
    if matching is not None:
        pairs = zip(
            matching.reference[matching.is_significant], matching.candidate[matching.is_significant], strict=True
        )
        certain = {(int(i), int(j)) for i, j in pairs}
        is_certain = np.array([(int(i), int(j)) in certain for i, j in zip(reference, candidate, strict=True)], bool)
    own_number, in_order, n_pairs = int(is_own.sum()), int(is_in_order.sum()), len(reference)
    log_p = min(log_p_own_number(own_number), log_p_in_order(n_pairs, in_order))
    n_certain = max(int((is_own & is_certain).sum()), int((is_in_order & is_certain).sum()))
    return NumberingResult(
        pairs=n_pairs,
        own_number=own_number,
        in_order=in_order,
        log10_p=min(0.0, min(0.0, log_p + math.log(TESTS)) + math.log(n_tests) + log_cost) / LN10,
        certain_share=0.0 if matching is None else n_certain / max(1, len(matching.reference)),
    )


def log_p_own_number(n: int) -> float:
    """Return the natural log of the bound for n pairs with equal numbers, ``1 / n!``; at most 0."""
    return -math.lgamma(n + 1)


def log_p_in_order(n_pairs: int, n: int) -> float:
    """Return the natural log of the bound for n of ``n_pairs`` pairs in order, ``C(n_pairs, n) / n!``; at most 0."""
    return min(0.0, log_n_choices(n_pairs, n) - math.lgamma(n + 1))


def mutual_partners(polar: torch.Tensor) -> tuple[IntArray, IntArray]:
    """Return the rows and columns whose common entry has the largest absolute value in both."""
    partner = torch.empty(len(polar), dtype=torch.long, device=polar.device)  # for each row
    size = polar.new_zeros(len(polar))
    best = polar.new_zeros(polar.shape[1])  # for each column, so far
    best_row = torch.full((polar.shape[1],), -1, dtype=torch.long, device=polar.device)
    for start in range(0, len(polar), ROWS_AT_ONCE):
        block = polar[start : start + ROWS_AT_ONCE].abs()
        size[start : start + ROWS_AT_ONCE], partner[start : start + ROWS_AT_ONCE] = block.max(dim=1)
        largest, where = block.max(dim=0)
        is_better = largest > best
        best[is_better], best_row[is_better] = largest[is_better], where[is_better] + start
    rows = torch.arange(len(polar), device=polar.device)
    is_mutual = (best_row[partner] == rows) & (size > 0.0)
    reference, candidate = rows[is_mutual], partner[is_mutual]
    return reference.cpu().numpy().astype(np.int64), candidate.cpu().numpy().astype(np.int64)


def longest_increasing(values: IntArray) -> npt.NDArray[np.int64]:
    """Return the positions of a longest strictly increasing subsequence, ascending, in O(k log k) time."""
    ends: list[int] = []  # smallest last value of an increasing subsequence of each length
    places: list[int] = []
    before = np.full(len(values), -1, dtype=np.int64)
    for place, value in enumerate(values.tolist()):
        length = bisect_left(ends, value)
        before[place] = places[length - 1] if length else -1
        if length == len(ends):
            ends.append(value)
            places.append(place)
        else:
            ends[length], places[length] = value, place
    positions = []
    place = places[-1] if places else -1
    while place >= 0:
        positions.append(place)
        place = int(before[place])
    return np.array(positions[::-1], dtype=np.int64)


Neurons = Sequence[torch.Tensor]
"""Unit rows of gate and up, or of up alone, for the same neurons; each matrix is ``(n, width)``."""


LEAST_DEVIATIONS = 3.0
"""Minimum cosine in each matrix for a neuron to count as certain, in standard deviations for random directions. Without
it, if neurons were split without changing the model's output, copies of up alone would count as certain."""


class OwnNumbers(NamedTuple):
    """Number of tested neurons whose partner has the same number, and how many of them are certain."""

    own: int
    certain: int


@dataclass(frozen=True, slots=True, eq=False)
class NeuronMatches:
    """The result of :func:`match_neurons_by_number`.

    Attributes:
        is_own: ``(n_tested,)`` bool on the CPU, whether each neuron's partner has the same number.
        is_certain: ``(n_tested,)`` bool, whether the two neurons are also more similar than any random pair would be.
        shift: Estimated length of the difference common to all pairs with equal numbers, after the rotation.
        least_z: z-score of the mean cosine between tested neurons with the same number; the smallest over the matrices.
    """

    is_own: torch.Tensor
    is_certain: torch.Tensor
    shift: float = 0.0
    least_z: float = 0.0

    @property
    def counts(self) -> OwnNumbers:
        """Number of pairs with equal numbers, and how many of them are certain."""
        return OwnNumbers(int(self.is_own.sum()), int(self.is_certain.sum()))


def sample_neurons(n_neurons: int, n: int, *, run: int, seed: int) -> IntArray:
    """Choose n neurons at random, in runs of neighbours that need only one read each.

    Layers with too few whole runs yield fewer neurons.
    """
    starts = np.random.default_rng(seed).permutation(n_neurons // run)[: n // run] * run
    numbers: IntArray = (starts[:, None] + np.arange(run)).reshape(-1).astype(np.int64)
    return numbers


def in_span(rows: Neurons, n_fitted: int) -> list[torch.Tensor]:
    """Express rows in an orthonormal basis of the span of the first ``n_fitted`` rows of all matrices.

    This preserves the cosines that :func:`match_neurons_by_number` uses.

    Returns:
        Coordinates, each ``(n, min(width, n_fitted * matrices))``.
    """
    fitted = torch.cat([matrix[:n_fitted] for matrix in rows])
    if len(fitted) >= fitted.shape[1]:
        return list(rows)  # they span the whole space
    basis = torch.linalg.qr(fitted.T).Q
    return [matrix @ basis for matrix in rows]


def match_neurons_by_number(reference: Neurons, candidate: Neurons, *, n_fitted: int, n_neurons: int) -> NeuronMatches:
    """Fit a rotation on some neurons, then find which remaining neurons have a partner with the same number.

    The inputs come from :func:`in_span`. The first ``n_fitted`` neurons are used for the fit. ``n_neurons``, the
    layer's size, sets the threshold for certain pairs.
    """
    x, y = (torch.cat([rows[:n_fitted] for rows in model]) for model in (reference, candidate))
    left, _, right = torch.linalg.svd(x.T @ y, full_matrices=False)
    by_matrix = torch.stack(
        [
            unit_rows(reference_rows[n_fitted:] @ left @ right) @ unit_rows(candidate_rows[n_fitted:]).T
            for reference_rows, candidate_rows in zip(reference, candidate, strict=True)
        ]
    )
    cosines = by_matrix.sum(dim=0)
    rows, columns = mutual_partners(cosines.clamp(min=0.0))
    # Identical neurons tie. Breaking ties by order would favour equal numbers, so tied neurons have no partner.
    is_single = ((cosines == cosines.amax(1, keepdim=True)).sum(1) == 1) & (
        (cosines == cosines.amax(0, keepdim=True)).sum(0) == 1
    )
    is_own = torch.zeros(len(cosines), dtype=torch.bool)
    is_own[torch.from_numpy(rows[rows == columns])] = True
    is_own &= is_single.cpu()
    # Standard deviation of the cosine of two random directions. The largest of N^2 sums of such cosines is about sqrt(2
    # ln N^2) standard deviations.
    deviation = math.sqrt(1.0 / y.shape[1])
    least_sum = deviation * math.sqrt(len(reference) * 2.0 * math.log(n_neurons**2 / CHANNEL_ALPHA))
    own_cosines = by_matrix.diagonal(dim1=1, dim2=2).cpu()
    is_large = (own_cosines.sum(dim=0) > least_sum) & (own_cosines.amin(dim=0) > LEAST_DEVIATIONS * deviation)
    is_partner = is_own.to(x.device)
    carried, partners = unit_rows(reference[0][n_fitted:] @ left @ right), unit_rows(candidate[0][n_fitted:])
    # Noise shrinks the common part of the carried rows by the same factor as the rows.
    cosine = (partners * carried).sum(dim=1)[is_partner].mean()
    shift = common_length(partners[is_partner] - cosine * carried[is_partner])
    least_z = float(own_cosines.mean(dim=1).min()) / deviation * math.sqrt(own_cosines.shape[1])
    return NeuronMatches(is_own, is_own & is_large, shift, least_z)


def common_length(differences: torch.Tensor) -> float:
    """Estimate the length of the true mean of noisy vectors ``(k, n)``.

    Products of a vector with itself are excluded, so independent noise adds nothing to the squared length on average.
    """
    k = len(differences)
    if k < 2:
        return 0.0
    square = (differences.sum(dim=0).square().sum() - differences.square().sum()) / (k * (k - 1))
    return math.sqrt(max(0.0, float(square)))


def own_numbers(reference: Neurons, candidate: Neurons, *, n_fitted: int, n_neurons: int) -> OwnNumbers:
    """Run :func:`match_neurons_by_number` and return only the counts."""
    return match_neurons_by_number(reference, candidate, n_fitted=n_fitted, n_neurons=n_neurons).counts


def log_p_own_numbers(n_own: int, n_layers: int = 1) -> float:
    """Return the natural log of the bound for k equal numbers in L pairs of layers, ``L^k / k!``; at most 0.

    Pairs of layers must be chosen without using neuron numbers, and no layer may occur twice.
    """
    return min(0.0, n_own * math.log(max(1, n_layers)) - math.lgamma(n_own + 1))
