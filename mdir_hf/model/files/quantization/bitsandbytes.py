"""Decode bitsandbytes weights: NF4 and FP4 with one scale per block of consecutive entries, and INT8 with one per row.

4 bits: entries are in row order, two per byte, high half first; W = quant_map[code] * absmax[block]. If absmax is
nested, it consists of 8-bit codes: nested_quant_map[code] * nested_absmax[block of blocks] + nested_offset. INT8: W =
code * SCB / 127. Source: bitsandbytes 0.50 (functional.QuantState, backends/default/ops.py).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
import torch
from annotated_types import Ge, Le, Lt

from mdir_hf.model.files.decode import as_bytes
from mdir_hf.model.files.quantization.coded import CodedTensor, KeptTensors, RowCodes, widen
from mdir_hf.model.files.quantization.gptq import ColumnCodes
from mdir_hf.model.files.quantization.opening import Opening
from mdir_hf.model.files.ranged import IntArray
from mdir_hf.model.sources import StoredRows, TensorSpec
from mdir_hf.validation import AS_WRITTEN

MOST_BLOCK = 1 << 20
ONE_REQUEST_SHARE = 4
"""If at least ``1 / ONE_REQUEST_SHARE`` of a tensor is requested, all of it is read."""


_Size = Annotated[int, Ge(1), Lt(2**31)]
_Block = Annotated[int, Ge(1), Le(MOST_BLOCK)]


@dataclass(frozen=True)
class _State:
    __pydantic_config__ = AS_WRITTEN
    shape: tuple[_Size, _Size]
    blocksize: _Block
    quant_type: object = None
    nested_blocksize: _Block | None = None
    nested_offset: float | None = None


@dataclass(frozen=True, slots=True)
class BlockCodes(CodedTensor):
    """NF4 or FP4 codes in blocks of consecutive entries, stored in a tensor of any dtype.

    Attributes:
        block: Number of entries that share a scale.
        absmax: Name of the tensor of scales, which is always read whole.
        quant_map: Values of the 16 codes.
        nested: Name, block size, table of 256 values and offset of the outer scales; None if scales are floats.
    """

    block: int
    absmax: str
    quant_map: torch.Tensor
    nested: tuple[str, int, torch.Tensor, float] | None = None

    def rows(self, stored: StoredRows, rows: IntArray, *, max_gap_bytes: int | None = None) -> torch.Tensor:
        """Return the given rows."""
        d_in = self.shape[1]
        first = rows * d_in
        start = first // 2
        width = int((-(-(first + d_in) // 2) - start).max()) if rows.size else 0
        packed = self._bytes(stored, start, width, max_gap_bytes)
        codes = torch.stack((packed >> 4, packed & 15), dim=-1).flatten(1)
        if d_in % 2 == 0 and d_in % self.block == 0:  # each row starts at a byte and at a block
            factors = self._factors(stored).reshape(-1, d_in // self.block)[torch.from_numpy(rows)]
            return self.quant_map[codes.int()].mul_(factors.repeat_interleave(self.block, dim=1))
        entries = torch.from_numpy(first)[:, None] + torch.arange(d_in)
        codes = codes.gather(1, entries - 2 * torch.from_numpy(start)[:, None])
        return self.quant_map[codes.int()].mul_(self._factors(stored)[entries // self.block])

    def _bytes(self, stored: StoredRows, start: IntArray, width: int, max_gap_bytes: int | None) -> torch.Tensor:
        n_bytes, n_items = self.codes.n_bytes, math.prod(self.codes.shape)
        is_few = start.size * width * ONE_REQUEST_SHARE < n_bytes
        if not is_few or self.codes.shape[-1] != 1 or isinstance(stored, KeptTensors):
            whole = as_bytes(stored.read_stored(self.codes.name).reshape(-1))
            stop = int(start[-1]) + width if start.size else 0
            if 0 < stop <= n_bytes and np.array_equal(start, start[0] + width * np.arange(start.size)):
                return whole[int(start[0]) : stop].reshape(start.size, width)
            return whole[torch.from_numpy(self._places(start, width))]
        item = n_bytes // n_items
        places = self._places(start, width)
        items, inverse = np.unique(places // item, return_inverse=True)
        item_bytes = as_bytes(stored.read_stored_rows(self.codes.name, items, max_gap_bytes=max_gap_bytes)).reshape(-1)
        return item_bytes[torch.from_numpy(inverse.reshape(places.shape) * item + places % item)]

    def _places(self, start: IntArray, width: int) -> IntArray:
        places: IntArray = np.minimum(start[:, None] + np.arange(width, dtype=np.int64), self.codes.n_bytes - 1)
        return places

    def _factors(self, stored: StoredRows) -> torch.Tensor:
        absmax = stored.read_stored(self.absmax).reshape(-1)
        if self.nested is None:
            return absmax.to(torch.float32)
        name, block, numbers, offset = self.nested
        outer = stored.read_stored(name).reshape(-1).to(torch.float32)
        return numbers[absmax.int()] * outer[torch.arange(len(absmax)) // block] + offset


def open_four_bits(opening: Opening) -> CodedTensor:
    """Open an NF4 or FP4 weight."""
    codes = opening.codes
    state = opening.small_json("quant_state", _State)
    shape, block = state.shape, state.blocksize
    n = math.prod(shape)
    if codes.n_bytes != -(-n // 2):
        raise opening.corrupt(
            f"tensor {opening.parts.companions['quant_state']!r} says that the weight has shape {shape}, but the codes "
            f"in {codes.name!r} have {codes.n_bytes:,} bytes, two entries each"
        )
    numbers = _numbers(opening, "quant_map", 16)
    absmax = opening.spec("absmax")
    _check_length(opening, absmax, -(-n // block))
    nested = None
    if absmax.dtype == "U8":
        outer = opening.spec("nested_absmax")
        outer_block, offset = state.nested_blocksize, state.nested_offset
        if outer_block is None or offset is None:
            raise opening.corrupt(f"the state of {codes.name!r} does not say how the scales of its blocks are nested")
        _check_length(opening, outer, -(-math.prod(absmax.shape) // outer_block))
        nested = (outer.name, outer_block, _numbers(opening, "nested_quant_map", 256), float(offset))
    label = "FP4" if state.quant_type == "fp4" else "NF4"
    coded = BlockCodes(
        shape, label, codes, f"bitsandbytes {label}, blocks of {block}", block, absmax.name, numbers, nested
    )
    return _as_in_file(opening, coded)


def open_eight_bits(opening: Opening) -> CodedTensor:
    """Open an INT8 weight."""
    codes = opening.codes
    if codes.dtype != "I8" or len(codes.shape) != 2:
        raise opening.refuse(f"{codes.dtype} codes with row maxima, which bitsandbytes uses for int8 only")
    if opening.has("format") and int(opening.small("format").reshape(-1)[0]) != 0:
        raise opening.refuse("int8 tiles laid out for one kind of GPU (its weight_format is not 0)")
    maxima = opening.grid("row_maxima", codes.shape, block=(1, codes.shape[1]))
    scale = replace(maxima, decode=lambda stored: widen(stored) / 127)
    return _as_in_file(
        opening, RowCodes(codes.shape, "INT8", codes, "bitsandbytes INT8, one scale per row", widen, scales=(scale,))
    )


def _as_in_file(opening: Opening, coded: BlockCodes | RowCodes) -> CodedTensor:
    if not opening.declared.stores_transposed(opening.parts.name):
        return coded
    d_out, d_in = coded.shape
    return ColumnCodes((d_in, d_out), coded.dtype, coded.codes, coded.meaning, coded.rows, transposed=True)


def _numbers(opening: Opening, part: str, length: int) -> torch.Tensor:
    spec = opening.spec(part)
    _check_length(opening, spec, length)
    return opening.stored.read_stored(spec.name).reshape(-1).to(torch.float32)


def _check_length(opening: Opening, spec: TensorSpec, length: int) -> None:
    if math.prod(spec.shape) != length:
        raise opening.corrupt(
            f"tensor {spec.name!r}, a companion of {opening.codes.name!r}, has shape {spec.shape}; expected {length:,} "
            "numbers"
        )
