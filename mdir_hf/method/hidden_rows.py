"""Tier 2 of the layer analysis: rows that do not agree under their own numbers, because they were moved.

Each search is corrected for all of its possible outcomes. The proofs follow :mod:`~mdir_hf.method.row_agreement` with a
union bound over the outcomes; rows are also normalized and centred.

- *Heads permuted, rows in order inside*: the same positions of every head. The number of head maps counts, not of row
  maps.
- *Neurons permuted*: k rows of one layer against all m of the other; m! / (m - k)! matchings, times 2^k with signs.
  Both sides are centred, each by its own mean row. A matching P does not commute with centring, but ``c = <P, U> =
  tr(P^T U)`` with U between the centred spaces, and ``|C P^T U C| <= |P^T U|``, so the energies of the matched rows and
  columns remain upper bounds.
- *A map found on another projection*: a fixed matching, without further corrections.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment

from mdir_hf.method.blocks import FloatArray, IntArray
from mdir_hf.method.row_agreement import (
    VALUES_AT_ONCE,
    centred_rows,
    flattened,
)
from mdir_hf.method.significance import log_n_matchings


@dataclass(frozen=True, slots=True, eq=False)
class HeadAgreement:
    """Agreement of sampled rows under the best map of heads, for every pair of layers.

    Attributes:
        log_p: ``(L, L')`` natural log of the bound for each pair alone, at most 0.
        reference: ``(L, L', g)`` matched heads of the reference, ascending, for g heads of the model with fewer.
        candidate: ``(L, L', g)`` the matched head of the candidate for each.
    """

    log_p: FloatArray
    reference: IntArray
    candidate: IntArray


def match_heads(reference: torch.Tensor, candidate: torch.Tensor, *, n_heads: tuple[int, int]) -> HeadAgreement:
    """Compare rows of all layers of two models pairwise, under the best map of heads.

    Args:
        reference: ``(L, H r, n)`` rows in the residual basis of the candidate: r positions of each of H heads.
        candidate: ``(L', H' r, n)`` rows of the same positions.
        n_heads: H and H'.

    Returns:
        The agreement of each pair. One transfer to the host per batch, then small assignments.
    """
    (h, h_other), (n_rows, n_columns) = n_heads, (reference.shape[1], candidate.shape[1])
    r = n_rows // h
    first, second = centred_rows(reference), centred_rows(candidate)
    shape = (len(reference), len(candidate), h, h_other)
    traces, row_energy, column_energy = np.zeros(shape), np.zeros((*shape[:2], h)), np.zeros((*shape[:2], h_other))
    at_once = max(1, VALUES_AT_ONCE // (len(candidate) * n_rows * n_columns))
    for start in range(0, len(reference), at_once):
        here = slice(start, start + at_once)
        factor = flattened(torch.einsum("ikn,jln->ijkl", first[here], second))
        blocks = factor.reshape(*factor.shape[:2], h, r, h_other, r)
        squares = blocks.square()
        values = torch.cat(
            (
                blocks.diagonal(dim1=3, dim2=5).sum(dim=4).flatten(2),
                squares.sum(dim=(3, 4, 5)),
                squares.sum(dim=(2, 3, 5)),
            ),
            dim=2,
        )
        moved = values.double().cpu().numpy()
        traces[here] = moved[:, :, : h * h_other].reshape(-1, *shape[1:])
        row_energy[here] = moved[:, :, h * h_other : h * h_other + h]
        column_energy[here] = moved[:, :, h * h_other + h :]
    few, many = sorted(n_heads)
    log_n = log_n_matchings(few, many, few) + math.log(2.0)
    log_p = np.zeros(shape[:2])
    pairs = np.zeros((2, *shape[:2], few), dtype=np.int64)
    for i, j in np.ndindex(*shape[:2]):
        best = max(
            (linear_sum_assignment(sign * traces[i, j], maximize=True) for sign in (1.0, -1.0)),
            key=lambda found: abs(traces[i, j][found].sum()),
        )
        pairs[:, i, j] = best
        c = float(traces[i, j][best].sum())
        energies = float(row_energy[i, j][best[0]].sum()), float(column_energy[i, j][best[1]].sum())
        log_p[i, j] = _log_p(c, energies, (n_rows, n_columns), log_n)
    return HeadAgreement(log_p, pairs[0], pairs[1])


@dataclass(frozen=True, slots=True, eq=False)
class FoundRows:
    """Partners of sampled rows among all rows of another layer.

    Attributes:
        partners: ``(k,)`` the row of the other layer for each sampled row.
        signs: ``(k,)`` of +1 and -1.
        log_p: Natural log of the bound for this pair of layers alone, at most 0.
    """

    partners: IntArray
    signs: IntArray
    log_p: float


def search_rows(sample: torch.Tensor, every: torch.Tensor, *, is_signed: bool) -> FoundRows:
    """Find partners of k rows of one layer among all m rows of another.

    Args:
        sample: ``(k, n)`` rows in the residual basis of the other model, k <= m.
        every: ``(m, n)`` all rows.
        is_signed: Whether a partner may have the opposite sign.

    Returns:
        The partners in the matching with the largest trace. Cost O(k m n), and one assignment of k x m.
    """
    factor = flattened(centred_rows(sample) @ centred_rows(every).T)
    weights = (factor.abs() if is_signed else factor).double().cpu().numpy()
    rows, columns = linear_sum_assignment(weights, maximize=True)
    values = factor.double().cpu().numpy()
    entries = values[rows, columns]
    energies = float(np.square(values).sum()), float(np.square(values[:, columns]).sum())
    k, m = values.shape
    log_n = log_n_matchings(k, m, k, signed=is_signed)
    signs = np.where(entries < 0.0, -1, 1).astype(np.int64) if is_signed else np.ones(k, dtype=np.int64)
    log_p = _log_p(float(weights[rows, columns].sum()), energies, (k, m), log_n)
    return FoundRows(columns.astype(np.int64), signs, log_p)


def _log_p(trace: float, energies: tuple[float, float], n_rows: tuple[int, int], log_n: float) -> float:
    """Bound a matching of centred rows by the weaker of the two models' invariance."""
    if min(energies) <= 0.0 or min(n_rows) < 2:
        return 0.0
    # The rows of the reference are matched; if the candidate is invariant, it rotates in n_rows[1] - 1 dimensions.
    rate = min((n_rows[1] - 1) / energies[0], (n_rows[0] - 1) / energies[1])
    return min(0.0, log_n - 0.5 * trace * trace * rate)
