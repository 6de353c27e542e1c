"""An ONNX graph: its initialisers with their places, and the nodes that use them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from mdir_hf.errors import CorruptCheckpointError, UnsupportedFormatError
from mdir_hf.model.files.onnx.wire import Field, MessageReader
from mdir_hf.model.files.sources import ByteSource, excess_of_shape

# ONNX's numbers of data types, and what safetensors calls them; 4-bit types are packed two to a byte.
DTYPES = {
    1: "F32", 2: "U8", 3: "I8", 4: "U16", 5: "I16", 6: "I32", 7: "I64", 9: "BOOL", 10: "F16", 11: "F64", 12: "U32",
    13: "U64", 16: "BF16", 17: "F8_E4M3", 18: "F8_E4M3FNUZ", 19: "F8_E5M2", 20: "F8_E5M2FNUZ", 21: "U4", 22: "I4",
}  # fmt: skip

MOST_INITIALISERS, MOST_NODES, DEEPEST_GRAPH = 100_000, 1_000_000, 4
INLINE_N_BYTES = 1 << 12
"""Initialisers of up to this size are kept when the graph is read: scales, zero points, shapes."""

_MODEL_GRAPH = 7
_GRAPH_NODE, _GRAPH_INITIALISER = 1, 5
_NODE_INPUT, _NODE_OUTPUT, _NODE_NAME, _NODE_TYPE, _NODE_ATTRIBUTE = 1, 2, 3, 4, 5
_ATTRIBUTE_NAME, _ATTRIBUTE_INT, _ATTRIBUTE_TENSOR, _ATTRIBUTE_GRAPH = 1, 3, 5, 6
_DIMS, _TYPE, _FLOATS, _INTS, _LONGS, _NAME, _RAW, _EXTERNAL, _LOCATION = 1, 2, 4, 5, 7, 8, 9, 13, 14


@dataclass(frozen=True, slots=True)
class Initialiser:
    """A tensor of a graph.

    Attributes:
        name: In the graph.
        shape: Its sizes.
        dtype: As safetensors names it; ``U4`` and ``I4`` for packed 4-bit numbers.
        path: The other file that holds its bytes; empty where the graph's own does.
        start: Offset of its first byte.
        stop: Offset past its last.
        inline: Its values, where they are few or not stored as plain bytes.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    path: str
    start: int
    stop: int
    inline: npt.NDArray[Any] | None = None


@dataclass(frozen=True, slots=True)
class Node:
    """A node of a graph.

    Attributes:
        name: Its name, mostly the path of its module.
        op_type: What it computes.
        inputs: Names of tensors.
        outputs: Likewise.
        ints: Its integer attributes.
    """

    name: str
    op_type: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    ints: dict[str, int]


@dataclass(slots=True)
class Graph:
    """Initialisers and nodes of a graph and of the graphs inside it."""

    initialisers: dict[str, Initialiser] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)


def read_graph(source: ByteSource) -> Graph:
    """Read what an ONNX file says, without the bytes of its weights.

    Raises:
        CorruptCheckpointError: If it is not an ONNX file.
        UnsupportedFormatError: If it has far more nodes or initialisers than any model.

    Cost: a read for each initialiser inside the file that is longer than some kilobytes, one after the other.
    """
    reader = MessageReader(source)
    graph = Graph()
    for one in reader.fields(0, source.n_bytes):
        if one.number == _MODEL_GRAPH:
            _read_graph(reader, one, graph, 0)
    if not graph.initialisers:
        raise CorruptCheckpointError("this ONNX file holds no weights", subject=source.label)
    return graph


def _read_graph(reader: MessageReader, message: Field, graph: Graph, depth: int) -> None:
    for one in reader.fields(message.start, message.stop):
        if one.number == _GRAPH_INITIALISER:
            tensor = _read_tensor(reader, one)
            graph.initialisers[tensor.name] = tensor
        elif one.number == _GRAPH_NODE:
            _read_node(reader, one, graph, depth)
    if len(graph.initialisers) > MOST_INITIALISERS or len(graph.nodes) > MOST_NODES:
        raise UnsupportedFormatError(
            f"it has {len(graph.initialisers):,} initialisers and {len(graph.nodes):,} nodes, and is read up to "
            f"{MOST_INITIALISERS:,} and {MOST_NODES:,}",
            subject=reader.source.label,
        )


def _read_node(reader: MessageReader, message: Field, graph: Graph, depth: int) -> None:
    texts: dict[int, list[str]] = {_NODE_INPUT: [], _NODE_OUTPUT: [], _NODE_NAME: [""], _NODE_TYPE: [""]}
    ints: dict[str, int] = {}
    constant: Initialiser | None = None
    for one in reader.fields(message.start, message.stop):
        if one.number in texts:
            texts[one.number].append(reader.text(one))
        elif one.number == _NODE_ATTRIBUTE:
            name = ""
            for part in reader.fields(one.start, one.stop):
                if part.number == _ATTRIBUTE_NAME:
                    name = reader.text(part)
                elif part.number == _ATTRIBUTE_INT:
                    ints[name] = part.value
                elif part.number == _ATTRIBUTE_TENSOR:
                    constant = _read_tensor(reader, part)
                elif part.number == _ATTRIBUTE_GRAPH and depth < DEEPEST_GRAPH:
                    _read_graph(reader, part, graph, depth + 1)
    node = Node(
        texts[_NODE_NAME][-1], texts[_NODE_TYPE][-1], tuple(texts[_NODE_INPUT]), tuple(texts[_NODE_OUTPUT]), ints
    )
    graph.nodes.append(node)
    if node.op_type == "Constant" and constant is not None and node.outputs:
        name = node.outputs[0]
        graph.initialisers[name] = Initialiser(
            name, constant.shape, constant.dtype, constant.path, constant.start, constant.stop, constant.inline
        )


def _read_tensor(reader: MessageReader, message: Field) -> Initialiser:
    dims: list[int] = []
    kind = location = 0
    name = ""
    raw: Field | None = None
    numbers: list[int] = []
    external: dict[str, str] = {}
    for one in reader.fields(message.start, message.stop):
        if one.number == _DIMS:
            dims += reader.varints(one)
        elif one.number == _TYPE:
            kind = one.value
        elif one.number == _NAME:
            name = reader.text(one)
        elif one.number in (_RAW, _FLOATS):
            raw = one
        elif one.number in (_INTS, _LONGS) and one.stop - one.start <= INLINE_N_BYTES:
            numbers += reader.varints(one)
        elif one.number == _EXTERNAL:
            entry = {part.number: reader.text(part) for part in reader.fields(one.start, one.stop)}
            external[entry.get(1, "")] = entry.get(2, "")
        elif one.number == _LOCATION:
            location = one.value
    shape = tuple(dims)
    label = f"{reader.source.label}, initialiser {name!r:.80}"
    if any(size < 0 for size in shape) or (excess := excess_of_shape(shape)):
        raise CorruptCheckpointError(f"it {excess if min(shape) >= 0 else 'has a negative size'}", subject=label)
    dtype = DTYPES.get(kind, f"type {kind}")
    if location == 1:
        start = _offset(external.get("offset", "0"), label)
        length = external.get("length")
        stop = start + (_offset(length, label) if length else _n_bytes(shape, dtype))
        return Initialiser(name, shape, dtype, external.get("location", ""), start, stop)
    if raw is None:
        values = np.array(numbers, dtype=np.int64).reshape(shape) if len(numbers) == np.prod(shape) else None
        return Initialiser(name, shape, dtype, "", message.stop, message.stop, values)
    inline = None
    if raw.stop - raw.start <= INLINE_N_BYTES and (known := _NUMPY.get(dtype)) is not None:
        content = reader.payload(raw, INLINE_N_BYTES)
        if len(content) == np.dtype(known).itemsize * int(np.prod(shape)):
            inline = np.frombuffer(content, known).reshape(shape)
    return Initialiser(name, shape, dtype, "", raw.start, raw.stop, inline)


_NUMPY = {"F32": "<f4", "F16": "<f2", "F64": "<f8", "U8": "u1", "I8": "i1", "I32": "<i4", "I64": "<i8"}
_N_BITS = {"F64": 64, "F32": 32, "F16": 16, "BF16": 16, "U4": 4, "I4": 4, "I64": 64, "I32": 32, "U32": 32, "U64": 64,
           "I16": 16, "U16": 16}  # fmt: skip


def _n_bytes(shape: tuple[int, ...], dtype: str) -> int:
    return -(-int(np.prod(shape, dtype=np.int64)) * _N_BITS.get(dtype, 8) // 8)


def _offset(text: str, label: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 19):
        raise CorruptCheckpointError(f"the place of its bytes is {text!r:.40}", subject=label)
    return int(text)
