"""Evidence from channel numbers: exact, regardless of features or axes that two models share.

Initialisation draws all channels alike, and training does not depend on their numbering: if the channels of a model are
renumbered before training, every step does the same to the renumbered weights. For two independently trained models,
given everything about both except the numbering of one, this numbering is a uniformly random permutation. No rotation
invariance is needed: outstanding axes and learned features do not depend on their numbers.

*Own number.* Let partners be found without using numbers, in pairs that share no channel. For k fixed pairs the
probability that all have equal numbers is at most (n - k)! / n!, and there are at most C(n, k) choices of them: ``p <=
1 / k!``. *In order.* Let K be the number of pairs and l the length of the longest run of them, sorted by the numbers of
one model, in which the numbers of the other increase. The order of K pairs is uniform; l fixed ones are in order with
probability 1 / l!: ``p <= C(K, l) / l!``. This also holds if channels were removed.

References:
    docs/method/numbering.md has the proofs. Zhu et al., arXiv:2502.12292 (2025), base a rank test on the same symmetry.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from mdir_hf.method.matching import ROWS_AT_ONCE, IntArray, Matching
from mdir_hf.method.significance import log_n_choices

TESTS = 2
"""Partners are counted by equal number and by order; p is corrected for both."""


@dataclass(frozen=True, slots=True)
class NumberAgreement:
    """Agreement between the channel numbers of two models.

    Attributes:
        n_pairs: Number of pairs of channels that are each other's best partner.
        own_number: Number of pairs with the same number in both models.
        in_order: Length of the longest run of pairs with increasing numbers in both models.
        n_certain: Maximum over the two, counting only pairs that are significant one by one.
        log_p: Natural log of p, at most 0, corrected for :data:`TESTS`.
    """

    n_pairs: int
    own_number: int
    in_order: int
    n_certain: int
    log_p: float


def numbering_of(polar: torch.Tensor, matching: Matching | None, channels: IntArray | None = None) -> NumberAgreement:
    """Count how the numbers of partners agree.

    Args:
        polar: U, ``(k, n_candidate)``. Channels are partners if their entry has the largest absolute value of its row
            and of its column.
        matching: Shows which channels are significant one by one, by channels of the reference. None: none of them.
        channels: Reference channel of each row of U, ascending. None: all channels.

    Returns:
        The counts and p. Cost O(k n).
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
    return NumberAgreement(
        n_pairs=n_pairs,
        own_number=own_number,
        in_order=in_order,
        n_certain=max(int((is_own & is_certain).sum()), int((is_in_order & is_certain).sum())),
        log_p=min(0.0, log_p + math.log(TESTS)),
    )


def log_p_own_number(n: int) -> float:
    """Return the natural log of the bound for n pairs with equal numbers, ``1 / n!``; at most 0."""
    return -math.lgamma(n + 1)


def log_p_in_order(n_pairs: int, n: int) -> float:
    """Return the natural log of the bound for n of some pairs in order, ``C(n_pairs, n) / n!``; at most 0."""
    return min(0.0, log_n_choices(n_pairs, n) - math.lgamma(n + 1))


def mutual_partners(polar: torch.Tensor) -> tuple[IntArray, IntArray]:
    """Return pairs of rows and columns whose entry has the largest absolute value of both, by ascending rows."""
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
    """Return positions of a longest strictly increasing subsequence, ascending. Cost O(k log k)."""
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
