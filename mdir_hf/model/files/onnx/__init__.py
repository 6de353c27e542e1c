"""Read ONNX models, with weights under their names in the original checkpoint."""

from __future__ import annotations

import math
import posixpath
import re
import threading
from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch

from mdir_hf.budgets import ONNX
from mdir_hf.errors import (
    CorruptCheckpointError,
    SeveralModelsError,
    TensorNotFoundError,
    UnsafePathError,
    UnsupportedFormatError,
)
from mdir_hf.installing import require_extra
from mdir_hf.model.files.decode import DTYPES, check_finite, check_weight
from mdir_hf.model.files.onnx.codes import Array
from mdir_hf.model.files.onnx.graph import Graph, Initialiser, Weight, find_weights, list_graph
from mdir_hf.model.files.ranged import MAX_SPAN_BYTES, IntArray, check_rows, cut_span
from mdir_hf.model.files.shards import list_some
from mdir_hf.model.sources import ByteSource, Description, FileTree, StoredTensor, TensorSpec

if TYPE_CHECKING:
    from onnx import GraphProto


class OnnxWeights:
    """The weights of an ONNX model. Implements ``TensorSource``.

    The file is read whole on first use, a weight in another file whenever it is read. Thread-safe.
    """

    def __init__(self, tree: FileTree, path: str) -> None:
        require_extra("onnx", "onnx", purpose="ONNX files are read with the onnx package")
        self.label = tree.label
        self._tree = tree
        self._path = path
        self._lock = threading.Lock()

    @property
    def n_bytes(self) -> int:
        """Size of the files, in bytes."""
        return sum(self._tree.files[path].n_bytes for path in self.paths if path in self._tree.files)

    @property
    def paths(self) -> tuple[str, ...]:
        """The ONNX file and its external data files."""
        beside = (path for path in self._tree.files if path.startswith((f"{self._path}_data", f"{self._path}.data")))
        return (self._path, *sorted(beside))

    @property
    def description(self) -> Description:
        """The format, the bit widths of quantised matrices, and a note on unreadable tensors."""
        bits = sorted({weight.codes.n_bits for weight in self._weights.values() if weight.codes is not None})
        quantization = f"{' and '.join(map(str, bits))} bits" if bits else None
        unreadable = frozenset(name for name, weight in self._weights.items() if self._is_unreadable(weight))
        notes: tuple[str, ...] = ()
        if unreadable:
            number = "1 tensor holds" if len(unreadable) == 1 else f"{len(unreadable):,} tensors hold"
            notes = (
                f"{number} codes that are used by an unknown operator, or in an unknown way, and cannot be read: "
                f"{list_some(sorted(unreadable))}",
            )
        return Description("ONNX", quantization, notes, unreadable=unreadable)

    def names(self) -> tuple[str, ...]:
        """Return the sorted names of all weights."""
        return tuple(sorted(self._weights))

    def contents(self) -> Iterator[StoredTensor]:
        """Yield every initialiser, assigning companions to their weights."""
        owners = {weight.stored: (name, False) for name, weight in self._weights.items()}
        for name, weight in self._weights.items():
            parts = weight.codes.parts if weight.codes else ()
            owners |= {part: (name, True) for part in parts if part not in owners}
        for name, tensor in sorted(self._graph.initialisers.items()):
            owner, is_companion = owners.get(name, (name, False))
            yield StoredTensor(name, owner, tensor.n_bytes, tensor.shape, is_companion)

    def read_all_headers(self) -> None:
        """Do nothing, because the graph has already been read."""

    def spec(self, name: str) -> TensorSpec:
        """Return a weight's shape, and the dtype, file and size of its stored numbers."""
        weight = self._weight(name)
        stored = self._graph.initialisers[weight.stored]
        path, start, stop = self._place(stored) or (self._path, 0, stored.n_bytes)
        return TensorSpec(name, weight.shape, stored.dtype if stored.dtype in DTYPES else "U8", path, start, stop)

    def read(self, name: str) -> torch.Tensor:
        """Return a whole weight."""
        return check_finite(self._whole(name), self.spec(name), self.label)

    def read_rows(self, name: str, rows: IntArray, *, max_gap_bytes: int | None = None) -> torch.Tensor:
        """Return the given rows; reads the whole weight."""
        del max_gap_bytes  # nothing is skipped
        spec = self.spec(name)
        numbers = check_rows(spec, rows, self.label)
        values = self._whole(name).reshape(math.prod(spec.shape[:-1]), spec.shape[-1])[torch.from_numpy(numbers)]
        return check_finite(values, spec, self.label, rows=numbers)

    def _whole(self, name: str) -> torch.Tensor:
        weight = self._weight(name)
        codes = weight.codes
        if codes is None:
            check_weight(self.spec(name), self.label)
            values = self._array(weight.stored)
            values = values if values.dtype == np.float64 else values.astype(np.float32)
        else:
            stored_shape = weight.shape[::-1] if weight.is_transposed else weight.shape
            scale, zero = (None if part is None else self._array(part) for part in (codes.scale, codes.zero))
            try:
                values = codes.decode(self._array(weight.stored), scale, zero)
                values = (values[:, : stored_shape[-1]] if values.ndim == 2 else values).reshape(stored_shape)
            except (ValueError, IndexError, OverflowError, TypeError, RuntimeError) as exc:
                raise CorruptCheckpointError(
                    f"initialiser {weight.stored!r:.80} cannot be dequantised: {exc}", subject=self.label
                ) from exc
        return torch.from_numpy(np.array(values.T if weight.is_transposed else values, order="C"))

    def _array(self, name: str) -> Array:
        """Return the numbers of an initialiser."""
        from onnx import numpy_helper

        stored = self._graph.initialisers[name]
        tensor = stored.tensor
        place = self._place(stored)
        if place is not None:
            path, start, stop = place
            content = _read(self._tree.open(path), start, stop)
            tensor = type(tensor)(name=name, dims=stored.shape, data_type=tensor.data_type, raw_data=content)
        try:
            array: Array = numpy_helper.to_array(tensor)
        except Exception as exc:  # whatever the package raises for contradictory fields
            raise CorruptCheckpointError(
                f"initialiser {name!r:.80} of shape {stored.shape} ({stored.dtype}) cannot be read: {exc}",
                subject=self.label,
            ) from exc
        return array

    def _place(self, stored: Initialiser) -> tuple[str, int, int] | None:
        """Return the file and the range of bytes of an external tensor, and None for others."""
        if stored.external is None:
            return None
        name, location = stored.tensor.name, stored.external.get("location", "")
        path = posixpath.normpath(posixpath.join(posixpath.dirname(self._path), location))
        if path.startswith(("../", "/")) or "\\" in location:
            raise UnsafePathError(
                f"initialiser {name!r:.80} is stored in {location!r:.80}, outside the repository", subject=self.label
            )
        numbers = [stored.external.get(key) or default for key, default in (("offset", "0"), ("length", ""))]
        if not all(re.fullmatch("[0-9]{0,18}", number) for number in numbers):
            raise CorruptCheckpointError(
                f"initialiser {name!r:.80} has the offset or length {max(numbers, key=len)!r:.40}", subject=self.label
            )
        start = int(numbers[0])
        stop = start + (int(numbers[1]) if numbers[1] else stored.n_bytes)
        entry = self._tree.files.get(path)
        if entry is None or stop > entry.n_bytes:
            problem = "is missing" if entry is None else f"has {entry.n_bytes:,} bytes"
            raise CorruptCheckpointError(
                f"initialiser {name!r:.80} is stored in {path}, up to byte {stop:,}, but that file {problem}; the "
                "upload or the download is incomplete",
                subject=self.label,
            )
        return path, start, stop

    def _is_unreadable(self, weight: Weight) -> bool:
        dtype = self._graph.initialisers[weight.stored].dtype
        return weight.codes is None and not (dtype in DTYPES and DTYPES[dtype].is_weight)

    def _weight(self, name: str) -> Weight:
        if name not in self._weights:
            raise TensorNotFoundError(f"there is no tensor {name!r} in {list_some(self.paths)}", subject=self.label)
        return self._weights[name]

    @property
    def _weights(self) -> dict[str, Weight]:
        return self._parsed[1]

    @property
    def _graph(self) -> Graph:
        return self._parsed[0]

    @property
    def _parsed(self) -> tuple[Graph, dict[str, Weight]]:
        with self._lock:
            return self._parsed_once

    @cached_property
    def _parsed_once(self) -> tuple[Graph, dict[str, Weight]]:
        source = self._tree.open(self._path)
        graph = list_graph(_parse(source), source.label)
        if not graph.initialisers:
            raise CorruptCheckpointError("this ONNX file holds no weights", subject=source.label)
        for tensor in graph.initialisers.values():
            self._place(tensor)  # rejects bytes that are not there
        return graph, find_weights(graph, source.label)


def _parse(source: ByteSource) -> GraphProto:
    """Return the graph in a file."""
    from google.protobuf.message import DecodeError
    from onnx import ModelProto

    if excess := ONNX.excess(n_bytes=source.n_bytes):
        raise UnsupportedFormatError(f"it {excess}", subject=source.label)
    try:
        graph = ModelProto.FromString(_read(source, 0, source.n_bytes)).graph
    except DecodeError as exc:
        raise CorruptCheckpointError(f"this is not an ONNX file: {exc}", subject=source.label) from exc
    n_items = len(graph.node) + len(graph.initializer)
    if excess := ONNX.excess(n_items=n_items, of="nodes and initialisers"):
        raise UnsupportedFormatError(f"it {excess}", subject=source.label)
    return graph


def _read(source: ByteSource, start: int, stop: int) -> bytes:
    return b"".join(source.read_many(cut_span(start, stop, MAX_SPAN_BYTES)))


FOLDERS = ("", "onnx")

# Suffixes that exporters append to indicate the precision, highest first.
_PRECISIONS = ("", "fp16", "bf16", "int8", "uint8", "quantized", "q8", "bnb4", "q4", "q4f16")
_NAMES = ("model", "decoder_model_merged", "decoder_model", "decoder_with_past_model", "encoder_model")
_PRECISION = re.compile(r"(?P<name>.+?)(_(?P<precision>fp16|bf16|u?int8|quantized|q8|bnb4|q4(f16)?))?\.onnx")


def open_onnx(tree: FileTree, variant: str | None) -> OnnxWeights | None:
    """Open the ONNX model in the root or in ``onnx/``, preferring the highest precision.

    ``variant`` is the precision in the file name: ``q4`` selects ``model_q4.onnx``. Returns None if there is no
    matching file.

    Raises:
        SeveralModelsError: If there are several models.
    """
    models: dict[str, dict[str, str]] = {}
    for path in sorted(tree.files):
        folder, file = posixpath.split(path)
        match = _PRECISION.fullmatch(file)
        if folder in FOLDERS and match:
            models.setdefault(match["name"], {})[match["precision"] or ""] = path
    if variant is not None:
        models = {name: {variant: paths[variant]} for name, paths in models.items() if variant in paths}
    if not models:
        return None
    name = next((name for name in _NAMES if name in models), None)
    if name is None:
        if len(models) > 1:
            files = tuple(next(iter(paths.values())) for paths in models.values())
            raise SeveralModelsError(
                f"there are {len(models)} ONNX models, and it is unclear which one is meant; name one file", files=files
            )
        (name,) = models
    paths = models[name]
    precision = min(paths, key=lambda name: _PRECISIONS.index(name) if name in _PRECISIONS else len(_PRECISIONS))
    return OnnxWeights(tree, paths[precision])
