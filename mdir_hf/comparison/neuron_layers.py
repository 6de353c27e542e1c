"""Find the matrices whose rows are neurons: gate and up of an MLP, of a first expert, or of a state-space mixer."""

from __future__ import annotations

from dataclasses import replace

import torch

from mdir_hf.comparison.layer_weights import layers_with, n_channels_of
from mdir_hf.model.comparable import PlacedTensors
from mdir_hf.model.inventory import ModelView
from mdir_hf.model.roles import Layer, Role, WeightPart
from mdir_hf.thresholds import LEAST_COMPARED_SHARE

GATE_OF = {Role.UP: Role.GATE, Role.SSM_IN: Role.MIXER_GATE}
DOWN_OF = {Role.UP: Role.DOWN, Role.SSM_IN: Role.SSM_OUT}
"""Roles of the gates (``GATE_OF``) and the outputs, keyed by the role whose rows are the neurons. The channels of a
state-space mixer can be renumbered as freely as the neurons of an MLP."""


def with_first_experts(model: PlacedTensors) -> PlacedTensors:
    """Return a view in which a layer's first expert replaces its missing MLP."""
    if not any(layer.experts or layer.shared_experts for layer in model.anatomy.layers):
        return model
    layers = tuple(_with_first_expert(layer) for layer in model.anatomy.layers)
    return ModelView("first experts", model.label, model.tensors, replace(model.anatomy, layers=layers))


def _with_first_expert(layer: Layer) -> Layer:
    mlps = (*layer.experts[:1], *layer.shared_experts[:1])
    first = next((parts for parts in mlps if Role.UP in parts), None)
    if first is None or Role.UP in layer.parts:
        return layer
    return replace(layer, parts={**layer.parts, **first})


def neuron_role(*models: PlacedTensors) -> Role | None:
    """Return the role whose rows are neurons in all models: up or a mixer's input; None if they share neither."""
    adapted = [with_first_experts(model) for model in models]
    return next((role for role in GATE_OF if all(layers_with(model, role) for model in adapted)), None)


def neuron_layers(model: PlacedTensors) -> tuple[int, ...]:
    """Return the positions of layers that have neurons in an MLP, a first expert or a mixer."""
    up = neuron_role(model)
    return () if up is None else layers_with(with_first_experts(model), up)


def can_compare_most_layers(model: PlacedTensors) -> bool:
    """Return whether at least half of a model's layers have neurons or keys; true for a model without layers."""
    adapted = with_first_experts(model)
    comparable = {place for role in (*GATE_OF, Role.K) for place in layers_with(adapted, role)}
    return len(comparable) >= LEAST_COMPARED_SHARE * len(model.anatomy.layers)


def n_neurons_of(model: PlacedTensors) -> dict[int, int]:
    """Return the number of neurons in each layer that has any, keyed by position."""
    up = neuron_role(model)
    if up is None:
        return {}
    adapted = with_first_experts(model)
    return {place: n_channels_of(adapted, up, place) for place in layers_with(adapted, up)}


def bias_of(model: PlacedTensors, place: int, role: Role) -> torch.Tensor | None:
    """Return the ``(n,)`` bias of a role's matrix, or None."""
    part = model.anatomy.layers[place].parts[role]
    if len(part.tensors) != 1 or not isinstance(part, WeightPart) or not part.is_whole:
        return None
    name = part.tensor.removesuffix("weight") + "bias"
    if not part.tensor.endswith("weight") or name not in model.tensors.names():
        return None
    bias = model.tensors.read(name).float()
    return bias if bias.ndim == 1 else None
