"""Decodes stored bytes to tensors, and rejects tensors that are not weights. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import torch

from mdir_hf.errors import NotFiniteError, UnsupportedFormatError
from mdir_hf.model.files.dtypes import DTYPES
from mdir_hf.model.files.small_floats import decode_e2m1
from mdir_hf.model.files.sources import TensorSpec


@dataclass(frozen=True, slots=True)
class Encoding:
    """How numbers are stored: in units that can be decoded independently.

    Attributes:
        n_values: Numbers per unit: 1 for plain dtypes, the block size for a quantised type.
        n_bytes: Bytes per unit.
        decode: Decodes the bytes of whole units to a flat, writable tensor.
        n_decoded: Elements that ``decode`` returns per unit: ``n_values``, except for raw bytes.
    """

    n_values: int
    n_bytes: int
    decode: Callable[[bytes], torch.Tensor]
    n_decoded: int

    def bytes_of(self, n_values: int) -> int:
        """Return the stored size of ``n_values`` numbers, which must be whole units."""
        return n_values // self.n_values * self.n_bytes

    def decoded(self, n_values: int) -> int:
        """Return the number of decoded elements for ``n_values`` numbers, which must be whole units."""
        return n_values // self.n_values * self.n_decoded


def stored_encoding(spec: TensorSpec) -> Encoding:
    """Return how a tensor is stored, viewed in its own dtype, or as raw bytes for dtypes that torch lacks."""
    dtype = DTYPES[spec.dtype]
    if dtype.torch_dtype is None:
        n_values = 8 // math.gcd(8, dtype.n_bits)
        n_bytes = n_values * dtype.n_bits // 8
        return Encoding(n_values, n_bytes, partial(view_bytes, dtype=torch.uint8), n_decoded=n_bytes)
    return Encoding(1, dtype.torch_dtype.itemsize, partial(view_bytes, dtype=dtype.torch_dtype), n_decoded=1)


def weight_encoding(spec: TensorSpec, label: str) -> Encoding:
    """Return how a tensor is decoded to numbers.

    Raises:
        UnsupportedFormatError: If its bytes alone are not weights.
    """
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
    """Reject a tensor whose bytes alone are not weights.

    Raises:
        UnsupportedFormatError: If they are not.
    """
    dtype = DTYPES[spec.dtype]
    if not dtype.is_weight:
        raise UnsupportedFormatError(
            f"tensor {spec.name!r} holds {dtype.meaning} ({spec.dtype}), which cannot be decoded to weights without "
            "further tensors; compare the unquantised checkpoint it was made from, if available",
            subject=label,
        )


def result_dtype(stored: torch.dtype) -> torch.dtype:
    """Return the dtype in which values are returned: float64 stays float64, all others become float32 (exactly)."""
    return torch.float64 if stored == torch.float64 else torch.float32


def view_bytes(data: bytes, dtype: torch.dtype) -> torch.Tensor:
    """View little-endian bytes as a flat, writable tensor of ``dtype``; ``data`` is copied."""
    if not data:
        return torch.empty(0, dtype=dtype)
    return torch.frombuffer(bytearray(data), dtype=dtype)


def first_not_finite(values: torch.Tensor) -> int | None:
    """Return the index of the first NaN or infinity in the flattened values, or None. Takes one pass."""
    # A sum of finite values can overflow, so a sum that is not finite only calls for a closer look.
    if math.isfinite(values.sum().item()):
        return None
    bad = torch.nonzero(~torch.isfinite(values.reshape(-1)))
    return int(bad[0].item()) if bad.numel() else None


def check_finite(
    values: torch.Tensor, spec: TensorSpec, label: str, *, rows: npt.NDArray[np.int64] | None = None, n_before: int = 0
) -> torch.Tensor:
    """Return the values unchanged if they are finite. Takes one pass.

    Args:
        values: Some values of a tensor; whole rows if ``rows`` is given.
        spec: The tensor.
        label: The file's name in error messages.
        rows: Row numbers, or None if the values follow the first ``n_before`` values of the tensor.
        n_before: Number of values before these; used if ``rows`` is None.

    Raises:
        NotFiniteError: If a value is NaN or infinite; names the first such row.
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
    """Return the row numbers of rows that hold NaN or infinity.

    Args:
        values: ``(k, d)``.
        rows: Row numbers, ``(k,)``.
    """
    is_bad = ~torch.isfinite(values.reshape(len(rows), -1)).all(dim=1)
    return tuple(map(int, rows[is_bad.numpy()]))
