"""Match attention heads using all four projections, allowing any invertible map of each head's values.

Replacing V_h with ``H_h V_h`` and O_h with ``O_h H_h^-1`` preserves a model's function for any invertible H_h
(orthogonal in the paper). It also preserves the row space of V_h and the column space of O_h.

Because the rows of W and W Q have the same inner products for every orthogonal Q, heads can be paired, and rotary
planes rotated back, before the map between the residual bases is known. p-values remain valid (docs/method/bound.md).
Each rotary plane is treated as one complex row, determined up to a factor exp(i t).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment

from mdir_hf.method.blocks import FloatArray, HeadPattern, IntArray
from mdir_hf.method.neurons import unit_rows
from mdir_hf.method.polar import RELATIVE_RANK_TOLERANCE, polar_factor, thin_svd
from mdir_hf.method.significance import log_n_matchings

SUBSPACE_NULL = (
    "The models are independent, and given everything else in it the way one of them divides the space that a "
    "layer's heads read or write among its heads is uniformly random."
)
"""Null hypothesis of the subspace tests. It is exact for independent Gaussian heads with a total width of at most n.
The space that all heads span together has no effect, so features that both models learned are not evidence."""


def unit_heads(rows: torch.Tensor, n_heads: int) -> torch.Tensor:
    """Scale each head of ``(H d, n)`` rows to unit Frobenius norm; zero heads stay zero."""
    heads = rows.reshape(n_heads, -1)
    return unit_rows(heads).reshape(rows.shape)


def canonical_heads(rows: torch.Tensor, n_heads: int) -> torch.Tensor:
    """Normalise heads so that an invertible map of any head only rotates the result.

    Each head's rows (of v or of o transposed, ``(H d, n)``) are replaced with their polar factor, and then the whole
    stack with its own. Both steps commute with rotations inside heads, as the block bound requires.

    Returns:
        ``(H d, n)``, a partial isometry.
    """
    m, n = rows.shape
    heads = rows.reshape(n_heads, m // n_heads, n)
    left, scale, right_t = thin_svd(heads)
    is_in_rank = scale > RELATIVE_RANK_TOLERANCE[rows.dtype] * scale[:, :1]
    orthonormal = (left * is_in_rank[:, None, :]) @ right_t
    return polar_factor(orthonormal.reshape(m, n)).matrix


@dataclass(frozen=True, slots=True, eq=False)
class HeadMap:
    """Matched KV heads ``(k,)`` and query heads ``(k r,)`` of both models, ordered by group.

    Attributes:
        log_n_kv_maps: Natural log of the number of possible maps of KV heads.
        log_n_q_maps: Natural log of the number of possible maps of query heads that respect the groups.
    """

    kv_reference: IntArray
    kv_candidate: IntArray
    q_reference: IntArray
    q_candidate: IntArray
    log_n_kv_maps: float
    log_n_q_maps: float


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
    k = min(sizes)
    group_score = _weighted(kv_patterns, n_kv_heads)
    query_score = _weighted(q_patterns, n_heads)
    inner: dict[tuple[int, int], tuple[IntArray, IntArray]] = {}
    for g in range(n_kv_heads[0]):
        for h in range(n_kv_heads[1]):
            block = query_score[g * sizes[0] : (g + 1) * sizes[0], h * sizes[1] : (h + 1) * sizes[1]]
            rows, columns = linear_sum_assignment(block, maximize=True)
            inner[g, h] = (rows + g * sizes[0], columns + h * sizes[1])
            group_score[g, h] += float(block[rows, columns].sum())
    kv_reference, kv_candidate = linear_sum_assignment(group_score, maximize=True)
    pairs = [inner[int(g), int(h)] for g, h in zip(kv_reference, kv_candidate, strict=True)]
    narrow, wide = sorted(n_kv_heads)
    log_n_kv = log_n_matchings(narrow, wide, narrow)
    return HeadMap(
        kv_reference=kv_reference.astype(np.int64),
        kv_candidate=kv_candidate.astype(np.int64),
        q_reference=np.concatenate([p[0] for p in pairs]).astype(np.int64),
        q_candidate=np.concatenate([p[1] for p in pairs]).astype(np.int64),
        log_n_kv_maps=log_n_kv,
        log_n_q_maps=log_n_kv + narrow * log_n_matchings(k, max(sizes), k),
    )


def _weighted(patterns: Sequence[HeadPattern], shape: tuple[int, int]) -> FloatArray:
    total: FloatArray = np.zeros(shape)
    for pattern in patterns:
        total += 0.5 * (pattern.n_reference + pattern.n_candidate) * pattern.scores
    return total


@dataclass(frozen=True, slots=True, eq=False)
class HeadTransformation:
    """Matched heads and the linear map fitted to each, from reference rows to candidate rows.

    Attributes:
        matrices: ``(k, d', d)``, H_h with ``W'_h ~ H_h W_sigma(h)``; for the transpose of o, ``H_h^-T``.
        residual: ``|W' - fit(W)|_F / |W'|_F`` over the matched heads; 0 for an exact copy.
        skewness: Mean of ``|H H^T / s - 1|_F / sqrt(d')`` over heads; 0 for scaled rotations, around 1 for generic
            maps.
    """

    reference: IntArray
    candidate: IntArray
    matrices: torch.Tensor
    residual: float
    skewness: float


def solve_heads(
    carried: torch.Tensor,
    weight: torch.Tensor,
    reference: IntArray,
    candidate: IntArray,
    *,
    n_heads: tuple[int, int],
) -> HeadTransformation:
    """Fit a linear map to every matched head by least squares.

    ``carried`` contains the reference rows ``(H d, n)`` in the candidate's residual basis, and ``weight`` contains the
    candidate rows ``(H' d', n)``.
    """
    n = carried.shape[1]
    x = carried.reshape(n_heads[0], -1, n)[torch.from_numpy(reference)]
    y = weight.reshape(n_heads[1], -1, n)[torch.from_numpy(candidate)]
    matrices = y @ torch.linalg.pinv(x)
    residual = float((y - matrices @ x).norm() / y.norm().clamp(min=torch.finfo(y.dtype).tiny))
    gram = matrices @ matrices.mT
    scale = gram.diagonal(dim1=1, dim2=2).mean(dim=1).clamp(min=torch.finfo(y.dtype).tiny)
    unit = torch.eye(gram.shape[1], dtype=gram.dtype, device=gram.device)
    skewness = (gram / scale[:, None, None] - unit).norm(dim=(1, 2)).mean() / gram.shape[1] ** 0.5
    return HeadTransformation(reference, candidate, matrices, residual, float(skewness))


N_REFINEMENTS = 30
"""Number of steps that refine the phases found from the leading eigenvector; each step improves the agreement."""


def pair_heads(reference: torch.Tensor, candidate: torch.Tensor) -> tuple[IntArray, IntArray, float]:
    """Pair the heads of two layers by comparing the inner products between the rows of each head.

    Inputs are unit rows, ``(h, d, n)`` and ``(h', d, n')``; complex rows represent rotary planes.

    Returns:
        Reference heads in ascending order and their partners, ``(min(h, h'),)`` each, and the mean correlation between
        the inner products of paired heads, in [-1, 1] and near 0 for unrelated models.

    Raises:
        ValueError: If the models' heads have different numbers of rows.
    """
    if reference.shape[1] != candidate.shape[1]:
        raise ValueError(f"heads of {reference.shape[1]} rows cannot be paired with heads of {candidate.shape[1]}")
    resemblance = _standard_products(reference) @ _standard_products(candidate).T
    heads, candidate_heads = linear_sum_assignment(resemblance.cpu().numpy(), maximize=True)
    return heads, candidate_heads, float(resemblance[heads, candidate_heads].mean())


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


def _standard_products(rows: torch.Tensor) -> torch.Tensor:
    """Return the centred, normalised inner products between the rows of each head, one row per head."""
    d = rows.shape[1]
    i, j = torch.triu_indices(d, d, offset=1)
    if rows.is_complex():
        within, k = torch.triu_indices(d, d)
        sizes = [(rows @ rows.mH).abs()[:, i, j], (rows @ rows.mT).abs()[:, within, k]]
        products = torch.cat(sizes, dim=1).double()
    else:
        products = (rows @ rows.mT)[:, i, j].double()
    if len(products) > 2:
        products = products - products.mean(dim=0)
    products = products - products.mean(dim=1, keepdim=True)
    standard: torch.Tensor = products / products.norm(dim=1, keepdim=True).clamp(min=1e-30)
    return standard
