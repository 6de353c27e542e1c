"""Decode FP8, NVFP4, MXFP4 and MXFP6 weights.

FP8: W = code * scale. In DeepSeek-V3 and Qwen, the scale is a factor, although it is called ``weight_scale_inv``.
GPTQModel stores the inverse, as its config states. Scales stored as bytes are powers of two (MXFP8, DeepSeek-V4).

FP4: two E2M1 numbers share a byte, low half first. MX: groups of 32 share a power of two, W = code * 2^(scale - 127).
NVFP4: groups of 16 share an E4M3 scale, and the whole tensor has one more scale. compressed-tensors divides by it
(``weight_global_scale``); ModelOpt multiplies by it (``weight_scale_2``).

gpt-oss stores experts as ``…_blocks``, uint8 ``(experts, out, in / 32, 16)``, and ``…_scales``, uint8 ``(experts, out,
in / 32)``. The unquantised file has ``(experts, in, out)``, so a row is a column of the codes and requires the whole
expert.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from mdir_hf.model.files.decode import E2M1, decode_e2m1, decode_e2m3, decode_e8m0
from mdir_hf.model.files.quantization.coded import CodedTensor, Grid, PairedRowCodes, RowCodes, dividing, widen
from mdir_hf.model.files.quantization.opening import Opening
from mdir_hf.model.files.ranged import IntArray
from mdir_hf.model.sources import StoredRows, TensorSpec

FLOAT8 = ("F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ")


def open_fp8(opening: Opening) -> CodedTensor:
    """Open a weight whose codes are 8-bit floats."""
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


NV_GROUP = 16
MX_GROUP = 32


def open_fp4(opening: Opening) -> CodedTensor:
    """Open a weight whose codes are 4-bit or 6-bit floats packed into bytes."""
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
        # ModelOpt's experts for Llama-4 and gpt-oss: (experts, in / 2, out); the unquantised file also has (in, out).
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
    codes = opening.codes
    n_rows = math.prod(codes.shape[:-1])
    return 8 * codes.n_bytes // n_rows if n_rows else 0


def _whole_factor(opening: Opening, shape: tuple[int, ...]) -> Grid:
    if opening.has("global_scale") or opening.parts.form == "packed":
        return dividing(opening.grid("global_scale", shape))
    return opening.grid("scale_2", shape)


GROUP = 32


@dataclass(frozen=True, slots=True)
class ExpertBlocks(CodedTensor):
    """A layer's MXFP4 experts, ``(experts, in, out)``, which are read one at a time."""

    scales: TensorSpec

    @property
    def rows_together(self) -> int:
        """Number of rows per expert."""
        return self.shape[1]

    def rows(self, stored: StoredRows, rows: IntArray, *, max_gap_bytes: int | None = None) -> torch.Tensor:
        """Return the given rows."""
        expert, row = np.divmod(rows, self.shape[1])
        out = torch.empty((rows.size, self.shape[2]), dtype=torch.float32)
        for number in np.unique(expert).tolist():
            slots = np.flatnonzero(expert == number)
            matrix = self._expert(stored, number, max_gap_bytes)
            out[torch.from_numpy(slots)] = matrix.T[torch.from_numpy(row[slots])]
        return out

    def _expert(self, stored: StoredRows, number: int, max_gap_bytes: int | None) -> torch.Tensor:
        _, d_in, d_out = self.shape
        n_groups = d_in // GROUP
        blocks = np.arange(d_out * n_groups, dtype=np.int64) + number * d_out * n_groups
        outputs = np.arange(d_out, dtype=np.int64) + number * d_out
        packed = stored.read_stored_rows(self.codes.name, blocks, max_gap_bytes=max_gap_bytes)
        scales = decode_e8m0(stored.read_stored_rows(self.scales.name, outputs, max_gap_bytes=max_gap_bytes))
        return decode_e2m1(packed).view(d_out, n_groups, GROUP).mul_(scales[:, :, None]).view(d_out, d_in)


def open_expert_blocks(opening: Opening) -> CodedTensor:
    """Open a layer's MXFP4 experts."""
    codes, scales = opening.codes, opening.spec("block_scales")
    if len(codes.shape) != 4 or 0 in codes.shape or codes.shape[-1] * 2 != GROUP or scales.shape != codes.shape[:-1]:
        raise opening.misfit()
    if codes.dtype != "U8" or scales.dtype not in ("U8", "F8_E8M0"):
        raise opening.refuse(f"blocks of {codes.dtype} with scales of {scales.dtype}, not the bytes of MXFP4")
    n_experts, d_out, n_groups, _ = codes.shape
    shape = (n_experts, n_groups * GROUP, d_out)
    return ExpertBlocks(shape, "MXFP4", codes, f"MXFP4, in groups of {GROUP}", scales)
