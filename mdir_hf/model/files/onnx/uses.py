"""Find the weights of an ONNX graph, and their names in the original checkpoint.

Exporters transpose matrices and replace their names with numbers, but the nodes that use them contain module paths.
Quantisers append suffixes to names, or pass codes, scales and zero points as inputs to nodes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

from mdir_hf.errors import CorruptCheckpointError, UnsupportedFormatError
from mdir_hf.model.files.onnx.codes import FP4, NF4, Codes, LinearCodes, NBitsCodes, TableCodes
from mdir_hf.model.files.onnx.graph import Graph, Initialiser, Node

_QUANTIZED, _SCALE, _ZERO_POINT = "_quantized", "_scale", "_zero_point"
_PRODUCTS = ("MatMul", "MatMulInteger", "MatMulIntegerToFloat", "DynamicQuantizeMatMul", "Gemm", "FusedMatMul")
# Operators with the matrix as input 3, followed by its scale and zero point.
_PRODUCTS_OF_CODES = ("QLinearMatMul", "QGemm")
# Indices of the inputs for the matrix's scale and zero point.
_SCALES_OF_PRODUCT = {"MatMulIntegerToFloat": (3, 5), "DynamicQuantizeMatMul": (2, 3), "MatMulInteger": (None, 3)}
_PASSED_ON = ("Identity", "Cast", "Transpose", "DequantizeLinear", "Gather")
"""Operators that may come between an initialiser and the matrix product that uses it."""

_FLOATS = ("F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E4M3FNUZ", "F8_E5M2", "F8_E5M2FNUZ")
_CODES = ("U8", "I8", "U4", "I4", "U2", "I2", "F4")
_CONV1D = "Conv1D"
"""Class of GPT-2's linear layers, whose weights are stored ``(in, out)``."""

_PREFIX = re.compile(r"^(?:(?:model\.)*(?:\d+\.)?auto_model\.|(?:encoder_model|decoder_model)\.)")
_OF_QUANTISER = re.compile(r"(_DQ)?_(Q\d|quantized|quant|qweight)$|(?<=\.)qweight$")
_OF_BUILDER = (
    (re.compile(r"\.MatMul(?=\.weight$)"), ""),
    (re.compile(r"(?<=\.)attn(?=\.[qkvo]_proj\.)"), "self_attn"),
    (re.compile(r"^model\.layers\.\d+\.final_norm_layernorm\."), "model.norm."),
)
"""Patterns in the names that ONNX Runtime's own exporter writes, and their replacements."""


@dataclass(frozen=True, slots=True)
class Weight:
    """How a graph stores a weight; ``codes`` is None unless the weight is quantised."""

    stored: str
    shape: tuple[int, ...]
    is_transposed: bool = False
    codes: Codes | None = None


def find_weights(graph: Graph, label: str) -> dict[str, Weight]:
    """Return a graph's weights, keyed by their names in the original checkpoint.

    A matrix that no known operator uses keeps its name and, if it contains integers, cannot be read.
    """
    return _Finder(graph, label).find()


class _Finder:
    def __init__(self, graph: Graph, label: str) -> None:
        self._graph = graph
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
            name = self._name_of(weight.stored, node)
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
        readers = (self._of_lookups, self._of_products, self._of_dequantised)
        for reader in readers:
            for node in self._graph.nodes:
                weight = reader(node)
                if weight is not None:
                    yield node, weight

    def _of_products(self, node: Node) -> Weight | None:
        if node.op_type == "MatMulNBits":
            return self._of_blocks(node)
        if node.op_type == "MatMulBnb4":
            return self._of_table(node)
        if node.op_type in _PRODUCTS_OF_CODES:
            return self._of_product_of_codes(node)
        return self._of_product(node) if node.op_type in _PRODUCTS else None

    def _of_product(self, node: Node) -> Weight | None:
        for name in node.inputs[:2]:
            dequantise: Node | None = None
            is_transposed = not (node.op_type == "Gemm" and node.ints.get("transB"))
            stored: str | None = name
            for _ in range(4):
                if stored is None or stored in self._initialisers or stored not in self._made_by:
                    break
                maker = self._made_by[stored]
                if maker.op_type == "Gather":
                    break
                if maker.op_type == "Transpose":
                    is_transposed = not is_transposed
                elif maker.op_type == "DequantizeLinear":
                    dequantise = maker
                stored = maker.inputs[0] if maker.inputs else None
            if stored not in self._initialisers or len(self._initialisers[stored].shape) != 2:
                continue
            codes: Codes | None = None
            if dequantise is not None:
                codes = self._linear(stored, dequantise)
            elif self._initialisers[stored].dtype in _CODES:
                codes = self._columns(stored, node)
            return self._oriented(stored, node, codes, is_transposed=is_transposed)
        return None

    def _of_product_of_codes(self, node: Node) -> Weight | None:
        stored, scale, zero = (*node.inputs[3:6], "", "", "")[:3]
        if stored not in self._initialisers or len(self._initialisers[stored].shape) != 2:
            return None
        is_transposed = not (node.op_type == "QGemm" and node.ints.get("transB"))
        tensor = self._initialisers[stored]
        # There is one scale per output, so the axis depends on the orientation.
        axis = 1 if is_transposed else 0
        codes = LinearCodes(stored, tensor.shape, tensor.dtype, self._in(scale), self._in(zero), axis)
        return self._oriented(stored, node, codes, is_transposed=is_transposed)

    def _oriented(self, stored: str, node: Node, codes: Codes | None, *, is_transposed: bool) -> Weight:
        """Orient a matrix as in the checkpoint, where Conv1D weights are ``(in, out)``."""
        shape = self._initialisers[stored].shape
        if self._own_name(stored) is not None:
            is_transposed = False
        elif node.module_class.rpartition(".")[2] == _CONV1D:
            is_transposed = not is_transposed
        return Weight(stored, shape[::-1] if is_transposed else shape, is_transposed, codes)

    def _of_lookups(self, node: Node) -> Weight | None:
        stored = node.inputs[0] if node.inputs else ""
        if stored not in self._initialisers or len(self._initialisers[stored].shape) != 2:
            return None
        tensor = self._initialisers[stored]
        if node.op_type == "Gather" and tensor.dtype in _FLOATS:
            return Weight(stored, tensor.shape)
        if node.op_type != "GatherBlockQuantized":
            return None
        scale, zero = (*node.inputs[2:4], "", "")[:2]
        n_bits, block, dtype, shape = (
            node.ints.get("bits", 4),
            node.ints.get("block_size", 128),
            tensor.dtype,
            tensor.shape,
        )
        if n_bits not in (2, 4, 8) or block < 1:
            return None  # listed as codes that cannot be read
        if dtype == "U8" and n_bits in (2, 4):
            dtype, shape = f"U{n_bits}", (shape[0], shape[1] * 8 // n_bits)
        middle = 1 << (n_bits - 1) if tensor.dtype == "U8" else 0
        axis = _axis(node.ints.get("quantize_axis", 1), 2)
        codes = LinearCodes(stored, shape, dtype, self._in(scale), self._in(zero), axis, block, middle)
        return Weight(stored, shape, codes=codes)

    def _of_dequantised(self, node: Node) -> Weight | None:
        if node.op_type != "DequantizeLinear" or not node.inputs:
            return None
        stored = node.inputs[0]
        maker = self._made_by.get(stored)
        if stored not in self._initialisers and maker is not None and maker.op_type == "Gather":
            stored = maker.inputs[0] if maker.inputs else ""
        if stored not in self._initialisers or not self._initialisers[stored].shape:
            return None
        return Weight(stored, self._initialisers[stored].shape, codes=self._linear(stored, node))

    def _of_initialiser(self, name: str, tensor: Initialiser) -> tuple[str, Weight] | None:
        stem = name.removesuffix(_QUANTIZED)
        if stem != name and stem + _SCALE in self._initialisers:
            axis = len(tensor.shape) - 1
            scale, zero = stem + _SCALE, self._in(stem + _ZERO_POINT)
            codes = LinearCodes(name, tensor.shape, tensor.dtype, scale, zero, axis)
            return _plain(stem), Weight(name, tensor.shape, codes=codes)
        is_matrix = sum(size > 1 for size in tensor.shape) > 1
        is_weight = name.endswith((".weight", ".bias")) and "::" not in name
        if name.endswith((_SCALE, _ZERO_POINT)):
            return None
        if tensor.dtype in _FLOATS and (is_matrix or is_weight):
            return _plain(name), Weight(name, tensor.shape)
        return (name, Weight(name, tensor.shape)) if tensor.dtype in _CODES and is_matrix else None

    def _of_blocks(self, node: Node) -> Weight | None:
        n, k, block = (node.ints.get(name, 0) for name in ("N", "K", "block_size"))
        n_bits = node.ints.get("bits", 4)
        stored, scale, zero, order = (*node.inputs[1:5], "", "", "", "")[:4]
        if stored not in self._initialisers or scale not in self._initialisers or min(n, k, block) <= 0:
            return None
        n_blocks = -(-k // block)
        if (
            math.prod(self._initialisers[stored].shape) * 8 != n * n_blocks * block * n_bits
            or math.prod(self._initialisers[scale].shape) != n * n_blocks
        ):
            raise CorruptCheckpointError(
                f"initialiser {stored!r:.80} has the shape {self._initialisers[stored].shape}, which cannot hold "
                f"{n} x {k} codes of {n_bits} bits in blocks of {block}",
                subject=self._label,
            )
        if n_bits not in (2, 4, 8) or order:
            what = "in a permuted order" if order else f"of {n_bits} bits"
            raise UnsupportedFormatError(
                f"initialiser {stored!r:.80} has codes {what}, which are not supported", subject=self._label
            )
        codes = NBitsCodes(stored, (n, k), scale, self._in(zero), n_bits, block)
        return self._of_rows(node, codes)

    def _of_table(self, node: Node) -> Weight | None:
        n, k, block = (node.ints.get(name, 0) for name in ("N", "K", "block_size"))
        stored, scale = (*node.inputs[1:3], "", "")[:2]
        if stored not in self._initialisers or scale not in self._initialisers or min(n, k, block) <= 0:
            return None
        if 2 * math.prod(self._initialisers[stored].shape) != n * k or math.prod(self._initialisers[scale].shape) != -(
            -n * k // block
        ):
            raise CorruptCheckpointError(
                f"initialiser {stored!r:.80} has the shape {self._initialisers[stored].shape}, which cannot hold "
                f"{n} x {k} codes of 4 bits in blocks of {block}",
                subject=self._label,
            )
        table = NF4 if node.ints.get("quant_type", 1) else FP4
        return self._of_rows(node, TableCodes(stored, (n, k), scale, table, block))

    def _of_rows(self, node: Node, codes: NBitsCodes | TableCodes) -> Weight:
        is_conv1d = node.module_class.rpartition(".")[2] == _CONV1D
        is_transposed = self._own_name(codes.stored) is not None or is_conv1d
        return Weight(codes.stored, codes.shape[::-1] if is_transposed else codes.shape, is_transposed, codes)

    def _linear(self, stored: str, node: Node) -> LinearCodes:
        tensor = self._initialisers[stored]
        scale, zero = (*node.inputs[1:3], "", "")[:2]
        axis = _axis(node.ints.get("axis", 1), len(tensor.shape))
        block = node.ints.get("block_size", 0)
        return LinearCodes(
            stored, tensor.shape, tensor.dtype, self._in(scale), self._in(zero), axis, block if block > 0 else 0
        )

    def _columns(self, stored: str, node: Node) -> LinearCodes:
        tensor = self._initialisers[stored]
        stem = stored.removesuffix(_QUANTIZED)
        places = _SCALES_OF_PRODUCT.get(node.op_type, (None, None))
        scale, zero = (node.inputs[at] if at is not None and at < len(node.inputs) else "" for at in places)
        return LinearCodes(
            stored,
            tensor.shape,
            tensor.dtype,
            self._in(scale) or self._in(stem + _SCALE),
            self._in(zero) or self._in(stem + _ZERO_POINT),
            len(tensor.shape) - 1,
        )

    def _name_of(self, stored: str, node: Node) -> str:
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

    def _own_name(self, stored: str) -> str | None:
        name = _OF_QUANTISER.sub("", stored)
        is_own = "::" not in name and "/" not in name and name.endswith(".weight")
        return name if is_own and not name.endswith(".MatMul.weight") else None

    def _in(self, name: str) -> str | None:
        return name if name in self._initialisers else None


def _axis(axis: int, n_axes: int) -> int:
    return min(max(axis + n_axes if axis < 0 else axis, 0), max(n_axes - 1, 0))


def _plain(name: str) -> str:
    name = _PREFIX.sub("", name)
    for pattern, plain in _OF_BUILDER:
        name = pattern.sub(plain, name)
    return name
