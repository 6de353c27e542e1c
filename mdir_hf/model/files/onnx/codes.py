"""Decode quantised ONNX weights, whose layouts depend on the operator.

Source: the schemas of ONNX (DequantizeLinear 25, QLinearMatMul) and of ONNX Runtime's ``com.microsoft`` domain
(MatMulNBits, GatherBlockQuantized, MatMulBnb4, QGemm, MatMulIntegerToFloat).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from mdir_hf.errors import CorruptCheckpointError, UnsupportedFormatError
from mdir_hf.model.files.decode import E2M1, E8M0
from mdir_hf.model.files.onnx.graph import PACKED_BITS
from mdir_hf.model.files.onnx.onnx_source import OnnxSource
from mdir_hf.model.files.quantization.coded import unpack_dense
from mdir_hf.model.files.ranged import IntArray

# bitsandbytes' 4-bit numbers, indexed by code, as in ONNX Runtime's kernels.
NF4 = torch.tensor(
    [-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
     -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
     0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0]
)  # fmt: skip
_FP4 = (0.0, 0.005208333333333333, 0.6666666666666666, 1.0, 0.3333333333333333, 0.5, 0.16666666666666666, 0.25)
FP4 = torch.tensor([*_FP4, *(-value for value in _FP4)])


class Codes(Protocol):
    """The codes of one weight, and how to decode them."""

    @property
    def n_bits(self) -> int:
        """Bits per code."""
        ...

    @property
    def parts(self) -> tuple[str, ...]:
        """Names of the companion initialisers."""
        ...

    def rows(self, source: OnnxSource, rows: IntArray, max_gap_bytes: int | None) -> torch.Tensor:
        """Return the given rows of the stored matrix as float32; rows are numbered across a stack."""
        ...


@dataclass(frozen=True, slots=True)
class LinearCodes:
    """Codes decoded as ``(code - zero) * scale``, with one scale and zero point per tensor, entry of ``axis`` or block.

    Attributes:
        dtype: Type of the codes, such as ``U4``; they may be stored as bytes.
        zero: Initialiser of the zero points; None if all are ``default_zero``.
        block: Number of codes along ``axis`` that share a scale; 0 for one scale per tensor or per entry.
    """

    stored: str
    shape: tuple[int, ...]
    dtype: str
    scale: str | None
    zero: str | None
    axis: int
    block: int = 0
    default_zero: int = 0

    @property
    def n_bits(self) -> int:
        """Bits per code."""
        return PACKED_BITS.get(self.dtype, 16 if "16" in self.dtype else 32 if "32" in self.dtype else 8)

    @property
    def parts(self) -> tuple[str, ...]:
        """Names of the companion initialisers."""
        return tuple(name for name in (self.scale, self.zero) if name)

    def rows(self, source: OnnxSource, rows: IntArray, max_gap_bytes: int | None) -> torch.Tensor:
        """Return the given rows."""
        n_rows, d = math.prod(self.shape[:-1]), self.shape[-1]
        if 0 in self.shape:
            return torch.zeros(len(rows), d)
        if d * self.n_bits % 8 and n_rows > 1:  # some rows start within a byte
            whole = _numbers(source.row_bytes(self.stored, 1, np.zeros(1, np.int64)), self.dtype)
            values = whole[0, : n_rows * d].reshape(n_rows, d)[torch.from_numpy(rows)]
        else:
            content = source.row_bytes(self.stored, n_rows, rows, max_gap_bytes=max_gap_bytes)
            values = _numbers(content, self.dtype)[:, :d]
        if self.zero is not None:
            values = values - self._spread(source, self.zero, rows)
        elif self.default_zero:
            values = values - self.default_zero
        return values if self.scale is None else values * self._spread(source, self.scale, rows)

    def _spread(self, source: OnnxSource, name: str, rows: IntArray) -> torch.Tensor:
        initialiser = source.graph.initialisers[name]
        numbers = _numbers(source.row_bytes(name, 1, np.zeros(1, np.int64)), self._dtype_of(source, name))[0]
        size, last = self.shape[self.axis], len(self.shape) - 1
        n_groups = -(-size // self.block) if self.block else size
        if math.prod(initialiser.shape) == 1 and not self.block:
            return numbers[:1]
        # Index of each row along every axis except the last.
        places = np.unravel_index(rows, self.shape[:-1]) if last else (np.zeros_like(rows),)
        group = slice(None) if self.axis == last else torch.from_numpy(places[self.axis] // max(1, self.block))
        if not self.block:
            if len(initialiser.shape) == 1 and initialiser.shape[0] == size:
                return numbers[:size] if self.axis == last else numbers[:size][group][:, None]
        else:
            grid = (*self.shape[: self.axis], n_groups, *self.shape[self.axis + 1 :])
            if numbers.numel() >= math.prod(grid):
                values = numbers[: math.prod(grid)].reshape(grid)
                index = [torch.from_numpy(place) for place in places[: len(self.shape) - 1]]
                if self.axis != last:
                    index[self.axis] = torch.from_numpy(places[self.axis] // self.block)
                    return values[tuple(index)]
                return values[tuple(index)].reshape(len(rows), -1)[:, torch.arange(size) // self.block]
        raise CorruptCheckpointError(
            f"initialiser {name!r:.80} of shape {initialiser.shape} does not fit codes of shape {self.shape}, whose "
            f"axis {self.axis} has {n_groups:,} {'blocks' if self.block else 'entries'}",
            subject=source.label,
        )

    def _dtype_of(self, source: OnnxSource, name: str) -> str:
        dtype = source.graph.initialisers[name].dtype
        return self.dtype if name == self.zero and dtype == "U8" and self.n_bits < 8 else dtype


@dataclass(frozen=True, slots=True)
class NBitsCodes:
    """Codes for ``MatMulNBits``, in blocks along the rows of ``(out, in)``, low bits first.

    Attributes:
        zero: Initialiser with the zero points as floats or packed codes; None if all are ``2^(n_bits - 1)``.
    """

    stored: str
    shape: tuple[int, int]
    scale: str
    zero: str | None
    n_bits: int
    block: int

    @property
    def parts(self) -> tuple[str, ...]:
        """Names of the companion initialisers."""
        return (self.scale, self.zero) if self.zero else (self.scale,)

    def rows(self, source: OnnxSource, rows: IntArray, max_gap_bytes: int | None) -> torch.Tensor:
        """Return the given rows."""
        n, k = self.shape
        packed = source.row_bytes(self.stored, n, rows, max_gap_bytes=max_gap_bytes)
        n_blocks = -(-k // self.block)
        codes = unpack_dense(packed, self.n_bits).reshape(len(rows), n_blocks, self.block).float()
        if self.zero is None:
            codes -= 1 << (self.n_bits - 1)
        else:
            dtype = source.graph.initialisers[self.zero].dtype
            zeros = source.row_bytes(self.zero, n, rows)
            unpacked = unpack_dense(zeros, self.n_bits).float() if dtype == "U8" else _numbers(zeros, dtype)
            if unpacked.shape[1] < n_blocks:
                raise CorruptCheckpointError(
                    f"initialiser {self.zero!r:.80} has {unpacked.shape[1]:,} zero points for each of {n:,} rows of "
                    f"{n_blocks:,} blocks"
                )
            codes -= unpacked[:, :n_blocks, None]
        scale = _numbers(source.row_bytes(self.scale, n, rows), source.graph.initialisers[self.scale].dtype)
        return (codes * scale[:, :, None]).reshape(len(rows), -1)[:, :k].contiguous()


@dataclass(frozen=True, slots=True)
class TableCodes:
    """Codes for ``MatMulBnb4``: indices into a table, in blocks of consecutive entries of ``(out, in)``.

    Attributes:
        scale: Initialiser that contains each block's largest absolute value.
        table: Values of the 16 codes.
    """

    stored: str
    shape: tuple[int, int]
    scale: str
    table: torch.Tensor
    block: int
    n_bits: int = 4

    @property
    def parts(self) -> tuple[str, ...]:
        """Names of the companion initialisers."""
        return (self.scale,)

    def rows(self, source: OnnxSource, rows: IntArray, max_gap_bytes: int | None) -> torch.Tensor:
        """Return the given rows."""
        n, k = self.shape
        if k % 2:
            raise UnsupportedFormatError(
                f"initialiser {self.stored!r:.80} has rows of {k} codes of 4 bits, which end within a byte",
                subject=source.label,
            )
        packed = source.row_bytes(self.stored, n, rows, max_gap_bytes=max_gap_bytes)
        codes = torch.stack((packed >> 4, packed & 15), dim=-1).flatten(1)
        dtype = source.graph.initialisers[self.scale].dtype
        factors = _numbers(source.row_bytes(self.scale, 1, np.zeros(1, np.int64)), dtype)[0]
        entries = torch.from_numpy(rows)[:, None] * k + torch.arange(k)
        return self.table[codes.int()] * factors[entries // self.block]


def _numbers(stored: torch.Tensor, dtype: str) -> torch.Tensor:
    if dtype in PACKED_BITS:
        codes = unpack_dense(stored, PACKED_BITS[dtype])
        if dtype == "F4":
            return E2M1[codes.int()]
        values = codes.float()
        if dtype.startswith("I"):
            values -= (1 << PACKED_BITS[dtype]) * (values >= 1 << (PACKED_BITS[dtype] - 1))
        return values
    if dtype == "F8_E8M0":
        return E8M0[stored.int()]
    kind = TORCH_DTYPES.get(dtype)
    if kind is None:
        raise UnsupportedFormatError(f"numbers of ONNX's type {dtype} are not supported")
    if stored.shape[-1] % kind.itemsize:
        raise CorruptCheckpointError(f"{stored.shape[-1]:,} bytes are not a whole number of values of type {dtype}")
    return stored.view(kind).float()


TORCH_DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "U8": torch.uint8,
    "I8": torch.int8, "U16": torch.uint16, "I16": torch.int16, "I32": torch.int32, "F8_E4M3": torch.float8_e4m3fn,
    "F8_E4M3FNUZ": torch.float8_e4m3fnuz, "F8_E5M2": torch.float8_e5m2, "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
}  # fmt: skip
