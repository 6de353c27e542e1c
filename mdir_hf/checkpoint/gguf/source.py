"""Tensors of GGUF files, one or split, read by ranges and dequantised on the way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial

import torch

from ...errors import CorruptCheckpointError, NoWeightsError, TensorNotFoundError, UnsupportedFormatError
from ..decode import Encoding, view_bytes
from ..ranged import RangedTensors
from ..sources import Description, FileTree, TensorSpec
from ..spans import MAX_SPAN_BYTES
from .dequantise import weight_encoding
from .header import FIRST_READ_N_BYTES, GgufHeader, read_gguf_header
from .types import GGML_TYPES, NUMBER_OF_TYPE, GgmlType, ggml_type


class GgufSource(RangedTensors):
    """The tensors of one GGUF checkpoint, read lazily. Implements ``TensorSource`` and ``StoredTensors``.

    Every row of every type is dequantised by itself, so rows are read by ranges as of any other matrix. Headers are
    read once. Safe to use from several threads.

    Args:
        tree: Where the files are.
        paths: The file, or the parts of a split one in their order.
        max_gap_bytes: Default of :meth:`read_rows`. None: what the byte source says of itself
            (``gap_bytes``), else 128 KiB.
        max_span_bytes: Longest single read; bounds memory.
    """

    def __init__(
        self,
        tree: FileTree,
        *,
        paths: Sequence[str],
        max_gap_bytes: int | None = None,
        max_span_bytes: int = MAX_SPAN_BYTES,
    ) -> None:
        super().__init__(tree, max_gap_bytes=max_gap_bytes, max_span_bytes=max_span_bytes)
        self._paths = tuple(paths)
        self._metadata: Mapping[str, object] | None = None
        self._specs: Mapping[str, TensorSpec] | None = None

    @property
    def paths(self) -> tuple[str, ...]:
        """The file, or its parts in their order."""
        return self._paths

    @property
    def description(self) -> Description:
        """The types of its matrices, and the keys and values of the (first) header."""
        specs = self._all_specs().values()
        n_bytes: Counter[str] = Counter()
        for spec in specs:
            kind = _type_of(spec)
            if len(spec.shape) > 1 and not kind.is_plain:
                n_bytes[kind.name] += spec.n_bytes
        quantization = ", ".join(name for name, _ in n_bytes.most_common()) or None
        return Description("GGUF", quantization, metadata=self._metadata or {})

    def names(self) -> tuple[str, ...]:
        """Names of all tensors, sorted. Reads the header of every file."""
        return tuple(sorted(self._all_specs()))

    def spec(self, name: str) -> TensorSpec:
        """Shape, type and place of a tensor; its dtype is the name that ggml has for the type.

        Raises:
            TensorNotFoundError: If the checkpoint holds no such tensor.
            CorruptCheckpointError: If a header contradicts itself or its file.
            UnsupportedFormatError: If a file is a GGUF file of another kind.
            NoWeightsError: If there are no tensors.
        """
        spec = self._all_specs().get(name)
        if spec is None:
            raise TensorNotFoundError(f"there is no tensor {name!r} in {self._paths[0]}", subject=self.label)
        return spec

    def _weight_encoding(self, spec: TensorSpec, label: str) -> Encoding:
        kind = _type_of(spec)
        if kind.is_plain:
            return super()._weight_encoding(spec, label)
        return weight_encoding(kind, tensor=spec.name, label=label)

    def _stored_encoding(self, spec: TensorSpec) -> Encoding:
        kind = _type_of(spec)
        if kind.is_plain:
            return super()._stored_encoding(spec)
        if not kind.n_bytes:
            raise UnsupportedFormatError(f"tensor {spec.name!r} is of an unknown {kind.name}", subject=self.label)
        return Encoding(kind.n_values, kind.n_bytes, partial(view_bytes, dtype=torch.uint8), n_decoded=kind.n_bytes)

    def _all_specs(self) -> Mapping[str, TensorSpec]:
        with self._lock:
            if self._specs is None:
                specs: dict[str, TensorSpec] = {}
                for number, path in enumerate(self._paths):
                    header = self._read_header(number, path)
                    twice = specs.keys() & header.tensors.keys()
                    if twice:
                        name = min(twice)
                        raise CorruptCheckpointError(
                            f"tensor {name!r} stands in {specs[name].path} and in {path}", subject=self.label
                        )
                    specs.update(header.tensors)
                if not specs:
                    raise NoWeightsError(
                        f"{self._paths[0]} holds no tensors, only a vocabulary or settings; name the file that holds "
                        "the model",
                        subject=self.label,
                    )
                self._specs = specs
            return self._specs

    def _read_header(self, number: int, path: str) -> GgufHeader:
        source = self._byte_source(path)
        # The vocabulary stands in the first part; the headers of the others are short.
        header = read_gguf_header(source, path=path, first_n_bytes=FIRST_READ_N_BYTES[0] if number else None)
        _check_part(header, number, len(self._paths), source.label)
        if number == 0:
            _check_is_model(header, source.label)
            self._metadata = header.metadata
        return header


def _type_of(spec: TensorSpec) -> GgmlType:
    number = NUMBER_OF_TYPE.get(spec.dtype)
    return GGML_TYPES[number] if number is not None else ggml_type(int(spec.dtype.removeprefix("type ")))


def _check_part(header: GgufHeader, number: int, n_parts: int, label: str) -> None:
    count, own = header.metadata.get("split.count", n_parts), header.metadata.get("split.no", number)
    if n_parts == 1 and count in (0, 1):
        return
    if (count, own) != (n_parts, number):
        raise CorruptCheckpointError(
            f"the header says that this is part {own!r:.20} (from 0) of {count!r:.20}, its name that it is part "
            f"{number} of {n_parts}; the files belong to different splits, or were renamed",
            subject=label,
        )


def _check_is_model(header: GgufHeader, label: str) -> None:
    kind, architecture = (header.metadata.get(key) for key in ("general.type", "general.architecture"))
    what = {
        "adapter": "a LoRA adapter, which holds only differences; compare its base model, or a merged copy",
        "imatrix": "statistics for quantising, not a model",
        "mmproj": "the vision tower of a model; name the file of the language model",
    }
    refused = what.get(str(kind)) or (what["mmproj"] if architecture == "clip" else None)
    if refused is not None:
        raise UnsupportedFormatError(f"this GGUF file is {refused}", subject=label)
