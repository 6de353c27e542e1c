"""Read the initialisers of an ONNX graph, with their offsets, and the nodes that use them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mdir_hf.errors import CorruptCheckpointError, UnsupportedFormatError
from mdir_hf.model.files.decode import DTYPES as TENSOR_DTYPES
from mdir_hf.model.files.sources import ByteSource, excess_of_shape

FIRST_READ_N_BYTES = 1 << 18
AFTER_A_STEP_N_BYTES = 1 << 12
"""Size of the first read after a skipped payload."""

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5


class Field(NamedTuple):
    """A protobuf field: its number, wire type, varint value, and payload offsets."""

    number: int
    kind: int
    value: int
    start: int
    stop: int


class MessageReader:
    """Reads protobuf messages from a file, front to back."""

    def __init__(self, source: ByteSource) -> None:
        self.source = source
        self._at = 0
        self._data = b""
        self._next_n_bytes = FIRST_READ_N_BYTES

    def fields(self, start: int, stop: int) -> Iterator[Field]:
        """Yield the fields in ``[start, stop)`` without reading their payloads."""
        at = start
        while at < stop:
            tag, at = self._varint(at, stop)
            number, kind = tag >> 3, tag & 7
            value, begin = 0, at
            if kind == VARINT:
                value, at = self._varint(at, stop)
            elif kind == LENGTH:
                n_bytes, begin = self._varint(at, stop)
                at = begin + n_bytes
            elif kind in (FIXED64, FIXED32):
                at += 8 if kind == FIXED64 else 4
            else:
                raise self._error(f"a field at byte {begin:,} has the wire type {kind}")
            if at > stop or not number:
                raise self._error(f"field {number} at byte {begin:,} ends at byte {at:,}, past its message ({stop:,})")
            yield Field(number, kind, value, begin, at)

    def payload(self, field: Field, most: int) -> bytes:
        """Read a field's payload, which may have at most ``most`` bytes."""
        if field.stop - field.start > most:
            raise self._error(f"field {field.number} has {field.stop - field.start:,} bytes; the limit is {most:,}")
        return self._bytes(field.start, field.stop)

    def text(self, field: Field) -> str:
        """Read a field's payload as a string."""
        try:
            return self.payload(field, 1 << 14).decode()
        except UnicodeDecodeError as exc:
            raise self._error(f"the text at byte {field.start:,} is not UTF-8") from exc

    def varints(self, field: Field, most: int = 1 << 16) -> list[int]:
        """Return the signed numbers of a repeated field, whether packed or not."""
        if field.kind == VARINT:
            return [_signed(field.value)]
        numbers, at = [], field.start
        if field.stop - at > most:
            raise self._error(f"the list at byte {at:,} has {field.stop - at:,} bytes; the limit is {most:,}")
        while at < field.stop:
            value, at = self._varint(at, field.stop)
            numbers.append(_signed(value))
        return numbers

    def _varint(self, at: int, stop: int) -> tuple[int, int]:
        value = shift = 0
        while True:
            if at >= stop or shift > 63:
                raise self._error(f"the number at byte {at:,} does not end")
            byte = self._byte(at)
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value, at
            shift += 7

    def _byte(self, at: int) -> int:
        offset = at - self._at
        if not 0 <= offset < len(self._data):
            self._fill(at, 1)
            offset = 0
        return self._data[offset]

    def _bytes(self, start: int, stop: int) -> bytes:
        if not (self._at <= start and stop <= self._at + len(self._data)):
            self._fill(start, stop - start)
        return self._data[start - self._at : stop - self._at]

    def _fill(self, start: int, n_bytes: int) -> None:
        # Consecutive reads grow; the first read after a skipped payload is small.
        is_next = start <= self._at + len(self._data) and bool(self._data)
        self._next_n_bytes = min(4 * self._next_n_bytes, FIRST_READ_N_BYTES) if is_next else self._next_n_bytes
        if self._data and not is_next:
            self._next_n_bytes = AFTER_A_STEP_N_BYTES
        stop = min(self.source.n_bytes, start + max(n_bytes, self._next_n_bytes))
        if stop - start < n_bytes:
            raise self._error(f"the file ends at byte {self.source.n_bytes:,}, within a message")
        self._data, self._at = bytes(self.source.read(start, stop)), start

    def _error(self, what: str) -> CorruptCheckpointError:
        return CorruptCheckpointError(f"this is not an ONNX file: {what}", subject=self.source.label)


def decode_varints(data: bytes) -> npt.NDArray[np.uint64] | None:
    """Decode packed varints (two's complement if negative); return None if they are invalid."""
    raw = np.frombuffer(data, np.uint8)
    last = np.flatnonzero(raw < 0x80)
    if not raw.size or last.size == 0 or last[-1] != raw.size - 1:
        return None if raw.size else np.zeros(0, np.uint64)
    first = np.concatenate([[0], last[:-1] + 1])
    lengths = last - first + 1
    if lengths.max() > 10:
        return None
    values = np.zeros(last.size, np.uint64)
    for place in range(int(lengths.max())):
        longer = np.flatnonzero(lengths > place)
        values[longer] |= (raw[first[longer] + place] & np.uint64(0x7F)) << np.uint64(7 * place)
    return values


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


# Safetensors' names for ONNX's data types; U4, I4, U2 and I2 are not in safetensors. Types smaller than a byte are
# packed, with the first number in the lowest bits.
DTYPES = {
    1: "F32", 2: "U8", 3: "I8", 4: "U16", 5: "I16", 6: "I32", 7: "I64", 9: "BOOL", 10: "F16", 11: "F64", 12: "U32",
    13: "U64", 16: "BF16", 17: "F8_E4M3", 18: "F8_E4M3FNUZ", 19: "F8_E5M2", 20: "F8_E5M2FNUZ", 21: "U4", 22: "I4",
    23: "F4", 24: "F8_E8M0", 25: "U2", 26: "I2",
}  # fmt: skip
PACKED_BITS = {"U4": 4, "I4": 4, "F4": 4, "U2": 2, "I2": 2}
"""Number of bits per value for dtypes that are packed into bytes."""

MOST_INITIALISERS, MOST_NODES, DEEPEST_GRAPH = 100_000, 1_000_000, 4
MOST_PIECES = 1 << 16
"""Maximum number of protobuf fields that may contain one initialiser's numbers."""

_MODEL_GRAPH = 7
_GRAPH_NODE, _GRAPH_INITIALISER = 1, 5
_NODE_INPUT, _NODE_OUTPUT, _NODE_NAME, _NODE_TYPE, _NODE_ATTRIBUTE, _NODE_METADATA = 1, 2, 3, 4, 5, 9
_ATTRIBUTE_NAME, _ATTRIBUTE_INT, _ATTRIBUTE_TENSOR, _ATTRIBUTE_GRAPH = 1, 3, 5, 6
_DIMS, _TYPE, _NAME, _RAW, _EXTERNAL, _LOCATION = 1, 2, 8, 9, 13, 14
_FLOATS, _INTS, _LONGS, _DOUBLES, _UNSIGNED = 4, 5, 7, 10, 11
FIXED_WIDTH = (_FLOATS, _DOUBLES)
"""Typed fields that contain fixed-width numbers."""

_SCOPES, _CLASSES, _NAMESPACE = "pkg.torch.onnx.name_scopes", "pkg.torch.onnx.class_hierarchy", "namespace"
"""Keys of metadata that torch's exporter adds to nodes: the enclosing modules, outermost first, and their classes, as
Python lists or one string."""


@dataclass(frozen=True, slots=True)
class Initialiser:
    """A stored tensor of a graph.

    Attributes:
        dtype: Name as in safetensors, or ``U4``, ``I4``, ``U2`` or ``I2`` for packed integers.
        path: External file; empty if the tensor is inline.
        varints: Fields that must be decoded; if there are any, ``start`` and ``stop`` refer to the decoded bytes.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    path: str
    start: int
    stop: int
    varints: tuple[Field, ...] = ()

    @property
    def n_bytes_of_shape(self) -> int:
        """Number of bytes implied by the shape."""
        return n_bytes_of(self.shape, self.dtype)


@dataclass(frozen=True, slots=True)
class Node:
    """A node of a graph.

    Attributes:
        inputs: Tensor names; an omitted optional input has an empty name.
        module: Module named by torch's exporter, such as ``model.layers.0.self_attn.q_proj``, or empty.
    """

    name: str
    op_type: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    ints: dict[str, int]
    module: str = ""
    module_class: str = ""


@dataclass(slots=True)
class Graph:
    """The initialisers and nodes of a graph and its nested graphs."""

    initialisers: dict[str, Initialiser] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)


def read_graph(source: ByteSource) -> Graph:
    """Read an ONNX file, skipping the bytes of its weights.

    Raises:
        CorruptCheckpointError: If the file is not an ONNX file.
        UnsupportedFormatError: If the graph has more nodes or initialisers than the limits.
    """
    reader = MessageReader(source)
    graph = Graph()
    for part in reader.fields(0, source.n_bytes):
        if part.number == _MODEL_GRAPH:
            _read_graph(reader, part, graph, 0)
    if not graph.initialisers:
        raise CorruptCheckpointError("this ONNX file holds no weights", subject=source.label)
    return graph


def n_bytes_of(shape: tuple[int, ...], dtype: str) -> int:
    """Return the stored size of a tensor in bytes."""
    n_bits = PACKED_BITS.get(dtype) or TENSOR_DTYPES[dtype].n_bits if dtype in DTYPES.values() else 8
    return -(-math.prod(shape) * n_bits // 8)


def _read_graph(reader: MessageReader, message: Field, graph: Graph, depth: int) -> None:
    for part in reader.fields(message.start, message.stop):
        if part.number == _GRAPH_INITIALISER:
            tensor = _read_tensor(reader, part)
            graph.initialisers[tensor.name] = tensor
        elif part.number == _GRAPH_NODE:
            _read_node(reader, part, graph, depth)
    if len(graph.initialisers) > MOST_INITIALISERS or len(graph.nodes) > MOST_NODES:
        raise UnsupportedFormatError(
            f"it has {len(graph.initialisers):,} initialisers and {len(graph.nodes):,} nodes; the limit is "
            f"{MOST_INITIALISERS:,} and {MOST_NODES:,}",
            subject=reader.source.label,
        )


def _read_node(reader: MessageReader, message: Field, graph: Graph, depth: int) -> None:
    texts: dict[int, list[str]] = {_NODE_INPUT: [], _NODE_OUTPUT: [], _NODE_NAME: [""], _NODE_TYPE: [""]}
    ints: dict[str, int] = {}
    metadata: dict[str, str] = {}
    constant: Initialiser | None = None
    for field_of_node in reader.fields(message.start, message.stop):
        if field_of_node.number in texts:
            texts[field_of_node.number].append(reader.text(field_of_node))
        elif field_of_node.number == _NODE_METADATA:
            metadata.update(_read_metadata(reader, field_of_node))
        elif field_of_node.number == _NODE_ATTRIBUTE:
            name = ""
            for part in reader.fields(field_of_node.start, field_of_node.stop):
                if part.number == _ATTRIBUTE_NAME:
                    name = reader.text(part)
                elif part.number == _ATTRIBUTE_INT:
                    ints[name] = part.value - (1 << 64) if part.value >> 63 else part.value
                elif part.number == _ATTRIBUTE_TENSOR:
                    constant = _read_tensor(reader, part)
                elif part.number == _ATTRIBUTE_GRAPH and depth < DEEPEST_GRAPH:
                    _read_graph(reader, part, graph, depth + 1)
    module, module_class = _module_of(metadata)
    node = Node(
        texts[_NODE_NAME][-1],
        texts[_NODE_TYPE][-1],
        tuple(texts[_NODE_INPUT]),
        tuple(texts[_NODE_OUTPUT]),
        ints,
        module,
        module_class,
    )
    graph.nodes.append(node)
    if node.op_type == "Constant" and constant is not None and node.outputs:
        graph.initialisers[node.outputs[0]] = replace(constant, name=node.outputs[0])


def _read_metadata(reader: MessageReader, message: Field) -> dict[str, str]:
    key, value = "", None
    for part in reader.fields(message.start, message.stop):
        if part.number == 1 and part.stop - part.start <= len(_CLASSES):
            key = reader.text(part)
        elif part.number == 2:
            value = part
    return {key: reader.text(value)} if value is not None and key in (_SCOPES, _CLASSES, _NAMESPACE) else {}


def _module_of(metadata: dict[str, str]) -> tuple[str, str]:
    modules, classes = (re.findall(r"'([^']*)'", metadata.get(key, ""))[:-1] for key in (_SCOPES, _CLASSES))
    if not modules and "/" in metadata.get(_NAMESPACE, ""):
        pairs = [part.partition(": ") for part in metadata[_NAMESPACE].split("/")[:-1]]
        modules, classes = [name for name, _, _ in pairs], [kind for _, _, kind in pairs]
    return modules[-1] if modules else "", classes[-1] if classes else ""


def _read_tensor(reader: MessageReader, message: Field) -> Initialiser:
    dims: list[int] = []
    kind = location = 0
    name = ""
    raw: Field | None = None
    typed: list[Field] = []
    external: dict[str, str] = {}
    for part in reader.fields(message.start, message.stop):
        if part.number == _DIMS:
            dims += reader.varints(part)
        elif part.number == _TYPE:
            kind = part.value
        elif part.number == _NAME:
            name = reader.text(part)
        elif part.number == _RAW:
            raw = part
        elif part.number in (_FLOATS, _DOUBLES, _INTS, _LONGS, _UNSIGNED):
            typed.append(part)
            if len(typed) > MOST_PIECES:
                raise UnsupportedFormatError(
                    f"initialiser {name!r:.80} lists its numbers one by one; the limit is {MOST_PIECES:,} fields",
                    subject=reader.source.label,
                )
        elif part.number == _EXTERNAL:
            entry = {pair.number: reader.text(pair) for pair in reader.fields(part.start, part.stop)}
            external[entry.get(1, "")] = entry.get(2, "")
        elif part.number == _LOCATION:
            location = part.value
    shape = tuple(dims)
    label = f"{reader.source.label}, initialiser {name!r:.80}"
    if any(size < 0 for size in shape) or (excess := excess_of_shape(shape)):
        raise CorruptCheckpointError(f"it {excess if min(shape) >= 0 else 'has a negative size'}", subject=label)
    dtype = DTYPES.get(kind, f"type {kind}")
    if location == 1:
        start = _offset(external.get("offset", "0"), label)
        length = external.get("length")
        stop = start + (_offset(length, label) if length else n_bytes_of(shape, dtype))
        return Initialiser(name, shape, dtype, external.get("location", ""), start, stop)
    if raw is None and len(typed) == 1 and typed[0].number in FIXED_WIDTH:
        (raw,) = typed
    if raw is not None:
        return Initialiser(name, shape, dtype, "", raw.start, raw.stop)
    # A stored byte encodes at most one number, and a number has at most eight bytes.
    n_bytes, n_stored = n_bytes_of(shape, dtype), sum(part.stop - part.start for part in typed)
    return Initialiser(name, shape, dtype, "", 0, n_bytes if n_bytes <= 8 * n_stored else 0, tuple(typed))


def _offset(text: str, label: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 19):
        raise CorruptCheckpointError(f"the offset or length of its bytes is {text!r:.40}", subject=label)
    return int(text)
