"""The two seams of the package: a byte source, and the tensor source that stands on it.

Every implementation passes the conformance suites in ``tests/conformance_*.py``.
"""

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

    A source may also carry ``gap_bytes``: how many unwanted bytes are cheaper read over than a second read would be.
    Without it, a source is taken for a remote one.
    """

    @property
    def label(self) -> str:
        """What an error calls it, e.g. ``owner/name@0123abc:model.safetensors``."""
        ...

    @property
    def n_bytes(self) -> int:
        """Size of the file."""
        ...

    def read(self, start: int, stop: int) -> bytes:
        """Return exactly the bytes ``[start, stop)``.

        Raises:
            ShortReadError: If the file ends, or the connection drops for good, before ``stop``.
        """
        ...

    def read_many(self, spans: Sequence[Span]) -> Iterator[bytes]:
        """Yield the bytes of each span, in order; a remote source keeps several requests in flight.

        Memory is bounded by the spans in flight, not by their sum.
        """
        ...


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One file of a repository at a commit, or of a folder.

    Attributes:
        path: Path inside the repository, ``/``-separated.
        n_bytes: Size, in bytes.
        sha256: Digest of the content where it is known without reading (LFS, cached blobs), else None.
        blob_id: Git blob id (small files on the Hub), else None. Equal ids mean equal content.
        inode: Device and inode of a file on this disk, as long as it lies there; None on the Hub.
    """

    path: str
    n_bytes: int
    sha256: str | None = None
    blob_id: str | None = None
    inode: tuple[int, int] | None = None


class FileTree(Protocol):
    """The files of one model at one commit, local or remote alike."""

    @property
    def label(self) -> str:
        """``owner/name@0123abc`` or the folder, for messages."""
        ...

    @property
    def files(self) -> Mapping[str, FileEntry]:
        """Every file, by path."""
        ...

    def open(self, path: str) -> ByteSource:
        """Give random access to a (large) file.

        Raises:
            FileMissingError: If there is no such file.
        """
        ...

    def read(self, path: str, *, max_bytes: int = 64 << 20) -> bytes:
        """Return a whole small file (config, index, tokenizer); it is kept in the standard cache.

        Raises:
            FileMissingError: If there is no such file.
            ByteBudgetError: If it is larger than ``max_bytes``.
        """
        ...


MOST_AXES = 64
"""What torch computes with; the largest weights have four or five."""
MOST_ELEMENTS = 1 << 48
"""Product of all sizes but those that are 0. No file bounds the sizes of an empty tensor, and 64 bits do not hold every
number that is computed from them: strides, rows of unpacked codes."""


def excess_of_shape(shape: Sequence[int]) -> str | None:
    """Say what of a shape is more than any tensor has, as the end of a sentence about it; None where nothing is.

    Cost: at most :data:`MOST_AXES` steps.
    """
    if len(shape) > MOST_AXES:
        return f"has {len(shape):,} axes, and is read with up to {MOST_AXES}"
    n_elements = 1
    for size in shape:
        n_elements *= size or 1
        if n_elements > MOST_ELEMENTS:
            return f"has sizes whose product is more than {MOST_ELEMENTS:,}, those that are 0 left out"
    return None


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Where a tensor lies and what it looks like.

    Attributes:
        name: Name in the checkpoint.
        shape: Logical shape.
        dtype: The format's own name of the dtype, e.g. ``BF16``.
        path: File that holds it.
        start: Absolute offset of its first byte in that file.
        stop: Absolute offset past its last byte.
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
    """What a checkpoint says about itself.

    Attributes:
        format: How a user would call the format, e.g. ``safetensors``.
        quantization: How its weights are quantised, e.g. ``GPTQ, 4 bits in groups of 128``; None where they are not.
        notes: What a reader of a result should know, in sentences.
        metadata: What the format itself holds beside tensors: key and value pairs of a GGUF header.
        unreadable: Names of tensors whose numbers are stored in a way that no version of this reader decodes.
    """

    format: str
    quantization: str | None = None
    notes: tuple[str, ...] = ()
    metadata: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({}))
    unreadable: frozenset[str] = frozenset()


class Checkpoint(Protocol):
    """What one checkpoint holds, known before any of it is read."""

    @property
    def label(self) -> str:
        """What an error calls it."""
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
        """What the checkpoint says about itself; may cost the header of a file."""
        ...

    def names(self) -> tuple[str, ...]:
        """Names of all tensors, sorted. With an index file no header is read for this."""
        ...

    def spec(self, name: str) -> TensorSpec:
        """Shape, dtype and place of a tensor; reads the header of the one shard that holds it, once.

        Raises:
            TensorNotFoundError: If the checkpoint holds no such tensor.
            CorruptCheckpointError: If header, index and file contradict each other.
        """
        ...


class TensorSource(Checkpoint, Protocol):
    """The weights of one checkpoint, read lazily."""

    def read(self, name: str) -> torch.Tensor:
        """Return a whole tensor as float32 (float64 stays float64), shape as in its spec.

        Raises:
            UnsupportedFormatError: If the dtype cannot be read as numbers.
            CorruptCheckpointError: If it holds NaN or infinity.
        """
        ...

    def read_rows(self, name: str, rows: npt.NDArray[np.int64], *, max_gap_bytes: int | None = None) -> torch.Tensor:
        """Return some rows, ``(len(rows), d)``, float32 (float64 stays float64), in the order asked.

        A row is what lies along the last axis; a stack ``(..., m, d)`` counts as one matrix of all its rows, so that
        row ``i`` of matrix ``e`` has the number ``e * m + i``. Neighbouring rows are fetched together; a gap of up to
        ``max_gap_bytes`` is read over and dropped (None: the source's own choice, from what a request costs it).

        Raises:
            InputError: If the tensor has no rows (one axis or none), or a row is outside of it.
        """
        ...


class StoredRows(Protocol):
    """The same tensors as the files store them: codes, scales, packed words. Dequantisation stands on it."""

    def read_stored(self, name: str) -> torch.Tensor:
        """Return a whole tensor in its stored dtype and shape.

        Dtypes that torch lacks (F4, F6) come as uint8, the last axis in bytes.
        """
        ...

    def read_stored_rows(
        self, name: str, rows: npt.NDArray[np.int64], *, max_gap_bytes: int | None = None
    ) -> torch.Tensor:
        """Return some rows in the stored dtype, numbered and ordered as in :meth:`TensorSource.read_rows`."""
        ...


class StoredTensors(Checkpoint, StoredRows, Protocol):
    """Stored tensors, and which of them there are."""


class StoredSource(TensorSource, StoredTensors, Protocol):
    """What a format gives: tensors as numbers where they are plain, and all of them as stored."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor of the files, and the weight that it belongs to.

    Attributes:
        name: Its name in the files.
        weight: Name of the weight that it holds, or that needs it.
        n_bytes: Its stored size; None if the header of its file was not read.
        shape: Its stored shape; None likewise.
        belongs_to_other: Whether it is a part of another tensor's storage: a scale, a zero point, an adapter's factor.
        reason: Why the weight cannot be read or does not count; None if it can.
    """

    name: str
    weight: str
    n_bytes: int | None = None
    shape: tuple[int, ...] | None = None
    belongs_to_other: bool = False
    reason: str | None = None


@runtime_checkable
class ListsContents(Protocol):
    """A tensor source that can list what its files hold, tensor by tensor."""

    def contents(self) -> Iterator[StoredTensor]:
        """Yield every tensor of the files, by the headers that were read; costs no request."""
        ...

    def read_all_headers(self) -> None:
        """Read the headers that were not read; they are right if an index says something else."""
        ...


@runtime_checkable
class TreeThatReadsAhead(Protocol):
    """A file tree that can begin to read several files at once."""

    def expect(self, *, whole: Iterable[str] = (), heads: Iterable[str] = ()) -> None:
        """Begin to read small files, and the first bytes of large ones."""
        ...


@runtime_checkable
class TreeWithTensors(Protocol):
    """A file tree whose tensors are at hand, and need no weight file."""

    @property
    def tensors(self) -> StoredSource | None:
        """Its tensors as they are stored; None where it has none."""
        ...
