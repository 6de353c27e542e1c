"""The paper's Algorithms 1 to 3 as printed, on whole matrices in float64, with the paper's p.

They check and reproduce; no verdict depends on them. Unlike the rest of this package, they keep the lengths of rows, do
not fold gains, allow no signs, and correct p only by the factor L that Algorithms 2 and 3 print. The paper leaves two
choices open. If widths differ, D in the formula is the larger one. If a product has no full rank, its orthogonal part
is cut to the rank, as the odd polynomials of the paper's appendix do.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from mdir_hf.method.assignment import best_assignment

P_0 = math.log(1e-10)
"""Natural log of the paper's threshold p_0."""

RANK_TOLERANCE = 1e-12
"""Singular values below this share of the largest one count as zero. float64 has a precision of 2e-16."""


@dataclass(frozen=True, eq=False)
class PaperMatch:
    """The permutation P with the largest trace Tr(P U^T).

    Attributes:
        rows: ``(k,)`` matched rows of U, ascending.
        columns: ``(k,)`` their columns.
        trace: The trace.
        rank: Rank of U.
        log_p: Natural log of the paper's p, ``ln D! - trace^2 / 2``; it may exceed 0.
    """

    rows: npt.NDArray[np.int64]
    columns: npt.NDArray[np.int64]
    trace: float
    rank: int
    log_p: float


def orthogonal_part(matrix: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Return Ortho(A) = A (A^T A)^(-1/2), cut to the rank of A, and that rank. Takes O(n^3) time."""
    left, scale, right = torch.linalg.svd(matrix.double(), full_matrices=False)
    rank = int((scale > RANK_TOLERANCE * scale[0]).sum()) if len(scale) and float(scale[0]) > 0.0 else 0
    return left[:, :rank] @ right[:rank], rank


def best_match(u: torch.Tensor, rank: int) -> PaperMatch:
    """Return P = argmax Tr(P U^T) by the Hungarian algorithm, and its p."""
    rows, columns = best_assignment(u.numpy())
    trace = float(u[rows, columns].sum())
    log_p = math.lgamma(max(u.shape) + 1) - max(0.0, trace) ** 2 / 2
    return PaperMatch(rows.astype(np.int64), columns.astype(np.int64), trace, rank, log_p)


def algorithm_1(blocks: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> tuple[PaperMatch, torch.Tensor]:
    """Match the channels of two embeddings.

    Args:
        blocks: Blocks of rows for the same tokens, ``(b, n)`` of the reference and ``(b, n')`` of the candidate.

    Returns:
        The match of U = Ortho(E'^T E), and U_E, ``(n', n)``: the permutation if p is below p_0, else U.

    Raises:
        ValueError: If there are no blocks.
    """
    cross: torch.Tensor | None = None
    for reference, candidate in blocks:
        product = candidate.double().T @ reference.double()
        cross = product if cross is None else cross + product
    if cross is None:
        raise ValueError("Algorithm 1 needs rows of at least one common token")
    u, rank = orthogonal_part(cross)
    match = best_match(u, rank)
    if match.log_p >= P_0:
        return match, u
    permutation = torch.zeros_like(u)
    permutation[match.rows, match.columns] = 1.0
    return match, permutation


def algorithm_2(
    reference: Sequence[torch.Tensor], candidate: Iterable[torch.Tensor], u: torch.Tensor
) -> npt.NDArray[np.float64]:
    """Return ln p of the value projections of every pair of layers, ``(L, L')``, times L; at most 0.

    ``reference`` are matrices X ``(n, D)``, ``candidate`` matrices ``(n', D')``; ``u`` is U_E.
    """
    carried = [u @ x.double() for x in reference]
    columns = [[best_match(*orthogonal_part(x.T @ y.double())).log_p for x in carried] for y in candidate]
    log_p = np.array(columns, dtype=np.float64).reshape(len(columns), len(reference)).T
    corrected: npt.NDArray[np.float64] = np.minimum(0.0, log_p + math.log(max(1, len(reference))))
    return corrected


def algorithm_3(
    reference: Mapping[str, torch.Tensor], candidate: Mapping[str, torch.Tensor], u: torch.Tensor
) -> dict[str, PaperMatch]:
    """Match the columns of each projection that two layers have in common; p is for each projection alone.

    Values are matrices X ``(n, D)`` and ``(n', D')`` that read the residual stream; ``u`` is U_E.
    """
    return {
        name: best_match(*orthogonal_part((u @ x.double()).T @ candidate[name].double()))
        for name, x in reference.items()
        if name in candidate
    }
