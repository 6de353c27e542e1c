"""The weights of an ONNX graph under the names of its checkpoint: transposed back, dequantised.

Exporters keep the names of embeddings and norms. They transpose the matrix of a product and give it a number in place
of its name; the node that uses it has kept the path of its module. Quantisers append to names, or put codes, scales and
zero points into other initialisers, which the nodes name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch

from mdir_hf.errors import CorruptCheckpointError, TensorNotFoundError, UnsupportedFormatError
from mdir_hf.model.files.onnx.graph import Node
from mdir_hf.model.files.onnx.source import OnnxSource
from mdir_hf.model.files.ranged import check_rows
from mdir_hf.model.files.shards import list_some
from mdir_hf.model.files.sources import Description, StoredTensor, TensorSpec
from mdir_hf.model.files.spans import IntArray

_QUANTIZED, _SCALE, _ZERO_POINT = "_quantized", "_scale", "_zero_point"
_PRODUCTS = ("MatMul", "MatMulInteger", "MatMulIntegerToFloat", "DynamicQuantizeMatMul", "Gemm", "FusedMatMul")
_PASSED_ON = ("Identity", "Cast", "Transpose", "DequantizeLinear")
"""Nodes between an initialiser and the product that uses it."""

_PREFIX = re.compile(r"^(?:(?:model\.)*(?:\d+\.)?auto_model\.|(?:encoder_model|decoder_model)\.)")
_OF_BUILDER = (
    (re.compile(r"\.MatMul(?=\.weight$)"), ""),
    (re.compile(r"(?<=\.)attn(?=\.[qkvo]_proj\.)"), "self_attn"),
    (re.compile(r"^model\.layers\.\d+\.final_norm_layernorm\."), "model.norm."),
)
"""Names that ONNX Runtime's own exporter of language models gives, and those of the checkpoint."""


@dataclass(frozen=True, slots=True)
class _Weight:
    """How a weight is stored.

    Attributes:
        stored: The initialiser of its numbers or codes.
        shape: Of the weight, ``(out, in)``.
        is_transposed: Whether the stored one is ``(in, out)``.
        scale: The initialiser of its scales; None where it is not quantised.
        zero: That of its zero points.
        n_bits: Of a code; 8 but for blocks.
        block: Codes along ``in`` that share a scale; 0: one scale for all, or one for each column that is stored.
    """

    stored: str
    shape: tuple[int, ...]
    is_transposed: bool = False
    scale: str | None = None
    zero: str | None = None
    n_bits: int = 8
    block: int = 0


class OnnxWeights:
    """The weights of an ONNX model, read lazily. Implements ``TensorSource``.

    Rows of what is stored transposed cost the whole matrix.

    Args:
        source: Its initialisers.
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
        """The files."""
        return self._source.paths

    @property
    def description(self) -> Description:
        """The format, and how many bits its quantised matrices have."""
        bits = sorted({one.n_bits for one in self._weights.values() if one.scale is not None})
        quantization = f"{' and '.join(map(str, bits))} bits" if bits else None
        return Description("ONNX", quantization)

    def names(self) -> tuple[str, ...]:
        """Names of all weights, sorted, as the checkpoint had them."""
        return tuple(sorted(self._weights))

    def contents(self) -> Iterator[StoredTensor]:
        """Yield every initialiser; scales and zero points belong to the weight that they are for."""
        owners = {one.stored: (name, False) for name, one in self._weights.items()}
        for name, one in self._weights.items():
            owners |= {part: (name, True) for part in (one.scale, one.zero) if part is not None and part not in owners}
        for tensor in self._source.contents():
            weight, is_companion = owners.get(tensor.name, (tensor.name, False))
            yield replace(tensor, weight=weight, belongs_to_other=is_companion)

    def read_all_headers(self) -> None:
        """Do nothing: the graph was read."""

    def spec(self, name: str) -> TensorSpec:
        """Shape, dtype and place of a weight; the place is that of its numbers as they are stored."""
        one = self._weight(name)
        return replace(self._source.spec(one.stored), name=name, shape=one.shape)

    def read(self, name: str) -> torch.Tensor:
        """Return a whole weight as float32 (float64 stays float64)."""
        one = self._weight(name)
        if one.block:
            return self._blocks(one, name, np.arange(one.shape[0], dtype=np.int64))
        if one.scale is None:
            values = self._source.read(one.stored)
        else:
            codes = self._source.read_stored(one.stored)
            values = self._dequantised(one, codes, name)
        return values.T.contiguous() if one.is_transposed else values

    def read_rows(self, name: str, rows: IntArray, *, max_gap_bytes: int | None = None) -> torch.Tensor:
        """Return some rows, float32 (float64 stays float64), in the order asked."""
        one = self._weight(name)
        wanted = check_rows(self.spec(name), rows, self.label)
        if one.block:
            return self._blocks(one, name, wanted, max_gap_bytes=max_gap_bytes)
        if one.is_transposed:
            return self.read(name)[torch.from_numpy(wanted)]
        if one.scale is None:
            return self._source.read_rows(one.stored, wanted, max_gap_bytes=max_gap_bytes)
        codes = self._source.read_stored_rows(one.stored, wanted, max_gap_bytes=max_gap_bytes)
        return self._dequantised(one, codes, name)

    def _weight(self, name: str) -> _Weight:
        if name not in self._weights:
            raise TensorNotFoundError(f"there is no weight {name!r} in {list_some(self.paths)}", subject=self.label)
        return self._weights[name]

    @cached_property
    def _weights(self) -> Mapping[str, _Weight]:
        graph = self._source.graph
        known = graph.initialisers
        made_by = {name: node for node in graph.nodes for name in node.outputs if node.op_type in _PASSED_ON}
        found: dict[str, _Weight] = {}
        used: set[str] = set()
        for node in graph.nodes:
            if node.op_type == "MatMulNBits":
                one = self._of_blocks(node)
            elif node.op_type in _PRODUCTS:
                one = self._of_product(node, made_by)
            else:
                continue
            if one is not None:
                used |= {one.stored, one.scale or "", one.zero or ""}
                found.setdefault(self._name_of(one.stored, node), one)
        for name, tensor in known.items():
            if name in used or not tensor.shape or name.endswith((_SCALE, _ZERO_POINT)) or "::" in name:
                continue
            if name.endswith(_QUANTIZED):
                stem = name.removesuffix(_QUANTIZED)
                if stem + _SCALE in known:
                    quantized = _Weight(name, tensor.shape, scale=stem + _SCALE, zero=_in(stem + _ZERO_POINT, known))
                    found.setdefault(_plain(stem), quantized)
            elif tensor.dtype in ("F32", "F16", "BF16", "F64") and name.endswith((".weight", ".bias")):
                found.setdefault(_plain(name), _Weight(name, tensor.shape))
        return found

    def _of_product(self, node: Node, made_by: Mapping[str, Node]) -> _Weight | None:
        """The weight of a product of a matrix; None where both sides are computed."""
        known = self._source.graph.initialisers
        for name in node.inputs:
            scale = zero = None
            is_transposed = not (node.op_type == "Gemm" and node.ints.get("transB"))
            at: str | None = name
            for _ in range(4):
                if at is None or at in known or at not in made_by:
                    break
                maker = made_by[at]
                if maker.op_type == "Transpose":
                    is_transposed = not is_transposed
                elif maker.op_type == "DequantizeLinear":
                    scale, zero = (*maker.inputs[1:], None, None)[:2]
                at = maker.inputs[0] if maker.inputs else None
            if at not in known or len(known[at].shape) != 2:
                continue
            if at.endswith(_QUANTIZED) and scale is None:
                stem = at.removesuffix(_QUANTIZED)
                scale, zero = _in(stem + _SCALE, known), _in(stem + _ZERO_POINT, known)
            shape = known[at].shape
            return _Weight(at, shape[::-1] if is_transposed else shape, is_transposed, scale, zero)
        return None

    def _of_blocks(self, node: Node) -> _Weight | None:
        """The weight of a product with codes in blocks: ``MatMulNBits(A, B, scales, zero points)``."""
        known = self._source.graph.initialisers
        n, k, block = (node.ints.get(name, 0) for name in ("N", "K", "block_size"))
        n_bits = node.ints.get("bits", 4)
        stored, scale = (*node.inputs[1:3], "", "")[:2]
        if stored not in known or scale not in known or not (n and k and block):
            return None
        n_blocks = -(-k // block)
        if (
            _size(known[stored].shape) != n * n_blocks * block * n_bits // 8
            or _size(known[scale].shape) != n * n_blocks
        ):
            raise CorruptCheckpointError(
                f"initialiser {stored!r:.80} has the shape {known[stored].shape}, which is not that of {n} x {k} codes "
                f"of {n_bits} bits in blocks of {block}",
                subject=self.label,
            )
        zero = node.inputs[3] if len(node.inputs) > 3 and node.inputs[3] in known else None
        return _Weight(stored, (n, k), scale=scale, zero=zero, n_bits=n_bits, block=block)

    def _name_of(self, stored: str, node: Node) -> str:
        """What the checkpoint calls a weight: by its own name, or by the module of the node that uses it."""
        own = re.sub(r"_(Q4|Q8|quantized|quant|qweight)$", "", stored)
        if "::" not in own and not own.startswith(("/", "val_")) and own.endswith(".weight"):
            return _plain(own)
        module = node.name.strip("/")
        module = re.sub(r"/?(MatMul|Gemm|FusedMatMul)[^/]*$", "", module).replace("/", ".")
        return _plain(f"{module}.weight")

    def _dequantised(self, one: _Weight, codes: torch.Tensor, name: str) -> torch.Tensor:
        scale, zero = (self._inline(part, name) for part in (one.scale, one.zero))
        values = codes.float()
        if zero is not None:
            values -= zero
        values *= 1.0 if scale is None else scale
        return values

    def _inline(self, part: str | None, name: str) -> torch.Tensor | None:
        """A scale or zero point, ``()`` or ``(columns,)``."""
        if part is None:
            return None
        kept = self._source.inline(part)
        values = self._source.read_stored(part) if kept is None else torch.from_numpy(np.array(kept))
        if values.ndim > 1:
            raise UnsupportedFormatError(
                f"weight {name!r} is quantised with scales of the shape {tuple(values.shape)}, which is not read",
                subject=self.label,
            )
        return values.float()

    def _blocks(self, one: _Weight, name: str, rows: IntArray, *, max_gap_bytes: int | None = None) -> torch.Tensor:
        """Rows of a weight whose codes lie in blocks along them, low bits first."""
        if one.n_bits not in (4, 8):
            raise UnsupportedFormatError(f"weight {name!r} has codes of {one.n_bits} bits, which is not read",
                                         subject=self.label)  # fmt: skip
        n, k = one.shape
        n_blocks = -(-k // one.block)
        # Codes are stored as (n, blocks, bytes of a block), rows of a block each.
        per_row = _size(self._source.spec(one.stored).shape[:-1]) // n
        places = (rows[:, None] * per_row + np.arange(per_row)).reshape(-1)
        packed = self._source.read_stored_rows(one.stored, places, max_gap_bytes=max_gap_bytes)
        codes = packed.reshape(len(rows), -1)
        if one.n_bits == 4:
            codes = torch.stack([codes & 15, codes >> 4], dim=2).reshape(len(rows), -1)
        codes = codes.reshape(len(rows), n_blocks, one.block).float()
        at = torch.from_numpy(rows)
        assert one.scale is not None, "codes have scales"
        scale = self._source.read(one.scale).reshape(n, n_blocks)[at]
        if one.zero is None:
            codes -= 1 << (one.n_bits - 1)
        else:
            zeros = self._source.read_stored(one.zero)
            if zeros.dtype == torch.uint8 and one.n_bits == 4:
                zeros = zeros.reshape(n, -1)
                zeros = torch.stack([zeros & 15, zeros >> 4], dim=2).reshape(n, -1)[:, :n_blocks]
            codes -= zeros.reshape(n, n_blocks)[at].float()[:, :, None]
        return (codes * scale[:, :, None]).reshape(len(rows), -1)[:, :k].contiguous()


def _in(name: str, known: Mapping[str, object]) -> str | None:
    return name if name in known else None


def _size(shape: tuple[int, ...]) -> int:
    return int(np.prod(shape, dtype=np.int64))


def _plain(name: str) -> str:
    name = _PREFIX.sub("", name)
    for pattern, plain in _OF_BUILDER:
        name = pattern.sub(plain, name)
    return name
