"""Choose neurons in some layers, and read their gate rows, up rows and down columns."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from mdir_hf.comparison.layer_weights import RoleReader, layers_with, n_channels_of
from mdir_hf.comparison.neuron_sample import (
    FEWEST_TESTED,
    FITTED_ROWS,
    NOMINATING_FITTED_ROWS,
    TESTED,
    IntArray,
    NeuronOutputs,
    NeuronSample,
)
from mdir_hf.comparison.neuron_strengths import (
    DOWN_OF,
    FEW_OTHER_LAYERS,
    GATE_OF,
    OTHER_LAYERS,
    constant_responses,
    neuron_role,
    offsets_of,
    products_of_lengths,
    read_outputs,
    stream_rows,
    stream_scale,
    strongest_layer,
    with_first_experts,
)
from mdir_hf.comparison.row_screen import RUN_NEURONS, spread
from mdir_hf.method.neuron_numbers import in_span, sample_neurons
from mdir_hf.method.neurons import unit_rows
from mdir_hf.model.comparable import PlacedTensors
from mdir_hf.model.roles import Role

FEW_LAYERS = 4
"""Number of layers sampled per model, including the first and last, unless the level requires all."""

RUN = 4
"""Number of adjacent neurons per run, which is read as one byte range. Runs are short because a model with half of its
neurons copied in blocks might otherwise pass by chance."""


@dataclass(frozen=True)
class _Choice:
    """Rows to read: layers, roles and neuron numbers."""

    model: PlacedTensors
    up: Role
    places: tuple[int, ...]
    written: tuple[Role, ...]
    """Roles to read: gate and up, or up alone."""
    n_neurons: int
    n_tested: int
    numbers: IntArray
    """The fitted neurons, then the tested ones, each in ascending order."""


def neuron_layers(model: PlacedTensors) -> tuple[int, ...]:
    """Return the positions of layers that have neurons in an MLP, a first expert or a mixer."""
    up = neuron_role(model)
    return () if up is None else layers_with(with_first_experts(model), up)


def n_neurons_of(model: PlacedTensors) -> dict[int, int]:
    """Return the number of neurons in each layer that has any, keyed by position."""
    up = neuron_role(model)
    if up is None:
        return {}
    adapted = with_first_experts(model)
    return {place: n_channels_of(adapted, up, place) for place in layers_with(adapted, up)}


def sample_sizes(n_neurons: int, n_fitted_rows: int | None, *, n_matrices: int) -> tuple[int, int]:
    """Return how many of a layer's neurons to test, and on how many others to fit a rotation.

    ``n_neurons`` is at least twice :data:`FEWEST_TESTED`. If ``n_fitted_rows`` is None, the rotation is fitted on all
    neurons that are not tested.
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
    roles, run = [role for role in (GATE_OF[up], up) if set(places) <= set(layers_with(model, role))], RUN
    if nominates:
        roles, run, n_fitted_rows = [up], RUN_NEURONS, NOMINATING_FITTED_ROWS
    n_tested, n_fitted = sample_sizes(n_neurons, n_fitted_rows, n_matrices=len(roles))
    sampled_neurons = sample_neurons(n_neurons, n_tested + n_fitted, run=run, seed=seed)
    numbers = np.concatenate([np.sort(sampled_neurons[n_tested:]), np.sort(sampled_neurons[:n_tested])])
    return _Choice(model, up, places, tuple(roles), n_neurons, n_tested, numbers)


def planned_n_bytes(model: PlacedTensors, *, every: bool = False) -> int:
    """Estimate how many bytes of gate and up :func:`take_neurons` reads.

    Raises:
        AnatomyError: If a matrix of neurons does not have the model's width.
    """
    choice = _choose(model, every=every)
    if choice is None:
        return 0
    layer = choice.model.anatomy.layers[choice.places[0]]
    spec = model.tensors.spec(layer.parts[choice.up].tensors[0])
    n_rows = len(choice.places) * len(choice.written) * len(choice.numbers)
    return n_rows * model.anatomy.hidden_size * spec.n_bytes // math.prod(spec.shape)


def bytes_of_down(model: PlacedTensors) -> int:
    """Return the stored size of down in the layers that :func:`take_neurons` samples, in bytes."""
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

    Use the same ``seed`` for both models. The rotation is fitted on ``n_fitted_rows`` rows or, if that is None, on all
    untested rows. ``places`` defaults to all layers if ``every`` is set, else to four. If ``n_down_channels`` is None,
    all channels are read. If ``nominates`` is set, only up is read, in the longer runs that the layer map also reads.

    Returns:
        The sample; None if layers have too few neurons, or if the architecture gives neuron numbers a meaning.

    Raises:
        AnatomyError: If a matrix of neurons does not have the model's width.
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
    n_others = OTHER_LAYERS if n_down_channels is None else FEW_OTHER_LAYERS
    return with_outputs(model, sample, seed=seed, n_channels=n_down_channels, n_other_layers=n_others)


def read_sample(
    model: PlacedTensors,
    places: Sequence[int],
    numbers: IntArray,
    *,
    n_tested: int,
    readers: Sequence[RoleReader],
    seed: int,
) -> NeuronSample:
    """Read the gate and up rows of the given neurons in some layers.

    The last ``n_tested`` of ``numbers`` ``(n,)`` are tested. ``readers`` read gate and up, or up alone. ``seed``
    selects embedding rows that represent the residual stream.
    """
    stream = stream_rows(model, seed)
    order = np.sort(numbers)
    at, rows = torch.from_numpy(np.searchsorted(order, numbers)), torch.from_numpy(order)
    n_fitted = len(numbers) - n_tested
    in_spans, whole, lengths, offsets = [], [], [], []
    for place in places:
        matrices = [reader.read(place, rows)[at].float() for reader in readers]
        lengths.append(products_of_lengths(model, place, readers, rows, stream)[at])
        offsets.append(offsets_of(model, place, readers[0], rows)[at])
        in_spans.append(torch.stack(in_span(matrices, n_fitted)))
        if place in spread(places, FEW_LAYERS):
            whole.append(torch.stack(matrices))
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


def with_outputs(
    model: PlacedTensors,
    sample: NeuronSample,
    *,
    seed: int,
    n_channels: int | None,
    n_other_layers: int = OTHER_LAYERS,
) -> NeuronSample:
    """Read the down columns of a sample's neurons in ``n_channels`` channels, or in all if that is None.

    Raises:
        AnatomyError: If a layer's down matrix is missing or does not have the model's width.
    """
    assert sample.numbers is not None and sample.lengths is not None and sample.offsets is not None
    up = neuron_role(model)
    assert up is not None
    adapted = with_first_experts(model)
    width = model.anatomy.written_width
    channels: IntArray | None = None
    if n_channels is not None and n_channels < width:
        channels = np.sort(np.random.default_rng([seed, 1]).permutation(width)[:n_channels]).astype(np.int64)
    rows, strengths, constants = [], [], []
    for place, lengths, offsets in zip(sample.layers, sample.lengths, sample.offsets, strict=True):
        constants.append(constant_responses(adapted, place, sample.numbers, offsets, sample.stream_scale or 0.0))
        outputs = read_outputs(adapted, up, place, sample.numbers, channels)
        strengths.append(lengths * outputs.norm(dim=1) * math.sqrt(width / outputs.shape[1]))
        rows.append(in_span([unit_rows(outputs)], sample.n_fitted)[0])
    outputs_of_layers = NeuronOutputs(
        torch.stack(rows),
        torch.stack(strengths),
        stream_scale=sample.stream_scale or 0.0,
        strongest=strongest_layer(
            model, dict(zip(sample.layers, strengths, strict=True)), seed=seed, n_others=n_other_layers
        ),
        n_channels=n_channels,
        offsets=sample.offsets,
        constants=torch.stack(constants),
    )
    return replace(sample, outputs=outputs_of_layers)
