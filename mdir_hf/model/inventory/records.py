"""The data classes of an inventory."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from mdir_hf.model.files import TensorSource
from mdir_hf.model.roles import Anatomy
from mdir_hf.model.roles.resolve import DecidedBy

LANGUAGE = "language model"
"""Name of the stack that is compared as the language model."""


BEYOND = "layers beyond the config"
"""Name of the part for numbered layers of the language model that its config does not declare."""

EXTRA_EXPERTS = "experts beyond the config"
"""Name of the part for experts of a model whose config declares none."""


class PartKind(str, Enum):
    """The kinds of parts in an inventory."""

    STACK = "stack"
    """Matrices of a sequence of layers, and other matrices under the same prefix."""
    TABLE = "table"
    """A matrix with one row per token or position."""
    CONNECTOR = "connector"
    """Weights that connect the output of one stack to another, such as a projector or resampler."""
    EXPERTS = "experts"
    """Routed experts in the layers of a stack."""
    AUXILIARY = "auxiliary"
    """Matrices in a stack's layers whose purpose is known but for which there is no test, such as cross-attention,
    convolutions and position biases."""
    STORAGE = "storage"
    """Tensors needed to read other tensors, such as scales, zero points and adapter factors."""
    VECTORS = "vectors"
    """Norms, biases and buffers."""
    UNPLACED = "unplaced"
    """Tensors that have no known role or cannot be read."""


@dataclass(frozen=True, slots=True)
class ModelPart:
    """One part of a model.

    Attributes:
        name: Unique name, such as ``vision tower`` or ``experts of the language model``.
        n_bytes: Stored size; None until all headers have been read.
        owner: Name of the part that this one belongs to, or None.
    """

    name: str
    kind: PartKind
    owner: str | None = None
    reason: str | None = None
    tensors: tuple[str, ...] = ()
    n_bytes: int | None = None
    layers: tuple[str, ...] = ()
    decided_by: DecidedBy = "names"

    @property
    def n_tensors(self) -> int:
        """Number of tensors in the part."""
        return len(self.tensors)


@dataclass(frozen=True, slots=True)
class ModelInventory:
    """Every tensor in a model's files, each assigned to exactly one part.

    Attributes:
        parts: Parts in :class:`PartKind` order; within a kind, the largest comes first.
        n_bytes_of_files: Size of all weight files.
    """

    parts: tuple[ModelPart, ...]
    n_bytes_of_files: int
    notes: tuple[str, ...] = ()

    @property
    def n_tensors(self) -> int:
        """Number of tensors in all parts."""
        return sum(part.n_tensors for part in self.parts)

    @property
    def n_bytes(self) -> int | None:
        """Stored size of all tensors; None before all headers have been read."""
        sizes = [part.n_bytes for part in self.parts]
        return None if None in sizes else sum(size for size in sizes if size is not None)

    def part(self, name: str) -> ModelPart:
        """Return a part by name.

        Raises:
            KeyError: If no part has this name.
        """
        return next(part for part in self.parts if part.name == name) if name in self._names else self._missing(name)

    @property
    def _names(self) -> set[str]:
        return {part.name for part in self.parts}

    def _missing(self, name: str) -> ModelPart:
        raise KeyError(f"no part {name!r} among {sorted(self._names)}")


@dataclass(frozen=True)
class ModelView:
    """A subset of a model's weights with its own anatomy. Implements :class:`~mdir_hf.model.comparable.PlacedTensors`.

    Attributes:
        name: Name of a stack, or of a layer's experts.
        is_loaded: Whether the model loads these weights; None if unknown.
    """

    name: str
    label: str
    tensors: TensorSource
    anatomy: Anatomy
    is_loaded: bool | None = field(default=True, kw_only=True)
