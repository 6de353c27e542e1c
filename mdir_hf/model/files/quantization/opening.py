"""The input of a scheme that opens one weight: stored parts, the config's declarations, and errors."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from mdir_hf.errors import CorruptCheckpointError, UnsupportedFormatError
from mdir_hf.model.files.json_object import T, read_json
from mdir_hf.model.files.quantization.declared import Declared
from mdir_hf.model.files.quantization.grid import Grid, column_grid, fit_grid
from mdir_hf.model.files.quantization.parts import Parts
from mdir_hf.model.files.sources import StoredTensors, TensorSpec

MOST_SMALL_BYTES = 1 << 20
"""Limit for companions that are read to open a weight (a shape, a JSON state, a scalar); most are much smaller."""


@dataclass(frozen=True, slots=True)
class Opening:
    """One weight to be opened."""

    stored: StoredTensors
    parts: Parts
    declared: Declared

    @property
    def codes(self) -> TensorSpec:
        """Spec of the codes."""
        return self.stored.spec(self.parts.codes)

    def has(self, part: str) -> bool:
        """Return whether the weight has such a companion."""
        return part in self.parts.companions

    def spec(self, part: str) -> TensorSpec:
        """Return the spec of a companion.

        Raises:
            CorruptCheckpointError: If it is missing.
        """
        name = self.parts.name_of(part)
        if not self.has(part):
            raise self.corrupt(
                f"tensor {self.parts.codes!r} holds codes of a quantised weight, but its companion {name!r} is not in "
                "the checkpoint; the upload or the conversion is incomplete"
            )
        return self.stored.spec(name)

    def grid(self, part: str, shape: tuple[int, ...], *, block: tuple[int, int] | None = None) -> Grid:
        """Return a companion spread over a weight of this shape.

        Raises:
            CorruptCheckpointError: If it is missing, or does not fit.
        """
        spec = self.spec(part)
        grid = fit_grid(spec, shape, block=block or self.declared.block)
        if grid is None:
            raise self.misfit()
        return grid

    def column_scale(self, shape: tuple[int, ...]) -> tuple[Grid, ...]:
        """Return the factors of input channels that were divided out before quantisation, or None."""
        if not self.has("column_scale"):
            return ()
        spec = self.spec("column_scale")
        grid = column_grid(spec, shape)
        if grid is None:
            raise self.misfit()
        return (grid,)

    def small(self, part: str) -> torch.Tensor:
        """Read a small companion.

        Raises:
            CorruptCheckpointError: If it is missing, or too large.
        """
        spec = self.spec(part)
        if spec.n_bytes > MOST_SMALL_BYTES:
            raise self.corrupt(f"tensor {spec.name!r} of {self.parts.codes!r} has {spec.n_bytes:,} bytes")
        return self.stored.read_stored(spec.name)

    def small_json(self, part: str, kind: type[T]) -> T:
        """Read a small companion that holds a JSON object as bytes."""
        data = bytes(self.small(part).reshape(-1).view(torch.uint8).tolist())
        what = f"the object in tensor {self.parts.companions[part]!r} of {self.parts.codes!r}"
        return read_json(data, kind, what=what, label=self.stored.label)

    def misfit(self) -> CorruptCheckpointError:
        """Return the error for companions whose shapes do not fit the codes."""
        codes = self.codes
        companions = [self.stored.spec(name) for name in self.parts.companions.values()]
        listed = ", ".join(f"{spec.name!r} ({spec.dtype}, shape {spec.shape})" for spec in companions)
        return self.corrupt(
            f"tensor {codes.name!r} ({codes.dtype}, shape {codes.shape}) does not fit its companions: {listed}"
        )

    def corrupt(self, message: str) -> CorruptCheckpointError:
        """Return an error about this weight."""
        return CorruptCheckpointError(message, subject=self.stored.label)

    def refuse(self, reason: str) -> UnsupportedFormatError:
        """Return the error for an unsupported weight, with the reason."""
        codes = self.codes
        return UnsupportedFormatError(
            f"tensor {codes.name!r} ({codes.dtype}, shape {codes.shape}) is quantised in a way that is not supported: "
            f"{reason}; compare the unquantised checkpoint it was made from, if available",
            subject=self.stored.label,
        )
