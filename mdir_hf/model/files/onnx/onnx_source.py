"""Read the stored initialisers of one ONNX file, both inline and external."""

from __future__ import annotations

import math
import posixpath
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import torch

from mdir_hf.errors import CorruptCheckpointError, UnsafePathError
from mdir_hf.model.files.decode import DTYPES, Encoding, view_bytes
from mdir_hf.model.files.onnx.graph import FIXED_WIDTH, PACKED_BITS, Graph, Initialiser, decode_varints, read_graph
from mdir_hf.model.files.ranged import IntArray
from mdir_hf.model.files.shards import Header, ShardedTensors
from mdir_hf.model.files.sources import ByteSource, Span, TensorSpec

_BYTES = Encoding(1, 1, partial(view_bytes, dtype=torch.uint8), n_decoded=1)


class OnnxSource(ShardedTensors):
    """The initialisers of one ONNX file, read lazily.

    Packed integers are returned as bytes, ``(rows, bytes per row)`` or, if rows do not end at byte boundaries, flat.
    """

    format_name = "ONNX"

    @property
    def paths(self) -> tuple[str, ...]:
        """The ONNX file and its external data files."""
        (graph,) = self._paths
        beside = (path for path in self._tree.files if path.startswith((f"{graph}_data", f"{graph}.data")))
        return (graph, *sorted(beside))

    @property
    def graph(self) -> Graph:
        """The graph, without the bytes of its weights."""
        self._paths_of_names()
        return self._graph

    def row_bytes(self, name: str, n_rows: int, rows: IntArray, *, max_gap_bytes: int | None = None) -> torch.Tensor:
        """Divide an initialiser into ``n_rows`` rows, and return the given rows as bytes, ``(k, bytes per row)``."""
        spec = self.spec(name)
        width, remainder = divmod(spec.n_bytes, n_rows)
        if remainder:
            raise CorruptCheckpointError(
                f"initialiser {name!r:.80} has {spec.n_bytes:,} bytes, which cannot be divided into {n_rows:,} rows",
                subject=self.label,
            )
        return self._gather(replace(spec, shape=(n_rows, width), dtype="U8"), rows, _BYTES, max_gap_bytes, widen=False)

    def _read_header(self, path: str) -> Header:
        self._graph = read_graph(self._byte_source(path))
        header: dict[str, TensorSpec | str] = {}
        for name, initialiser in self._graph.initialisers.items():
            if initialiser.dtype not in DTYPES and initialiser.dtype not in PACKED_BITS:
                header[name] = f"stored as {initialiser.dtype}"
                continue
            spec = self._spec_of(initialiser, path)
            if spec.n_bytes != initialiser.n_bytes_of_shape:
                header[name] = f"stored in {spec.n_bytes:,} bytes, but its shape needs {initialiser.n_bytes_of_shape:,}"
            else:
                header[name] = spec
        return header

    def _spec_of(self, initialiser: Initialiser, path: str) -> TensorSpec:
        name, shape, dtype = initialiser.name, initialiser.shape, initialiser.dtype
        if dtype not in DTYPES:
            row_n_bits = PACKED_BITS[dtype] * (shape[-1] if shape else 1)
            n_bytes = initialiser.n_bytes_of_shape
            shape = (n_bytes,) if row_n_bits % 8 or not shape else (*shape[:-1], row_n_bits // 8)
            dtype = "U8"
        if initialiser.varints:
            decoded = f"{path}\0{name}"
            self._byte_sources[decoded] = _Decoded(self._byte_source(path), initialiser)
            return TensorSpec(name, shape, dtype, decoded, initialiser.start, initialiser.stop)
        if not initialiser.path:
            return TensorSpec(name, shape, dtype, path, initialiser.start, initialiser.stop)
        place = posixpath.normpath(posixpath.join(posixpath.dirname(path), initialiser.path))
        if place.startswith(("../", "/")) or "\\" in initialiser.path:
            raise UnsafePathError(
                f"initialiser {name!r:.80} is stored in {initialiser.path!r:.80}, outside the repository",
                subject=self.label,
            )
        entry = self._tree.files.get(place)
        if entry is None or initialiser.stop > entry.n_bytes:
            problem = "is missing" if entry is None else f"has {entry.n_bytes:,} bytes"
            raise CorruptCheckpointError(
                f"initialiser {name!r:.80} is stored in {place}, up to byte {initialiser.stop:,}, but that file "
                f"{problem}; the upload or the download is incomplete",
                subject=self.label,
            )
        return TensorSpec(name, shape, dtype, place, initialiser.start, initialiser.stop)


class _Decoded:
    gap_bytes = 0

    def __init__(self, source: ByteSource, initialiser: Initialiser) -> None:
        self.label = source.label
        self._source = source
        self._initialiser = initialiser
        self._content: bytes | None = None

    @property
    def n_bytes(self) -> int:
        return self._initialiser.stop

    def read(self, start: int, stop: int) -> bytes:
        if self._content is None:
            self._content = self._decode()
        return self._content[start:stop]

    def read_many(self, spans: Sequence[Span]) -> Iterator[bytes]:
        for start, stop in spans:
            yield self.read(start, stop)

    def _decode(self) -> bytes:
        initialiser = self._initialiser
        stored = b"".join(self._source.read_many([(part.start, part.stop) for part in initialiser.varints]))
        if initialiser.varints[0].number in FIXED_WIDTH:
            content: bytes | None = stored
        else:
            values = decode_varints(stored)
            n_bytes = max(1, initialiser.n_bytes_of_shape // max(1, math.prod(initialiser.shape)))
            n_bytes = 1 if initialiser.dtype in PACKED_BITS else n_bytes
            content = None if values is None else values.astype(f"<u{n_bytes}").tobytes()
        if content is None or len(content) != self.n_bytes:
            raise CorruptCheckpointError(
                f"initialiser {initialiser.name!r:.80} of shape {initialiser.shape} ({initialiser.dtype}) needs "
                f"{self.n_bytes:,} bytes, but its numbers give {0 if content is None else len(content):,}",
                subject=self.label,
            )
        return content
