"""Fit and test transformations of queries and keys that preserve the output of a model with rotary positions.

RoPE rotates each frequency plane of a head by an angle proportional to the position, and an inner transformation must
commute with these rotations. It therefore acts as ``a + bJ`` in each plane (a rotation and a scale, with inverse scales
for Q and K), and permutes heads within KV groups (paper, appendix: ``mu P_1 x P_2 x S``; docs/method/layers.md, "Inside
a layer").
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from mdir_hf.method.blocks import HeadPattern, IntArray
from mdir_hf.method.neurons import inner_polar

PlanePairing = Literal["half", "interleaved"]
"""Rows of a head that form plane f: (f, f + d/2) for ``half`` (rotate-half), and (2f, 2f + 1) for ``interleaved``."""

FREQUENCY_NULL = (
    "Only rows of one frequency are taken to have no preferred axes among the heads, for each frequency given "
    "the others."
)
"""Null hypothesis of :func:`frequency_pattern`, weaker than left invariance of all rows."""

LAYOUTS: tuple[PlanePairing, ...] = ("half", "interleaved")


def plane_rows(
    n_rows: int, n_heads: int, layout: PlanePairing, *, rotary_dim: int | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return row indices of q or k for each head and frequency plane.

    The first ``rotary_dim`` rows of each head are rotated; None means all rows.

    Returns:
        ``(n_heads, rotary_dim / 2, 2)`` int64 rows of the planes, and ``(n_heads, head_dim - rotary_dim)`` rows that
        are not rotated.

    Raises:
        ValueError: If the rows do not divide into heads, or the rotary rows into planes.
    """
    head_dim, remainder = divmod(n_rows, n_heads)
    turned = head_dim if rotary_dim is None else rotary_dim
    if remainder or turned % 2 or turned > head_dim:
        raise ValueError(
            f"{n_rows} rows of {n_heads} heads with {turned} rotary rows each: expected whole heads and pairs of rows"
        )
    n_planes = turned // 2
    pairs = torch.arange(turned).reshape(2, n_planes).T if layout == "half" else torch.arange(turned).reshape(-1, 2)
    starts = head_dim * torch.arange(n_heads)
    still = starts[:, None] + torch.arange(turned, head_dim)
    return starts[:, None, None] + pairs, still


def normalise_planes(rows: torch.Tensor, planes: torch.Tensor) -> torch.Tensor:
    """Scale the two rows of each plane jointly to unit energy, which removes the scales s and 1/s from Q and K.

    Rows are ``(H d, n)``, planes ``(H, F, 2)``. Rows outside the planes and zero planes do not change.
    """
    scaled = rows.clone()
    energy = rows[planes].square().sum(dim=(2, 3), keepdim=True)
    scaled[planes] = rows[planes] / energy.clamp(min=torch.finfo(rows.dtype).tiny).sqrt()
    return scaled


def plane_pattern(
    polar: torch.Tensor,
    reference: tuple[torch.Tensor, torch.Tensor],
    candidate: tuple[torch.Tensor, torch.Tensor],
    *,
    signs_only: bool = False,
) -> HeadPattern:
    """Compute the energy of U, ``(H d, H' d)``, along ``a + bJ`` in corresponding planes of each pair of heads.

    For the 2 x 2 block u of a plane, the energy is ``((u11 + u22)^2 + (u12 - u21)^2) / 2``, or only its first term if
    only signs are free (``signs_only``, QK-norm). Unrotated rows of a head add the energy of their whole block.
    ``reference`` and ``candidate`` come from :func:`plane_rows`.

    A plane adds its rows' energy to N of :mod:`~mdir_hf.method.blocks`, or half of it for ``signs_only``.

    Raises:
        ValueError: If the two models have different numbers of planes per head.
    """
    (rows, still), (columns, still_columns) = reference, candidate
    if rows.shape[1] != columns.shape[1] or still.shape[1] != still_columns.shape[1]:
        raise ValueError(
            f"planes per head: {rows.shape[1]} against {columns.shape[1]}; only equal frequencies can be matched"
        )
    u = polar.double()
    blocks = u[rows[:, None, :, :, None], columns[None, :, :, None, :]]  # (H, H', F, 2, 2)
    energy = (blocks[..., 0, 0] + blocks[..., 1, 1]).square()
    if not signs_only:
        energy = energy + (blocks[..., 0, 1] - blocks[..., 1, 0]).square()
    scores = 0.5 * energy.sum(dim=2)
    share = 0.5 if signs_only else 1.0
    squares = u.square()
    by_row, by_column = squares.sum(dim=1), squares.sum(dim=0)
    reference_energy = share * by_row[rows].sum(dim=(1, 2))
    candidate_energy = share * by_column[columns].sum(dim=(1, 2))
    if still.shape[1]:
        still_blocks = squares[still[:, None, :, None], still_columns[None, :, None, :]]
        scores = scores + still_blocks.sum(dim=(2, 3))
        reference_energy = reference_energy + still.shape[1] * by_row[still].sum(dim=1)
        candidate_energy = candidate_energy + still.shape[1] * by_column[still_columns].sum(dim=1)
    return HeadPattern(
        scores=scores.cpu().numpy(),
        reference_energy=reference_energy.cpu().numpy(),
        candidate_energy=candidate_energy.cpu().numpy(),
        n_reference=polar.shape[0],
        n_candidate=polar.shape[1],
    )


def frequency_pattern(
    reference_rows: torch.Tensor,
    candidate_rows: torch.Tensor,
    reference: torch.Tensor,
    candidate: torch.Tensor,
    *,
    signs_only: bool = False,
) -> HeadPattern:
    """Compute energies along ``a + bJ`` in a separate polar factor for each frequency.

    Rows of different frequencies need not be jointly isotropic: for the first-layer keys of unrelated models, ln p
    reaches -4.6 with :func:`plane_pattern`, but only -0.1 here, under the weaker :data:`FREQUENCY_NULL`. The factors
    ``U_f = Ortho(A_f A'_f^T)`` are ``2H x 2H'``. If each frequency is conditioned on the previous ones, the moment
    bounds of :mod:`~mdir_hf.method.blocks` multiply. The total N is then the sum over frequencies, and m is 2H.

    Rows are ``(H d, n)``, with normalised planes; planes are ``(H, F, 2)``.

    Raises:
        ValueError: If the two models have different numbers of planes per head.
    """
    if reference.shape[1] != candidate.shape[1]:
        raise ValueError(
            f"planes per head: {reference.shape[1]} against {candidate.shape[1]}; only equal frequencies can be matched"
        )
    parts = []
    for f in range(reference.shape[1]):
        polar = inner_polar(reference_rows[reference[:, f].reshape(-1)], candidate_rows[candidate[:, f].reshape(-1)])
        rows, columns = (plane_rows(size, size // 2, "interleaved") for size in polar.shape)
        parts.append(plane_pattern(polar, rows, columns, signs_only=signs_only))
    return HeadPattern(
        scores=sum((p.scores for p in parts[1:]), parts[0].scores),
        reference_energy=sum((p.reference_energy for p in parts[1:]), parts[0].reference_energy),
        candidate_energy=sum((p.candidate_energy for p in parts[1:]), parts[0].candidate_energy),
        n_reference=parts[0].n_reference,
        n_candidate=parts[0].n_candidate,
    )


@dataclass(frozen=True, slots=True, eq=False)
class PlaneTransformation:
    """Matched heads, and the transformation of each plane from the reference's q or k to the candidate's.

    Attributes:
        turns: ``(k, F, 2)``, a and b of each plane: rows (y1, y2) become (a y1 - b y2, b y1 + a y2).
        residual: ``|W' - fit(W)|_F / |W'|_F`` on the planes; 0 for an exact copy.
    """

    reference: IntArray
    candidate: IntArray
    turns: torch.Tensor
    reference_layout: PlanePairing
    candidate_layout: PlanePairing
    residual: float


def solve_planes(
    carried: torch.Tensor,
    weight: torch.Tensor,
    reference: IntArray,
    candidate: IntArray,
    *,
    planes: tuple[torch.Tensor, torch.Tensor],
    layouts: tuple[PlanePairing, PlanePairing],
    signs_only: bool = False,
) -> PlaneTransformation:
    """Fit ``a + bJ`` to every plane by least squares, given the head map.

    ``carried`` ``(H d, n)`` is the reference's q or k in the candidate's residual basis, and ``weight`` ``(H' d, n)``
    is the candidate's q or k. ``planes`` are ``(H, F, 2)`` and ``(H', F, 2)``. ``signs_only`` fixes b at 0 (QK-norm).
    """
    x = carried[planes[0][torch.from_numpy(reference)]]  # (k, F, 2, n)
    y = weight[planes[1][torch.from_numpy(candidate)]]
    scale = x.square().sum(dim=(2, 3)).clamp(min=torch.finfo(x.dtype).tiny)
    a = (x * y).sum(dim=(2, 3)) / scale
    x1, x2 = x[:, :, 0], x[:, :, 1]
    b = (x1 * y[:, :, 1] - x2 * y[:, :, 0]).sum(dim=2) / scale
    if signs_only:
        b = torch.zeros_like(b)
    turns = torch.stack((a, b), dim=2)
    a, b = a[..., None], b[..., None]
    turned = torch.stack((a * x1 - b * x2, b * x1 + a * x2), dim=2)
    residual = float((y - turned).norm() / y.norm().clamp(min=torch.finfo(y.dtype).tiny))
    return PlaneTransformation(reference, candidate, turns, *layouts, residual)
