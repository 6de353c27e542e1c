"""Sample neurons: choose some in a few layers, and read their rows of gate and up."""

from __future__ import annotations

import math
import secrets
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from mdir_hf.comparison.layer_weights import RoleReader, layers_with, n_channels_of
from mdir_hf.comparison.neuron_layers import GATE_OF, neuron_role, with_first_experts
from mdir_hf.method.neuron_numbers import in_span, sample_neurons
from mdir_hf.method.neurons import unit_rows
from mdir_hf.model.comparable import PlacedTensors
from mdir_hf.model.roles import Role
from mdir_hf.report.parts import Count
from mdir_hf.thresholds import TESTED

IntArray = npt.NDArray[np.int64]

FEWEST_NEURONS = min(TESTED)

FITTED_ROWS = 128
"""Number of rows to which a rotation is fitted: gate and up of 64 neurons, or up of 128. In rotated, sliced or
requantised copies of SmolLM2, 32 neurons are enough; under noise as large as the weights, 64 are needed."""

NOMINATING_TESTED, NOMINATING_FITTED = 32, 48
"""Numbers of tested and of fitted neurons, by up alone, if every layer is read to nominate some for a larger sample."""

FEW_LAYERS = 4
"""Number of layers sampled per model, including the first and last, unless all are wanted."""

NEAR_LAYERS = 2
"""Number of random layers at the same place that the first step compares."""

LARGE_LAYER_VALUES = 1 << 24
"""If a matrix has more entries than this, the first step compares one layer, because its sample takes megabytes."""

NEAR_FITTED_ROWS = 48
"""Number of rows to which the first step fits a rotation: 3 MB for two models of 8B."""

RUN, LONG_RUN = 8, 16
"""Number of adjacent neurons that are read as one byte range, because each range of a remote file takes one request.
Rows that only nominate layers are read in longer runs."""

SAMPLE_SEEDS = 2**63


def draw_sample_seed() -> int:
    """Draw the seed of a sample of neurons from system entropy.

    Call this after both models are open, so that no model can be designed for the seed.
    """
    return secrets.randbelow(SAMPLE_SEEDS)


def spread(items: Sequence[int], most: int) -> tuple[int, ...]:
    """Return at most ``most`` items spread evenly, including the first and the last."""
    if len(items) <= most:
        return tuple(items)
    return tuple(items[round(at * (len(items) - 1) / max(1, most - 1))] for at in range(most))


ROWS = "neurons"
"""Name under which a sample's rows are stored in a file."""


@dataclass(frozen=True)
class DescribedNeurons:
    """Fields of a :class:`NeuronSample` that are stored next to its rows."""

    layers: tuple[Count, ...]
    n_neurons: Count
    n_fitted: Count


@dataclass(frozen=True, eq=False)
class NeuronSample:
    """Rows of a few neurons in some of a model's layers.

    Attributes:
        layers: Positions of the layers in ``anatomy.layers``.
        n_neurons: Number of neurons per layer, sampled or not.
        n_fitted: Number of leading neurons for fitting a rotation; the others are tested.
        rows: ``(layers, matrices, neurons, f)`` unit rows of gate and up, or of up alone, in a basis of the fitted
            rows.
        whole: ``(layers, matrices, neurons, width)`` rows as read, for at most four layers; None in a stored sample.
    """

    layers: tuple[int, ...]
    n_neurons: int
    n_fitted: int
    rows: torch.Tensor
    whole: torch.Tensor | None = None

    @property
    def n_tested(self) -> int:
        """Number of tested neurons per layer."""
        return self.rows.shape[2] - self.n_fitted

    @property
    def n_bytes(self) -> int:
        """Size of the stored rows in bytes."""
        return self.rows.nbytes

    def is_like(self, candidate: NeuronSample) -> bool:
        """Return whether both samples have the same numbers of neurons, sampled neurons and matrices per layer."""
        reference_shape, candidate_shape = (
            (sample.n_neurons, sample.n_fitted, sample.rows.shape[1:3]) for sample in (self, candidate)
        )
        return reference_shape == candidate_shape

    def for_storage(self) -> NeuronSample:
        """Return a copy with 16-bit values and without whole rows."""
        return NeuronSample(self.layers, self.n_neurons, self.n_fitted, self.rows.half())

    def described(self) -> dict[str, Any]:
        """Return the other fields as plain containers for :meth:`restored`."""
        return {"layers": list(self.layers), "n_neurons": self.n_neurons, "n_fitted": self.n_fitted}

    @classmethod
    def restored(cls, described: DescribedNeurons, rows: torch.Tensor) -> NeuronSample:
        """Restore a sample from a file.

        Raises:
            ValueError: If the rows do not form a valid sample.
        """
        n_layers, n_fitted = len(described.layers), described.n_fitted
        is_right = rows.ndim == 4 and rows.dtype.is_floating_point and 0 not in rows.shape
        n_tested = rows.shape[2] - n_fitted if is_right else 0
        if not is_right or rows.shape[0] != n_layers or n_tested not in TESTED.values():
            raise ValueError(
                f"expected rows of {n_fitted} fitted and {', '.join(map(str, TESTED.values()))} tested neurons of "
                f"{n_layers} layers, got shape {tuple(rows.shape)}"
            )
        if not bool(torch.isfinite(rows).all()):
            raise ValueError("expected rows of neurons that are finite")
        return cls(described.layers, described.n_neurons, n_fitted, rows)


def n_tested_of(n_neurons: int) -> int:
    """Return how many neurons of a layer are tested; 0 if the layer is too small."""
    return next((n_tested for least, n_tested in TESTED.items() if n_neurons >= least), 0)


def sample_sizes(n_neurons: int, n_fitted_rows: int, *, n_matrices: int) -> tuple[int, int]:
    """Return how many of a layer's neurons to test, and on how many others to fit a rotation."""
    n_tested = n_tested_of(n_neurons)
    return n_tested, min(n_fitted_rows // n_matrices, n_neurons - n_tested)


@dataclass(frozen=True)
class _Choice:
    """Rows to read: layers, roles and neuron numbers (the fitted neurons, then the tested ones, each ascending)."""

    model: PlacedTensors
    places: tuple[int, ...]
    roles: tuple[Role, ...]
    n_neurons: int
    n_tested: int
    numbers: IntArray


def _choose(
    model: PlacedTensors,
    *,
    seed: int,
    n_fitted_rows: int,
    places: Sequence[int] | None,
    every: bool,
    nominates: bool,
) -> _Choice | None:
    up = neuron_role(model)
    if up is None or model.anatomy.neuron_numbers is not None:
        return None
    model = with_first_experts(model)
    with_neurons = layers_with(model, up)
    if places is not None:
        with_neurons = tuple(place for place in places if place in with_neurons)
    elif not every:
        with_neurons = spread(with_neurons, FEW_LAYERS)
    n_neurons_at = {place: n_channels_of(model, up, place) for place in with_neurons}
    n_neurons = Counter(n_neurons_at.values()).most_common(1)[0][0] if n_neurons_at else 0
    if n_neurons < FEWEST_NEURONS:
        return None
    chosen = tuple(place for place in with_neurons if n_neurons_at[place] == n_neurons)
    has_gate = set(chosen) <= set(layers_with(model, GATE_OF[up]))
    roles = (GATE_OF[up], up) if has_gate and not nominates else (up,)
    n_tested, n_fitted = sample_sizes(n_neurons, n_fitted_rows, n_matrices=len(roles))
    if nominates:
        n_tested = min(n_tested, NOMINATING_TESTED)
        n_fitted = min(NOMINATING_FITTED, n_neurons - n_tested)
    run = LONG_RUN if nominates else RUN
    sampled_neurons = sample_neurons(n_neurons, n_tested + n_fitted, run=run, seed=seed)
    numbers = np.concatenate([np.sort(sampled_neurons[n_tested:]), np.sort(sampled_neurons[:n_tested])])
    return _Choice(model, chosen, roles, n_neurons, n_tested, numbers)


def planned_n_bytes(model: PlacedTensors, *, every: bool = False, n_fitted_rows: int = FITTED_ROWS) -> int:
    """Estimate how many bytes of gate and up :func:`take_neurons` reads.

    Raises:
        AnatomyError: If a matrix of neurons does not have the model's width.
    """
    choice = _choose(model, seed=0, n_fitted_rows=n_fitted_rows, places=None, every=every, nominates=False)
    if choice is None:
        return 0
    layer = choice.model.anatomy.layers[choice.places[0]]
    spec = model.tensors.spec(layer.parts[choice.roles[-1]].tensors[0])
    n_rows = len(choice.places) * len(choice.roles) * len(choice.numbers)
    return n_rows * model.anatomy.hidden_size * spec.n_bytes // math.prod(spec.shape)


def take_neurons(
    model: PlacedTensors,
    *,
    seed: int = 0,
    n_fitted_rows: int = FITTED_ROWS,
    places: Sequence[int] | None = None,
    every: bool = False,
    nominates: bool = False,
) -> NeuronSample | None:
    """Read rows of gate and up of some neurons in some layers.

    Use the same ``seed`` for both models. ``places`` defaults to all layers if ``every`` is set, else to four. If
    ``nominates`` is set, fewer neurons are read, of up alone and in longer runs.

    Returns:
        The sample; None if layers have too few neurons, or if the architecture gives neuron numbers a meaning.

    Raises:
        AnatomyError: If a matrix of neurons does not have the model's width.
    """
    choice = _choose(model, seed=seed, n_fitted_rows=n_fitted_rows, places=places, every=every, nominates=nominates)
    return None if choice is None else _read(choice)


def take_pair(
    models: Sequence[PlacedTensors],
    *,
    seed: int,
    n_fitted_rows: int = FITTED_ROWS,
    pairs: Sequence[tuple[int, int]] | None = None,
    every: bool = False,
    nominates: bool = False,
) -> tuple[NeuronSample, NeuronSample] | None:
    """Sample neurons of two models with :func:`take_neurons`, if their layers have equally many neurons.

    ``pairs`` are pairs of layers, (reference, candidate), whose neurons are wanted.

    Returns:
        None, without reading anything, if neurons of the two models cannot be compared by number.
    """
    first, second = (
        _choose(
            model,
            seed=seed,
            n_fitted_rows=n_fitted_rows,
            places=None if pairs is None else tuple(dict.fromkeys(pair[side] for pair in pairs)),
            every=every,
            nominates=nominates,
        )
        for side, model in enumerate(models)
    )
    if first is None or second is None:
        return None
    if (first.n_neurons, len(first.roles)) != (second.n_neurons, len(second.roles)):
        return None
    return _read(first), _read(second)


def has_neurons(model: PlacedTensors) -> bool:
    """Return whether layers of a model have comparable neurons, from its headers.

    Raises:
        AnatomyError: If a matrix of neurons does not have the model's width.
    """
    choice = _choose(model, seed=0, n_fitted_rows=FITTED_ROWS, places=None, every=False, nominates=False)
    return choice is not None


def _read(choice: _Choice) -> NeuronSample:
    readers = [RoleReader(choice.model, role, choice.places) for role in choice.roles]
    read_places = [place for place in choice.places if all(r.n_channels(place) == choice.n_neurons for r in readers)]
    order = np.sort(choice.numbers)
    at, rows = torch.from_numpy(np.searchsorted(order, choice.numbers)), torch.from_numpy(order)
    n_fitted = len(choice.numbers) - choice.n_tested
    width = choice.model.anatomy.hidden_size
    if n_fitted * len(readers) >= width and len(read_places) <= FEW_LAYERS:
        # Such rows span all channels, so they need no basis. They may take gigabytes, so there is no second copy.
        whole = torch.empty(len(read_places), len(readers), len(rows), width)
        for place, matrices in zip(read_places, whole, strict=True):
            _read_layer(readers, place, rows, at, into=matrices)
        return NeuronSample(tuple(read_places), choice.n_neurons, n_fitted, whole, whole)
    in_spans, some_whole = [], []
    for place in read_places:
        matrices = torch.empty(len(readers), len(rows), width)
        _read_layer(readers, place, rows, at, into=matrices)
        in_spans.append(torch.stack(in_span(list(matrices), n_fitted)))
        if place in spread(read_places, FEW_LAYERS):
            some_whole.append(matrices)
    return NeuronSample(tuple(read_places), choice.n_neurons, n_fitted, torch.stack(in_spans), torch.stack(some_whole))


def _read_layer(
    readers: Sequence[RoleReader], place: int, rows: torch.Tensor, order: torch.Tensor, *, into: torch.Tensor
) -> None:
    """Read rows of each matrix of a layer, in the given order."""
    for matrix, reader in zip(into, readers, strict=True):
        matrix.copy_(reader.read(place, rows)[order])


def resemblances(sample: NeuronSample) -> torch.Tensor:
    """Compute the similarities between each layer's tested neurons, which do not depend on the basis.

    Returns:
        ``(layers, matrices * pairs)`` float32 cosines of all neuron pairs, with centred unit rows; the inner product of
        two rows is the correlation of two layers.
    """
    tested = torch.nn.functional.normalize(sample.rows[:, :, sample.n_fitted :].float(), dim=-1)
    n = tested.shape[2]
    above = torch.triu_indices(n, n, 1)
    cosines = (tested @ tested.transpose(2, 3))[:, :, above[0], above[1]]
    return unit_rows((cosines - cosines.mean(dim=2, keepdim=True)).flatten(1))
