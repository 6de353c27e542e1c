"""FP8 weights with scales: per tensor, per row or column, per expert, or per block.

W = codes * scale. DeepSeek-V3 and Qwen multiply by the scale although they call it ``weight_scale_inv``. GPTQModel
means the inverse by that name, and its config says so. Scales that are bytes are powers of two (MXFP8, DeepSeek-V4).
"""

from __future__ import annotations

from mdir_hf.model.files.quantization.coded import CodedTensor, RowCodes
from mdir_hf.model.files.quantization.grid import Grid, dividing, widen
from mdir_hf.model.files.quantization.opening import Opening

FLOAT8 = ("F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ")


def open_fp8(opening: Opening) -> CodedTensor:
    """Open a weight whose codes are 8-bit floats.

    Raises:
        CorruptCheckpointError: If there is no scale, or it does not fit.
    """
    codes = opening.codes
    if len(codes.shape) < 2:
        raise opening.refuse("a vector of 8-bit floats with scales")
    part = next((part for part in ("scale_inv", "scale", "scales", "block_scales") if opening.has(part)), "scale_inv")
    scale = opening.grid(part, codes.shape)
    meaning = f"FP8, {scale.words}"
    if scale.spec.dtype in ("U8", "F8_E8M0") and scale.block == (1, 32):
        meaning = "MXFP8, in groups of 32"
    scales: tuple[Grid, ...] = (
        dividing(scale) if part == "scale_inv" and opening.declared.divides_by_scale else scale,
    )
    if opening.has("scale_2"):
        scales += (opening.grid("scale_2", codes.shape),)
    scales += opening.column_scale(codes.shape)
    return RowCodes(codes.shape, codes.dtype, codes, meaning, widen, scales=scales)
