"""Tensors of safetensors files, single or sharded, read by ranges."""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Iterable, Mapping

import numpy as np
import numpy.typing as npt
import torch

from ..errors import CorruptCheckpointError, InputError, TensorNotFoundError
from .decode import first_not_finite, not_finite, readable_dtype, result_dtype, view_bytes
from .header import LENGTH_N_BYTES, Header, parse_header, read_header_n_bytes
from .index import ShardIndex
from .sources import ByteSource, FileTree, TensorSpec
from .spans import MAX_SPAN_BYTES, REMOTE_MAX_GAP_BYTES, coalesce, cut_span

HEADER_GUESS_N_BYTES = 100_000
"""First read of a file: 97 % of the headers of the 1000 most used repositories are shorter (huggingface_hub)."""


class SafetensorsSource:
    """The tensors of one safetensors checkpoint, read lazily. Implements ``TensorSource``.

    A header costs one read, or two where it is longer than the guess, and is read once. With an index file, only the
    shards that hold the tensors asked for are opened. Safe to use from several threads.

    Args:
        tree: Where the files are.
        paths: The weight files, where no index names them; every header is then read when names are asked for.
        index: The parsed index, where there is one.
        max_gap_bytes: Default of :meth:`read_rows`. None: what the byte source says of itself
            (``gap_bytes``), else 128 KiB.
        max_span_bytes: Longest single read; bounds memory.
    """

    def __init__(
        self,
        tree: FileTree,
        *,
        paths: Iterable[str] = (),
        index: ShardIndex | None = None,
        max_gap_bytes: int | None = None,
        max_span_bytes: int = MAX_SPAN_BYTES,
    ) -> None:
        self._tree = tree
        self._index = index
        self._paths = tuple(sorted(set(paths if index is None else index.weight_map.values())))
        self._max_gap_bytes = max_gap_bytes
        self._max_span_bytes = max_span_bytes
        self._byte_sources: dict[str, ByteSource] = {}
        self._headers: dict[str, Header] = {}
        self._path_of: Mapping[str, str] | None = None if index is None else index.weight_map
        self._lock = threading.RLock()

    @property
    def label(self) -> str:
        """For messages."""
        return self._tree.label

    @property
    def paths(self) -> tuple[str, ...]:
        """The weight files, sorted; with an index, those that it names."""
        return self._paths

    @property
    def n_bytes(self) -> int:
        """Size of the weight files, in bytes; a shard that the index names and the tree lacks counts nothing."""
        return sum(self._tree.files[path].n_bytes for path in self._paths if path in self._tree.files)

    def names(self) -> tuple[str, ...]:
        """Names of all tensors, sorted. Reads no header where there is an index, else every header."""
        return tuple(sorted(self._paths_of_names()))

    def spec(self, name: str) -> TensorSpec:
        """Shape, dtype and place of a tensor; reads the header of the one shard that holds it, once.

        Raises:
            TensorNotFoundError: If the checkpoint holds no such tensor.
            CorruptCheckpointError: If header, index and file contradict each other.
        """
        path = self._paths_of_names().get(name)
        if path is None:
            raise TensorNotFoundError(f"there is no tensor {name!r} in {_list_some(self._paths)}", subject=self.label)
        self._check_index(name, path)
        spec = self._header(path).tensors.get(name)
        if spec is None:
            raise CorruptCheckpointError(
                f"the index says that {path} holds tensor {name!r}, but its header does not list it",
                subject=self._label_of_index(),
            )
        return spec

    def read(self, name: str) -> torch.Tensor:
        """Return a whole tensor as float32 (float64 stays float64), shape as stored.

        Peak memory is the result and the reads in flight.

        Raises:
            TensorNotFoundError: If the checkpoint holds no such tensor.
            UnsupportedFormatError: If its dtype is not a plain weight.
            CorruptCheckpointError: If it holds NaN or infinity, or the checkpoint contradicts itself.
        """
        spec = self.spec(name)
        source = self._byte_source(spec.path)
        stored = readable_dtype(spec, source.label)
        out = torch.empty(math.prod(spec.shape), dtype=result_dtype(stored))
        at = 0
        for data in source.read_many(cut_span(spec.start, spec.stop, self._span_step())):
            values = view_bytes(data, stored).to(out.dtype)
            bad = first_not_finite(values)
            if bad is not None:
                raise not_finite(spec, (at + bad) // math.prod(spec.shape[1:]), source.label)
            out[at : at + values.numel()] = values
            at += values.numel()
        return out.reshape(spec.shape)

    def read_rows(self, name: str, rows: npt.NDArray[np.int64], *, max_gap_bytes: int | None = None) -> torch.Tensor:
        """Return some rows of a matrix, float32 (float64 stays float64).

        Args:
            name: A matrix of the checkpoint, stored shape ``(n_rows, d)``.
            rows: Row numbers, shape ``(k,)``, in any order; repeated ones are read once.
            max_gap_bytes: Gap between two wanted rows that is read over and dropped; None: the default of this source.

        Returns:
            Tensor of shape ``(k, d)``, in the order asked. Peak memory is that and the reads in flight.

        Raises:
            InputError: If it is no matrix, or a row is outside of it.
            TensorNotFoundError: If the checkpoint holds no such tensor.
            UnsupportedFormatError: If its dtype is not a plain weight.
            CorruptCheckpointError: If a wanted row holds NaN or infinity, or the checkpoint contradicts itself.
        """
        spec = self.spec(name)
        source = self._byte_source(spec.path)
        stored = readable_dtype(spec, source.label)
        wanted = check_rows(spec, rows, source.label)
        d = spec.shape[1]
        out = torch.empty((wanted.size, d), dtype=result_dtype(stored))
        row_n_bytes = d * stored.itemsize
        if out.numel() == 0:
            return out
        plan = coalesce(
            wanted,
            row_n_bytes,
            spec.start,
            max_gap_bytes=self._gap_for(source) if max_gap_bytes is None else max_gap_bytes,
            max_span_bytes=self._max_span_bytes,
        )
        for part, data in zip(plan, source.read_many([part.span for part in plan]), strict=True):
            read = view_bytes(data, stored).reshape(-1, d)
            values = read[torch.from_numpy(part.offsets)].to(out.dtype)  # (rows of this span, d)
            bad = first_not_finite(values)
            if bad is not None:
                raise not_finite(spec, int(wanted[part.slots[bad // d]]), source.label)
            out[torch.from_numpy(part.slots)] = values
        return out

    def _paths_of_names(self) -> Mapping[str, str]:
        with self._lock:
            if self._path_of is None:
                listed = [(name, path) for path in self._paths for name in self._header(path).tensors]
                twice = [name for name, n in Counter(name for name, _ in listed).items() if n > 1]
                if twice:
                    holders = [path for name, path in listed if name == twice[0]]
                    raise CorruptCheckpointError(
                        f"tensor {twice[0]!r} stands in {' and in '.join(holders)}, and no index says which one counts",
                        subject=self.label,
                    )
                self._path_of = dict(listed)
            return self._path_of

    def _check_index(self, name: str, path: str) -> None:
        if self._index is None:
            return
        if self._index.complaint is not None:
            raise CorruptCheckpointError(
                f"cannot trust the index for tensor {name!r}: {self._index.complaint}", subject=self._label_of_index()
            )
        if path not in self._tree.files:
            raise CorruptCheckpointError(
                f"the index says that {path} holds tensor {name!r}, but there is no such file; the upload or the "
                "download is incomplete",
                subject=self._label_of_index(),
            )

    def _header(self, path: str) -> Header:
        with self._lock:
            header = self._headers.get(path)
            if header is None:
                header = self._headers[path] = self._read_header(path)
            return header

    def _read_header(self, path: str) -> Header:
        source = self._byte_source(path)
        prefix = source.read(0, min(source.n_bytes, LENGTH_N_BYTES + HEADER_GUESS_N_BYTES))
        n_bytes = read_header_n_bytes(prefix, n_file_bytes=source.n_bytes, label=source.label)
        stop = LENGTH_N_BYTES + n_bytes
        if stop > len(prefix):
            prefix += source.read(len(prefix), stop)
        return parse_header(prefix[LENGTH_N_BYTES:stop], n_file_bytes=source.n_bytes, path=path, label=source.label)

    def _byte_source(self, path: str) -> ByteSource:
        with self._lock:
            source = self._byte_sources.get(path)
            if source is None:
                source = self._byte_sources[path] = self._tree.open(path)
            return source

    def _gap_for(self, source: ByteSource) -> int:
        if self._max_gap_bytes is not None:
            return self._max_gap_bytes
        return int(getattr(source, "gap_bytes", REMOTE_MAX_GAP_BYTES))

    def _span_step(self) -> int:
        return max(8, self._max_span_bytes // 8 * 8)  # no element is wider than 8 bytes, and none may be cut

    def _label_of_index(self) -> str:
        return self.label if self._index is None else f"{self.label}:{self._index.path}"


def check_rows(spec: TensorSpec, rows: npt.NDArray[np.int64], label: str) -> npt.NDArray[np.int64]:
    """Return the row numbers as int64, or refuse them.

    Raises:
        InputError: If the tensor is no matrix, or a row is outside of it.
    """
    if len(spec.shape) != 2:
        raise InputError(f"tensor {spec.name!r} has shape {spec.shape}; only a matrix has rows to read", subject=label)
    wanted = np.asarray(rows, dtype=np.int64).reshape(-1)
    if wanted.size and (wanted.min() < 0 or wanted.max() >= spec.shape[0]):
        outside = wanted[(wanted < 0) | (wanted >= spec.shape[0])]
        raise InputError(
            f"tensor {spec.name!r} of shape {spec.shape} has no row {outside[0]:,}; {outside.size:,} of the "
            f"{wanted.size:,} rows asked for are outside of it",
            subject=label,
        )
    return wanted


def _list_some(paths: tuple[str, ...]) -> str:
    return ", ".join(paths[:3]) + (f" and {len(paths) - 3} more files" if len(paths) > 3 else "")
