"""Neurons by number: a few rows of a few layers, before anything that is large."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.optimize import linear_sum_assignment

from mdir_hf.comparison.layer_weights import RoleReader, layers_with
from mdir_hf.comparison.row_screen import spread
from mdir_hf.method.neuron_numbers import in_span, log_p_own_numbers, own_numbers, sample_neurons
from mdir_hf.method.neurons import unit_rows
from mdir_hf.method.significance import LN10, log_cost_of_look
from mdir_hf.model.comparable import PlacedTensors
from mdir_hf.model.files import TensorSource
from mdir_hf.model.roles import Anatomy, Layer, Role
from mdir_hf.report import LayerPair, NeuronNumbers
from mdir_hf.report.parts import Count

FEW_LAYERS = 4
"""Layers of each model that are looked at unless the level asks for all, the first and the last among them."""

TESTED = 32
"""Neurons of a layer that are tested. Of a copy all have their own number, which has p <= 1/32! = 10^-35."""

FITTED_ROWS = 128
"""Rows that a rotation is fitted on: of 64 neurons with gate and up, of 128 without a gate. Copies of SmolLM2 that were
rotated, sliced or requantised have all 32 after 32 neurons; under noise as large as the weights it takes 64."""

FEW_FITTED_ROWS = 64
"""The same where every layer is looked at because nothing else was found: a copied layer has all 32 on them."""

RUN = 16
"""Neighbouring neurons in a run: one range of bytes."""

TESTS = 2
"""Pairs of layers together, of as many layers those at the same place in their order; and the best pair of all."""

LEAST_CERTAIN_SHARE_OF_NEURONS = 0.75
"""A pair of layers counts only where this share of the tested neurons has its own number and is certain. Somebody who
knows which neurons are read can search for an arrangement of a stranger in which 18 of 32 are; somebody who does not
reaches 5 own numbers, none of them certain (``benchmarks/real/arranged_neurons.py``)."""

PLANTED = 5
"""Copies that are planted in each layer for what a "no" excludes."""

NOISES = tuple(0.125 * 1.25**step for step in range(20))
"""Noise of the planted copies, up to 8.7 times the weights."""

PLACE = 16
"""Look s of a comparison may spend 1 / (s (s + 1)) of alpha. Those at the matrices and at the layers are fewer."""


@dataclass(frozen=True)
class DescribedNeurons:
    """What a file says of a :class:`NeuronSample` beside its rows."""

    layers: tuple[Count, ...]
    n_neurons: Count
    n_fitted: Count


@dataclass(frozen=True, eq=False)
class NeuronSample:
    """Rows of a few neurons of some layers of a model.

    Attributes:
        layers: Positions of the layers in ``anatomy.layers``.
        n_neurons: Neurons of a layer, of which these were chosen.
        n_fitted: The first of the rows, which a rotation is fitted on; the others are tested.
        rows: ``(layers, matrices, neurons, f)``: rows of gate and up, or of up, of unit length before they were
            written in a basis of what the fitted ones span (f of them at most).
        whole: The same of four layers at most, ``(layers, matrices, neurons, width)``, as they were read; None where
            they were not kept.
    """

    layers: tuple[int, ...]
    n_neurons: int
    n_fitted: int
    rows: torch.Tensor
    whole: torch.Tensor | None = None

    def kept(self) -> NeuronSample:
        """The same in 16 bits, whose rounding is far below what separates neurons."""
        return replace(self, rows=self.rows.half(), whole=None)

    def described(self) -> dict[str, Any]:
        """All but the rows, as plain containers; :meth:`restored` takes it."""
        return {"layers": list(self.layers), "n_neurons": self.n_neurons, "n_fitted": self.n_fitted}

    @classmethod
    def restored(cls, described: DescribedNeurons, rows: torch.Tensor) -> NeuronSample:
        """Put together what was read from a file.

        Raises:
            ValueError: If the rows are not those of such a sample.
        """
        n_layers, n_fitted = len(described.layers), described.n_fitted
        is_right = rows.ndim == 4 and rows.dtype.is_floating_point and 0 not in rows.shape
        if not is_right or rows.shape[0] != n_layers or rows.shape[2] != n_fitted + TESTED:
            raise ValueError(
                f"expected rows of {n_fitted + TESTED} neurons of {n_layers} layers, got shape {tuple(rows.shape)}"
            )
        if not bool(torch.isfinite(rows).all()):
            raise ValueError("expected rows of neurons that are finite")
        return cls(described.layers, described.n_neurons, n_fitted, rows)

    def is_like(self, other: NeuronSample) -> bool:
        """Whether neurons of the same numbers were taken of layers of the same kind."""
        mine, theirs = ((s.n_neurons, s.n_fitted, s.rows.shape[1:3]) for s in (self, other))
        return mine == theirs


@dataclass(frozen=True)
class _Choice:
    """Which rows of a model are read: of these layers, by these readers, of neurons of these numbers."""

    places: tuple[int, ...]
    readers: tuple[RoleReader, ...]
    n_neurons: int
    numbers: npt.NDArray[np.int64]
    """Those that are fitted, then those that are tested; each in order."""


@dataclass(frozen=True)
class _FirstExperts:
    """A model whose layers have the MLP of their first expert where they have no other.

    Experts that are stored as one tensor are left out: some rows of it cost all of it. What is left out has no neurons.
    """

    label: str
    tensors: TensorSource
    anatomy: Anatomy

    @classmethod
    def of(cls, model: PlacedTensors) -> _FirstExperts:
        layers = tuple(_with_first_expert(layer) for layer in model.anatomy.layers)
        return cls(model.label, model.tensors, replace(model.anatomy, layers=layers))


def _with_first_expert(layer: Layer) -> Layer:
    mlps = (*layer.experts[:1], *layer.shared_experts[:1])
    first = next((parts for parts in mlps if Role.UP in parts and parts[Role.UP].expert is None), None)
    if first is None or Role.UP in layer.parts:
        return layer
    return replace(layer, parts={**layer.parts, **first})


def neuron_layers(model: PlacedTensors) -> tuple[int, ...]:
    """Positions of the layers with neurons that can be compared by number: those of an MLP, or of a first expert."""
    return layers_with(_FirstExperts.of(model), Role.UP)


def _choose(model: PlacedTensors, seed: int, *, every: bool, n_fitted_rows: int = FITTED_ROWS) -> _Choice | None:
    model = _FirstExperts.of(model)
    places = layers_with(model, Role.UP)
    if not places or model.anatomy.neuron_numbers is not None:
        return None
    places = places if every else spread(places, FEW_LAYERS)
    n_channels = RoleReader(model, Role.UP, places).n_channels
    n_neurons = Counter(map(n_channels, places)).most_common(1)[0][0]
    if n_neurons < 2 * TESTED:
        return None
    places = tuple(place for place in places if n_channels(place) == n_neurons)
    roles = [role for role in (Role.GATE, Role.UP) if set(places) <= set(layers_with(model, role))]
    n_wanted = TESTED + min(n_fitted_rows // len(roles), n_neurons - TESTED)
    numbers = sample_neurons(n_neurons, n_wanted, run=RUN, seed=seed)
    numbers = np.concatenate([np.sort(numbers[TESTED:]), np.sort(numbers[:TESTED])])
    return _Choice(places, tuple(RoleReader(model, role, places) for role in roles), n_neurons, numbers)


def planned_n_bytes(model: PlacedTensors, *, every: bool = False) -> int:
    """About how many bytes :func:`take_neurons` reads; costs the header of a shard.

    Raises:
        AnatomyError: As it does.
        MdirError: If the header cannot be read.
    """
    choice = _choose(model, 0, every=every)
    if choice is None:
        return 0
    anatomy = choice.readers[0].model.anatomy
    spec = model.tensors.spec(anatomy.layers[choice.places[0]].parts[Role.UP].tensors[0])
    n_rows = len(choice.places) * len(choice.readers) * len(choice.numbers)
    return n_rows * model.anatomy.hidden_size * spec.n_bytes // math.prod(spec.shape)


def take_neurons(
    model: PlacedTensors, *, seed: int = 0, every: bool = False, n_fitted_rows: int = FITTED_ROWS
) -> NeuronSample | None:
    """Read 96 rows of gate and up (160 of up without a gate) of four layers, or of all of them.

    Args:
        model: The model.
        seed: Seed of the choice, which sees no weight.
        every: Whether all layers are wanted.
        n_fitted_rows: Rows that a rotation is fitted on.

    Returns:
        The rows; None where the model has no MLP of so many neurons, or where their numbers mean something.

    Raises:
        AnatomyError: If what writes the neurons of a layer is not a matrix of the model's width.
        MdirError: If it cannot be read.
    """
    choice = _choose(model, seed, every=every, n_fitted_rows=n_fitted_rows)
    if choice is None:
        return None
    n_neurons, numbers, readers = choice.n_neurons, choice.numbers, choice.readers
    n_fitted = len(numbers) - TESTED
    order = np.sort(numbers)
    kept = [place for place in choice.places if all(reader.n_channels(place) == n_neurons for reader in readers)]
    at, rows = torch.from_numpy(np.searchsorted(order, numbers)), torch.from_numpy(order)
    in_spans, whole = [], []
    for place in kept:
        read = [reader.read(place, rows)[at].float() for reader in readers]
        in_spans.append(torch.stack(in_span(read, n_fitted)))
        if place in spread(kept, FEW_LAYERS):
            whole.append(torch.stack(read))
    return NeuronSample(tuple(kept), n_neurons, n_fitted, torch.stack(in_spans), torch.stack(whole))


def excluded_noise(*samples: NeuronSample, alpha: float) -> float:
    """Find the noise under which a copy of any of some models would count, in whatever basis, its neurons in order.

    Args:
        samples: Of both models, as :func:`take_neurons` gives them.
        alpha: Level of significance.

    Returns:
        Noise in units of the root mean square of each row; 0 where the least of :data:`NOISES` hides a copy. Copies of
        these neurons are planted: all were found under noise a quarter stronger. Cost: 40 fits for each of four steps.
    """
    log_paid = math.log(math.prod(len(sample.layers) for sample in samples)) + log_cost_of_look(PLACE) + math.log(TESTS)
    log_level = math.log(alpha) - log_paid

    def is_found(noise: float) -> bool:
        return all(
            any(_counts(layer, noise, seed, sample, log_level) for layer in sample.whole)
            for sample in samples
            if sample.whole is not None
            for seed in range(PLANTED)
        )

    n_found = bisect_left(NOISES, True, key=lambda noise: not is_found(noise))
    return NOISES[n_found - 1] / NOISES[1] * NOISES[0] if n_found else 0.0


def _counts(layer: torch.Tensor, noise: float, seed: int, sample: NeuronSample, log_level: float) -> bool:
    """Whether a copy of a layer under noise would be matched with it."""
    generator = torch.Generator().manual_seed(seed)
    more = noise * layer.shape[-1] ** -0.5 * torch.randn(layer.shape, generator=generator)
    planted = torch.nn.functional.normalize(layer + more, dim=-1)
    sides = (in_span(list(rows), sample.n_fitted) for rows in (layer, planted))
    found = own_numbers(*sides, n_fitted=sample.n_fitted, n_neurons=sample.n_neurons)
    return found.certain >= LEAST_CERTAIN_SHARE_OF_NEURONS * TESTED and log_p_own_numbers(found.own) < log_level


def resemblances(sample: NeuronSample) -> torch.Tensor:
    """How the tested neurons of each layer resemble each other, whatever the basis.

    Args:
        sample: Neurons of a model.

    Returns:
        Cosines of all pairs, centred and of unit length together, ``(layers, matrices * pairs)``, float32. Their inner
        product between two layers is their correlation over pairs of neurons of the same numbers.
    """
    tested = torch.nn.functional.normalize(sample.rows[:, :, sample.n_fitted :].float(), dim=-1)
    n = tested.shape[2]
    above = torch.triu_indices(n, n, 1)
    cosines = (tested @ tested.transpose(2, 3))[:, :, above[0], above[1]]
    return unit_rows((cosines - cosines.mean(dim=2, keepdim=True)).flatten(1))


def compare_neurons(
    reference: NeuronSample, candidate: NeuronSample, *, alpha: float, device: str = "cpu", place: int = PLACE
) -> NeuronNumbers | None:
    """Count tested neurons with their own number, after a rotation fitted on the others, for all pairs of layers.

    Args:
        reference: Of one model.
        candidate: Of the other.
        alpha: Level of significance.
        device: torch device of the matrix products.
        place: Of this look among those of the comparison, which says what share of alpha it may spend.

    Returns:
        The counts with p; None where the two models have other numbers of neurons.
    """
    if not reference.is_like(candidate):
        return None
    sides = [[list(layer) for layer in sample.rows.to(device, torch.float32)] for sample in (reference, candidate)]
    n_fitted, n_neurons = reference.n_fitted, reference.n_neurons
    found = [[own_numbers(x, y, n_fitted=n_fitted, n_neurons=n_neurons) for y in sides[1]] for x in sides[0]]
    own, certain = (np.array([[cell[which] for cell in row] for row in found], dtype=np.int64) for which in (0, 1))
    log_p = _log_p(own)
    cost = log_cost_of_look(place) + math.log(TESTS)
    log_p_of_all = min(float(log_p.min()), _log_p_together(own))
    n_tested = reference.rows.shape[2] - n_fitted
    places = (reference.layers, candidate.layers)
    return NeuronNumbers(
        tested=n_tested,
        fitted=n_fitted,
        reference_layers=places[0],
        candidate_layers=places[1],
        own_number=tuple(map(tuple, own.tolist())),
        certain=tuple(map(tuple, certain.tolist())),
        matches=_matches(certain, log_p + cost < math.log(alpha), places, n_tested),
        log10_p=min(0.0, log_p_of_all + cost) / LN10,
    )


def _log_p(own: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Natural log of p of each pair of layers, corrected for their number."""
    return np.array([[log_p_own_numbers(int(k)) for k in row] for row in own]) + math.log(own.size)


def _log_p_together(own: npt.NDArray[np.int64]) -> float:
    """Natural log of p of pairs of layers together: those in place, or the best of all ways to pair fewer with more."""
    n_few, n_many = sorted(own.shape)
    if n_few == n_many:
        return log_p_own_numbers(int(np.trace(own)), n_few)
    n_own = int(own[linear_sum_assignment(own, maximize=True)].sum())
    return min(0.0, log_p_own_numbers(n_own, n_few) + math.log(math.perm(n_many, n_few)))


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
        if certain[i, j] >= LEAST_CERTAIN_SHARE_OF_NEURONS * n_tested and is_significant[i, j]
    )
