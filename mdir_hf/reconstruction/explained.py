"""Measure how much of each aligned tensor the reference explains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from mdir_hf.comparison.tokens import common_tokens
from mdir_hf.method.blocks import IntArray
from mdir_hf.model.comparable import head_of
from mdir_hf.model.opened import Model
from mdir_hf.model.roles import Role, WeightPart, read_part
from mdir_hf.reconstruction.places import TensorPlace
from mdir_hf.reconstruction.records import Reconstruction, full_order


@dataclass(frozen=True, slots=True)
class Explained:
    """The share of an aligned tensor that the reference explains.

    ``share`` is ``1 - |W' - W|_F^2 / |W'|_F^2``, at least 0, for the aligned weight W' and the reference's W, over rows
    and channels that have partners. It is None if the reference has no counterpart.
    """

    name: str
    share: float | None


def explained_share(
    values: torch.Tensor,
    name: str,
    places: Sequence[TensorPlace],
    model: Model,
    reference: Model,
    reconstruction: Reconstruction,
    *,
    is_head: bool = False,
) -> float | None:
    """Return the share of an aligned tensor that the reference explains; see :class:`Explained`.

    Set ``is_head`` for a head that was tied to the embedding before alignment.
    """
    error = energy = 0.0
    if is_head:
        places = (TensorPlace("head"),)
    for place in places:
        pair = _pair(values, place, model, reference, reconstruction)
        if pair is None:
            continue
        aligned, original = pair
        error += float((aligned - original).double().square().sum())
        energy += float(aligned.double().square().sum())
    return max(0.0, 1.0 - error / energy) if energy > 0.0 else None


def _pair(
    values: torch.Tensor, place: TensorPlace, model: Model, reference: Model, reconstruction: Reconstruction
) -> tuple[torch.Tensor, torch.Tensor] | None:
    outer = reconstruction.stream.outer
    channels = None if outer.reference is None else outer.reference.sort().values
    if place.kind == "norm":
        return _gains(values, place, reference, reconstruction, channels)
    if place.kind in ("written", "head"):
        return _rows_of_tokens(values, place, model, reference, channels)
    if place.kind != "weight" or place.layer is None or place.role is None:
        return None
    layer = reconstruction.layers[place.layer]
    if layer.reference is None:
        return None
    parts = reference.anatomy.layers[layer.reference].parts
    neurons = None if layer.mlp is None else layer.mlp.neurons
    if place.expert is not None:
        experts = reference.anatomy.layers[layer.reference].experts
        if layer.experts is None or place.is_shared:
            return None
        number = _source_expert(layer.experts.reference, layer.experts.candidate, place.expert, len(layer.experts.mlps))
        if number is None:
            return None
        candidate_expert, origin = number
        parts = experts[origin] if experts else parts
        neurons = layer.experts.mlps[candidate_expert].neurons
    part = parts.get(place.role)
    if not isinstance(part, WeightPart):
        return None
    aligned = place.extract(values)
    original = read_part(reference.tensors, part)
    aligned, original = aligned.to(original.dtype), original
    if place.role.writes_stream:
        aligned, original = aligned.T, original.T
    if place.role in (Role.GATE, Role.UP, Role.DOWN) and neurons is not None:
        neuron_order = np.sort(neurons.reference)
        aligned, original = aligned[: len(neuron_order)], original[torch.from_numpy(neuron_order)]
    if channels is not None:
        aligned, original = aligned[:, : len(channels)], original[:, channels]
    return (aligned, original) if aligned.shape == original.shape else None


def _gains(
    values: torch.Tensor,
    place: TensorPlace,
    reference: Model,
    reconstruction: Reconstruction,
    channels: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor] | None:
    part = reference.anatomy.final_norm
    if place.layer is not None:
        ancestor = reconstruction.layers[place.layer].reference
        part = None
        if ancestor is not None and place.role is not None:
            stored = reference.anatomy.layers[ancestor].parts.get(place.role)
            part = stored if isinstance(stored, WeightPart) else None
    if part is None:
        return None
    aligned, original = values, read_part(reference.tensors, part).to(values)
    if channels is not None:
        aligned, original = aligned[: len(channels)], original[channels]
    return (aligned, original) if aligned.shape == original.shape else None


def _source_expert(reference: IntArray, candidate: IntArray, place: int, n: int) -> tuple[int, int] | None:
    is_one_to_one = len(set(reference.tolist())) == len(reference)
    expert = int(full_order(reference, candidate, n)[place]) if is_one_to_one else place
    origin = {int(c): int(r) for r, c in zip(reference, candidate, strict=True)}
    return (expert, origin[expert]) if expert in origin else None


def _rows_of_tokens(
    values: torch.Tensor, place: TensorPlace, model: Model, reference: Model, channels: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor] | None:
    part = reference.anatomy.embedding if place.kind == "written" else head_of(reference)
    if part is None or values.ndim != 2:
        return None
    if place.kind == "written" and (model.anatomy.embedding is None or values.shape[0] != model.n_rows):
        return None  # a table of positions
    common, _ = common_tokens(reference, model)
    rows = common.within(reference.tensors.spec(part.tensor).shape[0], values.shape[0])
    if not len(rows):
        return None
    original = reference.tensors.read_rows(part.tensor, rows.reference_rows)
    aligned = values[torch.from_numpy(rows.candidate_rows)].to(original.dtype)
    if channels is not None:
        aligned, original = aligned[:, : len(channels)], original[:, channels]
    return (aligned, original) if aligned.shape == original.shape else None
