"""Decode stored bytes into tensors, and reject tensors that are not weights.

Source: ``Dtype`` in ``safetensors/src/tensor.rs`` of safetensors 0.8; for E2M1, E2M3 and E8M0, OCP Microscaling Formats
(MX) specification 1.0, section 5.3.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import torch

from mdir_hf.errors import NotFiniteError, UnsupportedFormatError
from mdir_hf.model.sources import TensorSpec


@dataclass(frozen=True, slots=True)
class DType:
    """A dtype in which tensors are stored.

    Attributes:
        name: Name in safetensors, such as ``BF16``.
        torch_dtype: Dtype in torch; None if torch lacks it and tensors are read as bytes.
        is_weight: Whether tensors can be decoded on their own.
    """

    name: str
    n_bits: int
    torch_dtype: torch.dtype | None
    is_weight: bool
    meaning: str


DTYPES: dict[str, DType] = {
    dtype.name: dtype
    for dtype in (
        DType("F64", 64, torch.float64, True, "64-bit float weights"),
        DType("F32", 32, torch.float32, True, "32-bit float weights"),
        DType("F16", 16, torch.float16, True, "16-bit float weights"),
        DType("BF16", 16, torch.bfloat16, True, "bfloat16 weights"),
        DType("F8_E5M2", 8, torch.float8_e5m2, True, "FP8 weights"),
        DType("F8_E4M3", 8, torch.float8_e4m3fn, True, "FP8 weights"),
        DType("F8_E5M2FNUZ", 8, torch.float8_e5m2fnuz, True, "FP8 weights"),
        DType("F8_E4M3FNUZ", 8, torch.float8_e4m3fnuz, True, "FP8 weights"),
        DType("F8_E8M0", 8, getattr(torch, "float8_e8m0fnu", torch.uint8), False, "FP8 block scales"),
        DType("F6_E2M3", 6, None, False, "FP6 weights, packed in an order that the format does not define"),
        DType("F6_E3M2", 6, None, False, "FP6 weights, packed in an order that the format does not define"),
        DType("F4", 4, None, True, "FP4 weights"),
        DType("U8", 8, torch.uint8, False, "packed quantised weights (8-bit integers)"),
        DType("I8", 8, torch.int8, False, "quantised weights (8-bit integers)"),
        DType("U16", 16, torch.uint16, False, "packed quantised weights (16-bit integers)"),
        DType("I16", 16, torch.int16, False, "packed quantised weights (16-bit integers)"),
        DType("U32", 32, torch.uint32, False, "packed quantised weights (32-bit integers)"),
        DType("I32", 32, torch.int32, False, "packed quantised weights (32-bit integers)"),
        DType("U64", 64, torch.uint64, False, "64-bit integers"),
        DType("I64", 64, torch.int64, False, "64-bit integers"),
        DType("BOOL", 8, torch.bool, False, "truth values"),
        DType("C64", 64, torch.complex64, False, "complex numbers"),
    )
}
"""All dtypes that a safetensors header may contain, keyed by name."""

NAME_OF_TORCH_DTYPE: dict[torch.dtype, str] = {
    dtype.torch_dtype: dtype.name for dtype in DTYPES.values() if dtype.torch_dtype is not None
}
"""The safetensors name of each torch dtype."""


_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_E2M3 = (*(m / 8 for m in range(8)), *((1 + m / 8) * 2.0**e for e in range(3) for m in range(8)))
_E8M0 = (*(2.0 ** (code - 127) for code in range(255)), float("nan"))

E2M1 = torch.tensor([*_E2M1, *(-value for value in _E2M1)])
"""Values of the 16 four-bit codes; the highest bit is the sign."""

E2M3 = torch.tensor([*_E2M3, *(-value for value in _E2M3)])
"""Values of the 64 six-bit codes."""

E8M0 = torch.tensor(_E8M0)
"""Values of the 256 eight-bit codes: powers of two, and NaN."""


def decode_e2m1(packed: torch.Tensor) -> torch.Tensor:
    """Decode uint8 ``(..., w)``, two numbers per byte with the low half first, to float32 ``(..., 2 w)``."""
    codes = as_bytes(packed)
    return E2M1[torch.stack((codes & 15, codes >> 4), dim=-1).flatten(-2).int()]


def decode_e2m3(packed: torch.Tensor) -> torch.Tensor:
    """Decode uint8 ``(..., w)``, four numbers per three bytes, to float32 ``(..., 4 w / 3)``."""
    codes = as_bytes(packed)
    low, middle, high = codes.reshape(*codes.shape[:-1], -1, 3).int().unbind(-1)
    word = low | middle << 8 | high << 16
    return E2M3[torch.stack([word >> shift & 63 for shift in (0, 6, 12, 18)], dim=-1).flatten(-2)]


def decode_e8m0(codes: torch.Tensor) -> torch.Tensor:
    """Decode exponent codes to powers of two, ``2^(code - 127)``, as float32."""
    return E8M0[as_bytes(codes).int()]


def as_bytes(values: torch.Tensor) -> torch.Tensor:
    """View a tensor as little-endian bytes along its last axis."""
    if values.ndim and values.stride(-1) != 1:  # torch ignores the stride of an axis with one entry
        values = values.clone(memory_format=torch.contiguous_format)
    return values.contiguous().view(torch.uint8)


@dataclass(frozen=True, slots=True)
class Encoding:
    """A storage encoding, made of units that can be decoded separately.

    Attributes:
        n_values: Number of values per unit: 1, or the block size.
        decode: Function that decodes the bytes of whole units into a flat, writable tensor.
        n_decoded: Number of elements that ``decode`` returns per unit.
    """

    n_values: int
    n_bytes: int
    decode: Callable[[bytes], torch.Tensor]
    n_decoded: int

    def bytes_of(self, n_values: int) -> int:
        """Return the stored size of ``n_values`` numbers, which must fill whole units."""
        return n_values // self.n_values * self.n_bytes

    def decoded(self, n_values: int) -> int:
        """Return how many elements ``n_values`` numbers decode to."""
        return n_values // self.n_values * self.n_decoded


def stored_encoding(spec: TensorSpec) -> Encoding:
    """Return the encoding that keeps the stored dtype, or uses bytes if torch lacks it."""
    dtype = DTYPES[spec.dtype]
    if dtype.torch_dtype is None:
        n_values = 8 // math.gcd(8, dtype.n_bits)
        n_bytes = n_values * dtype.n_bits // 8
        return Encoding(n_values, n_bytes, partial(view_bytes, dtype=torch.uint8), n_decoded=n_bytes)
    return Encoding(1, dtype.torch_dtype.itemsize, partial(view_bytes, dtype=dtype.torch_dtype), n_decoded=1)


def weight_encoding(spec: TensorSpec, label: str) -> Encoding:
    """Return the encoding that decodes a tensor to weights, checking it first."""
    check_weight(spec, label)
    if spec.dtype != "F4":
        return stored_encoding(spec)
    if spec.shape and spec.shape[-1] % 2:
        raise UnsupportedFormatError(
            f"tensor {spec.name!r} has rows of {spec.shape[-1]} 4-bit numbers, which end within a byte", subject=label
        )
    return Encoding(2, 1, _decode_f4, n_decoded=2)


def _decode_f4(data: bytes) -> torch.Tensor:
    return decode_e2m1(view_bytes(data, torch.uint8))


def check_weight(spec: TensorSpec, label: str) -> None:
    """Raise ``UnsupportedFormatError`` if a tensor cannot be decoded on its own."""
    dtype = DTYPES[spec.dtype]
    if not dtype.is_weight:
        raise UnsupportedFormatError(
            f"tensor {spec.name!r} holds {dtype.meaning} ({spec.dtype}), which cannot be decoded to weights without "
            "further tensors; compare the unquantised checkpoint it was made from, if available",
            subject=label,
        )


def result_dtype(stored: torch.dtype) -> torch.dtype:
    """Return the dtype of decoded weights: float64 if ``stored`` is float64, else float32."""
    return torch.float64 if stored == torch.float64 else torch.float32


def view_bytes(data: bytes, dtype: torch.dtype) -> torch.Tensor:
    """Copy little-endian bytes into a flat, writable tensor."""
    if not data:
        return torch.empty(0, dtype=dtype)
    return torch.frombuffer(bytearray(data), dtype=dtype)


def first_not_finite(values: torch.Tensor) -> int | None:
    """Return the flat index of the first NaN or infinity, or None."""
    # The sum of finite values can overflow, so if it is not finite, each value is checked.
    if math.isfinite(values.sum().item()):
        return None
    bad = torch.nonzero(~torch.isfinite(values.reshape(-1)))
    return int(bad[0].item()) if bad.numel() else None


def check_finite(
    values: torch.Tensor, spec: TensorSpec, label: str, *, rows: npt.NDArray[np.int64] | None = None, n_before: int = 0
) -> torch.Tensor:
    """Return the values unchanged, or raise ``NotFiniteError`` if any is NaN or infinite.

    The error names the row, using ``rows`` or ``n_before``, the number of preceding values.
    """
    bad = first_not_finite(values)
    if bad is None:
        return values
    row = (n_before + bad) // math.prod(spec.shape[1:]) if rows is None else int(rows[bad // spec.shape[-1]])
    raise NotFiniteError(
        f"tensor {spec.name!r} ({spec.dtype}, shape {spec.shape}) holds NaN or infinity, first seen in row {row:,}; "
        "such weights cannot be compared",
        rows=() if rows is None else rows_not_finite(values, rows),
        subject=label,
    )


def rows_not_finite(values: torch.Tensor, rows: npt.NDArray[np.int64]) -> tuple[int, ...]:
    """Return the entries of ``rows`` ``(k,)`` whose values ``(k, d)`` contain NaN or infinity."""
    is_bad = ~torch.isfinite(values.reshape(len(rows), -1)).all(dim=1)
    return tuple(map(int, rows[is_bad.numpy()]))
