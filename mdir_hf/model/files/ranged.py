"""Read row-major tensors with range requests.

Nearby rows share a request, and the gaps between them are discarded.
"""

from __future__ import annotations

import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import numpy.typing as npt
import torch

from mdir_hf.errors import InputError
from mdir_hf.model.files.decode import (
    Encoding,
    check_finite,
    result_dtype,
    stored_encoding,
    view_bytes,
    weight_encoding,
)
from mdir_hf.model.sources import ByteSource, Description, FileTree, Span, TensorSpec

IntArray = npt.NDArray[np.int64]

REMOTE_MAX_GAP_BYTES = 128 << 10
"""Largest gap to read rather than skip if reads are HTTP requests.

With 8 requests in flight and a round trip of 100 ms, one more request costs about 12 ms, enough to read 125 kB at 10
MB/s."""

MAX_SPAN_BYTES = 8 << 20
"""Size limit for one read. Such a read takes much longer than a round trip, and several in flight take tens of MB."""


@dataclass(frozen=True, slots=True)
class RowSpan:
    """One contiguous read, and the positions of its rows in the result.

    Attributes:
        slots: Indices ``(k,)`` of the requested rows that this read contains.
        offsets: Row numbers within the read, ``(k,)``, one for each slot.
    """

    start: int
    stop: int
    slots: IntArray
    offsets: IntArray

    @property
    def span(self) -> Span:
        """The byte range ``(start, stop)``."""
        return self.start, self.stop


def coalesce(
    rows: IntArray,
    row_n_bytes: int,
    start: int,
    *,
    max_gap_bytes: int = REMOTE_MAX_GAP_BYTES,
    max_span_bytes: int = MAX_SPAN_BYTES,
) -> list[RowSpan]:
    """Plan reads that cover ``rows``, in O(k log k) time and O(k) memory.

    ``rows`` is ``(k,)``, in any order. ``start`` is the absolute offset of row 0. Gaps of up to ``max_gap_bytes`` are
    read and discarded. A single row may exceed ``max_span_bytes``.

    Returns:
        Disjoint spans in file order; each slot ``0..k-1`` belongs to exactly one span.
    """
    order = np.argsort(rows, kind="stable")
    ordered = rows[order]
    if ordered.size == 0:
        return []
    rows_per_span = max(1, max_span_bytes // row_n_bytes)
    gap_bytes = (np.diff(ordered) - 1) * row_n_bytes
    run_starts = np.concatenate(([0], np.flatnonzero(gap_bytes > max_gap_bytes) + 1, [ordered.size]))
    spans: list[RowSpan] = []
    for run_start, run_stop in zip(run_starts[:-1].tolist(), run_starts[1:].tolist(), strict=True):
        at = run_start
        while at < run_stop:
            first = int(ordered[at])
            cut = at + int(np.searchsorted(ordered[at:run_stop], first + rows_per_span))
            offsets = ordered[at:cut] - first
            last = first + int(offsets[-1])
            spans.append(
                RowSpan(
                    start=start + first * row_n_bytes,
                    stop=start + (last + 1) * row_n_bytes,
                    slots=order[at:cut].astype(np.int64, copy=False),
                    offsets=offsets,
                )
            )
            at = cut
    return spans


def cut_span(start: int, stop: int, step_n_bytes: int) -> list[Span]:
    """Cut ``[start, stop)`` into consecutive spans of at most ``step_n_bytes``."""
    return [(at, min(at + step_n_bytes, stop)) for at in range(start, stop, step_n_bytes)]


ROW_SPAN_FACTOR = 8
"""Multiple of ``max_span_bytes`` that a read of rows may cover.

Longer reads save requests without extra memory, because the caller keeps the rows anyway."""

ROWS_AT_ONCE = 512


class RangedTensors(ABC):
    """Base class for tensors in byte ranges of files. Implements ``TensorSource`` and ``StoredTensors``.

    Subclasses implement :meth:`names`, :meth:`spec`, ``paths`` and ``description``, and may override how values are
    decoded. ``max_span_bytes`` limits the size of a single read. Thread-safe.
    """

    def __init__(self, tree: FileTree, *, max_span_bytes: int = MAX_SPAN_BYTES) -> None:
        self.label = tree.label
        self._tree = tree
        self._max_span_bytes = max_span_bytes
        self._byte_sources: dict[str, ByteSource] = {}
        self._lock = threading.RLock()

    @property
    @abstractmethod
    def paths(self) -> tuple[str, ...]:
        """The weight files, sorted."""

    @property
    @abstractmethod
    def description(self) -> Description:
        """The format, the quantisation, and notes on both."""

    @property
    def n_bytes(self) -> int:
        """Size of the weight files in bytes, excluding missing shards."""
        return sum(self._tree.files[path].n_bytes for path in self.paths if path in self._tree.files)

    @abstractmethod
    def names(self) -> tuple[str, ...]:
        """Return the sorted names of all tensors."""

    @abstractmethod
    def spec(self, name: str) -> TensorSpec:
        """Return the shape, dtype and location of a tensor."""

    def read(self, name: str) -> torch.Tensor:
        """Return a whole tensor as float32, unless it is stored as float64."""
        spec = self.spec(name)
        label = self._byte_source(spec.path).label
        encoding = self._weight_encoding(spec, label)
        out: torch.Tensor | None = None
        at = 0
        for values in self._pieces(spec, encoding):
            if out is None:
                out = torch.empty(math.prod(spec.shape), dtype=result_dtype(values.dtype))
            widened = values.to(out.dtype)
            out[at : at + widened.numel()] = check_finite(widened, spec, label, n_before=at)
            at += widened.numel()
        return _empty(encoding, widen=True).reshape(spec.shape) if out is None else out.reshape(spec.shape)

    def read_rows(self, name: str, rows: IntArray, *, max_gap_bytes: int | None = None) -> torch.Tensor:
        """Return the given rows, ``(k, d)``, as float32, unless stored as float64.

        ``max_gap_bytes`` defaults to the byte source's ``gap_bytes``, or else to 128 KiB.
        """
        spec = self.spec(name)
        label = self._byte_source(spec.path).label
        encoding = self._weight_encoding(spec, label)
        return self._gather(spec, rows, encoding, max_gap_bytes, widen=True)

    def read_stored(self, name: str) -> torch.Tensor:
        """Return a whole tensor in its stored dtype, or as bytes if torch lacks it."""
        spec = self.spec(name)
        encoding = self._stored_encoding(spec)
        pieces = list(self._pieces(spec, encoding))
        shape = (*spec.shape[:-1], *(encoding.decoded(d) for d in spec.shape[-1:]))
        return (torch.cat(pieces) if pieces else _empty(encoding)).reshape(shape)

    def read_stored_rows(self, name: str, rows: IntArray, *, max_gap_bytes: int | None = None) -> torch.Tensor:
        """Return the given rows, ``(k, d)``, in the stored dtype; see :meth:`read_rows`."""
        spec = self.spec(name)
        encoding = self._stored_encoding(spec)
        # Gathered as bytes, because torch cannot index every dtype that a file may contain.
        as_bytes = replace(encoding, decode=partial(view_bytes, dtype=torch.uint8), n_decoded=encoding.n_bytes)
        return self._gather(spec, rows, as_bytes, max_gap_bytes, widen=False).view(_empty(encoding).dtype)

    def _weight_encoding(self, spec: TensorSpec, label: str) -> Encoding:
        return weight_encoding(spec, label)

    def _stored_encoding(self, spec: TensorSpec) -> Encoding:
        return stored_encoding(spec)

    def _pieces(self, spec: TensorSpec, encoding: Encoding) -> Iterator[torch.Tensor]:
        step = max(1, self._max_span_bytes // encoding.n_bytes) * encoding.n_bytes
        for data in self._byte_source(spec.path).read_many(cut_span(spec.start, spec.stop, step)):
            yield encoding.decode(data)

    def _gather(
        self, spec: TensorSpec, rows: IntArray, encoding: Encoding, max_gap_bytes: int | None, *, widen: bool
    ) -> torch.Tensor:
        source = self._byte_source(spec.path)
        numbers = check_rows(spec, rows, source.label)
        if max_gap_bytes is None:
            max_gap_bytes = int(getattr(source, "gap_bytes", REMOTE_MAX_GAP_BYTES))
        row_n_bytes = encoding.bytes_of(spec.shape[-1])
        width = encoding.decoded(spec.shape[-1])
        out: torch.Tensor | None = None
        longest = ROW_SPAN_FACTOR * self._max_span_bytes
        plan = (
            coalesce(numbers, row_n_bytes, spec.start, max_gap_bytes=max_gap_bytes, max_span_bytes=longest)
            if row_n_bytes
            else []
        )
        for part, data in zip(plan, source.read_many([part.span for part in plan]), strict=True):
            decoded = encoding.decode(data).reshape(-1, width)
            if out is None:
                dtype = result_dtype(decoded.dtype) if widen else decoded.dtype
                out = torch.empty((numbers.size, width), dtype=dtype)
            for start in range(0, len(part.slots), ROWS_AT_ONCE):  # in steps, to avoid a widened copy of all rows
                some = slice(start, start + ROWS_AT_ONCE)
                values = decoded[torch.from_numpy(part.offsets[some])].to(out.dtype)
                if widen:
                    check_finite(values, spec, source.label, rows=numbers[part.slots[some]])
                out[torch.from_numpy(part.slots[some])] = values
        return _empty(encoding, widen=widen).reshape(numbers.size, width) if out is None else out

    def _byte_source(self, path: str) -> ByteSource:
        with self._lock:
            source = self._byte_sources.get(path)
            if source is None:
                source = self._byte_sources[path] = self._tree.open(path)
            return source


def check_rows(spec: TensorSpec, rows: IntArray, label: str) -> IntArray:
    """Validate row numbers and return them as int64.

    Raises:
        InputError: If the tensor has fewer than two axes, or a row number is out of range.
    """
    if len(spec.shape) < 2:
        raise InputError(f"tensor {spec.name!r} has shape {spec.shape}; only a matrix has rows to read", subject=label)
    numbers = np.asarray(rows, dtype=np.int64).reshape(-1)
    n_rows = math.prod(spec.shape[:-1])
    if numbers.size and (numbers.min() < 0 or numbers.max() >= n_rows):
        outside = numbers[(numbers < 0) | (numbers >= n_rows)]
        raise InputError(
            f"tensor {spec.name!r} of shape {spec.shape} has no row {outside[0]:,}; {outside.size:,} of the "
            f"{numbers.size:,} requested rows are out of range",
            subject=label,
        )
    return numbers


def _empty(encoding: Encoding, *, widen: bool = False) -> torch.Tensor:
    dtype = encoding.decode(b"").dtype
    return torch.empty(0, dtype=result_dtype(dtype) if widen else dtype)
