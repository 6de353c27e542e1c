"""The dtypes of tensor files: their widths, and whether they are weights.

Source: ``Dtype`` in ``safetensors/src/tensor.rs`` of safetensors 0.8. A checkpoint may hold any of them (attention
masks are BOOL, packed weights are integers). Only dtypes whose bytes alone are weights are read as weights.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class DType:
    """One stored dtype.

    Attributes:
        name: The format's own name, e.g. ``BF16``.
        n_bits: Bits per element.
        torch_dtype: The torch dtype; None for dtypes that torch lacks, which are returned as raw bytes.
        is_weight: Whether its bytes alone are weights.
        meaning: Description for error messages.
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
"""Every dtype that a valid header may name."""

NAME_OF_TORCH_DTYPE: dict[torch.dtype, str] = {
    dtype.torch_dtype: dtype.name for dtype in DTYPES.values() if dtype.torch_dtype is not None
}
"""The format's name for a torch dtype, for tensors that were never in a file."""
