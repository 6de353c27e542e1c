"""Choose the layers to map and their matrix, and decide whether sampled rows justify reading wide matrices."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
import torch

from mdir_hf.comparison.layer_weights import RoleReader, layers_with, n_channels_of
from mdir_hf.comparison.settings import Settings
from mdir_hf.method.gauge import ResidualBasisMap
from mdir_hf.method.matching import REMARKABLE
from mdir_hf.method.neuron_numbers import sample_neurons
from mdir_hf.method.neurons import unit_rows
from mdir_hf.method.screening import log_p_of_screen, sample_sizes, sampled_rows, screen_rows
from mdir_hf.model.comparable import PlacedTensors
from mdir_hf.model.roles import Role

REPRESENTATIVES = (Role.KV_LATENT, Role.V, Role.K, Role.UP)
"""Matrices that can represent a layer, in the order tried. V comes first, as in the paper, except in latent attention,
in which K and V share a smaller matrix. Each matrix tried counts as a test."""

LAST: tuple[Role, ...] = (Role.UP, Role.Q, Role.O, Role.GATE, Role.DOWN)
"""Matrices that are tried last because they contain most of the weights. For these, all residual-basis maps are tried
together, so that each layer is read only once. Except for up, they are tried only at level ``full``."""

SPREAD_LAYERS = 8
"""Number of layers of the shallower model to map, unless the level requires all layers. In related models, each of its
layers has a partner in the deeper model, so a few layers spread over the depth are enough."""

MANY_CHANNELS, MANY_MLP_CHANNELS = 2048, 1024
"""Matrices with more rows than this are screened using sampled rows before they are read whole. The limit is lower for
up, which is tried last and accounts for most of the bytes."""

RUN_ROWS = 16
"""Minimum number of adjacent rows that are sampled together."""

RUN_NEURONS = 8
"""Number of adjacent rows of up that are sampled together."""


def representatives(reference: PlacedTensors, candidate: PlacedTensors, *, every: bool = False) -> tuple[Role, ...]:
    """Return the roles that can represent a layer in both models, in the order to try them.

    Roles that occur in more layers come first. Roles in :data:`LAST` follow, most of them only if ``every`` is set.
    """

    def left_out(role: Role) -> float:
        return max(1.0 - len(layers_with(m, role)) / len(m.anatomy.layers) for m in (reference, candidate))

    def in_both(roles: Iterable[Role]) -> list[Role]:
        return [role for role in roles if all(layers_with(m, role) for m in (reference, candidate))]

    present = in_both(dict.fromkeys((*REPRESENTATIVES, *LAST) if every else REPRESENTATIVES))
    if not present and any(model.anatomy.decided_by == "shapes" for model in (reference, candidate)):
        present = in_both(LAST)[:1]  # few roles are recognised from shapes
    return tuple(sorted(present, key=lambda role: (LAST.index(role), 0.0) if role in LAST else (-1, left_out(role))))


def chosen_layers(
    reference: PlacedTensors, candidate: PlacedTensors, role: Role, *, every: bool
) -> tuple[tuple[int, ...], ...]:
    """Return the positions of the layers that a map compares in each model, without reading weights.

    These are all layers of the deeper model and up to :data:`SPREAD_LAYERS` layers spread over the shallower one. If
    ``every`` is set or the shallower model has the narrower matrix, they are all layers of both models.
    """
    reference_layers, candidate_layers = layers_with(reference, role), layers_with(candidate, role)
    if every or not reference_layers or not candidate_layers:
        return reference_layers, candidate_layers
    n_channels = [
        n_channels_of(model, role, positions[0])
        for model, positions in ((reference, reference_layers), (candidate, candidate_layers))
    ]
    spreads_reference = len(reference_layers) < len(candidate_layers)
    # Rows of the narrower matrix are matched against the whole wider matrix, so only layers of the wider one can be
    # skipped.
    if (
        n_channels[0] != n_channels[1]
        and (n_channels[0] > n_channels[1]) != spreads_reference
        and len(reference_layers) != len(candidate_layers)
    ):
        return reference_layers, candidate_layers
    if len(reference_layers) == len(candidate_layers):
        spreads_reference = n_channels[0] > n_channels[1]
    return (
        (spread(reference_layers, SPREAD_LAYERS), candidate_layers)
        if spreads_reference
        else (reference_layers, spread(candidate_layers, SPREAD_LAYERS))
    )


def spread(positions: Sequence[int], at_most: int) -> tuple[int, ...]:
    """Choose up to ``at_most`` evenly spaced layers, including the first and last; ``at_most`` is at least 2."""
    if len(positions) <= at_most:
        return tuple(positions)
    step = (len(positions) - 1) / (at_most - 1)
    return tuple(positions[round(step * i)] for i in range(at_most))


def is_wide(role: Role, n_channels: int) -> bool:
    """Return whether a matrix is screened before it is read whole."""
    return n_channels > (min(MANY_CHANNELS, MANY_MLP_CHANNELS) if role is Role.UP else MANY_CHANNELS)


def worth_reading(
    readers: tuple[RoleReader, RoleReader],
    residual_maps: Sequence[ResidualBasisMap],
    settings: Settings,
    *,
    neuron_seed: int,
) -> list[bool]:
    """Decide for each residual-basis map whether to read the layers in full.

    They are read if sampled rows are significant at 0.1% after correcting for the number of maps, or if the matrices
    have only a few rows. Skipped maps get p = 1. ``neuron_seed`` seeds the choice of neurons.
    """
    n_channels = [reader.n_channels(reader.positions[0]) for reader in readers]
    if not is_wide(readers[0].role, max(n_channels)):
        return [True] * len(residual_maps)
    reference_rows, candidate_rows = (
        sampled(readers, side, seed=settings.seed, neuron_seed=neuron_seed).to(settings.device) for side in (0, 1)
    )
    level = math.log(REMARKABLE) - math.log(max(1, len(residual_maps)))
    is_worth_reading = []
    for residual_map in residual_maps:
        # A rotation costs as much as the test itself, so it is applied to the side with fewer rows.
        is_back = reference_rows.shape[:2].numel() > candidate_rows.shape[:2].numel()
        first, second = (
            (reference_rows, _carried(residual_map.reversed, candidate_rows))
            if is_back
            else (_carried(residual_map, reference_rows), candidate_rows)
        )
        cells = screen_rows(first, second) if len(first) < len(second) else screen_rows(second, first)
        is_worth_reading.append(log_p_of_screen(cells, any_part=residual_map.kind != "rotation") < level)
    return is_worth_reading


def _carried(residual_map: ResidualBasisMap, rows: torch.Tensor) -> torch.Tensor:
    return unit_rows(residual_map.carry_in(rows.flatten(0, 1))).view(*rows.shape[:2], -1)


def sampled(readers: tuple[RoleReader, RoleReader], side: int, *, seed: int, neuron_seed: int) -> torch.Tensor:
    """Read sampled rows of one model's layers, ``(L, rows, n)`` float32, scaled to unit length.

    In MLPs of equal size, they belong to the first neurons that :meth:`Witness.ask_every_layer` compares.
    """
    n_layers = [len(reader.positions) for reader in readers]
    n_channels = [min(reader.n_channels(p) for p in reader.positions) for reader in readers]
    few, many = sample_sizes(max(n_channels))
    has_few = n_layers[side] < n_layers[1 - side] or (side == 1 and n_layers[0] == n_layers[1])
    n_rows = few if has_few else many
    if readers[side].role is Role.UP and n_channels[0] == n_channels[1]:
        numbers = np.sort(sample_neurons(n_channels[side], n_rows, run=RUN_NEURONS, seed=neuron_seed))
    else:
        groups = [_n_heads(reader) for reader in readers]
        run = max(RUN_ROWS, -(-few // max(groups)))
        numbers = sampled_rows(n_channels[side], n_rows, n_groups=groups[side], run=run, seed=seed)
    channels = torch.from_numpy(numbers)
    return torch.stack([readers[side].read(position, channels).float() for position in readers[side].positions])


def _n_heads(reader: RoleReader) -> int:
    if reader.role not in (Role.V, Role.K):
        return 1
    anatomy, position = reader.model.anatomy, reader.positions[0]
    heads = anatomy.layers[position].heads
    n_heads = (heads.n_kv_heads if heads else anatomy.n_kv_heads or anatomy.n_heads) or 1
    return n_heads if reader.n_channels(position) % n_heads == 0 else 1
