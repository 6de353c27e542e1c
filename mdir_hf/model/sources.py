"""Interfaces for files and weights. Implementations must pass the tests in ``tests/conformance_*.py``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import torch

Span = tuple[int, int]
"""Half-open byte range ``[start, stop)``."""


@runtime_checkable
class ByteSource(Protocol):
    """Random access to the bytes of one immutable file.

    An implementation may define ``gap_bytes``, the largest gap that is cheaper to read than to skip.
    """

    @property
    def label(self) -> str:
        """Name used in error messages, such as ``owner/name@0123abc:model.safetensors``."""
        ...

    @property
    def n_bytes(self) -> int:
        """Size of the file in bytes."""
        ...

    def read(self, start: int, stop: int) -> bytes:
        """Return exactly the bytes ``[start, stop)``.

        Raises:
            ShortReadError: If the file ends before ``stop``, or the connection is lost.
        """
        ...

    def read_many(self, spans: Sequence[Span]) -> Iterator[bytes]:
        """Yield the bytes of each span, in order."""
        ...


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One file in a folder, or in a repository at a commit.

    Attributes:
        sha256: Digest of the content if known without reading it, else None.
        blob_id: Git blob id of a small file on the Hub, else None.
        inode: Device and inode of a local file; None on the Hub.
    """

    path: str
    n_bytes: int
    sha256: str | None = None
    blob_id: str | None = None
    inode: tuple[int, int] | None = None


class FileTree(Protocol):
    """The files of one model at one commit, local or remote."""

    @property
    def label(self) -> str:
        """Name used in messages: ``owner/name@0123abc`` or the folder."""
        ...

    @property
    def files(self) -> Mapping[str, FileEntry]:
        """All files, keyed by path."""
        ...

    def open(self, path: str) -> ByteSource:
        """Open a file for random access.

        Raises:
            FileMissingError: If the file does not exist.
        """
        ...

    def read(self, path: str, *, max_bytes: int = 64 << 20) -> bytes:
        """Return the contents of a small file.

        Raises:
            FileMissingError: If the file does not exist.
            ByteBudgetError: If the file is larger than ``max_bytes``.
        """
        ...


MOST_AXES = 64
"""Maximum number of axes in torch."""
MOST_ELEMENTS = 1 << 48
"""Limit on the product of a shape's nonzero sizes, so that strides of empty tensors do not overflow 64 bits."""


def excess_of_shape(shape: Sequence[int]) -> str | None:
    """Return a clause that says which limit a shape exceeds, or None."""
    if len(shape) > MOST_AXES:
        return f"has {len(shape):,} axes; the limit is {MOST_AXES}"
    n_elements = 1
    for size in shape:
        n_elements *= size or 1
        if n_elements > MOST_ELEMENTS:
            return f"has sizes whose product (without zeros) is more than {MOST_ELEMENTS:,}"
    return None


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor's name, shape, dtype and location.

    Attributes:
        dtype: Name of the dtype in the format, such as ``BF16``.
        start: Absolute offset of the first byte in the file.
        stop: Absolute offset past the last byte.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    path: str
    start: int
    stop: int

    @property
    def n_bytes(self) -> int:
        """Stored size, in bytes."""
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class Description:
    """Properties of a checkpoint.

    Attributes:
        format: Name of the format, such as ``safetensors``.
        quantization: The quantisation, such as ``GPTQ, 4 bits in groups of 128``, or None.
        metadata: Key/value pairs from a GGUF header.
        unreadable: Names of tensors that cannot be decoded.
    """

    format: str
    quantization: str | None = None
    notes: tuple[str, ...] = ()
    metadata: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({}))
    unreadable: frozenset[str] = frozenset()


class Checkpoint(Protocol):
    """The names, shapes and sizes of a checkpoint's tensors."""

    @property
    def label(self) -> str:
        """Name used in error messages."""
        ...

    @property
    def n_bytes(self) -> int:
        """Stored size of all weight files, in bytes."""
        ...

    @property
    def paths(self) -> tuple[str, ...]:
        """The weight files."""
        ...

    @property
    def description(self) -> Description:
        """Properties of the checkpoint. May read headers."""
        ...

    def names(self) -> tuple[str, ...]:
        """Return the sorted names of all tensors. Usually reads no headers if there is an index."""
        ...

    def spec(self, name: str) -> TensorSpec:
        """Return the shape, dtype and location of a tensor. Reads its shard's header on first use.

        Raises:
            TensorNotFoundError: If the tensor does not exist.
            CorruptCheckpointError: If the header, index and file contradict each other.
        """
        ...


class TensorSource(Checkpoint, Protocol):
    """The weights of one checkpoint, read lazily."""

    def read(self, name: str) -> torch.Tensor:
        """Return a whole tensor, in the shape of its spec, as float32 (or float64 if stored as float64).

        Raises:
            TensorNotFoundError: If the tensor does not exist.
            UnsupportedFormatError: If the tensor cannot be read as numbers.
            CorruptCheckpointError: If the tensor contains NaN or infinity, or files contradict each other.
        """
        ...

    def read_rows(self, name: str, rows: npt.NDArray[np.int64], *, max_gap_bytes: int | None = None) -> torch.Tensor:
        """Return the requested rows in the given order, ``(len(rows), d)``, in the same dtype as :meth:`read`.

        In a stack ``(..., m, d)``, row ``i`` of matrix ``e`` has the number ``e * m + i``. Gaps of up to
        ``max_gap_bytes`` are read and discarded; the default depends on the source.

        Raises:
            InputError: If the tensor has fewer than two axes, or a row number is out of range.
            CheckpointError: As for :meth:`read`, but only these rows are checked for NaN and infinity.
        """
        ...


class StoredRows(Protocol):
    """Reads tensors as stored, including codes, scales and packed words."""

    def read_stored(self, name: str) -> torch.Tensor:
        """Return a whole tensor in its stored dtype and shape.

        Dtypes that torch lacks (F4, F6) are returned as uint8, with the last axis in bytes.
        """
        ...

    def read_stored_rows(
        self, name: str, rows: npt.NDArray[np.int64], *, max_gap_bytes: int | None = None
    ) -> torch.Tensor:
        """Return the given rows as stored, numbered as in :meth:`TensorSource.read_rows`."""
        ...


class StoredTensors(Checkpoint, StoredRows, Protocol):
    """A checkpoint whose tensors can be read as stored."""


class StoredSource(TensorSource, StoredTensors, Protocol):
    """A source that reads plain tensors as numbers, and all tensors as stored."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A stored tensor, and the weight to which it belongs.

    Attributes:
        n_bytes: Stored size; None if the header has not been read.
        shape: Stored shape; None if the header has not been read.
        belongs_to_other: Whether it is a companion of another tensor, such as its scales.
        reason: Why the weight cannot be read or is unused, or None.
    """

    name: str
    weight: str
    n_bytes: int | None = None
    shape: tuple[int, ...] | None = None
    belongs_to_other: bool = False
    reason: str | None = None


@runtime_checkable
class ListsContents(Protocol):
    """A tensor source that can list every tensor in its files."""

    def contents(self) -> Iterator[StoredTensor]:
        """Yield every tensor."""
        ...

    def read_all_headers(self) -> None:
        """Read the remaining headers, which override the index."""
        ...


@runtime_checkable
class TreeThatReadsAhead(Protocol):
    """A file tree that can prefetch several files."""

    def expect(self, *, whole: Iterable[str] = (), heads: Iterable[str] = ()) -> None:
        """Prefetch the files in ``whole``, and the first bytes of the files in ``heads``."""
        ...


@runtime_checkable
class TreeWithTensors(Protocol):
    """A file tree that may contain tensors in memory instead of weight files."""

    @property
    def tensors(self) -> StoredSource | None:
        """The tensors, or None."""
        ...
