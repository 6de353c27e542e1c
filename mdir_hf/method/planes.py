"""Fit and test transformations of queries and keys that preserve the output of a model with rotary positions.

RoPE rotates each frequency plane of a head by an angle proportional to the position, and an inner transformation must
commute with these rotations. It therefore acts as ``a + bJ`` in each plane (a rotation and a scale, with inverse scales
for Q and K), and permutes heads within KV groups (paper, appendix: ``mu P_1 x P_2 x S``; docs/method/layers.md, "Inside
a layer").
"""

from __future__ import annotations

from typing import Literal

import torch

from mdir_hf.method.blocks import HeadPattern

PlanePairing = Literal["half", "interleaved"]
"""Rows of a head that form plane f: (f, f + d/2) for ``half`` (rotate-half), and (2f, 2f + 1) for ``interleaved``."""


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
