"""The dtypes of a tensor file: how wide they are, and which of them are read as numbers.

Source: ``Dtype`` in ``safetensors/src/tensor.rs`` of safetensors 0.8. A checkpoint may hold any of them (attention
masks are BOOL, packed weights are integers); only the ones that are plain weights have a ``torch_dtype`` here.
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
        torch_dtype: How its bytes are viewed when it is read as a plain weight; None if it is not one.
        meaning: What a user would call it, for the sentence that refuses it.
    """

    name: str
    n_bits: int
    torch_dtype: torch.dtype | None
    meaning: str

    @property
    def is_readable(self) -> bool:
        """Whether its bytes alone are weights."""
        return self.torch_dtype is not None


DTYPES: dict[str, DType] = {
    dtype.name: dtype
    for dtype in (
        DType("F64", 64, torch.float64, "64-bit float weights"),
        DType("F32", 32, torch.float32, "32-bit float weights"),
        DType("F16", 16, torch.float16, "16-bit float weights"),
        DType("BF16", 16, torch.bfloat16, "bfloat16 weights"),
        DType("F8_E5M2", 8, None, "FP8 weights"),
        DType("F8_E4M3", 8, None, "FP8 weights"),
        DType("F8_E5M2FNUZ", 8, None, "FP8 weights"),
        DType("F8_E4M3FNUZ", 8, None, "FP8 weights"),
        DType("F8_E8M0", 8, None, "FP8 block scales"),
        DType("F6_E2M3", 6, None, "FP6 weights"),
        DType("F6_E3M2", 6, None, "FP6 weights"),
        DType("F4", 4, None, "FP4 weights"),
        DType("U8", 8, None, "packed quantised weights (8-bit integers)"),
        DType("I8", 8, None, "quantised weights (8-bit integers)"),
        DType("U16", 16, None, "packed quantised weights (16-bit integers)"),
        DType("I16", 16, None, "packed quantised weights (16-bit integers)"),
        DType("U32", 32, None, "packed quantised weights (32-bit integers)"),
        DType("I32", 32, None, "packed quantised weights (32-bit integers)"),
        DType("U64", 64, None, "64-bit integers"),
        DType("I64", 64, None, "64-bit integers"),
        DType("BOOL", 8, None, "truth values"),
        DType("C64", 64, None, "complex numbers"),
    )
}
"""Every dtype a valid header may name, by its name in the header."""

NAME_OF_TORCH_DTYPE: dict[torch.dtype, str] = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e5m2: "F8_E5M2",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.int16: "I16",
    torch.int32: "I32",
    torch.int64: "I64",
    torch.bool: "BOOL",
    torch.complex64: "C64",
}
"""The format's name of a torch dtype, for tensors that never were in a file."""
