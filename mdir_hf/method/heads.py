"""Map attention heads by all four projections, and rotate rotary planes back.

The rows of W and W Q have the same inner products for every orthogonal Q, so rotary planes can be rotated back before
the map between the residual bases is known. p-values remain valid (docs/method/bound.md). Each rotary plane is treated
as one complex row, determined up to a factor exp(i t).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from mdir_hf.method.assignment import best_assignment
from mdir_hf.method.blocks import FloatArray, HeadPattern, IntArray
from mdir_hf.method.neurons import unit_rows


def unit_heads(rows: torch.Tensor, n_heads: int) -> torch.Tensor:
    """Scale each head of ``(H d, n)`` rows to unit Frobenius norm; zero heads stay zero."""
    heads = rows.reshape(n_heads, -1)
    return unit_rows(heads).reshape(rows.shape)


@dataclass(frozen=True, slots=True, eq=False)
class HeadMap:
    """Matched KV heads ``(k,)`` and query heads ``(k r,)`` of both models, ordered by group."""

    kv_reference: IntArray
    kv_candidate: IntArray
    q_reference: IntArray
    q_candidate: IntArray


def find_head_map(
    kv_patterns: Sequence[HeadPattern],
    q_patterns: Sequence[HeadPattern],
    *,
    n_kv_heads: tuple[int, int],
    n_heads: tuple[int, int],
) -> HeadMap:
    """Find the best map of KV groups, and of query heads within each group, using all projections of a layer.

    Queries are assigned within every pair of groups, then groups are assigned, so the map is optimal. ``kv_patterns``
    (k, v) and ``q_patterns`` (q, o) may be empty.
    """
    sizes = (n_heads[0] // n_kv_heads[0], n_heads[1] // n_kv_heads[1])
    group_score = _weighted(kv_patterns, n_kv_heads)
    query_score = _weighted(q_patterns, n_heads)
    inner: dict[tuple[int, int], tuple[IntArray, IntArray]] = {}
    for g in range(n_kv_heads[0]):
        for h in range(n_kv_heads[1]):
            block = query_score[g * sizes[0] : (g + 1) * sizes[0], h * sizes[1] : (h + 1) * sizes[1]]
            rows, columns = best_assignment(block)
            inner[g, h] = (rows + g * sizes[0], columns + h * sizes[1])
            group_score[g, h] += float(block[rows, columns].sum())
    kv_reference, kv_candidate = best_assignment(group_score)
    pairs = [inner[int(g), int(h)] for g, h in zip(kv_reference, kv_candidate, strict=True)]
    return HeadMap(
        kv_reference=kv_reference.astype(np.int64),
        kv_candidate=kv_candidate.astype(np.int64),
        q_reference=np.concatenate([p[0] for p in pairs]).astype(np.int64),
        q_candidate=np.concatenate([p[1] for p in pairs]).astype(np.int64),
    )


def _weighted(patterns: Sequence[HeadPattern], shape: tuple[int, int]) -> FloatArray:
    total: FloatArray = np.zeros(shape)
    for pattern in patterns:
        total += 0.5 * (pattern.n_reference + pattern.n_candidate) * pattern.scores
    return total


N_REFINEMENTS = 30
"""Number of steps that refine the phases found from the leading eigenvector; each step improves the agreement."""


def turn_back(reference: torch.Tensor, candidate: torch.Tensor) -> torch.Tensor:
    """Rotate the candidate's complex planes, ``(m, n')``, so that their inner products match the reference's.

    Rotating planes by unit factors a multiplies their Hermitian products by a_p conj(a_q), and their bilinear products
    by a_p a_q. The leading eigenvector of a real quadratic form gives the best factors, up to a common sign.
    """
    x, y = reference.to(torch.complex128), candidate.to(torch.complex128)
    between = (x @ x.mH) * (y @ y.mH).conj()
    along = (x @ x.mT) * (y @ y.mT).conj()
    form = torch.cat(
        (
            torch.cat((between.real + along.real, between.imag - along.imag), 1),
            torch.cat((-between.imag - along.imag, between.real - along.real), 1),
        )
    )
    values, vectors = torch.linalg.eigh((form + form.T) / 2)
    turns = _unit(vectors[:, -1])
    for _ in range(N_REFINEMENTS):
        flat = torch.cat((turns.real, turns.imag))
        turns = _unit(form @ flat + values.abs().max() * flat)
    return (y * turns.conj()[:, None]).to(candidate.dtype)


def _unit(flat: torch.Tensor) -> torch.Tensor:
    real, imaginary = flat.chunk(2)
    turns = torch.complex(real, imaginary)
    return torch.where(turns.abs() > 0, turns / turns.abs().clamp(min=1e-300), torch.ones_like(turns))
