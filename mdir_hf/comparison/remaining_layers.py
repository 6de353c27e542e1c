"""Tests layers that a map cannot reach because they lack its matrix, by another projection.

Layers that borrow keys and values (Gemma 3n and 4) have no V of their own. They are not absent: they have queries and
neurons.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from mdir_hf.comparison.layer_weights import RoleReader, layers_with, representatives_of
from mdir_hf.comparison.results import FoundLayers
from mdir_hf.comparison.settings import Settings
from mdir_hf.method.layer_map import LayerMap, LayerMatch, log_p_of_layers, map_layers, with_matches
from mdir_hf.method.map_evidence import weigh_matches
from mdir_hf.model.comparable import PlacedTensors
from mdir_hf.model.roles import Role, part_shape

OTHER_ROLES = (Role.V, Role.K, Role.Q, Role.SSM_IN, Role.UP, Role.O, Role.GATE, Role.DOWN)
"""Matrices that can stand for the remaining layers; of those that all have, the one with fewest rows is read."""

Positions = tuple[int, ...]


def with_remaining_layers(
    found: FoundLayers, reference: PlacedTensors, candidate: PlacedTensors, settings: Settings, *, log_alpha: float
) -> FoundLayers:
    """Add the layers without the matrix of an accepted map to it, tested by another matrix behind the same basis.

    Args:
        found: An accepted map of all layers that have its matrix.
        reference: One model.
        candidate: The other.
        settings: Seed and device.
        log_alpha: Natural log of the level of the first map. A second map is made only behind a first one that is
            significant, and is held to half of that level.

    Returns:
        The map over all layers that were tested; cells of a layer with and one without the first matrix have p = 1. The
        map as it is if every layer has its matrix, if it was sampled, or if the remaining layers share no other matrix.
        Cost: reads one matrix of each remaining layer.
    """
    models, is_whole = (reference, candidate), found.layer_map.pattern != "sampled"
    lacking = [_without(model, places) for model, places in zip(models, found.positions, strict=True)]
    if not is_whole or not any(lacking):
        return found
    matched = [{places[at] for at in side} for places, side in zip(found.positions, _matched(found), strict=True)]
    rows, columns = (
        tuple(at for at in range(len(model.anatomy.layers)) if at not in of_model)
        for model, of_model in zip(models, matched, strict=True)
    )
    role = _other_role(models, (rows, columns), found.role)
    if role is None:
        return found
    places = tuple(
        tuple(at for at in side if at in layers_with(model, role))
        for model, side in zip(models, (rows, columns), strict=True)
    )
    readers = tuple(RoleReader(model, role, side) for model, side in zip(models, places, strict=True))
    mine = representatives_of(readers[0], found.residual_map.carry_in)
    other = representatives_of(readers[1])
    level = log_alpha - math.log(2.0)
    (second,) = map_layers(
        [(mine, other)], log_alpha=level, refine="undecided", seed=settings.seed, device=settings.device
    )

    def log_p_with_itself(i: int, j: int) -> float:
        return max(log_p_of_layers(layer, layer) for layer in (mine[i].load(), other[j].load()))

    weighed = weigh_matches(second, level, log_p_with_itself=log_p_with_itself)
    return _joined(found, with_matches(second, weighed.certain), (places[0], places[1]))


def _matched(found: FoundLayers) -> tuple[set[int], set[int]]:
    """Places on the map that have a match, of the reference and of the candidate."""
    matches = found.layer_map.matches
    return {match.reference for match in matches}, {match.candidate for match in matches}


def _without(model: PlacedTensors, positions: Positions) -> set[int]:
    return set(range(len(model.anatomy.layers))) - set(positions)


def _other_role(models: tuple[PlacedTensors, ...], sides: tuple[Positions, ...], role: Role) -> Role | None:
    """The matrix with fewest rows among those that most of the remaining layers of both models have."""
    candidates: list[tuple[int, int, Role]] = []
    for other in OTHER_ROLES:
        having = [
            [at for at in side if other in model.anatomy.layers[at].parts]
            for model, side in zip(models, sides, strict=True)
        ]
        if other is role or not all(having):
            continue
        n_rows = max(_n_rows(model, at[0], other) for model, at in zip(models, having, strict=True))
        candidates.append((-min(map(len, having)), n_rows, other))
    return min(candidates, key=lambda each: each[:2])[2] if candidates else None


def _n_rows(model: PlacedTensors, position: int, role: Role) -> int:
    part = model.anatomy.layers[position].parts[role]
    shape = part_shape(part, lambda name: tuple(model.tensors.spec(name).shape))
    return shape[-1 if role.writes_stream else 0]


def _joined(found: FoundLayers, second: LayerMap, places: tuple[Positions, Positions]) -> FoundLayers:
    """Put two maps into one, over the layers of both."""
    first = found.layer_map
    rows, columns = (tuple(sorted({*mine, *more})) for mine, more in zip(found.positions, places, strict=True))
    row_at, column_at = ({place: at for at, place in enumerate(side)} for side in (rows, columns))
    log_p = np.zeros((len(rows), len(columns)))
    is_full = np.zeros(log_p.shape, dtype=np.bool_)
    matches: dict[int, LayerMatch] = {}
    for layer_map, sides in ((first, found.positions), (second, places)):
        at = np.ix_([row_at[place] for place in sides[0]], [column_at[place] for place in sides[1]])
        log_p[at] = np.minimum(log_p[at], layer_map.log_p)
        is_full[at] |= layer_map.is_full
        for match in layer_map.matches:
            i, j = row_at[sides[0][match.reference]], column_at[sides[1][match.candidate]]
            matches.setdefault(j, LayerMatch(i, j, match.log_p))
    joined = replace(first, log_p=log_p, is_full=is_full, ordered=(), n_related=first.n_related + second.n_related)
    ordered = [matches[j] for j in sorted(matches)]
    return replace(found, layer_map=with_matches(joined, ordered), positions=(rows, columns))
