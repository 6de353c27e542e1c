"""Read ONNX models, with weights under their names in the original checkpoint."""

from __future__ import annotations

import math
import posixpath
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property

import numpy as np
import torch

from mdir_hf.errors import SeveralModelsError, TensorNotFoundError, naming
from mdir_hf.model.files.decode import DTYPES, check_finite
from mdir_hf.model.files.onnx.onnx_source import OnnxSource as OnnxSource
from mdir_hf.model.files.onnx.uses import Weight, find_weights
from mdir_hf.model.files.ranged import IntArray, check_rows
from mdir_hf.model.files.shards import list_some
from mdir_hf.model.files.sources import Description, FileTree, StoredTensor, TensorSpec


class OnnxWeights:
    """The weights of an ONNX model, read lazily. Implements ``TensorSource``.

    Reading rows of a transposed weight reads the whole matrix.
    """

    def __init__(self, source: OnnxSource) -> None:
        self._source = source
        self.label = source.label

    @property
    def n_bytes(self) -> int:
        """Size of the files, in bytes."""
        return self._source.n_bytes

    @property
    def paths(self) -> tuple[str, ...]:
        """The ONNX file and its external data files."""
        return self._source.paths

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
        for tensor in self._source.contents():
            owner, is_companion = owners.get(tensor.name, (tensor.name, False))
            yield replace(tensor, weight=owner, belongs_to_other=is_companion)

    def read_all_headers(self) -> None:
        """Do nothing, because the graph has already been read."""

    def spec(self, name: str) -> TensorSpec:
        """Return a weight's shape, and the dtype and location of its stored numbers."""
        weight = self._weight(name)
        stored = self._source.spec(weight.stored)
        return replace(stored, name=name, shape=weight.shape, path=stored.path.partition("\0")[0])

    def read(self, name: str) -> torch.Tensor:
        """Return a whole weight."""
        weight = self._weight(name)
        self.spec(name)  # rejects sizes larger than the file
        if weight.codes is None:
            values = self._source.read(weight.stored)
        else:
            stored_shape = weight.shape[::-1] if weight.is_transposed else weight.shape
            if 0 in stored_shape:  # it may claim any number of empty rows
                return torch.zeros(weight.shape)
            rows = np.arange(math.prod(stored_shape[:-1]), dtype=np.int64)
            values = self._decoded(weight, name, rows).reshape(stored_shape)
        return values.T.contiguous() if weight.is_transposed else values

    def read_rows(self, name: str, rows: IntArray, *, max_gap_bytes: int | None = None) -> torch.Tensor:
        """Return the given rows."""
        weight = self._weight(name)
        numbers = check_rows(self.spec(name), rows, self.label)
        if weight.is_transposed:
            return self.read(name)[torch.from_numpy(numbers)]
        if weight.codes is None:
            return self._source.read_rows(weight.stored, numbers, max_gap_bytes=max_gap_bytes)
        return self._decoded(weight, name, numbers, max_gap_bytes)

    def _decoded(self, weight: Weight, name: str, rows: IntArray, max_gap_bytes: int | None = None) -> torch.Tensor:
        assert weight.codes is not None, "the weight is stored as codes"
        with naming(self.label):
            values = weight.codes.rows(self._source, rows, max_gap_bytes)
        # Row numbers in errors refer to the stored matrix, even if it is transposed.
        shape = weight.shape[::-1] if weight.is_transposed else weight.shape
        return check_finite(values, replace(self.spec(name), shape=shape), self.label, rows=rows)

    def _is_unreadable(self, weight: Weight) -> bool:
        if weight.codes is not None:
            return False
        dtype = self._source.graph.initialisers[weight.stored].dtype
        return dtype not in DTYPES or not DTYPES[dtype].is_weight

    def _weight(self, name: str) -> Weight:
        if name not in self._weights:
            raise TensorNotFoundError(f"there is no weight {name!r} in {list_some(self.paths)}", subject=self.label)
        return self._weights[name]

    @cached_property
    def _weights(self) -> Mapping[str, Weight]:
        return find_weights(self._source.graph, self.label)


FOLDERS = ("", "onnx")

# Suffixes that exporters append to indicate the precision, highest first.
_PRECISIONS = ("", "fp16", "bf16", "int8", "uint8", "quantized", "q8", "bnb4", "q4", "q4f16")
_NAMES = ("model", "decoder_model_merged", "decoder_model", "decoder_with_past_model", "encoder_model")
_PRECISION = re.compile(r"(?P<name>.+?)(_(?P<precision>fp16|bf16|u?int8|quantized|q8|bnb4|q4(f16)?))?\.onnx")


def open_onnx(tree: FileTree, variant: str | None) -> OnnxSource | None:
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
    return OnnxSource(tree, paths=[paths[precision]])


def open_named_onnx(tree: FileTree, file: str) -> OnnxSource:
    """Open a given ONNX file."""
    return OnnxSource(tree, paths=[file])
