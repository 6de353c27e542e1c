"""Tensors of GGUF files, single or split, read by ranges and dequantised."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import partial
from types import MappingProxyType

import torch

from mdir_hf.errors import CorruptCheckpointError, NoWeightsError, UnsupportedFormatError, naming
from mdir_hf.model.files.decode import Encoding, view_bytes
from mdir_hf.model.files.gguf.dequantise import weight_encoding
from mdir_hf.model.files.gguf.header import FIRST_READ_N_BYTES, GgufHeader, read_gguf_header
from mdir_hf.model.files.gguf.types import GgmlType, type_named
from mdir_hf.model.files.shards import ShardedTensors, ShardHeader, list_some
from mdir_hf.model.files.sources import Description, TensorSpec


class GgufSource(ShardedTensors):
    """The tensors of one GGUF checkpoint, read lazily. Implements ``TensorSource`` and ``StoredTensors``.

    Every row can be dequantised on its own, so rows are read by ranges. The dtype in a spec is ggml's name of the
    type. For arguments see :class:`~mdir_hf.model.files.shards.ShardedTensors`; ``paths`` are the file, or all parts of
    a split model.

    Attributes:
        chosen: Note on why this file was chosen from several; None for a named or only file.
    """

    format_name = "GGUF"
    chosen: str | None = None
    _metadata: Mapping[str, object] = MappingProxyType({})

    @property
    def description(self) -> Description:
        """Types of the matrices, and the key/value pairs of the first header."""
        n_bytes: Counter[str] = Counter()
        unreadable: dict[str, str] = {}
        for spec in map(self.spec, self.names()):
            kind = _type_of(spec)
            if not kind.is_in_use:
                unreadable[spec.name] = kind.name
            if len(spec.shape) > 1 and not kind.is_plain:
                n_bytes[kind.name] += spec.n_bytes
        quantization = ", ".join(name for name, _ in n_bytes.most_common()) or None
        chosen = () if self.chosen is None else (self.chosen,)
        notes = (*chosen, _note_on(unreadable)) if unreadable else chosen
        return Description(self.format_name, quantization, notes, self._metadata, frozenset(unreadable))

    def _weight_encoding(self, spec: TensorSpec, label: str) -> Encoding:
        kind = _type_of(spec)
        if kind.is_plain:
            return super()._weight_encoding(spec, label)
        with naming(label):
            return weight_encoding(kind, tensor=spec.name)

    def _stored_encoding(self, spec: TensorSpec) -> Encoding:
        kind = _type_of(spec)
        if kind.is_plain:
            return super()._stored_encoding(spec)
        if not kind.n_bytes:
            raise UnsupportedFormatError(f"tensor {spec.name!r} has the unknown {kind.name}", subject=self.label)
        return Encoding(kind.n_values, kind.n_bytes, partial(view_bytes, dtype=torch.uint8), n_decoded=kind.n_bytes)

    def _paths_of_names(self) -> Mapping[str, str]:
        paths_of_names = super()._paths_of_names()
        if not paths_of_names:
            raise NoWeightsError(
                f"{self.paths[0]} holds no tensors, only a vocabulary or settings; name the file that holds the model",
                subject=self.label,
            )
        return paths_of_names

    def _read_header(self, path: str) -> ShardHeader:
        source, number = self._byte_source(path), self.paths.index(path)
        # The first part holds the vocabulary; the headers of the others are short.
        header = read_gguf_header(source, path=path, first_n_bytes=FIRST_READ_N_BYTES[0] if number else None)
        with naming(source.label):
            _check_part(header, number, len(self.paths))
            if number == 0:
                _check_is_model(header)
                self._metadata = header.metadata
        return ShardHeader(header.tensors)


def _type_of(spec: TensorSpec) -> GgmlType:
    return type_named(spec.dtype)


def _note_on(unreadable: Mapping[str, str]) -> str:
    number = "1 tensor holds" if len(unreadable) == 1 else f"{len(unreadable):,} tensors hold"
    return (
        f"{number} values of GGUF types that are unknown or no longer in use "
        f"({list_some(sorted(set(unreadable.values())))}) and cannot be read: {list_some(sorted(unreadable))}"
    )


def _check_part(header: GgufHeader, number: int, n_parts: int) -> None:
    count, own = header.metadata.get("split.count", n_parts), header.metadata.get("split.no", number)
    if n_parts == 1 and count in (0, 1):
        return
    if (count, own) != (n_parts, number):
        raise CorruptCheckpointError(
            f"the header says that this is part {own!r:.20} (counted from 0) of {count!r:.20}, but its name says part "
            f"{number} of {n_parts}; the files belong to different splits, or were renamed"
        )


def _check_is_model(header: GgufHeader) -> None:
    kind, architecture = (header.metadata.get(key) for key in ("general.type", "general.architecture"))
    descriptions = {
        "adapter": "a LoRA adapter, which holds only differences; compare its base model, or a merged copy",
        "imatrix": "statistics for quantising, not a model",
        "mmproj": "the vision tower of a model; name the file of the language model",
    }
    refused = descriptions.get(str(kind)) or (descriptions["mmproj"] if architecture == "clip" else None)
    if refused is not None:
        raise UnsupportedFormatError(f"this GGUF file is {refused}")
