"""Neurons by number: a few rows of a few layers, before anything that is large."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

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
"""Layers of each model in the first two looks, the first and the last among them."""

TESTED, FITTED = 32, 64
"""Neurons of a layer that are tested, and others that a rotation is fitted on. Of a copy all 32 have their own number,
which has p <= 1/32! = 10^-35; fitted on 32 others, rotated and sliced copies of SmolLM2 were found as surely."""

RUN = 16
"""Neighbouring neurons in a run: one range of bytes."""

LOOKS = 3
"""In the same basis, behind a rotation, and at all layers in the same basis."""

TESTS = 2
"""The pairs of layers at the same place in the order of those looked at, all together; and the best pair of all."""

LEAST_OWN_SHARE = 0.5
"""Numbers can be chosen. A pair of layers counts only where this share of the tested neurons has its own number."""


PLACE = 16
"""Look s of a comparison may spend 1 / (s (s + 1)) of alpha. Those at the matrices and at the layers are fewer."""


def can_compare_neurons(reference: PlacedTensors, candidate: PlacedTensors) -> bool:
    """Whether both models have MLPs with equally many neurons, whose numbers mean nothing. Reads headers at most."""
    models = (reference, candidate)
    if any(model.anatomy.neuron_numbers is not None or not layers_with(model, Role.UP) for model in models):
        return False
    n_neurons = {_n_neurons(model) for model in models}
    return len(n_neurons) == 1 and n_neurons.pop() >= TESTED


def compare_neurons(reference: PlacedTensors, candidate: PlacedTensors, settings: Settings) -> NeuronNumbers:
    """Count neurons with their own number among a few that are tested, in few layers first.

    Args:
        reference: One model.
        candidate: The other; :func:`can_compare_neurons` holds for both.
        settings: Seed, device and alpha.

    Returns:
        The first look that finds a pair of layers, else the one with the smallest p.

    Raises:
        AnatomyError: If what writes the neurons of a layer is no matrix of the model's width.
        MdirError: If it cannot be read.

    Cost: reads 32 rows of gate and up of four layers of each model, then 64 more, then 32 of every layer.
    """
    n_neurons = _n_neurons(reference)
    numbers = sample_neurons(n_neurons, min(TESTED + FITTED, n_neurons), run=min(RUN, n_neurons), seed=settings.seed)
    tested, fitted = np.sort(numbers[:TESTED]), np.sort(numbers[TESTED:])
    readers = (_NeuronReader(reference, settings.device), _NeuronReader(candidate, settings.device))
    every = tuple(layers_with(model, Role.UP) for model in (reference, candidate))
    n_few = min(FEW_LAYERS, *map(len, every))
    few = tuple(places[:1] if n_few == 1 else spread(places, n_few) for places in every)
    is_one_width = reference.anatomy.hidden_size == candidate.anatomy.hidden_size
    looks: list[tuple[tuple[tuple[int, ...], ...], IntArray | None]] = [(few, None)] if is_one_width else []
    looks += [(few, fitted)] if len(fitted) >= TESTED else []
    looks += [(every, None)] if is_one_width and every != few else []
    found: list[NeuronNumbers] = []
    for positions, rows_fitted in looks:
        found.append(_look(readers, positions, tested, rows_fitted, settings))
        if found[-1].matches:
            return found[-1]
    return min(found, key=lambda look: look.log10_p)


@dataclass(frozen=True, slots=True)
class _NeuronReader:
    """Rows of gate and up of one model; each is read once."""

    model: PlacedTensors
    device: str
    _read: dict[tuple[int, bytes], Neurons] = field(default_factory=dict)

    def neurons(self, positions: Sequence[int], numbers: IntArray) -> list[Neurons]:
        """Read the neurons of these numbers of some layers, side by side."""
        key = numbers.tobytes()
        wanted = [place for place in positions if (place, key) not in self._read]
        roles = [role for role in (Role.GATE, Role.UP) if set(wanted) <= set(layers_with(self.model, role))]
        readers = [RoleReader(self.model, role, wanted) for role in roles]
        for place in wanted:
            rows = [reader.read(place, torch.from_numpy(numbers)) for reader in readers]
            self._read[place, key] = [part.to(self.device, torch.float32) for part in rows]
        return [self._read[place, key] for place in positions]


def _look(
    readers: tuple[_NeuronReader, _NeuronReader],
    positions: tuple[tuple[int, ...], ...],
    tested: IntArray,
    fitted: IntArray | None,
    settings: Settings,
) -> NeuronNumbers:
    sides = [reader.neurons(places, tested) for reader, places in zip(readers, positions, strict=True)]
    n_fitted = 0
    if fitted is not None:
        n_fitted = len(fitted)
        before = [reader.neurons(places, fitted) for reader, places in zip(readers, positions, strict=True)]
        sides = [
            [[torch.cat(pair) for pair in zip(first, then, strict=True)] for first, then in zip(*both, strict=True)]
            for both in zip(before, sides, strict=True)
        ]
    own = np.array(
        [[own_numbers(x, y, n_fitted=n_fitted) if len(x) == len(y) else 0 for y in sides[1]] for x in sides[0]],
        dtype=np.int64,
    )
    in_place = int(np.trace(own)) if own.shape[0] == own.shape[1] else 0
    cost = log_cost_of_look(PLACE) + math.log(LOOKS * TESTS)
    log_p_cells = np.array([[log_p_own_numbers(int(k)) for k in row] for row in own]) + math.log(own.size)
    log_p = min(float(log_p_cells.min()), log_p_own_numbers(in_place, len(own)))
    return NeuronNumbers(
        tested=len(tested),
        fitted=n_fitted,
        reference_layers=positions[0],
        candidate_layers=positions[1],
        own_number=tuple(map(tuple, own.tolist())),
        matches=_matches(own, log_p_cells + cost, positions, len(tested), settings.alpha),
        log10_p=min(0.0, log_p + cost) / LN10,
    )


def _matches(
    own: npt.NDArray[np.int64],
    log_p: npt.NDArray[np.float64],
    positions: tuple[tuple[int, ...], ...],
    n_tested: int,
    alpha: float,
) -> tuple[LayerPair, ...]:
    """The best ancestor of each layer of the candidate, where it counts."""
    pairs = ((int(own[:, j].argmax()), j) for j in range(own.shape[1]))
    return tuple(
        LayerPair(positions[0][i], positions[1][j])
        for i, j in pairs
        if own[i, j] >= LEAST_OWN_SHARE * n_tested and log_p[i, j] < math.log(alpha)
    )


def _n_neurons(model: PlacedTensors) -> int:
    places = layers_with(model, Role.UP)
    return RoleReader(model, Role.UP, places[:1]).n_channels(places[0])
