"""Neurons by number: a few rows of a few layers, before anything that is large."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch

from mdir_hf.comparison.layer_weights import RoleReader, layers_with
from mdir_hf.comparison.row_screen import spread
from mdir_hf.comparison.settings import Settings
from mdir_hf.method.matching import IntArray
from mdir_hf.method.neuron_numbers import Neurons, log_p_own_numbers, own_numbers, sample_neurons
from mdir_hf.method.significance import LN10, log_cost_of_look
from mdir_hf.model.comparable import PlacedTensors
from mdir_hf.model.roles import Role
from mdir_hf.report import LayerPair, NeuronNumbers

FEW_LAYERS = 4
"""Layers of each model that are looked at unless the level asks for all, the first and the last among them."""

TESTED = 32
"""Neurons of a layer that are tested. Of a copy all have their own number, which has p <= 1/32! = 10^-35."""

FITTED_ROWS = 128
"""Rows that a rotation is fitted on: of 64 neurons with gate and up, of 128 without a gate. Copies of SmolLM2 that were
rotated, sliced or requantised have all 32 after 32 neurons; under noise as large as the weights it takes 64."""

RUN = 16
"""Neighbouring neurons in a run: one range of bytes."""

TESTS = 2
"""The pairs of layers at the same place in the order of those looked at, all together; and the best pair of all."""

LEAST_CERTAIN_SHARE = 0.5
"""A pair of layers counts only where this share of the tested neurons has its own number and is certain. Of strangers
whose neurons were renumbered by somebody who knew which are tested, all had their own number and none was certain
(``benchmarks/real/arranged.py``)."""

PLACE = 16
"""Look s of a comparison may spend 1 / (s (s + 1)) of alpha. Those at the matrices and at the layers are fewer."""


def can_compare_neurons(reference: PlacedTensors, candidate: PlacedTensors) -> bool:
    """Whether both models have MLPs with equally many neurons, whose numbers mean nothing. Reads headers at most."""
    models = (reference, candidate)
    if any(model.anatomy.neuron_numbers is not None or not layers_with(model, Role.UP) for model in models):
        return False
    n_neurons = {_n_neurons(model) for model in models}
    are_gated = {bool(layers_with(model, Role.GATE)) for model in models}
    return len(n_neurons) == len(are_gated) == 1 and n_neurons.pop() >= 2 * TESTED


def compare_neurons(reference: PlacedTensors, candidate: PlacedTensors, settings: Settings) -> NeuronNumbers:
    """Count neurons with their own number among a few that are tested, behind a rotation fitted on a few others.

    Args:
        reference: One model.
        candidate: The other; :func:`can_compare_neurons` holds for both.
        settings: Seed, device, alpha, and a level that says whether all layers are looked at.

    Raises:
        AnatomyError: If what writes the neurons of a layer is no matrix of the model's width.
        MdirError: If it cannot be read.

    Cost: reads 96 rows of gate and up (160 of up without a gate) of four layers of each model, or of all of them.
    """
    models = (reference, candidate)
    n_neurons = _n_neurons(reference)
    n_fitted = min(FITTED_ROWS // (2 if layers_with(reference, Role.GATE) else 1), n_neurons - TESTED)
    numbers = sample_neurons(n_neurons, n_fitted + TESTED, run=RUN, seed=settings.seed)
    fitted, tested = np.sort(numbers[TESTED:]), np.sort(numbers[:TESTED])
    places = tuple(layers_with(model, Role.UP) for model in models)
    n_few = min(FEW_LAYERS, *map(len, places))
    if not settings.level.analyses_all_layers:
        places = tuple(every[:1] if n_few == 1 else spread(every, n_few) for every in places)
    sides = [
        _read(model, positions, np.concatenate([fitted, tested]), settings.device)
        for model, positions in zip(models, places, strict=True)
    ]
    found = [
        [own_numbers(x, y, n_fitted=len(fitted), n_neurons=n_neurons) if len(x) == len(y) else (0, 0) for y in sides[1]]
        for x in sides[0]
    ]
    own, certain = (np.array([[cell[which] for cell in row] for row in found], dtype=np.int64) for which in (0, 1))
    log_p = _log_p(own)
    in_place = int(np.trace(own)) if own.shape[0] == own.shape[1] else 0
    cost = log_cost_of_look(PLACE) + math.log(TESTS)
    log_p_of_all = min(float(log_p.min()), log_p_own_numbers(in_place, len(own)))
    return NeuronNumbers(
        tested=len(tested),
        fitted=len(fitted),
        reference_layers=places[0],
        candidate_layers=places[1],
        own_number=tuple(map(tuple, own.tolist())),
        certain=tuple(map(tuple, certain.tolist())),
        matches=_matches(certain, log_p + cost < math.log(settings.alpha), places, len(tested)),
        log10_p=min(0.0, log_p_of_all + cost) / LN10,
    )


def _read(model: PlacedTensors, positions: tuple[int, ...], numbers: IntArray, device: str) -> list[Neurons]:
    """Read the neurons of these numbers of some layers: rows of gate and up, in the order of the numbers."""
    order = np.sort(numbers)
    places = torch.from_numpy(np.searchsorted(order, numbers))
    roles = [role for role in (Role.GATE, Role.UP) if set(positions) <= set(layers_with(model, role))]
    readers = [RoleReader(model, role, positions) for role in roles]
    rows = torch.from_numpy(order)
    return [
        [reader.read(position, rows)[places].to(device, torch.float32) for reader in readers] for position in positions
    ]


def _log_p(own: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Natural log of p of each pair of layers, corrected for their number."""
    return np.array([[log_p_own_numbers(int(k)) for k in row] for row in own]) + math.log(own.size)


def _matches(
    certain: npt.NDArray[np.int64],
    is_significant: npt.NDArray[np.bool_],
    places: tuple[tuple[int, ...], ...],
    n_tested: int,
) -> tuple[LayerPair, ...]:
    """The best ancestor of each layer of the candidate, where it counts."""
    pairs = ((int(certain[:, j].argmax()), j) for j in range(certain.shape[1]))
    return tuple(
        LayerPair(places[0][i], places[1][j])
        for i, j in pairs
        if certain[i, j] >= LEAST_CERTAIN_SHARE * n_tested and is_significant[i, j]
    )


def _n_neurons(model: PlacedTensors) -> int:
    places = layers_with(model, Role.UP)
    return RoleReader(model, Role.UP, places[:1]).n_channels(places[0])
