"""Find the weights of an ONNX graph, and their names in the original checkpoint.

Exporters transpose matrices and replace their names with numbers, but the nodes that use them contain module paths.
Quantisers append suffixes to names, or pass codes, scales and zero points as inputs to nodes.

Source: the schemas of ONNX (DequantizeLinear 25, QLinearMatMul) and of ONNX Runtime's ``com.microsoft`` domain
(MatMulNBits, GatherBlockQuantized, MatMulBnb4, QGemm, MatMulIntegerToFloat).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mdir_hf.errors import CorruptCheckpointError, UnsupportedFormatError
from mdir_hf.model.files.decode import DTYPES
from mdir_hf.model.files.onnx.codes import FP4, NF4, Codes
from mdir_hf.model.sources import excess_of_shape

if TYPE_CHECKING:
    from onnx import GraphProto, TensorProto

# Names in safetensors for ONNX's data types; U4, I4, U2 and I2 are not in safetensors.
DTYPE_NAMES = {
    1: "F32", 2: "U8", 3: "I8", 4: "U16", 5: "I16", 6: "I32", 7: "I64", 9: "BOOL", 10: "F16", 11: "F64", 12: "U32",
    13: "U64", 16: "BF16", 17: "F8_E4M3", 18: "F8_E4M3FNUZ", 19: "F8_E5M2", 20: "F8_E5M2FNUZ", 21: "U4", 22: "I4",
    23: "F4", 24: "F8_E8M0", 25: "U2", 26: "I2",
}  # fmt: skip
_BITS = {"U4": 4, "I4": 4, "U2": 2, "I2": 2}
_EXTERNAL = 1
"""Location of a tensor whose bytes are in another file."""

_QUANTIZED, _SCALE, _ZERO_POINT = "_quantized", "_scale", "_zero_point"
_PRODUCTS = ("MatMul", "MatMulInteger", "MatMulIntegerToFloat", "DynamicQuantizeMatMul", "Gemm", "FusedMatMul")
# Operators with the matrix as input 3, followed by its scale and zero point.
_PRODUCTS_OF_CODES = ("QLinearMatMul", "QGemm")
# Indices of the inputs for the matrix's scale and zero point; -1 if there is none.
_SCALES_OF_PRODUCT = {"MatMulIntegerToFloat": (3, 5), "DynamicQuantizeMatMul": (2, 3), "MatMulInteger": (-1, 3)}
_PASSED_ON = ("Identity", "Cast", "Transpose", "DequantizeLinear", "Gather")
"""Operators that may come between an initialiser and the matrix product that uses it."""
_MOST_PASSED_ON = 4

_FLOATS = ("F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E4M3FNUZ", "F8_E5M2", "F8_E5M2FNUZ")
_CODES = ("U8", "I8", "U4", "I4", "U2", "I2", "F4")

_SCOPES, _CLASSES, _NAMESPACE = "pkg.torch.onnx.name_scopes", "pkg.torch.onnx.class_hierarchy", "namespace"
"""Keys of metadata that torch's exporter adds to nodes: the enclosing modules, outermost first, and their classes, as
Python lists or one string."""

_PREFIX = re.compile(r"^(?:(?:model\.)*(?:\d+\.)?auto_model\.|(?:encoder_model|decoder_model)\.)")
_OF_QUANTISER = re.compile(r"(_DQ)?_(Q\d|quantized|quant|qweight)$|(?<=\.)qweight$")
_OF_BUILDER = (
    (re.compile(r"\.MatMul(?=\.weight$)"), ""),
    (re.compile(r"(?<=\.)attn(?=\.[qkvo]_proj\.)"), "self_attn"),
    (re.compile(r"^model\.layers\.\d+\.final_norm_layernorm\."), "model.norm."),
)
"""Patterns in the names that ONNX Runtime's own exporter writes, and their replacements."""


@dataclass(frozen=True, slots=True)
class Initialiser:
    """A stored tensor of a graph.

    Attributes:
        tensor: The stored message, with the bytes unless they are external.
        dtype: Name as in safetensors, or ``U4``, ``I4``, ``U2`` or ``I2`` for packed integers.
        external: Location, offset and length, if the bytes are in another file.
    """

    tensor: TensorProto
    shape: tuple[int, ...]
    dtype: str
    external: dict[str, str] | None

    @property
    def n_bits(self) -> int:
        """Bits per number; 8 if the type is unknown."""
        return _BITS.get(self.dtype) or (DTYPES[self.dtype].n_bits if self.dtype in DTYPES else 8)

    @property
    def n_bytes(self) -> int:
        """Number of bytes that the shape needs."""
        return -(-math.prod(self.shape) * self.n_bits // 8)


@dataclass(frozen=True, slots=True)
class Node:
    """A node of a graph.

    Attributes:
        inputs: Tensor names; an omitted optional input has an empty name.
        module: Module named by torch's exporter, such as ``model.layers.0.self_attn.q_proj``, or empty.
        is_conv1d: Whether that module is GPT-2's linear layer, whose weights are stored ``(in, out)``.
    """

    name: str
    op_type: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    ints: dict[str, int]
    module: str
    is_conv1d: bool


@dataclass(slots=True)
class Graph:
    """The initialisers and nodes of a graph and its nested graphs."""

    initialisers: dict[str, Initialiser] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Weight:
    """How a graph stores a weight; ``codes`` is None unless the weight is quantised."""

    stored: str
    shape: tuple[int, ...]
    is_transposed: bool = False
    codes: Codes | None = None


def list_graph(graph: GraphProto, label: str) -> Graph:
    """Return the initialisers, constants and nodes of a graph, including nested graphs.

    Raises:
        CorruptCheckpointError: If a shape is invalid.
    """
    result = Graph()
    graphs = [graph]
    while graphs:
        inner = graphs.pop()
        for tensor in inner.initializer:
            result.initialisers[_text(tensor.name)] = _initialiser(tensor, label)
        for node in inner.node:
            attributes = {_text(attribute.name): attribute for attribute in node.attribute}
            graphs += [attribute.g for attribute in attributes.values() if attribute.HasField("g")]
            name, op_type = _text(node.name), _text(node.op_type)
            inputs, outputs = (tuple(map(_text, names)) for names in (node.input, node.output))
            if op_type == "Constant" and "value" in attributes and outputs:
                result.initialisers[outputs[0]] = _initialiser(attributes["value"].t, label)
            ints = {name: attribute.i for name, attribute in attributes.items() if attribute.HasField("i")}
            module = _module_of({_text(entry.key): _text(entry.value) for entry in node.metadata_props})
            result.nodes.append(Node(name, op_type, inputs, outputs, ints, *module))
    return result


def _text(value: str | bytes) -> str:
    """Return a string of a message, which the package leaves as bytes if it is not UTF-8."""
    return value if isinstance(value, str) else value.decode(errors="replace")


def _initialiser(tensor: TensorProto, label: str) -> Initialiser:
    shape = tuple(tensor.dims)
    excess = "has a negative size" if any(size < 0 for size in shape) else excess_of_shape(shape)
    if excess:
        raise CorruptCheckpointError(f"initialiser {_text(tensor.name)!r:.80} {excess}", subject=label)
    external = {_text(entry.key): _text(entry.value) for entry in tensor.external_data}
    dtype = DTYPE_NAMES.get(tensor.data_type, f"type {tensor.data_type}")
    return Initialiser(tensor, shape, dtype, external if tensor.data_location == _EXTERNAL else None)


def _module_of(metadata: dict[str, str]) -> tuple[str, bool]:
    modules, classes = (re.findall(r"'([^']*)'", metadata.get(key, ""))[:-1] for key in (_SCOPES, _CLASSES))
    if not modules and "/" in metadata.get(_NAMESPACE, ""):
        pairs = [part.partition(": ") for part in metadata[_NAMESPACE].split("/")[:-1]]
        modules, classes = [name for name, _, _ in pairs], [kind for _, _, kind in pairs]
    return modules[-1] if modules else "", bool(classes) and classes[-1].rpartition(".")[2] == "Conv1D"


def find_weights(graph: Graph, label: str) -> dict[str, Weight]:
    """Return a graph's weights, keyed by their names in the original checkpoint.

    A matrix that no known operator uses keeps its name and, if it contains integers, cannot be read.
    """
    return _Finder(graph, label).find()


class _Finder:
    def __init__(self, graph: Graph, label: str) -> None:
        self._nodes = graph.nodes
        self._initialisers = graph.initialisers
        self._label = label
        self._made_by = {name: node for node in graph.nodes for name in node.outputs if node.op_type in _PASSED_ON}

    def find(self) -> dict[str, Weight]:
        weights: dict[str, Weight] = {}
        used_names: set[str] = set()
        names: dict[str, str] = {}
        for node, weight in self._of_nodes():
            used_names |= {weight.stored, *(weight.codes.parts if weight.codes else ())}
            if weight.stored in names:
                continue  # used by both branches of a merged decoder, or tied
            name = _name_of(weight.stored, node)
            # If two matrices belong to one module, the second keeps its own name.
            name = name if name not in weights else weight.stored
            names[weight.stored] = name
            weights[name] = weight
        for name, tensor in self._initialisers.items():
            if name not in used_names and tensor.shape:
                named_weight = self._of_initialiser(name, tensor)
                if named_weight is not None:
                    weights.setdefault(*named_weight)
        return weights

    def _of_nodes(self) -> Iterator[tuple[Node, Weight]]:
        """Yield nodes and their weights, embedding lookups first, so that tied matrices have the embedding's name."""
        for reader in (self._of_lookup, self._of_product, self._of_dequantised):
            for node in self._nodes:
                weight = reader(node)
                if weight is not None:
                    yield node, weight

    def _of_product(self, node: Node) -> Weight | None:
        if node.op_type in ("MatMulNBits", "MatMulBnb4"):
            return self._of_blocks(node)
        if node.op_type in _PRODUCTS_OF_CODES:
            stored, scale, zero = _inputs(node, 3, 4, 5)
            is_transposed = not (node.op_type == "QGemm" and node.ints.get("transB"))
            if not self._is_matrix(stored):
                return None
            # There is one scale per output, so the axis depends on the orientation.
            by_output = self._codes(stored, scale, zero, axis=int(is_transposed))
            return self._oriented(stored, node, by_output, is_transposed=is_transposed)
        for name in node.inputs[:2] if node.op_type in _PRODUCTS else ():
            stored, dequantise, is_transposed = self._source_of(name)
            is_transposed ^= not (node.op_type == "Gemm" and node.ints.get("transB"))
            if not self._is_matrix(stored):
                continue
            codes: Codes | None = None
            if dequantise is not None:
                codes = self._of_node(stored, dequantise)
            elif self._initialisers[stored].dtype in _CODES:
                codes = self._columns(stored, *_inputs(node, *_SCALES_OF_PRODUCT.get(node.op_type, (-1, -1))))
            return self._oriented(stored, node, codes, is_transposed=is_transposed)
        return None

    def _source_of(self, name: str) -> tuple[str, Node | None, bool]:
        """Return the initialiser from which an input is made, what dequantises it, and whether it is transposed."""
        dequantise: Node | None = None
        is_transposed = False
        for _ in range(_MOST_PASSED_ON):
            maker = self._made_by.get(name)
            if name in self._initialisers or maker is None or maker.op_type == "Gather":
                break
            is_transposed ^= maker.op_type == "Transpose"
            dequantise = maker if maker.op_type == "DequantizeLinear" else dequantise
            (name,) = _inputs(maker, 0)
        return name, dequantise, is_transposed

    def _oriented(self, stored: str, node: Node, codes: Codes | None, *, is_transposed: bool) -> Weight:
        """Orient a matrix as in the checkpoint, where Conv1D weights are ``(in, out)``."""
        shape = self._initialisers[stored].shape
        if _own_name(stored) is not None:
            is_transposed = False
        elif node.is_conv1d:
            is_transposed = not is_transposed
        return Weight(stored, shape[::-1] if is_transposed else shape, is_transposed, codes)

    def _of_blocks(self, node: Node) -> Weight | None:
        """Return a weight that is stored as ``(out, in)``, in blocks of codes along its rows or across them."""
        n, k, block = (node.ints.get(name, 0) for name in ("N", "K", "block_size"))
        stored, scale, zero, order = _inputs(node, 1, 2, 3, 4)
        if stored not in self._initialisers or scale not in self._initialisers or min(n, k, block) <= 0:
            return None
        if node.op_type == "MatMulBnb4":
            table = NF4 if node.ints.get("quant_type", 1) else FP4
            codes = Codes(stored, (n * k,), 4, scale, None, 0, block, table=table)
        else:
            n_bits = node.ints.get("bits", 4)
            if n_bits not in (2, 4, 8) or order:
                what = "in a permuted order" if order else f"of {n_bits} bits"
                raise UnsupportedFormatError(
                    f"initialiser {stored!r:.80} has codes {what}, which are not supported", subject=self._label
                )
            shape, middle = (n, -(-k // block) * block), 1 << (n_bits - 1)
            codes = Codes(stored, shape, n_bits, scale, self._in(zero), 1, block, middle, is_packed=True)
        stored_shape = self._initialisers[stored].shape
        if math.prod(stored_shape) != -(-math.prod(codes.shape) * codes.n_bits // 8):
            raise CorruptCheckpointError(
                f"initialiser {stored!r:.80} has the shape {stored_shape}, which cannot hold {n} x {k} codes of "
                f"{codes.n_bits} bits in blocks of {block}",
                subject=self._label,
            )
        is_transposed = _own_name(stored) is not None or node.is_conv1d
        return Weight(stored, (k, n) if is_transposed else (n, k), is_transposed, codes)

    def _of_lookup(self, node: Node) -> Weight | None:
        stored, scale, zero = _inputs(node, 0, 2, 3)
        if not self._is_matrix(stored):
            return None
        tensor = self._initialisers[stored]
        if node.op_type == "Gather" and tensor.dtype in _FLOATS:
            return Weight(stored, tensor.shape)
        n_bits, block = node.ints.get("bits", 4), node.ints.get("block_size", 128)
        if node.op_type != "GatherBlockQuantized" or n_bits not in (2, 4, 8) or block < 1:
            return None  # codes are listed, and cannot be read
        is_packed = tensor.dtype == "U8"
        shape = (tensor.shape[0], tensor.shape[1] * 8 // n_bits) if is_packed else tensor.shape
        axis, middle = _axis(node.ints.get("quantize_axis", 1), 2), 1 << (n_bits - 1) if is_packed else 0
        codes = Codes(stored, shape, n_bits, self._in(scale), self._in(zero), axis, block, middle, is_packed)
        return Weight(stored, shape, codes=codes)

    def _of_dequantised(self, node: Node) -> Weight | None:
        if node.op_type != "DequantizeLinear":
            return None
        (stored,) = _inputs(node, 0)
        maker = self._made_by.get(stored)
        if stored not in self._initialisers and maker is not None and maker.op_type == "Gather":
            (stored,) = _inputs(maker, 0)
        if stored not in self._initialisers or not self._initialisers[stored].shape:
            return None
        return Weight(stored, self._initialisers[stored].shape, codes=self._of_node(stored, node))

    def _of_initialiser(self, name: str, tensor: Initialiser) -> tuple[str, Weight] | None:
        stem = name.removesuffix(_QUANTIZED)
        if stem != name and stem + _SCALE in self._initialisers:
            return _plain(stem), Weight(name, tensor.shape, codes=self._columns(name))
        is_matrix = sum(size > 1 for size in tensor.shape) > 1
        is_weight = name.endswith((".weight", ".bias")) and "::" not in name
        if name.endswith((_SCALE, _ZERO_POINT)):
            return None
        if tensor.dtype in _FLOATS and (is_matrix or is_weight):
            return _plain(name), Weight(name, tensor.shape)
        return (name, Weight(name, tensor.shape)) if tensor.dtype in _CODES and is_matrix else None

    def _of_node(self, stored: str, node: Node) -> Codes:
        scale, zero = _inputs(node, 1, 2)
        axis = _axis(node.ints.get("axis", 1), len(self._initialisers[stored].shape))
        return self._codes(stored, scale, zero, axis, max(0, node.ints.get("block_size", 0)))

    def _columns(self, stored: str, scale: str = "", zero: str = "") -> Codes:
        stem, axis = stored.removesuffix(_QUANTIZED), len(self._initialisers[stored].shape) - 1
        return self._codes(stored, self._in(scale) or stem + _SCALE, self._in(zero) or stem + _ZERO_POINT, axis)

    def _codes(self, stored: str, scale: str, zero: str, axis: int, block: int = 0) -> Codes:
        tensor = self._initialisers[stored]
        return Codes(stored, tensor.shape, tensor.n_bits, self._in(scale), self._in(zero), axis, block)

    def _is_matrix(self, name: str) -> bool:
        return name in self._initialisers and len(self._initialisers[name].shape) == 2

    def _in(self, name: str) -> str | None:
        return name if name in self._initialisers else None


def _inputs(node: Node, *places: int) -> tuple[str, ...]:
    """Return the names of inputs, empty if omitted."""
    return tuple(node.inputs[place] if 0 <= place < len(node.inputs) else "" for place in places)


def _axis(axis: int, n_axes: int) -> int:
    return min(max(axis + n_axes if axis < 0 else axis, 0), max(n_axes - 1, 0))


def _name_of(stored: str, node: Node) -> str:
    """Return a weight's name in the checkpoint, from its own name or from the module of its node."""
    own_name = _OF_QUANTISER.sub("", stored)
    own_name = f"{own_name}weight" if own_name.endswith(".") else own_name
    has_own = "::" not in own_name and "/" not in own_name and own_name.endswith(".weight")
    if has_own and not (node.op_type == "Gather" and node.module):  # a tied matrix is named after one of its uses
        return _plain(own_name)
    if node.module:
        return _plain(f"{node.module}.weight")
    if "/" not in node.name or node.op_type in ("Gather", "GatherBlockQuantized", "DequantizeLinear"):
        return _plain(own_name)
    module = re.sub(r"/?[^/]*(MatMul|Gemm)[^/]*$", "", node.name.strip("/")).replace("/", ".")
    return _plain(f"{module}.weight")


def _own_name(stored: str) -> str | None:
    name = _OF_QUANTISER.sub("", stored)
    is_own = "::" not in name and "/" not in name and name.endswith(".weight")
    return name if is_own and not name.endswith(".MatMul.weight") else None


def _plain(name: str) -> str:
    name = _PREFIX.sub("", name)
    for pattern, plain in _OF_BUILDER:
        name = pattern.sub(plain, name)
    return name
