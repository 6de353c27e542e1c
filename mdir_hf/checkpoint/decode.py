"""Stored bytes to float tensors, and the refusal of what is no weight. Pure."""

from __future__ import annotations

import math

import torch

from ..errors import CorruptCheckpointError, UnsupportedFormatError
from .dtypes import DTYPES
from .sources import TensorSpec


def readable_dtype(spec: TensorSpec, label: str) -> torch.dtype:
    """Return how the bytes of a tensor are viewed.

    Raises:
        UnsupportedFormatError: If its bytes alone are not weights.
    """
    dtype = DTYPES[spec.dtype]
    if dtype.torch_dtype is None:
        raise UnsupportedFormatError(
            f"tensor {spec.name!r} holds {dtype.meaning} ({spec.dtype}), and {dtype.meaning} are not read by this "
            "version; compare the unquantised checkpoint it was made from, if there is one",
            subject=label,
        )
    return dtype.torch_dtype


def result_dtype(stored: torch.dtype) -> torch.dtype:
    """The dtype a tensor is returned in: float64 stays float64, the others become float32 (exactly)."""
    return torch.float64 if stored == torch.float64 else torch.float32


def view_bytes(data: bytes, dtype: torch.dtype) -> torch.Tensor:
    """View little-endian bytes as a flat tensor of ``dtype``; ``data`` is copied, so the result may be written to."""
    if not data:
        return torch.empty(0, dtype=dtype)
    return torch.frombuffer(bytearray(data), dtype=dtype)


def first_not_finite(values: torch.Tensor) -> int | None:
    """Return the place of the first NaN or infinity in the flattened values, or None. Costs one pass."""
    # Finite values can overflow in a sum, so a sum that is not finite only means: look closer.
    if math.isfinite(values.sum().item()):
        return None
    bad = torch.nonzero(~torch.isfinite(values.reshape(-1)))
    return int(bad[0].item()) if bad.numel() else None


def not_finite(spec: TensorSpec, row: int, label: str) -> CorruptCheckpointError:
    """The error for a row that holds NaN or infinity."""
    return CorruptCheckpointError(
        f"tensor {spec.name!r} ({spec.dtype}, shape {spec.shape}) holds NaN or infinity, first seen in row {row:,}; "
        "such weights cannot be compared",
        subject=label,
    )
