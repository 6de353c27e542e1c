"""Decode integers with scales: compressed-tensors, ModelOpt's INT8 and INT4, Gemma's INT8, BitNet and MLX.

W = (code - zero point) * scale. The pack-quantized format adds ``2^(bits - 1)`` to codes of 1 to 8 bits and packs them
into int32 words along a row; zero points are packed along the first axis.

BitNet: weights -1, 0 and 1 are stored as 0, 1 and 2 in two bits each, with one scale. If there are 4m rows, byte row i
contains rows i, i + m, i + 2m and i + 3m, lowest bits first. AutoBitLinear multiplies by the scale; BitLinear divides.

HQQ: W = (code - zero) * scale, with one zero and one scale for each group of neighbouring columns. The groups of all
rows form a matrix. If it has 2p rows, byte row i holds row i in its high half, and row i + p in its low half. Codes of
2 bits and 1 bit are packed likewise, 4 and 8 to a byte. Source: hqq 0.2.8 (``bitpack.py``).

MLX, and transformers' format for Metal: codes are packed densely into uint32 words along a row, lowest bits first. In
affine mode, W = code * scale + bias, for each group of columns. The config states the bits and group size, which single
modules may override. The modes mxfp4, mxfp8 and nvfp4 store scales as bytes and have no biases. Source: MLX 0.32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch

from mdir_hf.model.files.decode import as_bytes, decode_e2m1
from mdir_hf.model.files.quantization.coded import (
    CodedTensor,
    Grid,
    Numbers,
    PairedRowCodes,
    RowCodes,
    decode_numbers,
    dividing,
    unpack_dense,
    unpack_padded,
    widen,
)
from mdir_hf.model.files.quantization.opening import Opening
from mdir_hf.model.files.ranged import IntArray
from mdir_hf.model.sources import StoredRows, TensorSpec

Unpack = Callable[[torch.Tensor, int], torch.Tensor]
MOST_AXES = 3


def open_int8(opening: Opening) -> CodedTensor:
    """Open a weight whose codes are 8-bit integers, one per entry."""
    codes = opening.codes
    if len(codes.shape) < 2:
        raise opening.refuse("a vector of integers with scales")
    scale = opening.grid("scale", codes.shape)
    zero = None
    if opening.has("zero_point"):
        zero = replace(opening.grid("zero_point", codes.shape), decode=widen)
    scales = (scale, *opening.column_scale(codes.shape))
    return RowCodes(codes.shape, "INT8", codes, f"INT8, {scale.words}", widen, scales=scales, zero=zero)


def open_int4_pairs(opening: Opening) -> CodedTensor:
    """Open ModelOpt's INT4: bytes ``(out / 2, in)``, each with two signed codes from neighbouring rows."""
    codes = opening.codes
    shape = (codes.shape[0] * 2, codes.shape[1])
    scale = opening.grid("scale", shape)
    scales = (scale, *opening.column_scale(shape))
    return PairedRowCodes(shape, "INT4", codes, f"INT4, {scale.words}", _signed_half, scales=scales)


def open_packed(opening: Opening) -> CodedTensor:
    """Open a weight in compressed-tensors' pack-quantized format."""
    codes = opening.codes
    if not 2 <= len(codes.shape) <= MOST_AXES:
        raise opening.refuse(f"packed integers of {len(codes.shape)} axes")
    width = _width(opening)
    bits, unpack = _bits(opening, width)
    shape = (*codes.shape[:-1], width)
    scale = opening.grid("scale", shape)
    if opening.has("group_of_column"):
        scale = replace(scale, group_of_column=_groups_of_columns(opening, scale))
    zero: Numbers | None = None
    if opening.has("zero_point"):
        zero = _zeros(opening, scale, bits, unpack)
    meaning = f"INT{bits}, {scale.words}"
    decode = partial(_unpacked, bits=bits, unpack=unpack)
    return RowCodes(shape, f"INT{bits}", codes, meaning, decode, scales=(scale,), zero=zero)


@dataclass(frozen=True, slots=True)
class PackedZeros:
    """Zero points packed into words along the first axis."""

    grid: Grid
    bits: int
    unpack: Unpack

    def at(self, stored: StoredRows, rows: IntArray) -> torch.Tensor:
        """Return the zero points for the given rows."""
        return self.grid.spread(partial(self._unpacked, stored), rows)

    def _unpacked(self, stored: StoredRows, rows: IntArray) -> torch.Tensor:
        bits, columns = self.bits, self.grid.grid[2]
        # Runs of this many numbers fill whole words.
        per_run, words_per_run = (32, bits) if self.unpack is unpack_dense else (32 // bits, 1)
        runs, places = np.unique(rows // per_run, return_inverse=True)
        n_words = self.grid.spec.shape[-2]
        word_rows = np.minimum((runs[:, None] * words_per_run + np.arange(words_per_run)).reshape(-1), n_words - 1)
        words = stored.read_stored_rows(self.grid.spec.name, word_rows)
        by_run = words.reshape(len(runs), words_per_run, columns).transpose(1, 2)  # (runs, columns, words)
        numbers = self.unpack(by_run.contiguous(), bits)[:, :, :per_run]
        values = numbers[torch.from_numpy(places.reshape(-1)), :, torch.from_numpy(rows % per_run)]
        return values.to(torch.float32).sub_(2 ** (bits - 1))


def _zeros(opening: Opening, scale: Grid, bits: int, unpack: Unpack) -> Numbers:
    spec = opening.spec("zero_point")
    n, n_rows, columns = scale.grid
    if spec.dtype != "I32":  # unpacked, as in older checkpoints with one scale per tensor
        return replace(opening.grid("zero_point", scale.shape), decode=widen)
    n_words = math.ceil(n_rows * bits / 32) if unpack is unpack_dense else math.ceil(n_rows / (32 // bits))
    if n != 1 or len(spec.shape) != 2 or spec.shape != (n_words, columns):
        raise opening.misfit()
    return PackedZeros(replace(scale, spec=spec), bits, unpack)


def _width(opening: Opening) -> int:
    codes, scale = opening.codes, opening.spec("scale")
    declared = opening.declared
    if len(declared.group_sizes) == len(declared.bits) == 1 and len(scale.shape) >= 2 and scale.shape[-1] > 1:
        width = scale.shape[-1] * declared.group_sizes[0]
        if width * declared.bits[0] == 32 * codes.shape[-1]:
            return width
    values = opening.small("shape").reshape(-1).tolist()
    if len(values) != len(codes.shape) or tuple(values[:-1]) != codes.shape[:-1] or not 0 < values[-1] < 2**31:
        raise opening.corrupt(
            f"tensor {opening.parts.companions['shape']!r} says that the weight has shape {tuple(values)}, but the "
            f"codes in {codes.name!r} have shape {codes.shape}"
        )
    return int(values[-1])


def _bits(opening: Opening, width: int) -> tuple[int, Unpack]:
    n_words = opening.codes.shape[-1]
    declared_bits = opening.declared.bits or (4, 8)
    dense = [(bits, unpack_dense) for bits in declared_bits if math.ceil(width * bits / 32) == n_words]
    padded = [
        (bits, unpack_padded) for bits in declared_bits if 32 % bits and math.ceil(width / (32 // bits)) == n_words
    ]
    fitting: list[tuple[int, Unpack]] = [*dense, *padded]
    if dense and padded and opening.declared.packs_densely is not None:
        fitting = [*dense] if opening.declared.packs_densely else [*padded]
    if not fitting:
        raise opening.corrupt(
            f"tensor {opening.codes.name!r} has {n_words} words for a row of {width} columns, which does not fit codes "
            f"of {' or '.join(map(str, declared_bits))} bits"
        )
    if len(fitting) > 1:
        raise opening.refuse(f"rows of {width} codes in {n_words} words can be packed in several ways")
    return fitting[0]


def _groups_of_columns(opening: Opening, scale: Grid) -> torch.Tensor | None:
    spec = opening.spec("group_of_column")
    if spec.shape != (scale.shape[2],):
        raise opening.misfit()
    groups = opening.stored.read_stored(spec.name).long()
    if bool((groups == -1).any()):
        return None  # compressed-tensors did not fill it in, so columns are in order
    if groups.numel() and not 0 <= int(groups.min()) <= int(groups.max()) < scale.grid[2]:
        raise opening.corrupt(
            f"tensor {spec.name!r} of {opening.codes.name!r} names groups from {int(groups.min())} to "
            f"{int(groups.max())}; there are {scale.grid[2]}"
        )
    return groups


def _unpacked(words: torch.Tensor, *, bits: int, unpack: Unpack) -> torch.Tensor:
    return unpack(words, bits).to(torch.float32).sub_(2 ** (bits - 1))


def _signed_half(codes: torch.Tensor) -> torch.Tensor:
    signed = codes.to(torch.float32)
    return torch.where(signed >= 8, signed - 16, signed)


PER_BYTE = 4


@dataclass(frozen=True, slots=True)
class QuarteredRowCodes(RowCodes):
    """2-bit codes in which each byte row combines four rows that are a quarter of the matrix apart."""

    def rows(self, stored: StoredRows, rows: IntArray, *, max_gap_bytes: int | None = None) -> torch.Tensor:
        """Return the given rows."""
        n_byte_rows = self.codes.shape[0]
        packed = stored.read_stored_rows(self.codes.name, rows % n_byte_rows, max_gap_bytes=max_gap_bytes)
        shifts = torch.from_numpy(2 * (rows // n_byte_rows)).to(torch.uint8)[:, None]
        return self.finish(self.decode(packed >> shifts & 3), stored, rows)


def open_ternary(opening: Opening) -> CodedTensor:
    """Open a packed BitNet weight."""
    codes = opening.codes
    shape = (codes.shape[0] * PER_BYTE, codes.shape[1])
    scale = opening.grid("scale", shape)
    if scale.grid != (1, 1, 1):
        raise opening.misfit()
    if opening.declared.settings.get("linear_class") != "autobitlinear":
        scale = dividing(scale)
    meaning = "BitNet, three values"
    return QuarteredRowCodes(shape, "INT2", codes, meaning, lambda packed: widen(packed) - 1, scales=(scale,))


@dataclass(frozen=True, slots=True)
class GroupedCodes(CodedTensor):
    """Codes in groups of neighbours, which may reach into the next row, packed so that groups far apart share a byte.

    Attributes:
        scale: Scales, one for each group.
        zero: Zero points to subtract first.
        bits: Bits of a code.
    """

    scale: TensorSpec
    zero: TensorSpec
    bits: int

    def rows(self, stored: StoredRows, rows: IntArray, *, max_gap_bytes: int | None = None) -> torch.Tensor:
        """Return the given rows."""
        n_byte_rows, size = self.codes.shape
        width = self.shape[-1]
        first, last = rows * width // size, (rows * width + width - 1) // size
        spans = first[:, None] + np.arange(int((last - first).max(initial=0)) + 1)
        groups = np.minimum(spans.reshape(-1), math.prod(self.scale.shape) - 1)
        packed = stored.read_stored_rows(self.codes.name, groups % n_byte_rows, max_gap_bytes=max_gap_bytes)
        shifts = torch.from_numpy(8 - self.bits * (1 + groups // n_byte_rows)).to(torch.uint8)[:, None]
        scale, zero = (
            stored.read_stored(spec.name).reshape(-1, 1)[torch.from_numpy(groups)].float()
            for spec in (self.scale, self.zero)
        )
        values = ((packed >> shifts & (2**self.bits - 1)).float() - zero) * scale
        columns = torch.from_numpy((rows * width - first * size)[:, None] + np.arange(width))
        weights: torch.Tensor = values.reshape(len(rows), -1).gather(1, columns)
        return weights


def open_groups(opening: Opening) -> CodedTensor | None:
    """Open an HQQ weight; None if its layout is not the usual one."""
    codes = opening.codes
    if codes.dtype != "U8" or len(codes.shape) != 2 or not all(map(opening.has, ("scale", "zero", "shape"))):
        return None
    scale, zero = opening.spec("scale"), opening.spec("zero")
    n_groups = math.prod(scale.shape)
    per_byte = n_groups // codes.shape[0] if codes.shape[0] else 0
    is_plain = all(spec.shape == (n_groups, 1) and spec.dtype in ("F16", "BF16", "F32") for spec in (scale, zero))
    if per_byte not in (1, 2, 4, 8) or n_groups != per_byte * codes.shape[0] or not is_plain:
        return None
    shape = tuple(int(size) for size in opening.small("shape").reshape(-1).tolist())
    if len(shape) != 2 or min(shape) <= 0 or math.prod(shape) != n_groups * codes.shape[1]:
        raise opening.misfit()
    bits = 8 // per_byte
    meaning = f"HQQ, {bits} bit{'' if bits == 1 else 's'} in groups of {codes.shape[1]}"
    return GroupedCodes(shape, f"INT{bits}", codes, meaning, scale, zero, bits)


BYTE_MODES = {"mxfp4": (4, 32), "mxfp8": (8, 32), "nvfp4": (4, 16)}
"""Bits per code and group size of the modes that store scales as bytes."""


def open_words(opening: Opening) -> CodedTensor:
    """Open a weight whose codes are packed into uint32 words."""
    codes, scales = opening.codes, opening.spec("scales")
    if len(codes.shape) < 2 or scales.shape[:-1] != codes.shape[:-1] or not scales.shape[-1]:
        raise opening.misfit()
    if scales.dtype == "U8":
        return _open_bytes(opening, scales)
    n_bits = 32 * codes.shape[-1]
    fitting = {
        (bits, group) for bits, group in _declared(opening) if scales.shape[-1] * group * bits == n_bits and bits <= 8
    }
    if len(fitting) != 1:
        raise opening.refuse(
            f"{codes.shape[-1]} words and {scales.shape[-1]} scales per row, and the config does not say which bits "
            "and group size that means"
        )
    ((bits, group),) = fitting
    shape = (*codes.shape[:-1], scales.shape[-1] * group)
    offset = opening.grid("offsets", shape, block=(1, group))
    if offset.spec.shape != scales.shape:
        raise opening.misfit()
    return RowCodes(
        shape,
        f"INT{bits}",
        codes,
        f"MLX, {bits} bits in groups of {group}",
        lambda words: widen(unpack_dense(words, bits)),
        scales=(opening.grid("scales", shape, block=(1, group)),),
        offset=offset,
    )


def _open_bytes(opening: Opening, scales: TensorSpec) -> CodedTensor:
    codes = opening.codes
    n_bits = 32 * codes.shape[-1]
    fitting = {mode for mode, (bits, group) in BYTE_MODES.items() if scales.shape[-1] * group * bits == n_bits}
    modes = {mode for settings in opening.declared.of_module(_module(opening)) if (mode := settings.get("mode"))}
    fitting = fitting & modes or fitting
    if len(fitting) != 1:
        raise opening.misfit()
    (mode,) = fitting
    bits, group = BYTE_MODES[mode]
    shape = (*codes.shape[:-1], scales.shape[-1] * group)
    grid = opening.grid("scales", shape, block=(1, group))
    if mode == "nvfp4":
        grid = replace(grid, decode=_e4m3)
    decode = decode_e2m1 if bits == 4 else _e4m3
    return RowCodes(shape, mode.upper(), codes, f"MLX, {mode.upper()} in groups of {group}", decode, scales=(grid,))


def _declared(opening: Opening) -> Iterator[tuple[int, int]]:
    for settings in opening.declared.of_module(_module(opening)):
        bits, group = settings.get("bits"), settings.get("group_size")
        if type(bits) is int and type(group) is int and bits > 0 and group > 0:
            yield bits, group
            return


def _module(opening: Opening) -> str:
    return opening.parts.name.removesuffix(".weight")


def _e4m3(stored: torch.Tensor) -> torch.Tensor:
    return decode_numbers(as_bytes(stored).view(torch.float8_e4m3fn))
