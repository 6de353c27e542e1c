"""Chooses the layers of a map, and decides from some rows whether a wide matrix is worth reading."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from mdir_hf.comparison.layer_weights import RoleReader, layers_with
from mdir_hf.comparison.settings import Settings
from mdir_hf.method.gauge import ResidualBasisMap
from mdir_hf.method.matching import REMARKABLE
from mdir_hf.method.neurons import unit_rows
from mdir_hf.method.row_screen import log_p_of_screen, sample_sizes, sampled_rows, screen_rows
from mdir_hf.model.comparable import PlacedTensors
from mdir_hf.model.roles import Role

SPREAD_LAYERS = 8
"""Layers of the shallower model that are mapped where the level does not ask for all: each has its ancestor, or its
descendant, among the layers of the other, so that a few spread over the depth tell."""

MANY_CHANNELS, MANY_MLP_CHANNELS = 2048, 1024
"""Matrices with more rows are screened by some of their rows before they are read whole; those of MLPs, which are tried
last and are most of what would be read, from fewer rows on."""

RUN_ROWS = 16
"""Neighbouring rows in a run, at least."""


def chosen_layers(
    reference: PlacedTensors, candidate: PlacedTensors, role: Role, *, every: bool
) -> tuple[tuple[int, ...], ...]:
    """Choose the layers that a map looks at, without a look at the weights.

    Args:
        reference: One model.
        candidate: The other.
        role: The role that stands for their layers.
        every: Whether all are wanted.

    Returns:
        Positions of the reference's layers and of the candidate's: all of the deeper model's, and up to
        :data:`SPREAD_LAYERS` of the shallower one's (the candidate's where they are as deep), spread over its depth.
        All of both where the shallower one has the narrower matrix.
    """
    mine, other = layers_with(reference, role), layers_with(candidate, role)
    if every or not mine or not other:
        return mine, other
    n_channels = [RoleReader(m, role, p).n_channels(p[0]) for m, p in ((reference, mine), (candidate, other))]
    is_mine = len(mine) < len(other)
    # Rows of the narrower matrix are looked for in the whole of the wider one: only layers of that one are left out.
    if n_channels[0] != n_channels[1] and (n_channels[0] > n_channels[1]) != is_mine and len(mine) != len(other):
        return mine, other
    if len(mine) == len(other):
        is_mine = n_channels[0] > n_channels[1]
    return (spread(mine, SPREAD_LAYERS), other) if is_mine else (mine, spread(other, SPREAD_LAYERS))


def spread(positions: Sequence[int], at_most: int) -> tuple[int, ...]:
    """Choose some layers, the first and the last among them; ``at_most`` is two or more."""
    if len(positions) <= at_most:
        return tuple(positions)
    step = (len(positions) - 1) / (at_most - 1)
    return tuple(positions[round(step * i)] for i in range(at_most))


def is_wide(role: Role, n_channels: int) -> bool:
    """Whether a matrix of so many rows in this role is screened before it is read whole."""
    return n_channels > (min(MANY_CHANNELS, MANY_MLP_CHANNELS) if role is Role.UP else MANY_CHANNELS)


def worth_reading(
    readers: tuple[RoleReader, RoleReader], residual_maps: Sequence[ResidualBasisMap], settings: Settings
) -> list[bool]:
    """Tell for each residual-basis map whether the layers behind it are worth reading whole.

    Args:
        readers: Of the reference and of the candidate.
        residual_maps: Residual-basis maps.
        settings: Seed and device.

    Returns:
        True where sampled rows are significant at 0.1 % over all maps, and everywhere if the matrices have few rows. A
        map that is not made is reported with p = 1, so that nothing is gained by looking; what might be lost is what
        the screen does not see (``docs/method/layers.md``).
    """
    n_channels = [reader.n_channels(reader.positions[0]) for reader in readers]
    if not is_wide(readers[0].role, max(n_channels)):
        return [True] * len(residual_maps)
    mine, other = (sampled(readers, side, seed=settings.seed).to(settings.device) for side in (0, 1))
    level = math.log(REMARKABLE) - math.log(max(1, len(residual_maps)))
    found = []
    for residual_map in residual_maps:
        # A rotation costs as much as the test itself: the side with fewer rows is carried.
        is_back = mine.shape[:2].numel() > other.shape[:2].numel()
        first, second = (
            (mine, _carried(residual_map.reversed, other)) if is_back else (_carried(residual_map, mine), other)
        )
        cells = screen_rows(first, second) if len(first) < len(second) else screen_rows(second, first)
        found.append(log_p_of_screen(cells, any_part=residual_map.kind != "rotation") < level)
    return found


def _carried(residual_map: ResidualBasisMap, rows: torch.Tensor) -> torch.Tensor:
    """Carry sampled rows ``(L, k, n)`` into the other residual basis, and bring them to unit length again."""
    return unit_rows(residual_map.carry_in(rows.flatten(0, 1))).view(*rows.shape[:2], -1)


def sampled(readers: tuple[RoleReader, RoleReader], side: int, *, seed: int) -> torch.Tensor:
    """Read the sampled rows of the layers of one model: ``(L, rows, n)`` float32, of unit length.

    Args:
        readers: Of the reference and of the candidate.
        side: Whose rows: 0 for the reference.
        seed: Seed of the sample.
    """
    n_layers = [len(reader.positions) for reader in readers]
    n_channels = [min(reader.n_channels(p) for p in reader.positions) for reader in readers]
    few, many = sample_sizes(max(n_channels))
    has_few = n_layers[side] < n_layers[1 - side] or (side == 1 and n_layers[0] == n_layers[1])
    groups = [_n_heads(reader) for reader in readers]
    run = max(RUN_ROWS, -(-few // max(groups)))
    channels = torch.from_numpy(
        sampled_rows(n_channels[side], few if has_few else many, n_groups=groups[side], run=run, seed=seed)
    )
    return torch.stack([readers[side].read(position, channels).float() for position in readers[side].positions])


def _n_heads(reader: RoleReader) -> int:
    """Heads that the rows of a role divide into; 1 where they have none, or not these."""
    if reader.role not in (Role.V, Role.K):
        return 1
    anatomy, position = reader.model.anatomy, reader.positions[0]
    heads = anatomy.layers[position].heads
    n_heads = (heads.n_kv_heads if heads else anatomy.n_kv_heads or anatomy.n_heads) or 1
    return n_heads if reader.n_channels(position) % n_heads == 0 else 1
