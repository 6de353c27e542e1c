"""Mixtures of experts: traces every expert of a matched layer to an MLP or an expert of the reference."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch

from mdir_hf.comparison.layer_weights import check_shape, read_role
from mdir_hf.method.experts import ExpertMap, match_experts
from mdir_hf.method.gauge import ResidualBasisMap, fold_gain
from mdir_hf.method.layer_map import FLOAT64_CHANNELS
from mdir_hf.method.neurons import MlpWeights
from mdir_hf.model.comparable import PlacedTensors
from mdir_hf.model.roles import Part, Role, read_experts
from mdir_hf.report import ExpertName

_MLP_ROLES = (Role.GATE, Role.UP, Role.DOWN)


@dataclass(frozen=True, slots=True, eq=False)
class ExpertOrigins:
    """Where the experts of one candidate layer came from.

    Attributes:
        layer: Layer of the reference and layer of the candidate.
        reference: What the MLPs of the reference's layer are called, in the order of ``found``.
        candidate: The same of the candidate's.
        found: Origins and evidence.
    """

    layer: tuple[int, int]
    reference: tuple[ExpertName, ...]
    candidate: tuple[ExpertName, ...]
    found: ExpertMap


def has_experts(model: PlacedTensors, position: int) -> bool:
    """Whether a layer is a mixture, given its position in ``model.anatomy.layers``."""
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
    """Map every expert of a candidate's layer to its origin in the reference's: its dense MLP, or an expert.

    A dense layer counts as one expert, so upcycling, experts merged into an MLP, and experts shuffled, cut finer or
    replaced are the same question.

    Args:
        reference: One model.
        candidate: The other.
        layer: Positions in ``anatomy.layers``, reference's and candidate's.
        residual_map: Carries the reference into the candidate's residual basis.
        log_alpha: Natural log of the level at which an origin is named.

    Returns:
        The origins, None where one of the layers has no MLP that could be read. Memory: all experts of the reference's
        layer and one of the candidate's (all where they are stored as one tensor).
    """
    mine, other = _mlp_parts(reference, layer[0]), _mlp_parts(candidate, layer[1])
    if not mine or not other:
        return None
    dtype = torch.float64 if residual_map.n_candidate <= FLOAT64_CHANNELS else torch.float32
    found = match_experts(
        list(_read_mlps(reference, layer[0], mine, dtype)),
        _read_mlps(candidate, layer[1], other, dtype),
        residual_map,
        log_alpha=log_alpha,
    )
    return ExpertOrigins(layer, tuple(name for name, _ in mine), tuple(name for name, _ in other), found)


def _mlp_parts(model: PlacedTensors, position: int) -> list[tuple[ExpertName, Mapping[Role, Part]]]:
    """Everything in a layer that is an MLP, by name: its dense one, its experts, those that are shared."""
    layer = model.anatomy.layers[position]
    named: list[tuple[ExpertName, Mapping[Role, Part]]] = [
        (None, layer.parts),
        *enumerate(layer.experts),
        *(("shared", parts) for parts in layer.shared_experts),
    ]
    return [
        (name, {role: parts[role] for role in _MLP_ROLES if role in parts})
        for name, parts in named
        if Role.UP in parts and Role.DOWN in parts
    ]


def _read_mlps(
    model: PlacedTensors, position: int, named: list[tuple[ExpertName, Mapping[Role, Part]]], dtype: torch.dtype
) -> Iterator[MlpWeights]:
    """Read the MLPs of a layer one after the other, the gain of the norm before each folded in."""
    layer = model.anatomy.layers[position]
    gains = {role: read_role(model, layer, role) for role in (Role.MLP_NORM, Role.SHARED_NORM) if role in layer.parts}

    def folded(weight: torch.Tensor, gain: torch.Tensor | None) -> torch.Tensor:
        return fold_gain(weight.to(dtype), gain, plus_one=model.anatomy.norms_add_one)

    experts = [parts for _, parts in named]
    for (name, parts), read in zip(named, read_experts(model.tensors, experts), strict=True):
        has_own = name == "shared" and Role.SHARED_NORM in gains
        gain = gains.get(Role.SHARED_NORM if has_own else Role.MLP_NORM)
        for role, weight in read.items():
            check_shape(model, layer, role, parts[role], tuple(weight.shape))
        gate = read.get(Role.GATE)
        up, down = folded(read[Role.UP], gain), read[Role.DOWN].to(dtype)
        yield MlpWeights(up, down, None if gate is None else folded(gate, gain))
