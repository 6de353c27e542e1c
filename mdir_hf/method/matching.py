"""Find the best permutation of channels, signed or unsigned, and bound its p-value.

p-values are valid regardless of how a matching was found.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from mdir_hf.method.assignment import best_assignment
from mdir_hf.method.significance import log_p_entry, log_p_matching, log_p_signs
from mdir_hf.report import REMARKABLE_LOG10_P
from mdir_hf.thresholds import CHANNEL_ALPHA

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]

REMARKABLE = 10.0**REMARKABLE_LOG10_P
"""Significance level at which something is examined further."""

ROWS_AT_ONCE = 256
"""Number of rows of a factor processed at a time, to avoid a copy of the whole factor."""

ROUNDING = 1e-4
"""Relative margin for rounding in float32 sums when a factor is rejected without solving an assignment."""

GREEDY_ROUNDS, GREEDY_REST = 8, 256
"""Greedy matching stops after this many rounds, or when at most this many rows are left for the exact assignment."""


@dataclass(frozen=True, slots=True, eq=False)
class Matching:
    """An injective matching of the narrower model's channels into the wider model's, and its evidence.

    Attributes:
        reference: Matched channels, ascending.
        candidate: Partner of each reference channel.
        entries: Matched entries of U, as absolute values if signed.
        signs: ``+1`` or ``-1`` for each pair; all +1 unless signed.
        n_negative: Number of negative matched entries of U.
        log_p: Natural log of the bound for this matching alone, uncorrected.
        log_p_half: ``log_p`` after removing the best half of the channels.
        log_p_signs: Natural log of the sign test's p; None unless the matching was fixed in advance.
        is_significant: ``(n_narrow,)``, whether each channel is individually significant, at 1% over all entries.
    """

    reference: IntArray
    candidate: IntArray
    entries: FloatArray
    signs: IntArray
    n_negative: int
    signed: bool
    trace: float
    log_p: float
    log_p_half: float
    is_significant: npt.NDArray[np.bool_]
    log_p_signs: float | None = None

    @property
    def log_p_robust(self) -> float:
        """Natural log of a p-value that a few strongly matching channels cannot make small.

        This is p without the best half of the channels or, for a fixed matching, twice the smaller of that p and the
        sign test's p.
        """
        if self.log_p_signs is None:
            return self.log_p_half
        return min(0.0, min(self.log_p_half, self.log_p_signs) + math.log(2.0))

    @property
    def n_significant(self) -> int:
        """Number of individually significant channels."""
        return int(self.is_significant.sum())

    @property
    def is_identity(self) -> bool:
        """Whether channels keep their numbers, judged by the individually significant ones if there are any."""
        keep = self.is_significant if self.is_significant.any() else np.ones_like(self.is_significant)
        same = (self.reference == self.candidate)[keep]
        # A few channels may be matched wrongly by chance; a real permutation moves more than 5% of them.
        return bool(same.mean() > 0.95)


def best_matching(polar: torch.Tensor, *, signed: bool, log_alpha: float | None = None) -> Matching | None:
    """Find the matching with the largest trace (paper, Algorithm 1).

    If ``signed``, match absolute values. Return None if not even the sum of row maxima is significant at ``log_alpha``.
    Takes O(n^2) time, or at worst O(n^3) for the assignment.
    """
    factor = _Factor.of(polar, signed=signed, log_alpha=log_alpha)
    if factor is None:
        return None
    return factor.weigh(factor.columns if factor.is_optimal else _assignment(factor.weights))


def quick_matching(
    polar: torch.Tensor, *, signed: bool, log_alpha: float | None = None, must_be_robust: bool = True
) -> Matching | None:
    """Find a matching greedily, or return None if it is not significant at ``log_alpha``.

    With ``must_be_robust``, it must also be significant without the best half of its channels. Takes O(n^2) time.
    """
    factor = _Factor.of(polar, signed=signed, log_alpha=log_alpha)
    if factor is None:
        return None
    matching = factor.weigh(factor.columns if factor.is_optimal else _greedy(factor.weights))
    decisive = max(matching.log_p, matching.log_p_robust) if must_be_robust else matching.log_p
    return matching if log_alpha is None or decisive < log_alpha else None


def matching_in_order(polar: torch.Tensor) -> Matching:
    """Evaluate the matching of each channel to the channel with the same number.

    ``polar`` is U, ``(k, n)`` with k <= n. Because this matching is fixed in advance, p needs no correction.
    """
    columns = np.arange(polar.shape[0], dtype=np.int64)
    factor = _Factor(polar, polar, columns, *line_energies(polar), signed=False, transposed=False)
    return factor.weigh(columns, is_fixed=True)


@dataclass(frozen=True, slots=True, eq=False)
class _Factor:
    """A polar factor with its narrower side as rows."""

    narrow: torch.Tensor
    weights: torch.Tensor
    columns: IntArray
    row_energy: FloatArray
    column_energy: FloatArray
    signed: bool
    transposed: bool

    @classmethod
    def of(cls, polar: torch.Tensor, *, signed: bool, log_alpha: float | None) -> _Factor | None:
        """Prepare a factor, or return None if no matching can be significant."""
        transposed = polar.shape[0] > polar.shape[1]
        narrow = polar.T if transposed else polar  # (n_narrow, n_wide)
        weights = narrow.abs() if signed else narrow
        best, where = weights.max(dim=1)
        n_narrow, n_wide = narrow.shape
        total = float(torch.linalg.vector_norm(narrow)) ** 2
        most = float(best.double().clamp(min=0).sum())  # no matching has a larger trace

        def cannot_reach(wide_energy: float) -> bool:
            if log_alpha is None:
                return False
            # The margin covers rounding, because sums are computed in the factor's dtype.
            best_case = log_p_matching(
                most * (1.0 + ROUNDING),
                sizes=(n_narrow, n_wide),
                energies=(total * (1.0 - ROUNDING), max(wide_energy * (1.0 - ROUNDING), 1e-300)),
                signed=signed,
            )
            return best_case > log_alpha

        if cannot_reach(0.0):
            return None
        row_energy, column_energy = line_energies(narrow)
        # The columns with the least energy bound the exponent of any matching from above.
        if cannot_reach(float(np.sort(column_energy)[:n_narrow].sum())):
            return None
        columns = where.cpu().numpy().astype(np.int64)
        return cls(narrow, weights, columns, row_energy, column_energy, signed, transposed)

    @property
    def is_optimal(self) -> bool:
        """Whether the rows' largest entries are in different columns, and so form the best matching."""
        return len(np.unique(self.columns)) == len(self.columns)

    def weigh(self, columns: IntArray, *, is_fixed: bool = False) -> Matching:
        """Evaluate the matching of each row i of the narrower model to ``columns[i]``."""
        n_narrow, n_wide = self.narrow.shape
        rows = np.arange(n_narrow, dtype=np.int64)
        where = torch.from_numpy(columns).to(self.narrow.device)
        signed_entries = self.narrow.gather(1, where[:, None])[:, 0].double().cpu().numpy()
        entries = np.abs(signed_entries) if self.signed else signed_entries
        row_energy, column_energy = self.row_energy, self.column_energy[columns]

        def log_p(keep: npt.NDArray[np.intp]) -> float:
            return log_p_matching(
                float(entries[keep].sum()),
                sizes=(n_narrow, n_wide),
                energies=(float(row_energy[keep].sum()), float(column_energy[keep].sum())),
                n_matched=len(keep),
                signed=self.signed,
                is_fixed=is_fixed,
            )

        ascending = np.argsort(entries, kind="stable")
        n_comparisons = n_narrow * n_wide * (2 if self.signed else 1)
        by_itself = np.maximum(
            log_p_entry(entries, line_energy=row_energy, n_haar=n_wide, n_comparisons=n_comparisons),
            log_p_entry(entries, line_energy=column_energy, n_haar=n_narrow, n_comparisons=n_comparisons),
        )
        reference, candidate = (columns, rows) if self.transposed else (rows, columns)
        order = np.argsort(reference)
        return Matching(
            reference=reference[order],
            candidate=candidate[order],
            entries=entries[order],
            signs=np.where(self.signed & (signed_entries < 0), -1, 1).astype(np.int64)[order],
            n_negative=int((signed_entries < 0).sum()),
            signed=self.signed,
            trace=float(entries.sum()),
            log_p=log_p(rows),
            log_p_half=log_p(ascending[: n_narrow - n_narrow // 2]),
            is_significant=(by_itself < np.log(CHANNEL_ALPHA))[order],
            log_p_signs=log_p_signs(entries) if is_fixed else None,
        )


def _assignment(weights: torch.Tensor) -> IntArray:
    _, columns = best_assignment(weights.cpu().numpy())
    return np.asarray(columns, dtype=np.int64)


def _greedy(weights: torch.Tensor) -> IntArray:
    """Assign columns to rows greedily in rounds, then solve the small remainder exactly."""
    columns = np.empty(weights.shape[0], dtype=np.int64)
    rows, free = torch.arange(weights.shape[0]), torch.arange(weights.shape[1])
    scores = weights
    for _ in range(GREEDY_ROUNDS):
        if len(rows) <= GREEDY_REST:
            break
        best, where = (part.cpu() for part in scores.max(dim=1))
        order = torch.argsort(best, descending=True)
        assigned_columns, first = np.unique(where[order].numpy(), return_index=True)
        winners = order.numpy()[first]
        columns[rows.numpy()[winners]] = free.numpy()[assigned_columns]
        losers, is_free = np.ones(len(rows), dtype=bool), np.ones(len(free), dtype=bool)
        losers[winners], is_free[assigned_columns] = False, False
        keep_rows, keep_free = torch.from_numpy(np.flatnonzero(losers)), torch.from_numpy(np.flatnonzero(is_free))
        rows, free = rows[keep_rows], free[keep_free]
        scores = scores[keep_rows.to(scores.device)][:, keep_free.to(scores.device)]
    if len(rows):
        columns[rows.numpy()] = free.numpy()[_assignment(scores)]
    return columns


def line_energies(factor: torch.Tensor) -> tuple[FloatArray, FloatArray]:
    """Return the sum of squares of each row and of each column, as float64."""
    rows, columns = [], torch.zeros(factor.shape[1], dtype=torch.float64, device=factor.device)
    for start in range(0, factor.shape[0], ROWS_AT_ONCE):
        squares = factor[start : start + ROWS_AT_ONCE].square()
        rows.append(squares.sum(dim=1))
        columns += squares.sum(dim=0)
    return torch.cat(rows).double().cpu().numpy(), columns.cpu().numpy()
