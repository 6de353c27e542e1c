"""Fit the inner transformations of attention: head maps, linear maps of values, and rotations of queries and keys.

The transformations are the paper's (appendix): ``W_Q = mu P_1 x P_2 x S``, ``W_K = mu^-1 P_1 x S``, and one matrix H
per key-value head for V and O. Here, S (signs in the paper) may also rotate rotary planes, and H may be any invertible
matrix. Each fit uses K and Q, or V and O, together to preserve the layer's output. Maps with more free parameters must
reduce the squared residual by a factor of :data:`MUCH_BETTER`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from mdir_hf.method.blocks import FloatArray, HeadPattern, IntArray
from mdir_hf.method.heads import HeadMap, find_head_map
from mdir_hf.method.planes import PlanePairing, plane_rows

MUCH_BETTER = 1.5
"""Factor by which a map with more free parameters must reduce the squared residual. On pure noise, a free matrix for
each head of 64 rows reduces it by 11% at width 576."""

EXACT = 1e-10
"""Relative squared residuals up to this value are treated as rounding errors."""

LIKELY_SAME = 0.5
"""Minimum similarity, in [0, 1], at which heads with the same number are assumed to be the same head."""

LARGEST_CONDITION = 1e8
"""Maximum condition number of a fitted matrix; worse matrices are discarded."""

BlockKind = Literal["identity", "signs", "turns", "scaled_turns", "rotations", "scaled_rotations", "matrices"]


@dataclass(frozen=True, slots=True, eq=False)
class BlockMap:
    """One matrix H for each matched key-value head: ``y = H x`` for k or v, and ``y = H^-T x`` for q or o.

    Attributes:
        matrices: ``(k, d, d)`` float64; None for the identity.
        residual: Root mean square of both sides' relative residuals after mapping the candidate back.
    """

    kind: BlockKind
    matrices: torch.Tensor | None
    residual: float


@dataclass(frozen=True, slots=True, eq=False)
class Sides:
    """Both sides of one layer's product, V and O or K and Q, split into heads.

    Attributes:
        single: ``(G, d, n)``, v or k.
        grouped: ``(G, r, d, n)``, o transposed or q, with r query heads in each group.
    """

    single: torch.Tensor
    grouped: torch.Tensor

    @classmethod
    def of(cls, single: torch.Tensor, grouped: torch.Tensor, n_kv_heads: int, n_heads: int) -> Sides:
        """Split ``(G d, n)`` and ``(H d, n)`` rows into heads."""
        n = single.shape[1]
        return cls(
            single.reshape(n_kv_heads, -1, n), grouped.reshape(n_kv_heads, n_heads // n_kv_heads, -1, grouped.shape[1])
        )

    def select(self, kv: IntArray, queries: IntArray) -> Sides:
        """Select k key-value heads and their ``k r`` query heads, which are ordered by group."""
        flat = self.grouped.flatten(0, 1)[torch.from_numpy(queries)]
        return Sides(self.single[torch.from_numpy(kv)], flat.reshape(len(kv), -1, *flat.shape[1:]))

    def rows(self, chosen: torch.Tensor) -> Sides:
        """Select the same rows of every head."""
        return Sides(self.single[:, chosen], self.grouped[:, :, chosen])


def fit_heads(
    values: tuple[Sides, Sides] | None,
    keys: tuple[Sides, Sides] | None,
    *,
    n_kv_heads: tuple[int, int],
    n_heads: tuple[int, int],
    layouts: tuple[PlanePairing, PlanePairing] | None,
    rotary_dim: int | None,
) -> HeadMap:
    """Match the heads of two layers using v, o, k and q together.

    ``layouts`` are the models' pairings of rotary rows, or None if there are no rotary positions. ``rotary_dim`` is the
    number of rotated rows per head and defaults to all. Heads with the same number are compared first; if any of
    these pairs is too dissimilar, all pairs are compared.
    """
    are_alike = n_kv_heads[0] == n_kv_heads[1] and n_heads[0] == n_heads[1]
    scores: tuple[list[HeadPattern], list[HeadPattern]] = ([], [])
    for own_only in (True, False) if are_alike else (False,):
        scores = ([], [])
        for sides, is_turned in ((values, False), (keys, layouts is not None)):
            if sides is None:
                continue
            for at, x, y in (
                (0, sides[0].single, sides[1].single),
                (1, sides[0].grouped.flatten(0, 1), sides[1].grouped.flatten(0, 1)),
            ):
                if is_turned and layouts is not None and x.shape[1] == y.shape[1]:
                    likeness = _plane_likeness(x, y, layouts, rotary_dim, own_only=own_only)
                else:
                    likeness = _span_likeness(x, y, own_only=own_only)
                scores[at].append(_pattern(likeness))
        if own_only and all(
            float(pattern.scores.diagonal().min()) >= LIKELY_SAME for patterns in scores for pattern in patterns
        ):
            break
    return find_head_map(scores[0], scores[1], n_kv_heads=n_kv_heads, n_heads=n_heads)


def fit_blocks(x: Sides, y: Sides) -> BlockMap:
    """Fit one invertible matrix per head to V and O, or to K and Q if there are no rotary positions.

    ``x`` contains the reference's matched heads in the candidate's residual basis, and ``y`` contains their partners.

    Returns:
        The simplest sufficient map: identity, rotations, scaled rotations, or invertible matrices.
    """
    d = x.single.shape[1]
    if d != y.single.shape[1]:
        raise ValueError(f"heads of {d} and {y.single.shape[1]} rows cannot be mapped by square matrices")
    grams = _Grams.of(x, y)
    unit = torch.eye(d, dtype=x.single.dtype).expand(len(x.single), d, d)
    squared = grams.residual(unit)
    if squared <= EXACT:
        return BlockMap("identity", None, squared**0.5)
    forms: list[tuple[BlockKind, torch.Tensor, float]] = [("identity", unit, squared)]

    def offer(kind: BlockKind, h: torch.Tensor) -> None:
        forms.append((kind, h, grams.residual(h)))

    single_norms, grouped_norms = grams.single_norms, grams.grouped_norms
    tiny = torch.finfo(x.single.dtype).tiny
    cross = grams.single_cross.mT / (single_norms[0] * single_norms[1]).clamp(min=tiny)[:, None, None]
    weights = (grouped_norms[0] * grouped_norms[1]).clamp(min=tiny)[:, :, None, None]
    left, _, right = torch.linalg.svd(cross + (grams.grouped_cross.mT / weights).sum(dim=1))
    rotations = left @ right
    offer("rotations", rotations)
    log_scale = _log_ratio(*single_norms) - _log_ratio(*grouped_norms).mean(dim=1)
    offer("scaled_rotations", rotations * (0.5 * log_scale).exp()[:, None, None])
    # Least squares from d x d products: one side gives H^-1 = (x y^T)(y y^T)^-1, and the other gives H^T in the same
    # way.
    by_single = _divided(grams.single_cross, grams.single_gram)
    if _is_regular(by_single):
        offer("matrices", torch.linalg.inv(by_single))
    by_grouped = _divided(grams.grouped_cross.sum(dim=1), grams.grouped_gram).mT
    if _is_regular(by_grouped):
        offer("matrices", by_grouped)
    return _simplest(forms)


def fit_planes(
    x: Sides,
    y: Sides,
    layouts: tuple[PlanePairing, PlanePairing],
    *,
    rotary_dim: int | None = None,
    signs_only: bool = False,
) -> BlockMap:
    """Fit a rotation and a scale for each rotary plane of each key-value head, using K and Q together.

    ``x`` and ``y`` are as for :func:`fit_blocks`, which fits any rows beyond ``rotary_dim``. ``layouts`` are the
    models' pairings of rotary rows. With ``signs_only`` (QK-norm), planes may only change sign.

    Returns:
        The simplest sufficient map: identity, rotations (or signs), or scaled rotations.
    """
    d = x.single.shape[1]
    (planes, still), (other_planes, other_still) = (
        (index[0] for index in plane_rows(d, 1, layout, rotary_dim=rotary_dim)) for layout in layouts
    )
    k_x, q_x = (_complex(rows, planes) for rows in (x.single, x.grouped))
    k_y, q_y = (_complex(rows, other_planes) for rows in (y.single, y.grouped))
    k_inner, q_inner = (k_x.conj() * k_y).sum(dim=-1), (q_x.conj() * q_y).sum(dim=-1)
    k_norms, q_norms = ((a.norm(dim=-1), b.norm(dim=-1)) for a, b in ((k_x, k_y), (q_x, q_y)))
    tiny = torch.finfo(x.single.dtype).tiny
    agreement = k_inner / (k_norms[0] * k_norms[1]).clamp(min=tiny)
    agreement = agreement + (q_inner / (q_norms[0] * q_norms[1]).clamp(min=tiny)).sum(dim=1)
    turn = torch.polar(torch.ones_like(agreement.real), agreement.angle())
    log_scale = _log_ratio(*k_norms) - _log_ratio(*q_norms).mean(dim=1)
    unturned = torch.ones_like(turn)
    forms: list[tuple[BlockKind, torch.Tensor]] = [("identity", unturned)]
    if signs_only:
        forms.append(("signs", torch.where(agreement.real < 0, -unturned, unturned)))
    else:
        forms += [("turns", turn), ("scaled_turns", turn * (0.5 * log_scale).exp())]

    def dense(z: torch.Tensor) -> torch.Tensor:
        h = torch.zeros(len(z), d, d, dtype=x.single.dtype)
        (r1, r2), (c1, c2) = other_planes.unbind(dim=1), planes.unbind(dim=1)
        h[:, r1, c1] = h[:, r2, c2] = z.real
        h[:, r2, c1], h[:, r1, c2] = z.imag, -z.imag
        h[:, other_still, still] = 1.0
        return h

    turned, other_turned = planes.flatten(), other_planes.flatten()
    grams = _Grams.of(x.rows(turned), y.rows(other_turned))
    best = _simplest(
        [
            (kind, h, grams.residual(h[:, other_turned][:, :, turned]))
            for kind, h in ((kind, dense(z)) for kind, z in forms)
        ],
        is_unit=torch.equal(planes, other_planes),
    )
    if not len(still) or signs_only:
        return best
    still_map = fit_blocks(x.rows(still), y.rows(other_still))
    if still_map.matrices is None and best.matrices is None:
        return BlockMap("identity", None, max(best.residual, still_map.residual))
    h = _dense_or_unit(best, x).clone()
    if still_map.matrices is not None:
        h[:, other_still[:, None], still[None, :]] = still_map.matrices
    kind: BlockKind = best.kind if still_map.matrices is None else "matrices"
    return BlockMap(kind, h, max(best.residual, still_map.residual))


def _simplest(forms: Sequence[tuple[BlockKind, torch.Tensor, float]], *, is_unit: bool = True) -> BlockMap:
    """Choose the simplest map that fits almost as well as the best one."""
    least = min(squared for _, _, squared in forms)
    for kind, h, squared in forms:
        if squared <= max(EXACT, MUCH_BETTER * least) and (kind != "matrices" or squared == least):
            return BlockMap(kind, None if kind == "identity" and is_unit else h, squared**0.5)
    raise AssertionError("the best form passes its own test")


def _dense_or_unit(block_map: BlockMap, x: Sides) -> torch.Tensor:
    d = x.single.shape[1]
    return (
        torch.eye(d, dtype=x.single.dtype).expand(len(x.single), d, d)
        if block_map.matrices is None
        else block_map.matrices
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Grams:
    """Gram matrices and cross products of k matched heads: ``(k, d, d)``, or ``(k, r, d, d)`` for each query head."""

    single_cross: torch.Tensor
    single_gram: torch.Tensor
    single_norms: tuple[torch.Tensor, torch.Tensor]
    grouped_cross: torch.Tensor
    grouped_gram: torch.Tensor
    grouped_norms: tuple[torch.Tensor, torch.Tensor]

    @classmethod
    def of(cls, x: Sides, y: Sides) -> _Grams:
        norm = torch.linalg.vector_norm
        return cls(
            x.single @ y.single.mT,
            y.single @ y.single.mT,
            (norm(x.single, dim=(-2, -1)), norm(y.single, dim=(-2, -1))),
            x.grouped @ y.grouped.mT,
            (y.grouped @ y.grouped.mT).sum(dim=1),
            (norm(x.grouped, dim=(-2, -1)), norm(y.grouped, dim=(-2, -1))),
        )

    def residual(self, h: torch.Tensor) -> float:
        """Map the candidate back using H, and return its relative squared error, averaged over both sides."""
        sides = (
            (torch.linalg.inv(h), self.single_gram, self.single_cross, self.single_norms[0]),
            (h.mT, self.grouped_gram, self.grouped_cross.sum(dim=1), self.grouped_norms[0]),
        )
        total = 0.0
        for back, gram, cross, norms in sides:
            energy = float(norms.square().sum())
            error = float(((back @ gram) * back).sum()) - 2.0 * float((back * cross.to(back)).sum()) + energy
            total += max(0.0, error) / max(energy, torch.finfo(h.dtype).tiny)
        return total / 2


def _divided(cross: torch.Tensor, gram: torch.Tensor) -> torch.Tensor:
    """Return ``C G^-1`` for each head; NaN if the Gram matrix is singular."""
    solved, info = torch.linalg.solve_ex(gram, cross.mT)
    return torch.where((info == 0)[:, None, None], solved, torch.full_like(solved, torch.nan)).mT


def _is_regular(matrices: torch.Tensor) -> bool:
    if not bool(torch.isfinite(matrices).all()):
        return False
    values = torch.linalg.svdvals(matrices)
    return bool((values[:, -1] * LARGEST_CONDITION > values[:, 0]).all())


def _log_ratio(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    tiny = torch.finfo(x.dtype).tiny
    return y.clamp(min=tiny).log() - x.clamp(min=tiny).log()


def _complex(rows: torch.Tensor, planes: torch.Tensor) -> torch.Tensor:
    first, second = rows[..., planes[:, 0], :], rows[..., planes[:, 1], :]
    return torch.complex(first, second)


def _pattern(scores: FloatArray) -> HeadPattern:
    nothing = np.zeros(0)
    return HeadPattern(scores, nothing, nothing, 1, 1)


def _span_likeness(x: torch.Tensor, y: torch.Tensor, *, own_only: bool) -> FloatArray:
    """Return the ``(H, H')`` shares of each head's energy that lie in the row space of each head of the other layer."""
    n_heads, d, n = x.shape
    tiny = torch.finfo(x.dtype).tiny
    energy = x.square().sum(dim=(1, 2)).clamp(min=tiny)
    gram = y @ y.mT
    ridge = 1e-12 * gram.diagonal(dim1=1, dim2=2).mean(dim=1).clamp(min=tiny)
    root = torch.linalg.cholesky(gram + ridge[:, None, None] * torch.eye(y.shape[1], dtype=y.dtype))
    if own_only:
        shares_in_place = torch.linalg.solve_triangular(root, y @ x.mT, upper=False).square().sum(dim=(1, 2)) / energy
        return np.diag(shares_in_place.double().numpy())
    cross = (y.reshape(-1, n) @ x.reshape(-1, n).T).reshape(len(y), -1, n_heads * d)
    spanned = torch.linalg.solve_triangular(root, cross, upper=False).square()
    shares = spanned.reshape(len(y), -1, n_heads, d).sum(dim=(1, 3)).T / energy[:, None]
    likeness: FloatArray = shares.double().numpy()
    return likeness


def _plane_likeness(
    x: torch.Tensor,
    y: torch.Tensor,
    layouts: tuple[PlanePairing, PlanePairing],
    rotary_dim: int | None,
    *,
    own_only: bool,
) -> FloatArray:
    """Return the ``(H, H')`` squared cosines between planes of the same frequency, averaged over frequencies."""
    planes = [plane_rows(x.shape[1], 1, layout, rotary_dim=rotary_dim)[0][0] for layout in layouts]
    a, b = (_complex(rows, index) for rows, index in zip((x, y), planes, strict=True))
    a, b = (z / z.norm(dim=-1, keepdim=True).clamp(min=torch.finfo(x.dtype).tiny) for z in (a, b))
    if own_only:
        cosines_in_place = (a.conj() * b).sum(dim=-1).abs().square().mean(dim=1)
        return np.diag(cosines_in_place.double().numpy())
    products = torch.matmul(a.conj().transpose(0, 1), b.permute(1, 2, 0))  # (F, H, H')
    likeness: FloatArray = products.abs().square().mean(dim=0).double().numpy()
    return likeness
