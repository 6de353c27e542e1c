"""Find partners for the second witness if neurons were reordered, removed or resized.

Because the search chooses the pairs, neuron numbers give no bound on p.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from mdir_hf.comparison.layer_weights import RoleReader, layers_with, n_channels_of
from mdir_hf.comparison.neuron_reading import RUN, sample_sizes
from mdir_hf.comparison.neuron_sample import FEWEST_TESTED, FITTED_ROWS, NeuronOutputs, NeuronSample
from mdir_hf.comparison.neuron_strengths import (
    DOWN_OF,
    GATE_OF,
    STRENGTHS_READ,
    bias_of,
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
from mdir_hf.comparison.neurons import compare_neurons
from mdir_hf.method.gauge import ResidualBasisMap
from mdir_hf.method.neuron_numbers import in_span, sample_neurons
from mdir_hf.method.neurons import TWIN_COSINE, mean_square_of_outputs, unit_rows
from mdir_hf.model.comparable import PlacedTensors
from mdir_hf.model.roles import Role
from mdir_hf.report import NeuronNumbers

ROWS_AT_ONCE = 4096
"""Rows of the larger layer per matrix product."""

MOST_PAIRS = 3
"""Maximum number of layer pairs to search. Each requires reading gate, up and down of one layer in each model."""


EQUAL_COSINE = 0.999
"""Neurons have equal activations if their rows have at least this cosine, and if their gate lengths and biases differ
by at most 0.1% of the row length. Rounding to an 8-bit mantissa gives a cosine of 0.99999."""


@dataclass(frozen=True, eq=False)
class _SearchedLayer:
    """Sampled neurons of one layer. Neurons at the same index in both layers form a pair."""

    n_fitted: int
    mean_square: float
    matrices: list[torch.Tensor]
    lengths: torch.Tensor
    offsets: torch.Tensor
    constants: torch.Tensor
    outputs: torch.Tensor


def search_neurons(
    models: tuple[PlacedTensors, PlacedTensors],
    pairs: Sequence[tuple[int, int]],
    residual_map: ResidualBasisMap,
    *,
    seed: int,
    alpha: float,
    place: int,
    device: str = "cpu",
) -> NeuronNumbers | None:
    """Run the second witness on neurons whose partners are found using a residual-basis map.

    Reads all neurons of up to :data:`MOST_PAIRS` pairs of layers. ``place`` is the position of this look, as in
    :func:`~.neurons.compare_neurons`. Returns None if no pair can be searched.
    """
    up = neuron_role(*models)
    if up is None:
        return None
    views = tuple(map(with_first_experts, models))
    usable = [pair for pair in pairs if _have_neurons(views, up, pair)]
    chosen_pairs = [usable[at] for at in np.random.default_rng([seed, 3]).permutation(len(usable))[:MOST_PAIRS]]
    searched_pairs = [
        (pair, sides)
        for pair in sorted(chosen_pairs)
        if (sides := _searched_pair(views, up, pair, residual_map, seed=seed, device=device)) is not None
    ]
    shapes = [sides[0].matrices[0].shape[0] for _, sides in searched_pairs]
    searched_pairs = [
        pair_and_sides for pair_and_sides, shape in zip(searched_pairs, shapes, strict=True) if shape == shapes[0]
    ]
    if not searched_pairs:
        return None
    n_neurons = max(
        n_channels_of(model, up, place_)
        for pair, _ in searched_pairs
        for model, place_ in zip(views, pair, strict=True)
    )
    samples = [
        _sample(
            model,
            [pair[side] for pair, _ in searched_pairs],
            [layers[side] for _, layers in searched_pairs],
            n_neurons=n_neurons,
            seed=seed,
        )
        for side, model in enumerate(models)
    ]
    counts = compare_neurons(samples[0], samples[1], alpha=alpha, device=device, place=place, is_searched=True)
    if counts is None:
        return None
    in_pairs = {pair for pair, _ in searched_pairs}
    return replace(
        counts,
        matches=tuple(match for match in counts.matches if tuple(match) in in_pairs),
        log10_p=0.0,
        is_searched=True,
    )


def _have_neurons(models: tuple[PlacedTensors, ...], up: Role, pair: tuple[int, int]) -> bool:
    parts = [model.anatomy.layers[place].parts for model, place in zip(models, pair, strict=True)]
    gates = [GATE_OF[up] in of_layer for of_layer in parts]
    return all({up, DOWN_OF[up]} <= of_layer.keys() for of_layer in parts) and gates[0] == gates[1]


def _searched_pair(
    models: tuple[PlacedTensors, ...],
    up: Role,
    pair: tuple[int, int],
    residual_map: ResidualBasisMap,
    *,
    seed: int,
    device: str,
) -> tuple[_SearchedLayer, _SearchedLayer] | None:
    """Pair sampled neurons of the smaller layer with their best partners."""
    n_neurons = [n_channels_of(model, up, place) for model, place in zip(models, pair, strict=True)]
    few = int(n_neurons[1] < n_neurons[0])
    has_gate = GATE_OF[up] in models[0].anatomy.layers[pair[0]].parts
    roles = (GATE_OF[up], up) if has_gate else (up,)
    if n_neurons[few] < 2 * FEWEST_TESTED:
        return None
    n_tested, n_fitted = sample_sizes(n_neurons[few], FITTED_ROWS, n_matrices=len(roles))
    sampled_neurons = sample_neurons(n_neurons[few], n_tested + n_fitted, run=RUN, seed=seed)
    numbers = torch.from_numpy(
        np.concatenate([np.sort(sampled_neurons[n_tested:]), np.sort(sampled_neurons[:n_tested])])
    )
    readers = [[RoleReader(model, role, (place,)) for role in roles] for model, place in zip(models, pair, strict=True)]
    order = numbers.sort().values
    at = torch.searchsorted(order, numbers)
    sampled = [reader.read(pair[few], order)[at].float() for reader in readers[few]]
    streams = [stream_rows(model, seed) for model in models]
    sampled_lengths = products_of_lengths(models[few], pair[few], readers[few], order, streams[few])[at]
    every = [reader.read(pair[1 - few], None).float() for reader in readers[1 - few]]
    carrier = residual_map if few == 0 else residual_map.reversed
    carried_rows = [carrier.carry_in(rows) for rows in sampled]
    # Keys and queries do not determine the sign of the stream, and neither does a map fitted on keys.
    both_signs = [_best_partners([sign * rows for rows in carried_rows], every, device) for sign in (1.0, -1.0)]
    partners, signs, _ = max(both_signs, key=lambda partners: partners[2])
    signs = signs if has_gate and up is Role.UP else torch.ones_like(signs)
    matched_rows = [rows[partners] for rows in every]
    sampled[-1] = sampled[-1] * signs[:, None]
    whole = torch.arange(n_neurons[1 - few])
    lengths = products_of_lengths(models[1 - few], pair[1 - few], readers[1 - few], whole, streams[1 - few])
    offsets = offsets_of(models[1 - few], pair[1 - few], readers[1 - few][0], whole)[partners]
    outputs = read_outputs(models[1 - few], up, pair[1 - few], whole.numpy())
    neurons_read = torch.from_numpy(np.random.default_rng([seed, 5]).permutation(len(whole))[:STRENGTHS_READ])
    mean_square = mean_square_of_outputs(
        [unit_rows(rows[neurons_read]) for rows in every],
        (lengths[:, None] * outputs)[neurons_read],
        n_neurons=len(whole),
    )
    larger_rows = [
        NeuronRows(rows, reader.lengths(pair[1 - few], whole), bias_of(models[1 - few], pair[1 - few], reader.role))
        for rows, reader in zip(every, readers[1 - few], strict=True)
    ]
    is_twin = larger_rows[0].cosines(partners, device).abs() >= TWIN_COSINE
    if up is Role.UP:
        outputs, is_merged = merged_outputs(larger_rows, outputs, partners, device)
    else:  # channels of a mixer with equal rows may differ in their convolution and decay
        outputs, is_merged = outputs[partners], whole == partners[:, None]
    # Twins with other activations may cancel each other in ways that are not followed, so they are ignored.
    lengths = torch.where((is_twin & ~is_merged).any(dim=1), 0.0, lengths[partners])
    scales = [stream_scale(stream) for stream in streams]
    constants = constant_responses(models[1 - few], pair[1 - few], partners.numpy(), offsets, scales[1 - few])
    larger = _SearchedLayer(n_fitted, mean_square, matched_rows, lengths, offsets, constants, outputs)
    outputs = read_outputs(models[few], up, pair[few], numbers.numpy())
    mean_square = mean_square_of_outputs(
        [unit_rows(rows) for rows in sampled], sampled_lengths[:, None] * outputs, n_neurons=n_neurons[few]
    )
    offsets = offsets_of(models[few], pair[few], readers[few][0], order)[at]
    constants = constant_responses(models[few], pair[few], numbers.numpy(), offsets, scales[few])
    outputs = outputs * signs[:, None]
    smaller = _SearchedLayer(n_fitted, mean_square, sampled, sampled_lengths, offsets, constants, outputs)
    return (smaller, larger) if few == 0 else (larger, smaller)


def _best_partners(
    carried_rows: list[torch.Tensor], every: list[torch.Tensor], device: str
) -> tuple[torch.Tensor, torch.Tensor, float]:
    """Find the most similar neuron for each carried neuron, the sign of its up row, and the mean similarity."""
    is_matched = torch.stack([rows.abs().sum(dim=0) for rows in carried_rows]).sum(dim=0) > 0.0
    sides = [unit_rows(rows[:, is_matched]).to(device) for rows in carried_rows]
    best = torch.full((len(carried_rows[0]),), -math.inf, device=device)
    partner = torch.zeros(len(best), dtype=torch.long, device=device)
    sign = torch.ones(len(best), device=device)
    for start in range(0, len(every[0]), ROWS_AT_ONCE):
        blocks = [unit_rows(rows[start : start + ROWS_AT_ONCE, is_matched]).to(device) for rows in every]
        cosines = [x @ y.T for x, y in zip(sides, blocks, strict=True)]
        likeness = sum(cosines[:-1], torch.zeros_like(cosines[-1])) + (
            cosines[-1].abs() if len(cosines) > 1 else cosines[-1]
        )
        largest, at = likeness.max(dim=1)
        is_better = largest > best
        best = torch.where(is_better, largest, best)
        partner = torch.where(is_better, at + start, partner)
        signs = torch.where(cosines[-1].gather(1, at[:, None])[:, 0] < 0.0, -1.0, 1.0)
        sign = torch.where(is_better, signs, sign)
    return partner.cpu(), sign.cpu(), float(best.mean())


@dataclass(frozen=True, eq=False)
class NeuronRows:
    """An MLP's gate or up, with its bias.

    Attributes:
        rows: ``(n, width)`` unit rows.
        lengths: ``(n,)`` lengths of the stored rows.
        bias: ``(n,)``, or None.
    """

    rows: torch.Tensor
    lengths: torch.Tensor
    bias: torch.Tensor | None = None

    def cosines(self, neurons: torch.Tensor, device: str) -> torch.Tensor:
        """Return the ``(k, n)`` cosines between chosen rows and all rows."""
        rows = unit_rows(self.rows).to(device)
        return (rows[neurons] @ rows.T).cpu()


def merged_outputs(
    matrices: list[NeuronRows], outputs: torch.Tensor, neurons: torch.Tensor, device: str = "cpu"
) -> tuple[torch.Tensor, torch.Tensor]:
    """Add the outputs of neurons with equal activations: parts of a split neuron, or copies that cancel.

    ``matrices`` are gate and up, or up alone; ``outputs`` are down columns ``(n, channels)``; ``neurons`` are neuron
    numbers ``(k,)``. Returns the summed outputs and a ``(k, n)`` mask of the neurons in each sum.
    """
    first, last = matrices[0], matrices[-1]
    cosines_of_last = last.cosines(neurons, device)
    # Up may be rescaled or negated against down. A gate, or up without a gate, may not.
    signs = cosines_of_last.sign() if len(matrices) > 1 else torch.ones_like(cosines_of_last)
    is_equal = (first.cosines(neurons, device) > EQUAL_COSINE) & (cosines_of_last * signs > EQUAL_COSINE)
    is_equal &= (first.lengths / first.lengths[neurons][:, None] - 1.0).abs() < 1.0 - EQUAL_COSINE
    for matrix, sign in ((first, torch.ones_like(signs)), (last, signs)):
        if matrix.bias is not None:
            relative = matrix.bias / matrix.lengths
            is_equal &= (sign * relative - relative[neurons][:, None]).abs() < 1.0 - EQUAL_COSINE
    is_equal[torch.arange(len(neurons)), neurons] = True
    scales = signs if len(matrices) == 1 else signs * last.lengths / last.lengths[neurons][:, None]
    scales[torch.arange(len(neurons)), neurons] = 1.0
    return torch.where(is_equal, scales, 0.0) @ outputs, is_equal


def _sample(
    model: PlacedTensors, places: list[int], layers: list[_SearchedLayer], *, n_neurons: int, seed: int
) -> NeuronSample:
    n_fitted = layers[0].n_fitted
    outputs = torch.stack([in_span([unit_rows(layer.outputs)], n_fitted)[0] for layer in layers])
    strengths = torch.stack([layer.lengths * layer.outputs.norm(dim=1) for layer in layers])
    return NeuronSample(
        layers=tuple(places),
        n_neurons=n_neurons,
        n_fitted=n_fitted,
        rows=torch.stack([torch.stack(in_span(layer.matrices, n_fitted)) for layer in layers]),
        lengths=torch.stack([layer.lengths for layer in layers]),
        outputs=NeuronOutputs(
            outputs,
            strengths,
            stream_scale=stream_scale(stream_rows(model, seed)),
            strongest=strongest_layer(model, dict(zip(places, strengths, strict=True)), seed=seed),
            n_channels=None,
            mean_squares=torch.tensor([layer.mean_square for layer in layers]),
            offsets=torch.stack([layer.offsets for layer in layers]),
            constants=torch.stack([layer.constants for layer in layers]),
        ),
    )


def same_places(
    reference: PlacedTensors, candidate: PlacedTensors, *, at_most: int, seed: int
) -> list[tuple[int, int]]:
    """Draw pairs of layers at the same position; return an empty list if the depths differ."""
    up = neuron_role(reference, candidate)
    if up is None:
        return []
    places = [layers_with(with_first_experts(model), up) for model in (reference, candidate)]
    if len(places[0]) != len(places[1]):
        return []
    positions = np.random.default_rng([seed, 4]).permutation(len(places[0]))[:at_most]
    return sorted((places[0][at], places[1][at]) for at in positions)
