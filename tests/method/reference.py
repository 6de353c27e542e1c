"""Textbook implementations in float64 numpy, entirely in memory, that the package must agree with."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.optimize import linear_sum_assignment


@dataclass
class TextbookResult:
    """The result of Algorithm 1 in float64, computed as in a textbook."""

    log_p: float
    trace: float
    columns: np.ndarray
    polar: np.ndarray


def centred_unit_rows(rows):
    rows = np.asarray(rows, dtype=np.float64)
    rows = rows - rows.mean(axis=0)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def whitened_rows(rows):
    left, _, right_t = np.linalg.svd(rows, full_matrices=False)
    return left @ right_t


def polar(cross):
    left, _, right_t = np.linalg.svd(cross, full_matrices=False)
    return left @ right_t


def embedding_test(reference, candidate, *, signed=False, whitened=False):
    """Algorithm 1 at full rank, the narrower model on the rows: ln p = ln n2!/(n2-n1)! (+ n1 ln 2) - exponent.

    The exponent is the weaker of the two that are valid when one side or the other is rotation invariant. The result
    is not cut at 0.
    """
    x, y = centred_unit_rows(reference), centred_unit_rows(candidate)
    if whitened:
        x, y = whitened_rows(x), whitened_rows(y)
    u = polar(x.T @ y)
    if u.shape[0] > u.shape[1]:
        u = u.T
    n1, n2 = u.shape
    weights = np.abs(u) if signed else u
    rows, columns = linear_sum_assignment(weights, maximize=True)
    c = float(weights[rows, columns].sum())
    narrow = float((u**2).sum())
    wide = float((u[:, columns] ** 2).sum())
    log_count = sum(math.log(k) for k in range(n2 - n1 + 1, n2 + 1)) + (n1 * math.log(2.0) if signed else 0.0)
    return TextbookResult(log_count - c * c / 2.0 * min(n2 / narrow, n1 / wide), c, columns, u)


def embedding_test_in_order(reference, candidate):
    """The identity, fixed in advance: ln p = -c^2 / 2 for the plain trace c of a square factor of full rank."""
    u = polar(centred_unit_rows(reference).T @ centred_unit_rows(candidate))
    return -(max(0.0, float(np.trace(u))) ** 2) / 2.0


def haar(n, rng):
    q, r = np.linalg.qr(rng.standard_normal((n, n)))
    return q * np.sign(np.diag(r))
