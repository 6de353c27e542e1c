"""Trace every expert of a matched layer to an MLP or an expert of the reference."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch

from mdir_hf.comparison.layer_weights import check_shape, read_role
from mdir_hf.method.gauge import ResidualBasisMap, fold_gain
from mdir_hf.method.layer_map import FLOAT64_CHANNELS
from mdir_hf.method.neurons import ExpertMap, MlpWeights, match_experts
from mdir_hf.model.comparable import PlacedTensors
from mdir_hf.model.roles import Role, StoredWeight, read_experts
from mdir_hf.report import ExpertName

_MLP_ROLES = (Role.GATE, Role.UP, Role.DOWN)


@dataclass(frozen=True, slots=True, eq=False)
class ExpertOrigins:
    """Origins of the experts in one candidate layer.

    Attributes:
        layer: The reference layer and the candidate layer.
        reference: Names of the reference's MLPs, in the order that ``found`` uses.
        candidate: Names of the candidate's MLPs.
    """

    layer: tuple[int, int]
    reference: tuple[ExpertName, ...]
    candidate: tuple[ExpertName, ...]
    expert_map: ExpertMap


def is_mixture(model: PlacedTensors, position: int) -> bool:
    """Return whether the layer at a position is a mixture of experts."""
    layer = model.anatomy.layers[position]
    return bool(layer.experts or layer.shared_experts)


def trace_experts(
    reference: PlacedTensors,
    candidate: PlacedTensors,
    layer: tuple[int, int],
    residual_map: ResidualBasisMap,
    *,
    log_alpha: float,
) -> ExpertOrigins | None:
    """Map each expert in a candidate layer to the reference expert it came from.

    A dense layer counts as one expert. ``layer`` contains both positions in ``anatomy.layers``. Return None if either
    layer has no MLP. All reference experts and one candidate expert are in memory at once.
    """
    reference_parts, candidate_parts = mlp_parts(reference, layer[0]), mlp_parts(candidate, layer[1])
    if not reference_parts or not candidate_parts:
        return None
    dtype = torch.float64 if residual_map.n_candidate <= FLOAT64_CHANNELS else torch.float32
    expert_map = match_experts(
        list(_read_mlps(reference, layer[0], reference_parts, dtype)),
        _read_mlps(candidate, layer[1], candidate_parts, dtype),
        residual_map,
        log_alpha=log_alpha,
    )
    return ExpertOrigins(
        layer, tuple(name for name, _ in reference_parts), tuple(name for name, _ in candidate_parts), expert_map
    )


def mlp_parts(model: PlacedTensors, position: int) -> list[tuple[ExpertName, Mapping[Role, StoredWeight]]]:
    """Return all MLPs of a layer (dense, routed and shared) with their names."""
    layer = model.anatomy.layers[position]
    mlps: list[tuple[ExpertName, Mapping[Role, StoredWeight]]] = [
        (None, layer.parts),
        *enumerate(layer.experts),
        *(("shared", parts) for parts in layer.shared_experts),
    ]
    return [
        (name, {role: parts[role] for role in _MLP_ROLES if role in parts})
        for name, parts in mlps
        if Role.UP in parts and Role.DOWN in parts
    ]


def _read_mlps(
    model: PlacedTensors, position: int, mlps: list[tuple[ExpertName, Mapping[Role, StoredWeight]]], dtype: torch.dtype
) -> Iterator[MlpWeights]:
    layer = model.anatomy.layers[position]
    gains = {role: read_role(model, layer, role) for role in (Role.MLP_NORM, Role.SHARED_NORM) if role in layer.parts}

    def folded(weight: torch.Tensor, gain: torch.Tensor | None) -> torch.Tensor:
        return fold_gain(weight.to(dtype), gain, plus_one=model.anatomy.norms_add_one)

    experts = [parts for _, parts in mlps]
    for (name, parts), weights in zip(mlps, read_experts(model.tensors, experts), strict=True):
        has_own = name == "shared" and Role.SHARED_NORM in gains
        gain = gains.get(Role.SHARED_NORM if has_own else Role.MLP_NORM)
        for role, weight in weights.items():
            check_shape(model, layer, role, parts[role], tuple(weight.shape))
        gate = weights.get(Role.GATE)
        up, down = folded(weights[Role.UP], gain), weights[Role.DOWN].to(dtype)
        yield MlpWeights(up, down, None if gate is None else folded(gate, gain))
