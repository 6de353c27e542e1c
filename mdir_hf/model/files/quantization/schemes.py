"""Identify a weight's quantisation scheme from the names, dtypes and shapes of its parts."""

from __future__ import annotations

from mdir_hf.model.files.quantization.bitsandbytes import open_eight_bits, open_four_bits
from mdir_hf.model.files.quantization.coded import CodedTensor, RowCodes, widen
from mdir_hf.model.files.quantization.float_codes import FLOAT8, open_expert_blocks, open_fp4, open_fp8
from mdir_hf.model.files.quantization.gptq import open_qweight
from mdir_hf.model.files.quantization.integers import (
    open_groups,
    open_int4_pairs,
    open_int8,
    open_packed,
    open_ternary,
    open_words,
)
from mdir_hf.model.files.quantization.opening import Opening
from mdir_hf.model.files.quantization.parts import REASON, SCALES_OF_PLAIN_CODES

FLOATS = ("F64", "F32", "F16", "BF16")
BYTE_SCALES = ("U8", "F8_E8M0")


def open_coded(opening: Opening) -> CodedTensor | None:
    """Open a weight with the scheme that its parts indicate.

    Returns None if the weight is stored as plain floats.

    Raises:
        CorruptCheckpointError: If parts are missing or contradict each other.
        UnsupportedFormatError: If the scheme is unsupported or unknown.
    """
    parts = opening.parts
    plain = _open_plain_codes(opening)
    if plain is not None:
        return plain
    if parts.form in REASON:
        raise opening.refuse(f"{parts.form}, {REASON[parts.form]}")
    if parts.rival is not None:
        raise opening.corrupt(
            f"tensor {parts.rival!r} and the codes in {parts.codes!r} are both for one weight, and it is unclear which "
            "of them is valid"
        )
    codes = opening.codes
    if parts.form == "qweight":
        return open_qweight(opening)
    if parts.form == "blocks":
        return open_expert_blocks(opening)
    if parts.form == "packed":
        return open_packed(opening) if codes.dtype == "I32" else open_fp4(opening)
    if opening.has("quant_state") or opening.has("absmax"):
        return open_four_bits(opening)
    if codes.dtype in FLOATS:
        return None
    if opening.has("row_maxima"):
        return open_eight_bits(opening)
    if codes.dtype in FLOAT8:
        return open_fp8(opening)
    if codes.dtype == "U32" and (opening.has("scales") or opening.has("offsets")):
        return open_words(opening)
    return _open_bytes(opening)


def _open_plain_codes(opening: Opening) -> CodedTensor | None:
    """Open HQQ's groups, and torchao's and quanto's 8-bit codes, which lie plain unless they have zero points."""
    if opening.parts.form == "HQQ":
        return open_groups(opening)
    part = SCALES_OF_PLAIN_CODES.get(opening.parts.form)
    if (
        part is None
        or not opening.has(part)
        or any("zero" in name or "shift" in name for name in opening.parts.companions)
    ):
        return None
    codes = opening.codes
    if codes.dtype not in ("I8", *FLOAT8) or len(codes.shape) < 2:
        return None
    scale = opening.grid(part, codes.shape)
    label = "INT8" if codes.dtype == "I8" else codes.dtype
    meaning = f"{opening.parts.form}, {'INT8' if codes.dtype == 'I8' else 'FP8'}, {scale.words}"
    return RowCodes(codes.shape, label, codes, meaning, widen, scales=(scale,))


def _open_bytes(opening: Opening) -> CodedTensor:
    codes = opening.codes
    if codes.dtype == "F4":
        return open_fp4(opening)
    if opening.has("scale"):
        scales = opening.spec("scale")
        if len(codes.shape) >= 2 and (
            scales.dtype in BYTE_SCALES or (codes.dtype == "U8" and scales.dtype == "F8_E4M3")
        ):
            return open_fp4(opening)
        if codes.dtype == "I8":
            return open_int8(opening)
        if codes.dtype == "U8" and len(codes.shape) == 2 and opening.declared.method == "bitnet":
            return open_ternary(opening)
        if codes.dtype == "U8" and len(codes.shape) == 2 and scales.shape[:1] == (2 * codes.shape[0],):
            return open_int4_pairs(opening)
        if codes.dtype == "U8" and scales.shape == (*codes.shape[:-1], 1):
            raise opening.refuse("packed integers of unknown bit width, such as Gemma's of 2 and 4 bits")
    if codes.dtype == "I8" and opening.has("block_scales"):
        raise opening.refuse("EETQ, which arranges its codes for one kind of GPU")
    companions = ", ".join(sorted(opening.parts.companions.values()))
    raise opening.refuse(f"{codes.dtype} codes with {companions}, a combination that no known scheme writes")
