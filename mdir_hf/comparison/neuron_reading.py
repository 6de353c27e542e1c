"""Chooses neurons of some layers by design, and reads their rows of gate and up and their columns of down."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from mdir_hf.comparison.layer_weights import RoleReader, layers_with, n_channels_of, norm_before, read_role
from mdir_hf.comparison.neuron_sample import (
    FEWEST_TESTED,
    FITTED_ROWS,
    NOMINATING_FITTED_ROWS,
    TESTED,
    IntArray,
    NeuronOutputs,
    NeuronSample,
)
from mdir_hf.comparison.row_screen import RUN_NEURONS, spread
from mdir_hf.errors import AnatomyError, UnsupportedFormatError
from mdir_hf.method.neuron_numbers import in_span, sample_neurons
from mdir_hf.method.neurons import mean_square_of_outputs, unit_rows
from mdir_hf.model.comparable import PlacedTensors, embedding_spec
from mdir_hf.model.inventory import ModelView
from mdir_hf.model.roles import Layer, Role, WeightPart

FEW_LAYERS = 4
"""Layers per model to sample unless the level asks for all, including the first and the last."""

RUN = 4
"""Adjacent neurons per run; a run is one byte range. Short runs scatter the sample: with long runs, a model with half
of its neurons copied in blocks might pass by chance."""

SHUT_BY_BIAS = 4.0
"""A neuron counts as shut if its offset is below minus this many lengths of its row: after a norm, the product of the
row and the stream has a standard deviation of about the row's length. It also counts as shut if its mean response to
similar rows of the embedding is below minus this many of their standard deviations."""

CLUSTER_COSINE, FEWEST_IN_CLUSTER, FEWEST_FREE = 0.5, 2, 3
"""Embedding rows are similar if they have this cosine to the leading direction of all. On either side at least two must
have it, with three degrees of freedom together, to estimate a standard deviation."""

STREAM_ROWS = 16
"""Number of embedding rows used to estimate the scale of the residual stream."""

STRENGTHS_READ = 512
"""Single neurons per layer whose strength is read if the sample may not represent the layer. If a hundredth of the
neurons are not copies, all of these are copies with probability 0.6 %; of a sample of 24 runs, with 79 %."""


OTHER_LAYERS, OTHER_NEURONS, OTHER_CHANNELS = 2, 8, 4
"""Further layers, drawn at random, whose strengths are estimated from a run of neurons and a run of channels of down.
In real models, 16 neurons give the root mean square of a layer to within a third."""


GATE_OF = {Role.UP: Role.GATE, Role.SSM_IN: Role.MIXER_GATE}
DOWN_OF = {Role.UP: Role.DOWN, Role.SSM_IN: Role.SSM_OUT}
"""The gate and the output of the neurons that are rows of a role. Channels of a state-space mixer can be renumbered as
freely as the neurons of an MLP."""


@dataclass(frozen=True)
class _Choice:
    """The rows of a model to read: layers, roles and neuron numbers."""

    model: PlacedTensors
    up: Role
    places: tuple[int, ...]
    written: tuple[Role, ...]
    """Roles that are read: gate and up, or up alone."""
    n_neurons: int
    n_tested: int
    numbers: IntArray
    """The fitted neurons, then the tested ones; each group in ascending order."""


def with_first_experts(model: PlacedTensors) -> PlacedTensors:
    """Use the first expert as the MLP of layers without one; return the model itself if it has no experts."""
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
    """Return the role whose rows are neurons in all models: up, the input of a mixer, or None."""
    adapted = [with_first_experts(model) for model in models]
    return next((role for role in GATE_OF if all(layers_with(model, role) for model in adapted)), None)


def neuron_layers(model: PlacedTensors) -> tuple[int, ...]:
    """Return the positions of layers with neurons: an MLP, a first expert or a mixer."""
    up = neuron_role(model)
    return () if up is None else layers_with(with_first_experts(model), up)


def n_neurons_of(model: PlacedTensors) -> dict[int, int]:
    """Return the number of neurons of each layer that has any, by position."""
    up = neuron_role(model)
    if up is None:
        return {}
    adapted = with_first_experts(model)
    return {place: n_channels_of(adapted, up, place) for place in layers_with(adapted, up)}


def sample_sizes(n_neurons: int, n_fitted_rows: int | None, *, n_matrices: int) -> tuple[int, int]:
    """Return how many neurons of a layer to test, and how many others to fit a rotation on.

    ``n_neurons`` is at least twice :data:`FEWEST_TESTED`. ``n_fitted_rows`` None: all others.
    """
    n_tested = TESTED if n_neurons >= 3 * TESTED else FEWEST_TESTED
    n_rest = n_neurons - n_tested
    return n_tested, n_rest if n_fitted_rows is None else min(n_fitted_rows // n_matrices, n_rest)


def _choose(
    model: PlacedTensors,
    *,
    seed: int = 0,
    n_fitted_rows: int | None = FITTED_ROWS,
    every: bool = False,
    chosen_places: Sequence[int] | None = None,
    nominates: bool = False,
) -> _Choice | None:
    up = neuron_role(model)
    if up is None or model.anatomy.neuron_numbers is not None:
        return None
    model = with_first_experts(model)
    places = layers_with(model, up)
    if chosen_places is not None:
        places = tuple(place for place in chosen_places if place in places)
    elif not every:
        places = spread(places, FEW_LAYERS)
    if not places:
        return None
    n_neurons_at = {place: n_channels_of(model, up, place) for place in places}
    n_neurons = Counter(n_neurons_at.values()).most_common(1)[0][0]
    if n_neurons < 2 * FEWEST_TESTED:
        return None
    places = tuple(place for place in places if n_neurons_at[place] == n_neurons)
    written, run = [role for role in (GATE_OF[up], up) if set(places) <= set(layers_with(model, role))], RUN
    if nominates:
        written, run, n_fitted_rows = [up], RUN_NEURONS, NOMINATING_FITTED_ROWS
    n_tested, n_fitted = sample_sizes(n_neurons, n_fitted_rows, n_matrices=len(written))
    drawn = sample_neurons(n_neurons, n_tested + n_fitted, run=run, seed=seed)
    numbers = np.concatenate([np.sort(drawn[n_tested:]), np.sort(drawn[:n_tested])])
    return _Choice(model, up, places, tuple(written), n_neurons, n_tested, numbers)


def planned_n_bytes(model: PlacedTensors, *, every: bool = False) -> int:
    """Estimate how many bytes of gate and up :func:`take_neurons` reads.

    Raises:
        AnatomyError: If a matrix of neurons does not have the width of the model.
        MdirError: If the header cannot be read.
    """
    choice = _choose(model, every=every)
    if choice is None:
        return 0
    layer = choice.model.anatomy.layers[choice.places[0]]
    spec = model.tensors.spec(layer.parts[choice.up].tensors[0])
    n_rows = len(choice.places) * len(choice.written) * len(choice.numbers)
    return n_rows * model.anatomy.hidden_size * spec.n_bytes // math.prod(spec.shape)


def bytes_of_down(model: PlacedTensors) -> int:
    """Return the stored size of down in the layers that :func:`take_neurons` samples."""
    choice = _choose(model)
    if choice is None:
        return 0
    down = choice.model.anatomy.layers[choice.places[0]].parts.get(DOWN_OF[choice.up])
    if down is None:
        return 0
    spec = model.tensors.spec(down.tensors[0])
    n_values = choice.n_neurons * model.anatomy.hidden_size * len(choice.places)
    return n_values * spec.n_bytes // max(1, math.prod(spec.shape))


def take_neurons(
    model: PlacedTensors,
    *,
    seed: int = 0,
    n_fitted_rows: int | None = FITTED_ROWS,
    every: bool = False,
    places: Sequence[int] | None = None,
    n_down_channels: int | None = 0,
    nominates: bool = False,
) -> NeuronSample | None:
    """Read gate and up rows of some neurons in some layers, and optionally their down columns.

    ``seed`` is the same for both models. ``n_fitted_rows`` fit a rotation; None: all others. Without
    ``places``, layers are sampled: all if ``every``, else four. ``n_down_channels`` 0: none; None: all. ``nominates``
    reads up alone, in longer runs, a part of the rows that the layer map reads.

    Returns:
        The sample; None if no MLP has enough neurons or if neuron numbers carry meaning.

    Raises:
        AnatomyError: If a matrix of neurons does not have the width of the model.
        MdirError: If it cannot be read.
    """
    choice = _choose(
        model, seed=seed, n_fitted_rows=n_fitted_rows, every=every, chosen_places=places, nominates=nominates
    )
    if choice is None:
        return None
    n_neurons = choice.n_neurons
    readers = tuple(RoleReader(choice.model, role, choice.places) for role in choice.written)
    places = [place for place in choice.places if all(reader.n_channels(place) == n_neurons for reader in readers)]
    sample = read_sample(choice.model, places, choice.numbers, n_tested=choice.n_tested, readers=readers, seed=seed)
    sample = replace(sample, n_neurons=n_neurons)
    if n_down_channels == 0:
        return sample
    return with_outputs(model, sample, seed=seed, n_channels=n_down_channels)


def read_sample(
    model: PlacedTensors,
    places: Sequence[int],
    numbers: IntArray,
    *,
    n_tested: int,
    readers: Sequence[RoleReader],
    seed: int,
) -> NeuronSample:
    """Read gate and up rows of the given neurons from some layers, in the given order.

    ``numbers`` ``(n,)`` are neuron numbers; the last ``n_tested`` are tested; ``readers`` are of gate and up, or of up
    alone. ``seed`` chooses embedding rows that represent the residual stream.
    """
    stream = stream_rows(model, seed)
    order = np.sort(numbers)
    at, rows = torch.from_numpy(np.searchsorted(order, numbers)), torch.from_numpy(order)
    n_fitted = len(numbers) - n_tested
    in_spans, whole, lengths, offsets = [], [], [], []
    for place in places:
        read = [reader.read(place, rows)[at].float() for reader in readers]
        lengths.append(products_of_lengths(model, place, readers, rows, stream)[at])
        offsets.append(offsets_of(model, place, readers[0], rows)[at])
        in_spans.append(torch.stack(in_span(read, n_fitted)))
        if place in spread(places, FEW_LAYERS):
            whole.append(torch.stack(read))
    return NeuronSample(
        layers=tuple(places),
        n_neurons=readers[-1].n_channels(places[0]),
        n_fitted=n_fitted,
        rows=torch.stack(in_spans),
        whole=torch.stack(whole),
        numbers=numbers,
        lengths=torch.stack(lengths),
        offsets=torch.stack(offsets),
        stream_scale=stream_scale(stream),
    )


def with_outputs(model: PlacedTensors, sample: NeuronSample, *, seed: int, n_channels: int | None) -> NeuronSample:
    """Read the down columns of a sample's neurons in ``n_channels`` channels (None: all).

    Raises:
        AnatomyError: If a layer has no down, or it does not have the width of the model.
        MdirError: If it cannot be read.
    """
    assert sample.numbers is not None and sample.lengths is not None
    up = neuron_role(model)
    assert up is not None
    adapted = with_first_experts(model)
    width = model.anatomy.written_width
    channels: IntArray | None = None
    if n_channels is not None and n_channels < width:
        channels = np.sort(np.random.default_rng([seed, 1]).permutation(width)[:n_channels]).astype(np.int64)
    rows, strengths = [], []
    for place, lengths in zip(sample.layers, sample.lengths, strict=True):
        outputs = read_outputs(adapted, up, place, sample.numbers, channels)
        strengths.append(lengths * outputs.norm(dim=1) * math.sqrt(width / outputs.shape[1]))
        rows.append(in_span([unit_rows(outputs)], sample.n_fitted)[0])
    outputs_of_layers = NeuronOutputs(
        torch.stack(rows),
        torch.stack(strengths),
        stream_scale=sample.stream_scale or 0.0,
        strongest=strongest_layer(model, dict(zip(sample.layers, strengths, strict=True)), seed=seed),
        n_channels=n_channels,
        offsets=sample.offsets,
    )
    return replace(sample, outputs=outputs_of_layers)


def strongest_layer(model: PlacedTensors, strengths: Mapping[int, torch.Tensor], *, seed: int) -> float:
    """Return the largest root mean square of the strengths of some layers, and of a few others that are read here.

    ``strengths`` maps positions of layers to strengths of neurons.

    Raises:
        MdirError: If the others cannot be read.
    """
    up = neuron_role(model)
    assert up is not None
    adapted = with_first_experts(model)
    roles = [role for role in (GATE_OF[up], up) if set(strengths) <= set(layers_with(adapted, role))]
    complete = set.intersection(*(set(layers_with(adapted, role)) for role in (*roles, DOWN_OF[up])))
    others = sorted(complete - set(strengths))
    rng = np.random.default_rng([seed, 6])
    root_mean_squares = [float(of_layer.square().mean().sqrt()) for of_layer in strengths.values()]
    for place in sorted(rng.permutation(others)[:OTHER_LAYERS].tolist()):
        numbers = sample_neurons(n_channels_of(adapted, up, place), OTHER_NEURONS, run=OTHER_NEURONS, seed=seed)
        first_channel = int(rng.integers(max(1, model.anatomy.written_width - OTHER_CHANNELS)))
        channels = np.arange(first_channel, min(first_channel + OTHER_CHANNELS, model.anatomy.written_width))
        readers = [RoleReader(adapted, role, (place,)) for role in roles]
        lengths = products_of_lengths(adapted, place, readers, torch.from_numpy(numbers), None)
        columns = read_outputs(adapted, up, place, numbers, channels)
        of_layer = lengths * columns.norm(dim=1) * math.sqrt(model.anatomy.written_width / columns.shape[1])
        root_mean_squares.append(float(of_layer.square().mean().sqrt()))
    return max(root_mean_squares)


def with_mean_squares(model: PlacedTensors, sample: NeuronSample, places: Sequence[int], *, seed: int) -> NeuronSample:
    """Read the strengths of up to :data:`STRENGTHS_READ` single neurons in some layers of a sample.

    The runs of a sample may all be copies by luck; single neurons are independent draws.

    Raises:
        MdirError: If they cannot be read.
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
        written = [role for role in (GATE_OF[up], up) if place in layers_with(adapted, role)]
        readers = [RoleReader(adapted, role, (place,)) for role in written]
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
    """Return products of gate and up lengths of some neurons, ``(n,)`` float32; 0 for neurons that are shut.

    ``rows`` are ascending neuron numbers ``(n,)``; ``stream`` are embedding rows ``(k, width)``, or None.
    """
    product: torch.Tensor = torch.stack([reader.lengths(place, rows) for reader in readers]).prod(dim=0)
    product = torch.where(offsets_of(model, place, readers[0], rows) < -SHUT_BY_BIAS, 0.0, product)
    if stream is not None:
        responses = readers[0].read(place, rows).float() @ unit_rows(stream).T
        product = torch.where(_is_shut_by_constant(responses, unit_rows(stream)), 0.0, product)
    return product


def _is_shut_by_constant(responses: torch.Tensor, stream: torch.Tensor) -> torch.Tensor:
    """Whether the responses ``(n, k)`` of neurons to similar unit rows of the embedding are far below zero, ``(n,)``.

    A constant channel may be hidden by tokens that are never used: their rows can have the opposite constant, or none.
    So rows are similar if they are close to one side of the leading direction of all.
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
    """Return what some neurons read at a stream of zeros, ``(n,)`` float32, in lengths of their rows.

    The bias of the matrix contributes, and the bias of the norm before it. ``rows`` are ascending neuron numbers.
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


def bias_of(model: PlacedTensors, place: int, role: Role) -> torch.Tensor | None:
    """Return the bias of a role's matrix or norm, ``(n,)``, or None."""
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
    """Read down columns of some neurons, ``(n, channels)`` float32, times the gain of a norm after down.

    Raises:
        AnatomyError: If the layer has no down, or it does not have the width of the model.
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
    """Read a few embedding rows, ``(k, width)`` float32; None if no embedding has that width."""
    try:
        spec = embedding_spec(model)
    except (AnatomyError, UnsupportedFormatError):
        return None
    if spec.shape[1] != model.anatomy.hidden_size:
        return None
    ids = np.random.default_rng([seed, 2]).integers(0, spec.shape[0], STREAM_ROWS)
    return model.tensors.read_rows(spec.name, np.unique(ids).astype(np.int64)).float()


def stream_scale(stream: torch.Tensor | None) -> float:
    """Return the median length of some embedding rows, or 0 if there are none."""
    return 0.0 if stream is None else float(stream.norm(dim=1).median())
