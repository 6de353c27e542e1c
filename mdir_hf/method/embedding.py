"""Look once at rows of the same tokens in two models: Algorithm 1 of the paper on a sample of rows.

The look describes the two matrices. It never settles a verdict, because a stream can be rotated to match without
copying a weight (docs/method/verdicts.md).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from mdir_hf.method.matching import Matching, best_matching, matching_in_order, quick_matching
from mdir_hf.method.polar import polar_factor_of_rows, row_factors
from mdir_hf.method.rows import PairedRows, pair_rows

VIEWS = ("centred", "whitened")
TESTS_PER_MATRIX = 3 * len(VIEWS)
"""Number of tests per matrix: a permutation, a signed permutation, and unchanged channel order, for each view."""

MOST_ROWS = 1024
"""Further rows are ignored. The thin SVD of 1024 rows of width 4096 takes a second."""

BLOCK_ROWS, FEWEST_BLOCK_ROWS, BLOCK_VALUES = 4096, 512, 1 << 23
"""Maximum and minimum number of rows, and maximum number of values, to read at a time: at most 32 MiB in float32 unless
rows are very wide."""


@dataclass(frozen=True, eq=False)
class EmbeddingLook:
    """The result of one look.

    Attributes:
        rows: Centred, normalised rows of both models.
        polar: ``(n_reference, n_candidate)`` float64 polar factor U of the view with the smallest p.
        rank: Rank of ``polar``.
        matching: Best matching of channels.
        log_p: Natural log of p for the trace, corrected for :data:`TESTS_PER_MATRIX` tests; at most 0.
        is_significant: Whether p is below the level and, if required, also without the best half of the channels.
    """

    rows: PairedRows
    polar: torch.Tensor
    rank: int
    matching: Matching
    log_p: float
    is_significant: bool


def look_at_rows(
    reference: torch.Tensor,
    candidate: torch.Tensor,
    *,
    log_alpha: float,
    must_be_robust: bool = True,
    own_order: bool = True,
    device: str = "cpu",
) -> EmbeddingLook | None:
    """Compare raw rows of the same tokens, ``(r, n_reference)`` and ``(r, n_candidate)``.

    Args:
        reference: Rows of the reference; only the first :data:`MOST_ROWS` are used.
        candidate: Rows of the candidate.
        log_alpha: Natural log of the significance level, fixed in advance.
        must_be_robust: Whether a result that depends on only a few channels is not significant.
        own_order: Whether to also test channels in their own order; p is corrected for this test either way.
        device: torch device.

    Returns:
        The look with the smallest p, or None if fewer than two rows are informative. Takes O(r^2 n) time.
    """
    rows = pair_rows(reference[:MOST_ROWS].to(device), candidate[:MOST_ROWS].to(device))
    if len(rows.reference) < 2:
        return None
    factors = row_factors(rows.reference), row_factors(rows.candidate)
    log_n_tests = math.log(TESTS_PER_MATRIX)
    own_order = own_order and rows.reference.shape[1] == rows.candidate.shape[1]

    def decisive(matching: Matching) -> float:
        return max(matching.log_p, matching.log_p_robust) if must_be_robust else matching.log_p

    best: EmbeddingLook | None = None
    for view in VIEWS:
        factor = polar_factor_of_rows(*factors, whitened=view == "whitened")
        for matching in _matchings(factor.matrix, log_alpha - log_n_tests, must_be_robust, own_order=own_order):
            is_significant = decisive(matching) + log_n_tests < log_alpha
            log_p = min(0.0, matching.log_p + log_n_tests)
            if best is None or (is_significant, -log_p) > (best.is_significant, -best.log_p):
                best = EmbeddingLook(rows, factor.matrix, factor.rank, matching, log_p, is_significant)
            if is_significant:
                return best
    return best


def _matchings(polar: torch.Tensor, level: float, must_be_robust: bool, *, own_order: bool) -> Iterator[Matching]:
    """Yield significant greedy matchings, the matching by channel number, and the best matchings.

    The best matching of unrelated models would take most of the time of a look. If no unsigned matching can be
    significant, a greedy one describes the factor.
    """
    for signed in (False, True):
        quick = quick_matching(polar, signed=signed, log_alpha=level, must_be_robust=must_be_robust)
        if quick is not None:
            yield quick
    if own_order:
        yield matching_in_order(polar)
    for signed in (False, True):
        matching = best_matching(polar, signed=signed, log_alpha=level)
        if matching is None and not signed:
            matching = quick_matching(polar, signed=False)
        if matching is not None:
            yield matching


def block_rows(width: int) -> int:
    """Return how many rows to read at a time for a model of this width."""
    return max(FEWEST_BLOCK_ROWS, min(BLOCK_ROWS, BLOCK_VALUES // max(1, width)))


def matched_scale(reference: torch.Tensor, candidate: torch.Tensor, matching: Matching) -> float:
    """Fit the factor s in ``E' ~ s E P`` by least squares to raw rows of the same tokens.

    Noise in the reference biases the factor; noise in the candidate does not.
    """
    x = reference.double()[:, torch.from_numpy(matching.reference)]
    y = candidate.double()[:, torch.from_numpy(matching.candidate)]
    signs = torch.from_numpy(matching.signs).double()
    return float(((x * y).sum(dim=0) * signs).sum() / (x * x).sum())
