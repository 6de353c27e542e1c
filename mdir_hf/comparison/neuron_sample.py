"""Samples of neurons: a few rows of gate and up, and the same neurons' columns of down, of some layers of a model."""

from __future__ import annotations

import math
import secrets
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from mdir_hf.comparison.layer_weights import RoleReader, layers_with, read_role
from mdir_hf.comparison.row_screen import spread
from mdir_hf.errors import AnatomyError, UnsupportedFormatError
from mdir_hf.method.neuron_numbers import in_span, sample_neurons
from mdir_hf.method.neurons import unit_rows
from mdir_hf.model.comparable import PlacedTensors, embedding_spec
from mdir_hf.model.files import TensorSource
from mdir_hf.model.roles import Anatomy, Layer, Role, WeightPart
from mdir_hf.report.parts import Count

IntArray = npt.NDArray[np.int64]

FEW_LAYERS = 4
"""Layers of each model that are looked at unless the level asks for all, the first and the last among them."""

TESTED = 64
"""Neurons of a layer that are tested. In a copy all have their own number: p is at most 1/64! = 10^-89."""

FEWEST_TESTED = 32
"""Neurons that are tested in layers of fewer than three times :data:`TESTED`. p of a copy is at most 1/32! = 10^-35."""

FITTED_ROWS = 128
"""Rows that a rotation is fitted on: of 64 neurons with gate and up, of 128 without a gate. In copies of SmolLM2 that
were rotated, sliced or requantised all neurons are found after 32; under noise as large as the weights it takes 64."""

FEW_FITTED_ROWS = 64
"""The same if every layer is looked at because nothing else was found."""

NEAR_COPY_FITTED_ROWS = 48
"""The same in the first look at a near copy, which reads 4 MB of two models of 8B."""

RUN = 4
"""Neighbouring neurons in a run, which is one range of bytes. Short runs scatter the sample: with long ones, a model
with half of its neurons copied in blocks might pass by luck."""

DOWN_CHANNELS = 12
"""Channels of down that are read at first, each a row of the file. They tell a near copy from a stranger; a model in
another basis needs all channels."""

SHUT_BY_BIAS = 4.0
"""A neuron whose bias is below minus this many lengths of its row does nothing: behind a norm, the row times the stream
has a deviation of about its length. So does a neuron that the same direction of all tokens shuts: its mean response to
rows of the embedding is below minus this many of their deviations."""

STREAM_ROWS = 16
"""Rows of the embedding that tell how large the residual stream is."""

SAMPLE_SEEDS = 2**63


def draw_sample_seed() -> int:
    """Draw the seed of a sample of neurons from the entropy of the system.

    A framer who could foresee the sample could arrange a model for it. So the seed is drawn after both models are open.
    """
    return secrets.randbelow(SAMPLE_SEEDS)


ROWS, OUTPUTS, STRENGTHS = "neurons", "neurons.down", "neurons.strengths"
"""Names of the tensors of a kept sample in a file."""


@dataclass(frozen=True)
class DescribedNeurons:
    """Fields of a :class:`NeuronSample` that a file holds beside its tensors."""

    layers: tuple[Count, ...]
    n_neurons: Count
    n_fitted: Count
    stream_scale: float | None = None
    n_down_channels: Count | None = None


@dataclass(frozen=True, eq=False)
class NeuronOutputs:
    """Columns of down of the sampled neurons.

    Attributes:
        rows: ``(layers, neurons, f)``: the columns, of unit length before they were written in a basis of the span of
            the fitted ones.
        strengths: ``(layers, neurons)``: product of the lengths of the rows of gate and up and the column of down; zero
            if a bias shuts the neuron. A neuron of strength zero does nothing.
        stream_scale: Median length of some rows of the embedding, 0 without an embedding.
        n_channels: Channels of down that were read; None if all were.
        mean_squares: ``(layers,)``: mean square of the strengths of all neurons of a layer, if it was read whole; None
            if the sampled ones stand for all.
    """

    rows: torch.Tensor
    strengths: torch.Tensor
    stream_scale: float
    n_channels: int | None
    mean_squares: torch.Tensor | None = None

    def mean_square(self, at: int) -> float:
        """Mean square of the strengths of a layer's neurons."""
        return float(self.strengths[at].square().mean() if self.mean_squares is None else self.mean_squares[at])


@dataclass(frozen=True, eq=False)
class NeuronSample:
    """Rows of a few neurons of some layers of a model.

    Attributes:
        layers: Positions of the layers in ``anatomy.layers``.
        n_neurons: Neurons in the whole layer.
        n_fitted: The first of the rows, which a rotation is fitted on; the others are tested.
        rows: ``(layers, matrices, neurons, f)``: rows of gate and up, or of up, of unit length before they were
            written in a basis of the span of the fitted ones (f of them at most).
        whole: The same of four layers at most, ``(layers, matrices, neurons, width)``, as they were read; None if they
            were not kept.
        numbers: ``(neurons,)``: numbers of the neurons, in the order of the rows; None in a kept sample.
        lengths: ``(layers, neurons)``: product of the lengths of the rows of gate and up, zero if a bias shuts the
            neuron; None in a kept sample.
        stream_scale: Median length of some rows of the embedding, 0 without an embedding; None in a kept sample without
            outputs.
        outputs: The same neurons' columns of down; None if they were not read.
    """

    layers: tuple[int, ...]
    n_neurons: int
    n_fitted: int
    rows: torch.Tensor
    whole: torch.Tensor | None = None
    numbers: IntArray | None = None
    lengths: torch.Tensor | None = None
    stream_scale: float | None = None
    outputs: NeuronOutputs | None = None

    @property
    def n_tested(self) -> int:
        """Neurons of each layer that are tested."""
        return self.rows.shape[2] - self.n_fitted

    def kept(self) -> NeuronSample:
        """The same in 16 bits, whose rounding is far below the distance between neurons, for a file."""
        outputs = None if self.outputs is None else replace(self.outputs, rows=self.outputs.rows.half())
        return NeuronSample(self.layers, self.n_neurons, self.n_fitted, self.rows.half(), outputs=outputs)

    @property
    def n_bytes(self) -> int:
        """Size of the tensors that a file keeps, in bytes."""
        return sum(tensor.nbytes for tensor in self.tensors().values())

    def tensors(self) -> dict[str, torch.Tensor]:
        """The tensors that a file keeps, by name."""
        tensors = {ROWS: self.rows}
        if self.outputs is not None:
            tensors |= {OUTPUTS: self.outputs.rows, STRENGTHS: self.outputs.strengths}
        return {name: tensor.contiguous() for name, tensor in tensors.items()}

    def described(self) -> dict[str, Any]:
        """All but the tensors, as plain containers; :meth:`restored` takes it."""
        known = {"layers": list(self.layers), "n_neurons": self.n_neurons, "n_fitted": self.n_fitted}
        if self.outputs is None:
            return known
        return {**known, "stream_scale": self.outputs.stream_scale, "n_down_channels": self.outputs.n_channels}

    @classmethod
    def restored(
        cls,
        described: DescribedNeurons,
        rows: torch.Tensor,
        outputs: torch.Tensor | None = None,
        strengths: torch.Tensor | None = None,
    ) -> NeuronSample:
        """Put a sample together that was read from a file.

        Args:
            described: Its fields.
            rows: Rows of gate and up.
            outputs: Columns of down; None if the file has none.
            strengths: Strengths of the neurons, if it has.

        Raises:
            ValueError: If the tensors do not form such a sample.
        """
        n_layers, n_fitted = len(described.layers), described.n_fitted
        is_right = rows.ndim == 4 and rows.dtype.is_floating_point and 0 not in rows.shape
        n_tested = rows.shape[2] - n_fitted if is_right else 0
        if not is_right or rows.shape[0] != n_layers or n_tested not in (TESTED, FEWEST_TESTED):
            raise ValueError(
                f"expected rows of {n_fitted} fitted and {FEWEST_TESTED} or {TESTED} tested neurons of {n_layers} "
                f"layers, got shape {tuple(rows.shape)}"
            )
        if not bool(torch.isfinite(rows).all()):
            raise ValueError("expected rows of neurons that are finite")
        sample = cls(described.layers, described.n_neurons, n_fitted, rows)
        if outputs is None or strengths is None or described.stream_scale is None:
            return sample
        shape = (n_layers, rows.shape[2])
        is_right = outputs.ndim == 3 and outputs.shape[:2] == shape and strengths.shape == shape
        if not (is_right and bool(torch.isfinite(outputs).all()) and bool(torch.isfinite(strengths).all())):
            raise ValueError(f"expected columns of down of shape {(*shape, 'f')}, got {tuple(outputs.shape)}")
        of_down = NeuronOutputs(outputs, strengths, described.stream_scale, described.n_down_channels)
        return replace(sample, outputs=of_down)

    def is_like(self, candidate: NeuronSample) -> bool:
        """Whether neurons of the same numbers were taken of layers of the same kind."""
        reference_shape, candidate_shape = (
            (sample.n_neurons, sample.n_fitted, sample.rows.shape[1:3]) for sample in (self, candidate)
        )
        return reference_shape == candidate_shape


@dataclass(frozen=True, slots=True)
class SampleDesign:
    """How a sample of neurons is chosen. The choice sees no weight.

    Attributes:
        seed: Seed of the choice. Both models of a comparison use the same one.
        n_fitted_rows: Rows that a rotation is fitted on; None: of all neurons that are not tested.
        every: Whether neurons of all layers are wanted.
        places: Positions in ``anatomy.layers`` of the layers that are wanted; None: as ``every`` says.
        n_down_channels: Channels of down that are read; 0: down is not read; None: all of them.
    """

    seed: int = 0
    n_fitted_rows: int | None = FITTED_ROWS
    every: bool = False
    places: tuple[int, ...] | None = None
    n_down_channels: int | None = 0


@dataclass(frozen=True)
class MlpRoles:
    """Which roles hold the neurons of a layer."""

    gate: Role
    up: Role
    down: Role


MLP_ROLES = (MlpRoles(Role.GATE, Role.UP, Role.DOWN), MlpRoles(Role.MIXER_GATE, Role.SSM_IN, Role.SSM_OUT))
"""Neurons of an MLP, or channels of a state-space mixer, which can be renumbered as freely."""


@dataclass(frozen=True)
class _Choice:
    """Which rows of a model are read: of these layers, by these readers, of neurons of these numbers."""

    model: PlacedTensors
    roles: MlpRoles
    places: tuple[int, ...]
    readers: tuple[RoleReader, ...]
    n_neurons: int
    n_tested: int
    numbers: IntArray
    """The fitted neurons, then the tested ones; each group in ascending order."""


@dataclass(frozen=True)
class _FirstExperts:
    """A model whose layers have the MLP of their first expert if they have no other."""

    label: str
    tensors: TensorSource
    anatomy: Anatomy

    @classmethod
    def of(cls, model: PlacedTensors) -> _FirstExperts:
        layers = tuple(_with_first_expert(layer) for layer in model.anatomy.layers)
        return cls(model.label, model.tensors, replace(model.anatomy, layers=layers))


def with_first_experts(model: PlacedTensors) -> PlacedTensors:
    """The model, with the MLP of the first expert in each layer that has no other."""
    return _FirstExperts.of(model)


def _with_first_expert(layer: Layer) -> Layer:
    mlps = (*layer.experts[:1], *layer.shared_experts[:1])
    first = next((parts for parts in mlps if Role.UP in parts), None)
    if first is None or Role.UP in layer.parts:
        return layer
    return replace(layer, parts={**layer.parts, **first})


def mlp_roles(*models: PlacedTensors) -> MlpRoles | None:
    """The roles by which neurons of all of some models can be compared; None if there are none in common."""
    adapted = [_FirstExperts.of(model) for model in models]
    return next((roles for roles in MLP_ROLES if all(layers_with(model, roles.up) for model in adapted)), None)


def neuron_layers(model: PlacedTensors) -> tuple[int, ...]:
    """Positions of the layers with neurons that can be compared by number: of an MLP, a first expert or a mixer."""
    roles = mlp_roles(model)
    return () if roles is None else layers_with(_FirstExperts.of(model), roles.up)


def n_neurons_of(model: PlacedTensors) -> dict[int, int]:
    """Number of neurons of each layer that has any, by its position; costs the headers of shards."""
    roles = mlp_roles(model)
    if roles is None:
        return {}
    adapted = _FirstExperts.of(model)
    reader = RoleReader(adapted, roles.up)
    return {place: reader.n_channels(place) for place in reader.positions}


def sample_sizes(n_neurons: int, n_fitted_rows: int | None, *, n_matrices: int) -> tuple[int, int]:
    """How many neurons of a layer are tested, and how many others a rotation is fitted on.

    Args:
        n_neurons: Neurons of the layer, at least twice :data:`FEWEST_TESTED`.
        n_fitted_rows: Rows that the rotation is fitted on; None: of all neurons that are not tested.
        n_matrices: Matrices that hold a row of each neuron.
    """
    n_tested = TESTED if n_neurons >= 3 * TESTED else FEWEST_TESTED
    n_rest = n_neurons - n_tested
    return n_tested, n_rest if n_fitted_rows is None else min(n_fitted_rows // n_matrices, n_rest)


def _choose(model: PlacedTensors, design: SampleDesign) -> _Choice | None:
    roles = mlp_roles(model)
    if roles is None or model.anatomy.neuron_numbers is not None:
        return None
    model = _FirstExperts.of(model)
    places = layers_with(model, roles.up)
    if design.places is not None:
        places = tuple(place for place in design.places if place in places)
    elif not design.every:
        places = spread(places, FEW_LAYERS)
    if not places:
        return None
    n_channels = RoleReader(model, roles.up, places).n_channels
    n_neurons = Counter(map(n_channels, places)).most_common(1)[0][0]
    if n_neurons < 2 * FEWEST_TESTED:
        return None
    places = tuple(place for place in places if n_channels(place) == n_neurons)
    written = [role for role in (roles.gate, roles.up) if set(places) <= set(layers_with(model, role))]
    n_tested, n_fitted = sample_sizes(n_neurons, design.n_fitted_rows, n_matrices=len(written))
    drawn = sample_neurons(n_neurons, n_tested + n_fitted, run=RUN, seed=design.seed)
    numbers = np.concatenate([np.sort(drawn[n_tested:]), np.sort(drawn[:n_tested])])
    readers = tuple(RoleReader(model, role, places) for role in written)
    return _Choice(model, roles, places, readers, n_neurons, n_tested, numbers)


def planned_n_bytes(model: PlacedTensors, *, every: bool = False) -> int:
    """About how many bytes :func:`take_neurons` reads of gate and up; costs the header of a shard.

    Raises:
        AnatomyError: As it does.
        MdirError: If the header cannot be read.
    """
    choice = _choose(model, SampleDesign(every=every))
    if choice is None:
        return 0
    anatomy = choice.readers[0].model.anatomy
    spec = model.tensors.spec(anatomy.layers[choice.places[0]].parts[choice.roles.up].tensors[0])
    n_rows = len(choice.places) * len(choice.readers) * len(choice.numbers)
    return n_rows * model.anatomy.hidden_size * spec.n_bytes // math.prod(spec.shape)


def bytes_of_down(model: PlacedTensors) -> int:
    """Stored size of the matrices down of the layers that :func:`take_neurons` samples; costs the header of a shard."""
    choice = _choose(model, SampleDesign())
    if choice is None:
        return 0
    parts = choice.model.anatomy.layers[choice.places[0]].parts
    if choice.roles.down not in parts:
        return 0
    spec = model.tensors.spec(parts[choice.roles.down].tensors[0])
    n_values = choice.n_neurons * model.anatomy.hidden_size * len(choice.places)
    return n_values * spec.n_bytes // max(1, math.prod(spec.shape))


def take_neurons(model: PlacedTensors, design: SampleDesign = SampleDesign()) -> NeuronSample | None:
    """Read rows of gate and up of some neurons, and their columns of down if the design asks for them.

    Args:
        model: The model.
        design: Which neurons and which layers to read.

    Returns:
        The sample; None if the model has no MLP of so many neurons, or if their numbers mean something.

    Raises:
        AnatomyError: If a matrix that holds the neurons of a layer does not have the width of the model.
        MdirError: If it cannot be read.
    """
    choice = _choose(model, design)
    if choice is None:
        return None
    n_neurons, readers = choice.n_neurons, choice.readers
    kept = [place for place in choice.places if all(reader.n_channels(place) == n_neurons for reader in readers)]
    sample = read_sample(
        choice.model, kept, choice.numbers, n_tested=choice.n_tested, readers=readers, seed=design.seed
    )
    sample = replace(sample, n_neurons=n_neurons)
    if design.n_down_channels == 0:
        return sample
    return with_outputs(model, sample, seed=design.seed, n_channels=design.n_down_channels)


def read_sample(
    model: PlacedTensors,
    places: Sequence[int],
    numbers: IntArray,
    *,
    n_tested: int,
    readers: Sequence[RoleReader],
    seed: int,
) -> NeuronSample:
    """Read gate and up of neurons of these numbers, in this order, of some layers.

    Args:
        model: The model, with first experts in place.
        places: Positions of the layers.
        numbers: ``(n,)``; the last ``n_tested`` are tested.
        n_tested: How many.
        readers: Readers of gate and up, or of up alone.
        seed: Seed of the rows of the embedding that stand for the stream.
    """
    stream = stream_rows(model, seed)
    order = np.sort(numbers)
    at, rows = torch.from_numpy(np.searchsorted(order, numbers)), torch.from_numpy(order)
    n_fitted = len(numbers) - n_tested
    in_spans, whole, lengths = [], [], []
    for place in places:
        read = [reader.read(place, rows)[at].float() for reader in readers]
        lengths.append(products_of_lengths(model, place, readers, rows, stream)[at])
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
        stream_scale=stream_scale(stream),
    )


def with_outputs(model: PlacedTensors, sample: NeuronSample, *, seed: int, n_channels: int | None) -> NeuronSample:
    """Read the columns of down of the neurons of a sample.

    Args:
        model: The model that the sample was taken of.
        sample: The sample, with its numbers.
        seed: Seed of the channels.
        n_channels: Channels of down that are read; None: all of them.

    Raises:
        AnatomyError: If a layer has no down, or it does not have the width of the model.
        MdirError: If it cannot be read.
    """
    assert sample.numbers is not None and sample.lengths is not None
    roles = mlp_roles(model)
    assert roles is not None
    adapted = _FirstExperts.of(model)
    width = model.anatomy.hidden_size
    channels: IntArray | None = None
    if n_channels is not None and n_channels < width:
        channels = np.sort(np.random.default_rng([seed, 1]).permutation(width)[:n_channels]).astype(np.int64)
    rows, strengths = [], []
    for place, lengths in zip(sample.layers, sample.lengths, strict=True):
        outputs = read_outputs(adapted, roles, place, sample.numbers, channels)
        strengths.append(lengths * outputs.norm(dim=1) * math.sqrt(width / outputs.shape[1]))
        rows.append(in_span([unit_rows(outputs)], sample.n_fitted)[0])
    outputs_of_layers = NeuronOutputs(torch.stack(rows), torch.stack(strengths), sample.stream_scale or 0.0, n_channels)
    return replace(sample, outputs=outputs_of_layers)


def at_layers(sample: NeuronSample, layers: Sequence[int]) -> NeuronSample:
    """The part of a sample that was taken of these layers, without its outputs."""
    at = [sample.layers.index(layer) for layer in layers]
    assert sample.lengths is not None
    return replace(
        sample, layers=tuple(layers), rows=sample.rows[at], lengths=sample.lengths[at], whole=None, outputs=None
    )


def products_of_lengths(
    model: PlacedTensors,
    place: int,
    readers: Sequence[RoleReader],
    rows: torch.Tensor,
    stream: torch.Tensor | None,
) -> torch.Tensor:
    """Product of the lengths of gate and up of some neurons; zero for neurons that a bias or the stream shuts.

    Args:
        model: The model, with first experts in place.
        place: Position of the layer.
        readers: Readers of gate and up, or of up alone.
        rows: Numbers of the neurons, ``(n,)``, ascending.
        stream: Some rows of the embedding, ``(k, width)``; None without an embedding.

    Returns:
        The products, ``(n,)`` float32.
    """
    by_matrix = torch.stack([reader.lengths(place, rows) for reader in readers])
    product: torch.Tensor = by_matrix.prod(dim=0)
    bias = _bias_of(model, place, readers[0].role)
    if bias is not None:
        product = torch.where(bias[rows] < -SHUT_BY_BIAS * by_matrix[0], 0.0, product)
    if stream is not None:
        responses = readers[0].read(place, rows).float() @ unit_rows(stream).T
        is_shut = responses.mean(dim=1) < -SHUT_BY_BIAS * responses.std(dim=1)
        product = torch.where(is_shut, 0.0, product)
    return product


def _bias_of(model: PlacedTensors, place: int, role: Role) -> torch.Tensor | None:
    """The bias beside the matrix of a role, ``(n,)``, if it has one of its own."""
    part = model.anatomy.layers[place].parts[role]
    if len(part.tensors) != 1 or not isinstance(part, WeightPart) or not part.is_whole:
        return None
    name = part.tensor.removesuffix("weight") + "bias"
    if not part.tensor.endswith("weight") or name not in model.tensors.names():
        return None
    bias = model.tensors.read(name).float()
    return bias if bias.ndim == 1 else None


def read_outputs(
    model: PlacedTensors, roles: MlpRoles, place: int, numbers: IntArray, channels: IntArray | None = None
) -> torch.Tensor:
    """Read columns of down of some neurons, ``(n, channels)`` float32, with the gain of a norm behind them.

    Raises:
        AnatomyError: If the layer has no down, or it does not have the width of the model.
    """
    layer = model.anatomy.layers[place]
    if roles.down not in layer.parts:
        raise AnatomyError(f"layer {layer.index} has no {roles.down.value}", subject=model.label)
    columns = read_role(model, layer, roles.down, channels)[:, torch.from_numpy(numbers)].float()
    if Role.MLP_OUT_NORM in layer.parts and roles.down is Role.DOWN:
        # Such a norm undoes the scale of down, so only its gain says how much the layer writes.
        gain = read_role(model, layer, Role.MLP_OUT_NORM).float() + float(model.anatomy.norms_add_one)
        columns = columns / columns.norm(dim=0).mean().clamp(min=1e-30)
        columns = columns * (gain if channels is None else gain[torch.from_numpy(channels)])[:, None]
    return columns.T


def stream_rows(model: PlacedTensors, seed: int) -> torch.Tensor | None:
    """Read a few rows of the embedding, ``(k, width)`` float32; None if there is none of the width of the stream."""
    try:
        spec = embedding_spec(model)
    except (AnatomyError, UnsupportedFormatError):
        return None
    if spec.shape[1] != model.anatomy.hidden_size:
        return None
    ids = np.random.default_rng([seed, 2]).integers(0, spec.shape[0], STREAM_ROWS)
    return model.tensors.read_rows(spec.name, np.unique(ids).astype(np.int64)).float()


def stream_scale(stream: torch.Tensor | None) -> float:
    """Median length of some rows of the embedding; 0 without them."""
    return 0.0 if stream is None else float(stream.norm(dim=1).median())
