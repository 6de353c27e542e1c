"""Records for sampled neurons: their gate and up rows, and their down columns."""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from mdir_hf.report.parts import Count

IntArray = npt.NDArray[np.int64]

TESTED = 64
"""Number of tested neurons per layer. In a copy, all of them keep their number, so p is at most 1/64! = 10^-89."""

FEWEST_TESTED = 32
"""Number of tested neurons in layers with fewer than three times :data:`TESTED` neurons. For a copy, p is at most
10^-35."""

FITTED_ROWS = 128
"""Number of rows to which a rotation is fitted: gate and up of 64 neurons, or up of 128. In rotated, sliced or
requantised copies of SmolLM2, 32 neurons are enough; under noise as large as the weights, 64 are needed."""

NOMINATING_FITTED_ROWS = 56
"""Number of up rows to which a rotation is fitted if every layer is sampled because no other test found a relation.
These samples nominate layers for a larger sample."""

NEAR_COPY_FITTED_ROWS = 48
"""Number of rows to which a rotation is fitted in the first look at a near copy, which reads 4 MB of two 8B models."""

DOWN_CHANNELS = 12
"""Number of down channels in the first read; each is a row of the file. They are enough to tell a near copy from an
unrelated model, but a model in another basis needs all channels."""

SAMPLE_SEEDS = 2**63


def draw_sample_seed() -> int:
    """Draw the seed of a sample of neurons from system entropy.

    Call this after both models are open, so that no model can be designed for the seed.
    """
    return secrets.randbelow(SAMPLE_SEEDS)


ROWS = "neurons"
STORED_OUTPUTS = {
    "outputs": "neurons.down",
    "strengths": "neurons.strengths",
    "offsets": "neurons.offsets",
    "constants": "neurons.constants",
}
"""Names under which outputs are stored in a file, keyed by the arguments of :meth:`NeuronSample.restored`."""


@dataclass(frozen=True)
class DescribedNeurons:
    """Fields of a :class:`NeuronSample` that are stored next to its tensors."""

    layers: tuple[Count, ...]
    n_neurons: Count
    n_fitted: Count
    stream_scale: float | None = None
    n_down_channels: Count | None = None
    strongest: float = 0.0


@dataclass(frozen=True, eq=False)
class NeuronOutputs:
    """Down columns of the sampled neurons.

    Attributes:
        rows: ``(layers, neurons, f)`` columns of unit length, in a basis of the fitted columns.
        strengths: ``(layers, neurons)`` products of the lengths of gate row, up row and down column; zero for neurons
            that a bias keeps shut.
        stream_scale: Median length of some embedding rows; 0 if there is no embedding.
        strongest: Largest root mean square of any layer's strengths, among these layers and a few others.
        n_channels: Number of channels read, or None for all.
        mean_squares: ``(layers,)`` mean squares of the strengths of further neurons; NaN for layers in which they were
            not measured, None if that is true of all layers.
        offsets: ``(layers, neurons)`` responses of the gates to a stream of zeros, divided by the lengths of their
            rows; None if unknown.
        constants: ``(layers, neurons)`` parts of the gates' responses that are the same for every token; None if
            unknown. See :func:`~.neuron_strengths.constant_responses`.
    """

    rows: torch.Tensor
    strengths: torch.Tensor
    stream_scale: float
    strongest: float
    n_channels: int | None
    mean_squares: torch.Tensor | None = None
    offsets: torch.Tensor | None = None
    constants: torch.Tensor | None = None

    def mean_square(self, at: int) -> float:
        """Return the mean square of a layer's strengths."""
        if self.mean_squares is not None and self.is_measured(at):
            return float(self.mean_squares[at])
        return float(self.strengths[at].square().mean())

    def is_measured(self, at: int) -> bool:
        """Return whether a layer's mean square was measured on further neurons."""
        return self.mean_squares is not None and not math.isnan(float(self.mean_squares[at]))


@dataclass(frozen=True, eq=False)
class NeuronSample:
    """Rows of a few neurons in some of a model's layers.

    Attributes:
        layers: Positions of the layers in ``anatomy.layers``.
        n_neurons: Number of neurons per layer, sampled or not.
        n_fitted: Number of leading neurons for fitting a rotation; the others are tested.
        rows: ``(layers, matrices, neurons, f)`` unit rows of gate and up, or of up alone, in a basis of the fitted
            rows.
        whole: ``(layers, matrices, neurons, width)`` rows as read, for at most four layers, or None.
        numbers: ``(neurons,)`` neuron numbers; None in a stored sample.
        lengths: ``(layers, neurons)`` products of the lengths of gate and up rows; zero for neurons that a bias keeps
            shut.
        offsets: See :class:`NeuronOutputs`.
        stream_scale: See :class:`NeuronOutputs`.
        outputs: Down columns, or None.
    """

    layers: tuple[int, ...]
    n_neurons: int
    n_fitted: int
    rows: torch.Tensor
    whole: torch.Tensor | None = None
    numbers: IntArray | None = None
    lengths: torch.Tensor | None = None
    offsets: torch.Tensor | None = None
    stream_scale: float | None = None
    outputs: NeuronOutputs | None = None

    @property
    def n_tested(self) -> int:
        """Number of tested neurons per layer."""
        return self.rows.shape[2] - self.n_fitted

    def for_storage(self) -> NeuronSample:
        """Return a copy with 16-bit values, without the fields that are not stored."""
        outputs = None if self.outputs is None else replace(self.outputs, rows=self.outputs.rows.half())
        return NeuronSample(self.layers, self.n_neurons, self.n_fitted, self.rows.half(), outputs=outputs)

    @property
    def n_bytes(self) -> int:
        """Size of the stored tensors in bytes."""
        return sum(tensor.nbytes for tensor in self.tensors().values())

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the tensors to store in a file, keyed by name."""
        tensors = {ROWS: self.rows}
        if self.outputs is not None:
            output_tensors = (self.outputs.rows, self.outputs.strengths, self.outputs.offsets, self.outputs.constants)
            tensors |= {
                name: tensor
                for name, tensor in zip(STORED_OUTPUTS.values(), output_tensors, strict=True)
                if tensor is not None
            }
        return {name: tensor.contiguous() for name, tensor in tensors.items()}

    def described(self) -> dict[str, Any]:
        """Return the other fields as plain containers for :meth:`restored`."""
        fields = {"layers": list(self.layers), "n_neurons": self.n_neurons, "n_fitted": self.n_fitted}
        if self.outputs is None:
            return fields
        return {
            **fields,
            "stream_scale": self.outputs.stream_scale,
            "n_down_channels": self.outputs.n_channels,
            "strongest": self.outputs.strongest,
        }

    @classmethod
    def restored(
        cls,
        described: DescribedNeurons,
        rows: torch.Tensor,
        outputs: torch.Tensor | None = None,
        strengths: torch.Tensor | None = None,
        offsets: torch.Tensor | None = None,
        constants: torch.Tensor | None = None,
    ) -> NeuronSample:
        """Restore a sample from a file.

        ``rows`` are gate and up rows; ``outputs`` are down columns.

        Raises:
            ValueError: If the tensors do not form a valid sample.
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
        for responses in (offsets, constants):
            is_right &= responses is None or (responses.shape == shape and bool(torch.isfinite(responses).all()))
        if not (is_right and bool(torch.isfinite(outputs).all()) and bool(torch.isfinite(strengths).all())):
            raise ValueError(f"expected columns of down of shape {(*shape, 'f')}, got {tuple(outputs.shape)}")
        of_down = NeuronOutputs(
            outputs,
            strengths,
            stream_scale=described.stream_scale,
            strongest=described.strongest,
            n_channels=described.n_down_channels,
            offsets=offsets,
            constants=constants,
        )
        return replace(sample, outputs=of_down)

    def is_like(self, candidate: NeuronSample) -> bool:
        """Return whether both samples have the same numbers of neurons, sampled neurons and matrices per layer."""
        reference_shape, candidate_shape = (
            (sample.n_neurons, sample.n_fitted, sample.rows.shape[1:3]) for sample in (self, candidate)
        )
        return reference_shape == candidate_shape


def at_layers(sample: NeuronSample, layers: Sequence[int]) -> NeuronSample:
    """Return some layers of a sample, without outputs."""
    at = [sample.layers.index(layer) for layer in layers]
    assert sample.lengths is not None and sample.offsets is not None
    return replace(
        sample,
        layers=tuple(layers),
        rows=sample.rows[at],
        lengths=sample.lengths[at],
        offsets=sample.offsets[at],
        whole=None,
        outputs=None,
    )
