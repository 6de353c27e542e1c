"""The initialisers of one ONNX file as they are stored, inline or in external data."""

from __future__ import annotations

import posixpath
from types import MappingProxyType
from typing import Any

import numpy.typing as npt

from mdir_hf.errors import CorruptCheckpointError, UnsafePathError
from mdir_hf.model.files.dtypes import DTYPES
from mdir_hf.model.files.onnx.graph import Graph, Initialiser, read_graph
from mdir_hf.model.files.shards import ShardedTensors, ShardHeader
from mdir_hf.model.files.sources import TensorSpec


class OnnxSource(ShardedTensors):
    """The initialisers of one ONNX file, read lazily. Implements ``TensorSource`` and ``StoredTensors``.

    Arguments are those of :class:`~mdir_hf.model.files.shards.ShardedTensors`; ``paths`` is the one file. Bytes may lie
    in other files of its folder.
    """

    format_name = "ONNX"

    @property
    def paths(self) -> tuple[str, ...]:
        """The file and those beside it that are named after it, which hold its large initialisers."""
        (graph,) = self._paths
        beside = (path for path in self._tree.files if path.startswith((f"{graph}_data", f"{graph}.data")))
        return (graph, *sorted(beside))

    @property
    def graph(self) -> Graph:
        """What the file says beside the bytes of its weights."""
        self._paths_of_names()
        return self._graph

    def inline(self, name: str) -> npt.NDArray[Any] | None:
        """Return a small initialiser that is known already; None where it is not."""
        known = self.graph.initialisers.get(name)
        return None if known is None else known.inline

    def _read_header(self, path: str) -> ShardHeader:
        source = self._byte_source(path)
        self._graph = read_graph(source)
        tensors, unreadable = {}, {}
        for name, one in self._graph.initialisers.items():
            if one.dtype not in DTYPES:
                unreadable[name] = f"stored as {one.dtype}"
                continue
            tensors[name] = spec = self._spec_of(one, path)
            n_bits = DTYPES[one.dtype].n_bits * _n_values(one.shape)
            if one.inline is None and 8 * spec.n_bytes != n_bits:
                del tensors[name]
                unreadable[name] = f"stored in {spec.n_bytes:,} bytes, where its shape needs {n_bits // 8:,}"
        return ShardHeader(MappingProxyType(tensors), MappingProxyType(unreadable))

    def _spec_of(self, one: Initialiser, path: str) -> TensorSpec:
        if not one.path:
            return TensorSpec(one.name, one.shape, one.dtype, path, one.start, one.stop)
        place = posixpath.normpath(posixpath.join(posixpath.dirname(path), one.path))
        if place.startswith(("../", "/")) or "\\" in one.path:
            raise UnsafePathError(
                f"initialiser {one.name!r:.80} lies in {one.path!r:.80}, outside of the repository", subject=self.label
            )
        entry = self._tree.files.get(place)
        if entry is None or one.stop > entry.n_bytes:
            there = "is not there" if entry is None else f"has {entry.n_bytes:,} bytes"
            raise CorruptCheckpointError(
                f"initialiser {one.name!r:.80} lies in {place}, up to byte {one.stop:,}, which {there}; the upload or "
                "the download is incomplete",
                subject=self.label,
            )
        return TensorSpec(one.name, one.shape, one.dtype, place, one.start, one.stop)


def _n_values(shape: tuple[int, ...]) -> int:
    n = 1
    for size in shape:
        n *= size
    return n
