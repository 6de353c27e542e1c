"""Measure how strongly neurons write to the residual stream, and whether biases keep them shut."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch

from mdir_hf.comparison.layer_weights import (
    READS_AT_ONCE,
    RoleReader,
    layers_with,
    n_channels_of,
    norm_before,
    read_role,
)
from mdir_hf.comparison.neuron_sample import IntArray, NeuronSample
from mdir_hf.errors import AnatomyError, UnsupportedFormatError
from mdir_hf.method.neuron_numbers import sample_neurons
from mdir_hf.method.neurons import mean_square_of_outputs, unit_rows
from mdir_hf.model.comparable import PlacedTensors, embedding_spec
from mdir_hf.model.inventory import ModelView
from mdir_hf.model.roles import Layer, Role, WeightPart
from mdir_hf.processor import in_order, is_one_of_several_ranks

SHUT_BY_BIAS = 4.0
"""A neuron is shut if its offset is more than this many row lengths below zero; a row length is about the standard
deviation of the row's product with a normed stream. It is also shut if its mean response to similar embedding rows is
more than this many standard deviations below zero."""

CLUSTER_COSINE, FEWEST_IN_CLUSTER, FEWEST_FREE = 0.5, 2, 3
"""Similar embedding rows form two groups: their cosine to the leading direction of all rows is above the first value,
or below its negative. A group needs at least two rows, and a standard deviation three degrees of freedom in total."""

STREAM_ROWS = 16
"""Number of embedding rows used to estimate the scale of the residual stream."""

STRENGTHS_READ = 512
"""Number of individually drawn neurons per layer whose strength is read if the sample may not represent the layer. If
1% of the neurons are not copies, the probability that all of these are copies is 0.6%; for 24 runs, it is 79%."""


OTHER_LAYERS, FEW_OTHER_LAYERS = 6, 2
"""Number of further random layers whose strengths are estimated. The smaller number is used for samples with only a few
channels of down."""

OTHER_NEURONS, OTHER_CHANNELS = 8, 4
"""Number of neurons and of down channels read per layer for this estimate, as one run each. In real models, 16 neurons
determine a layer's root mean square to within a third."""


GATE_OF = {Role.UP: Role.GATE, Role.SSM_IN: Role.MIXER_GATE}
DOWN_OF = {Role.UP: Role.DOWN, Role.SSM_IN: Role.SSM_OUT}
"""Roles of the gates (``GATE_OF``) and the outputs, keyed by the role whose rows are the neurons. The channels of a
state-space mixer can be renumbered as freely as the neurons of an MLP."""

WRITERS = ((Role.O, Role.ATTENTION_OUT_NORM), (Role.DOWN, Role.MLP_OUT_NORM))
"""Matrices whose biases are added to the residual stream, and the norms that may follow them. A norm rescales the bias
together with the output, so a bias before a norm is ignored."""


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


def strongest_layer(
    model: PlacedTensors, strengths: Mapping[int, torch.Tensor], *, seed: int, n_others: int = OTHER_LAYERS
) -> float:
    """Return the root mean square strength of the strongest layer, among the given layers and a few others.

    ``strengths`` maps the positions of the given layers to neuron strengths. ``seed`` selects the other layers;
    unreadable layers are skipped.
    """
    up = neuron_role(model)
    assert up is not None
    adapted = with_first_experts(model)
    roles = [role for role in (GATE_OF[up], up) if set(strengths) <= set(layers_with(adapted, role))]
    complete = set.intersection(*(set(layers_with(adapted, role)) for role in (*roles, DOWN_OF[up])))
    others = sorted(complete - set(strengths))
    rng = np.random.default_rng([seed, 6])
    sampled_places = rng.permutation(others)[:n_others].tolist()
    first_channel = int(rng.integers(max(1, model.anatomy.written_width - OTHER_CHANNELS + 1)))
    channels = np.arange(first_channel, min(first_channel + OTHER_CHANNELS, model.anatomy.written_width))

    def strength_of(place: int) -> float:
        n_neurons = n_channels_of(adapted, up, place)
        if n_neurons < OTHER_NEURONS:
            return 0.0
        numbers = sample_neurons(n_neurons, OTHER_NEURONS, run=OTHER_NEURONS, seed=seed)
        readers = [RoleReader(adapted, role, (place,)) for role in roles]
        for reader in readers:  # lengths of rows that were not read before would need the whole matrix
            reader.read(place, torch.from_numpy(numbers))
        lengths = products_of_lengths(adapted, place, readers, torch.from_numpy(numbers), None)
        columns = read_outputs(adapted, up, place, numbers, channels)
        return _root_mean_square(lengths * columns.norm(dim=1) * math.sqrt(model.anatomy.written_width / len(channels)))

    def read(place: int, _: object) -> float:
        try:
            return strength_of(place)
        except (AnatomyError, UnsupportedFormatError):
            return 0.0

    n_in_flight = 1 if is_one_of_several_ranks() else READS_AT_ONCE
    of_others = in_order(sampled_places, read, n_in_flight=n_in_flight, name="mdir-strengths")
    return max([*map(_root_mean_square, strengths.values()), *of_others])


def _root_mean_square(values: torch.Tensor) -> float:
    return float(values.square().mean().sqrt())


def with_mean_squares(model: PlacedTensors, sample: NeuronSample, places: Sequence[int], *, seed: int) -> NeuronSample:
    """Measure the mean square strength of some sampled layers on up to :data:`STRENGTHS_READ` further neurons.

    A sample's runs may all consist of copies by chance, so the further neurons are drawn one by one.
    """
    outputs, up = sample.outputs, neuron_role(model)
    assert outputs is not None and up is not None
    adapted = with_first_experts(model)
    width = model.anatomy.written_width
    rng = np.random.default_rng([seed, 5])
    channels = None
    if outputs.n_channels is not None and outputs.n_channels < width:
        channels = np.sort(rng.permutation(width)[: outputs.n_channels]).astype(np.int64)
    mean_squares = torch.full((len(sample.layers),), math.nan)
    stream = stream_rows(model, seed)
    for place in places:
        numbers = np.sort(rng.permutation(sample.n_neurons)[:STRENGTHS_READ]).astype(np.int64)
        rows = torch.from_numpy(numbers)
        roles = [role for role in (GATE_OF[up], up) if place in layers_with(adapted, role)]
        readers = [RoleReader(adapted, role, (place,)) for role in roles]
        # Only these rows are read; lengths of rows that were not read before would need the whole matrix.
        unit = [unit_rows(reader.read(place, rows).float()) for reader in readers]
        lengths = products_of_lengths(adapted, place, readers, rows, stream)
        columns = read_outputs(adapted, up, place, numbers, channels)
        written_outputs = lengths[:, None] * columns * math.sqrt(width / columns.shape[1])
        mean_squares[sample.layers.index(place)] = mean_square_of_outputs(
            unit, written_outputs, n_neurons=sample.n_neurons
        )
    return replace(sample, outputs=replace(outputs, mean_squares=mean_squares))


def products_of_lengths(
    model: PlacedTensors,
    place: int,
    readers: Sequence[RoleReader],
    rows: torch.Tensor,
    stream: torch.Tensor | None,
) -> torch.Tensor:
    """Return the product of gate length and up length for some neurons, ``(n,)`` float32; 0 if the neuron is shut.

    ``rows`` are ascending neuron numbers ``(n,)``; ``stream`` are embedding rows ``(k, width)``, or None.
    """
    product: torch.Tensor = torch.stack([reader.lengths(place, rows) for reader in readers]).prod(dim=0)
    product = torch.where(offsets_of(model, place, readers[0], rows) < -SHUT_BY_BIAS, 0.0, product)
    if stream is not None:
        responses = readers[0].read(place, rows).float() @ unit_rows(stream).T
        product = torch.where(_is_shut_by_constant(responses, unit_rows(stream)), 0.0, product)
    return product


def _is_shut_by_constant(responses: torch.Tensor, stream: torch.Tensor) -> torch.Tensor:
    """Return an ``(n,)`` mask of neurons whose responses ``(n, k)`` to similar unit embedding rows are far below zero.

    Rows are grouped by their cosine to the leading direction (:data:`CLUSTER_COSINE`), because unused tokens may have
    the opposite constant or none.
    """
    cosines = stream @ torch.linalg.svd(stream, full_matrices=False).Vh[0]
    sides = [responses[:, sign * cosines > CLUSTER_COSINE] for sign in (1.0, -1.0)]
    sides = [side for side in sides if side.shape[1] >= FEWEST_IN_CLUSTER]
    n_free = sum(side.shape[1] - 1 for side in sides)
    is_shut = torch.zeros(len(responses), dtype=torch.bool)
    if n_free < FEWEST_FREE:
        return is_shut
    means = [side.mean(dim=1, keepdim=True) for side in sides]
    residuals = torch.cat([side - mean for side, mean in zip(sides, means, strict=True)], dim=1)
    deviation = (residuals.square().sum(dim=1) / n_free).sqrt()
    for mean in means:
        is_shut |= mean[:, 0] < -SHUT_BY_BIAS * deviation
    return is_shut


def offsets_of(model: PlacedTensors, place: int, reader: RoleReader, rows: torch.Tensor) -> torch.Tensor:
    """Return some neurons' responses to a stream of zeros, ``(n,)`` float32, divided by the lengths of their rows.

    The responses come from the biases of the matrix and of the norm before it. ``rows`` are ascending neuron numbers.
    """
    offsets = torch.zeros(len(rows))
    bias = bias_of(model, place, reader.role)
    if bias is not None:
        offsets += bias[rows] / reader.lengths(place, rows).clamp(min=torch.finfo(torch.float32).tiny)
    layer = model.anatomy.layers[place]
    norm = norm_before(layer, reader.role)
    norm_bias = bias_of(model, place, norm) if norm in layer.parts else None
    if norm_bias is not None:
        gain = read_role(model, layer, norm).float() + float(model.anatomy.norms_add_one)
        # The rows have the gain folded in; a channel with a gain of zero has lost its weight.
        in_rows = torch.where(gain == 0.0, 0.0, norm_bias / gain)
        offsets += reader.read(place, rows).float() @ in_rows
    return offsets


def constant_responses(
    model: PlacedTensors, place: int, numbers: IntArray, offsets: torch.Tensor, scale: float
) -> torch.Tensor:
    """Return the part of some gates' responses that is the same for every token, ``(n,)`` float32.

    It is the sum of the gates' ``offsets`` and their responses to biases that earlier matrices add to the stream. The
    unit is the standard deviation of the other part if the stream without these biases has the length ``scale``.
    """
    constant = constant_before(model, place)
    if constant is None or scale <= 0.0:
        return offsets
    up = neuron_role(model)
    assert up is not None
    layer = model.anatomy.layers[place]
    role = GATE_OF[up] if GATE_OF[up] in layer.parts else up
    norm = norm_before(layer, role)
    if norm in layer.parts and bias_of(model, place, norm) is not None:
        constant = constant - constant.mean()  # a norm with a bias is a LayerNorm, which subtracts the mean
    order = np.sort(numbers)
    rows = RoleReader(model, role, (place,)).read(place, torch.from_numpy(order)).float()
    responses = rows[torch.from_numpy(np.searchsorted(order, numbers))] @ constant * math.sqrt(len(constant))
    return (responses + offsets * math.hypot(float(constant.norm()), scale)) / scale


def constant_before(model: PlacedTensors, place: int) -> torch.Tensor | None:
    """Sum the biases that are added to the residual stream before a layer's MLP; return None if there are none."""
    total = None
    for earlier in range(place + 1):
        layer = model.anatomy.layers[earlier]
        for role, norm in WRITERS:
            if role not in layer.parts or norm in layer.parts or (earlier == place and role is Role.DOWN):
                continue
            bias = bias_of(model, earlier, role)
            if bias is not None and len(bias) == model.anatomy.hidden_size:
                total = bias if total is None else total + bias
    return total


def bias_of(model: PlacedTensors, place: int, role: Role) -> torch.Tensor | None:
    """Return the ``(n,)`` bias of a role's matrix or norm, or None."""
    part = model.anatomy.layers[place].parts[role]
    if len(part.tensors) != 1 or not isinstance(part, WeightPart) or not part.is_whole:
        return None
    name = part.tensor.removesuffix("weight") + "bias"
    if not part.tensor.endswith("weight") or name not in model.tensors.names():
        return None
    bias = model.tensors.read(name).float()
    return bias if bias.ndim == 1 else None


def read_outputs(
    model: PlacedTensors, up: Role, place: int, numbers: IntArray, channels: IntArray | None = None
) -> torch.Tensor:
    """Read the ``(n, channels)`` float32 down columns of some neurons.

    If a norm follows down, the columns are scaled to a mean length of 1 and multiplied by the norm's gain.

    Raises:
        AnatomyError: If the layer's down matrix is missing or does not have the model's width.
    """
    layer, down = model.anatomy.layers[place], DOWN_OF[up]
    if down not in layer.parts:
        raise AnatomyError(f"layer {layer.index} has no {down.value}", subject=model.label)
    columns = read_role(model, layer, down, channels)[:, torch.from_numpy(numbers)].float()
    if Role.MLP_OUT_NORM in layer.parts and down is Role.DOWN:
        # The norm undoes the scale of down, so only its gain determines how much the layer writes.
        gain = read_role(model, layer, Role.MLP_OUT_NORM).float() + float(model.anatomy.norms_add_one)
        columns = columns / columns.norm(dim=0).mean().clamp(min=1e-30)
        columns = columns * (gain if channels is None else gain[torch.from_numpy(channels)])[:, None]
    return columns.T


def stream_rows(model: PlacedTensors, seed: int) -> torch.Tensor | None:
    """Read a few embedding rows, ``(k, width)`` float32, scaled as in the model; return None if their width differs."""
    try:
        spec = embedding_spec(model)
    except (AnatomyError, UnsupportedFormatError):
        return None
    if spec.shape[1] != model.anatomy.hidden_size:
        return None
    ids = np.random.default_rng([seed, 2]).integers(0, spec.shape[0], STREAM_ROWS)
    return model.tensors.read_rows(spec.name, np.unique(ids).astype(np.int64)).float() * model.anatomy.embedding_scale


def stream_scale(stream: torch.Tensor | None) -> float:
    """Return the median length of embedding rows, or 0 if there are none."""
    return 0.0 if stream is None else float(stream.norm(dim=1).median())
