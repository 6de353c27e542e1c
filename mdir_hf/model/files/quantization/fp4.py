"""Floats of four and six bits: NVFP4, MXFP4, MXFP6.

Two E2M1 numbers share a byte, low half first. MX: groups of 32 share a power of two, W = code * 2^(scale - 127).
NVFP4: groups of 16 share an E4M3 scale, and the whole tensor has one more scale, which compressed-tensors divides by
(``weight_global_scale``) and ModelOpt multiplies by (``weight_scale_2``).
"""

from __future__ import annotations

import math

from mdir_hf.model.files.quantization.coded import CodedTensor, PairedRowCodes, RowCodes
from mdir_hf.model.files.quantization.grid import Grid, dividing
from mdir_hf.model.files.quantization.opening import Opening
from mdir_hf.model.files.small_floats import E2M1, decode_e2m1, decode_e2m3

NV_GROUP = 16
MX_GROUP = 32


def open_fp4(opening: Opening) -> CodedTensor:
    """Open a weight whose codes are bytes of small floats.

    Raises:
        CorruptCheckpointError: If a companion is missing or does not fit.
        UnsupportedFormatError: If the scales are not of a known kind for small floats.
    """
    codes = opening.codes
    part = next((part for part in ("scale", "scale_inv", "scales", "block_scales") if opening.has(part)), "scale")
    scales = opening.spec(part)
    if len(codes.shape) < 2 or len(scales.shape) != len(codes.shape):
        raise opening.misfit()
    if scales.dtype in ("U8", "F8_E8M0"):
        return _open_mx(opening, part)
    if scales.dtype == "F8_E4M3":
        return _open_nv(opening, part)
    raise opening.refuse(f"bytes with scales of {scales.dtype}, shape {scales.shape} ({scales.name!r})")


def _open_mx(opening: Opening, part: str) -> CodedTensor:
    codes, scales = opening.codes, opening.spec(part)
    shape: tuple[int, ...] = (*scales.shape[:-1], scales.shape[-1] * MX_GROUP)
    n_bits = _row_n_bits(opening)
    if scales.shape[:-1] != codes.shape[:-1] or n_bits not in (4 * shape[-1], 6 * shape[-1]):
        raise opening.misfit()
    grid = opening.grid(part, shape, block=(1, MX_GROUP))
    label, decode = ("MXFP4", decode_e2m1) if n_bits == 4 * shape[-1] else ("MXFP6", decode_e2m3)
    factors = (grid, *opening.column_scale(shape))
    return RowCodes(shape, label, codes, f"{label}, in groups of {MX_GROUP}", decode, scales=factors)


def _open_nv(opening: Opening, part: str) -> CodedTensor:
    codes, scales = opening.codes, opening.spec(part)
    meaning = f"NVFP4, in groups of {NV_GROUP}"
    if len(codes.shape) == 3 and scales.shape[-1] == codes.shape[-1]:
        # ModelOpt's experts of Llama-4 and gpt-oss: (experts, in / 2, out); the unquantised file also has (in, out).
        stack = (codes.shape[0], codes.shape[1] * 2, codes.shape[2])
        if scales.shape != (stack[0], stack[1] // NV_GROUP, stack[2]) or stack[1] % NV_GROUP:
            raise opening.misfit()
        pair = (opening.grid(part, stack, block=(NV_GROUP, 1)), _whole_factor(opening, stack))
        return PairedRowCodes(stack, "NVFP4", codes, meaning, lambda halves: E2M1[halves.int()], scales=pair)
    shape = (*scales.shape[:-1], scales.shape[-1] * NV_GROUP)
    if scales.shape[:-1] != codes.shape[:-1] or _row_n_bits(opening) != 4 * shape[-1]:
        raise opening.misfit()
    grid = opening.grid(part, shape, block=(1, NV_GROUP))
    factors = (grid, _whole_factor(opening, shape), *opening.column_scale(shape))
    return RowCodes(shape, "NVFP4", codes, meaning, decode_e2m1, scales=factors)


def _row_n_bits(opening: Opening) -> int:
    """Return the stored bits of a row, whatever the dtype of its bytes."""
    codes = opening.codes
    n_rows = math.prod(codes.shape[:-1])
    return 8 * codes.n_bytes // n_rows if n_rows else 0


def _whole_factor(opening: Opening, shape: tuple[int, ...]) -> Grid:
    """Return the scale of a whole tensor, or of each expert in a stack; the library decides its direction."""
    if opening.has("global_scale") or opening.parts.form == "packed":
        return dividing(opening.grid("global_scale", shape))
    return opening.grid("scale_2", shape)
