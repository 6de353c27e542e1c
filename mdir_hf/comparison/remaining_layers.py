"""Use another projection to map layers that lack the layer map's matrix.

For example, layers that reuse another layer's keys and values (Gemma 3n and 4) have no V.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from mdir_hf.comparison.layer_weights import RoleReader, layers_with, representatives_of
from mdir_hf.comparison.results import LayersEvidence
from mdir_hf.comparison.settings import Settings
from mdir_hf.method.layer_map import LayerMap, LayerMatch, log_p_of_layers, map_layers, with_matches
from mdir_hf.method.map_evidence import weigh_matches
from mdir_hf.model.comparable import PlacedTensors
from mdir_hf.model.roles import Role, part_shape

OTHER_ROLES = (Role.V, Role.K, Role.Q, Role.SSM_IN, Role.UP, Role.O, Role.GATE, Role.DOWN)
"""Matrices that can represent the remaining layers. The narrowest matrix that most of these layers have is read."""

Positions = tuple[int, ...]


def with_remaining_layers(
    accepted: LayersEvidence,
    reference: PlacedTensors,
    candidate: PlacedTensors,
    settings: Settings,
    *,
    log_alpha: float,
) -> LayersEvidence:
    """Extend an accepted layer map to layers that lack its matrix, using another matrix.

    The other matrix is tested at half the significance level. Pairs of layers that neither matrix covers have p = 1. A
    map of sampled layers is returned unchanged.
    """
    models, is_whole = (reference, candidate), accepted.layer_map.pattern != "sampled"
    remaining_places = [_without(model, places) for model, places in zip(models, accepted.positions, strict=True)]
    if not is_whole or not any(remaining_places):
        return accepted
    matched_places = [
        {places[at] for at in side} for places, side in zip(accepted.positions, _matched(accepted), strict=True)
    ]
    rows, columns = (
        tuple(at for at in range(len(model.anatomy.layers)) if at not in of_model)
        for model, of_model in zip(models, matched_places, strict=True)
    )
    role = _other_role(models, (rows, columns), accepted.role)
    if role is None:
        return accepted
    places = tuple(
        tuple(at for at in side if at in layers_with(model, role))
        for model, side in zip(models, (rows, columns), strict=True)
    )
    readers = tuple(RoleReader(model, role, side) for model, side in zip(models, places, strict=True))
    reference_layers = representatives_of(readers[0], accepted.residual_map.carry_in)
    candidate_layers = representatives_of(readers[1])
    level = log_alpha - math.log(2.0)
    (second,) = map_layers(
        [(reference_layers, candidate_layers)],
        log_alpha=level,
        refine="undecided",
        seed=settings.seed,
        device=settings.device,
    )

    def log_p_with_itself(i: int, j: int) -> float:
        return max(log_p_of_layers(layer, layer) for layer in (reference_layers[i].load(), candidate_layers[j].load()))

    weighed = weigh_matches(second, level, log_p_with_itself=log_p_with_itself)
    return _joined(accepted, with_matches(second, weighed.certain), (places[0], places[1]))


def _matched(accepted: LayersEvidence) -> tuple[set[int], set[int]]:
    matches = accepted.layer_map.matches
    return {match.reference for match in matches}, {match.candidate for match in matches}


def _without(model: PlacedTensors, positions: Positions) -> set[int]:
    return set(range(len(model.anatomy.layers))) - set(positions)


def _other_role(models: tuple[PlacedTensors, ...], sides: tuple[Positions, ...], role: Role) -> Role | None:
    candidates: list[tuple[int, int, Role]] = []
    for other_role in OTHER_ROLES:
        places_with_role = [
            [at for at in side if other_role in model.anatomy.layers[at].parts]
            for model, side in zip(models, sides, strict=True)
        ]
        if other_role is role or not all(places_with_role):
            continue
        n_rows = max(_n_rows(model, at[0], other_role) for model, at in zip(models, places_with_role, strict=True))
        candidates.append((-min(map(len, places_with_role)), n_rows, other_role))
    return min(candidates, key=lambda candidate: candidate[:2])[2] if candidates else None


def _n_rows(model: PlacedTensors, position: int, role: Role) -> int:
    part = model.anatomy.layers[position].parts[role]
    shape = part_shape(part, lambda name: tuple(model.tensors.spec(name).shape))
    return shape[-1 if role.writes_stream else 0]


def _joined(accepted: LayersEvidence, second: LayerMap, places: tuple[Positions, Positions]) -> LayersEvidence:
    first = accepted.layer_map
    rows, columns = (tuple(sorted({*mapped, *new})) for mapped, new in zip(accepted.positions, places, strict=True))
    row_at, column_at = ({place: at for at, place in enumerate(side)} for side in (rows, columns))
    log_p = np.zeros((len(rows), len(columns)))
    is_full = np.zeros(log_p.shape, dtype=np.bool_)
    matches: dict[int, LayerMatch] = {}
    for layer_map, sides in ((first, accepted.positions), (second, places)):
        at = np.ix_([row_at[place] for place in sides[0]], [column_at[place] for place in sides[1]])
        log_p[at] = np.minimum(log_p[at], layer_map.log_p)
        is_full[at] |= layer_map.is_full
        for match in layer_map.matches:
            i, j = row_at[sides[0][match.reference]], column_at[sides[1][match.candidate]]
            matches.setdefault(j, LayerMatch(i, j, match.log_p))
    joined_map = replace(first, log_p=log_p, is_full=is_full, ordered=(), n_related=first.n_related + second.n_related)
    ordered = [matches[j] for j in sorted(matches)]
    return replace(accepted, layer_map=with_matches(joined_map, ordered), positions=(rows, columns))
