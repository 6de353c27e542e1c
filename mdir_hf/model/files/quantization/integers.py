"""Integers with scales: compressed-tensors' int-quantized and pack-quantized, ModelOpt's INT8 and INT4, Gemma's.

W = (code - zero point) * scale. pack-quantized keeps codes of 1 to 8 bits in int32 words along a row, with
``2^(bits - 1)`` added, and its zero points the same way along the first axis.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch

from mdir_hf.model.files.quantization.bits import unpack_dense, unpack_padded
from mdir_hf.model.files.quantization.coded import CodedTensor, PairedRowCodes, RowCodes
from mdir_hf.model.files.quantization.grid import Grid, Numbers, widen
from mdir_hf.model.files.quantization.opening import Opening
from mdir_hf.model.files.sources import StoredRows
from mdir_hf.model.files.spans import IntArray

Unpack = Callable[[torch.Tensor, int], torch.Tensor]
MOST_AXES = 3


def open_int8(opening: Opening) -> CodedTensor:
    """Open a weight whose codes are 8-bit integers, one for each entry.

    Raises:
        CorruptCheckpointError: If the scales are missing or do not fit.
    """
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
    """Open ModelOpt's INT4: bytes of two signed codes from neighbouring rows, ``(out / 2, in)``.

    Raises:
        CorruptCheckpointError: If the scales are missing or do not fit.
    """
    codes = opening.codes
    shape = (codes.shape[0] * 2, codes.shape[1])
    scale = opening.grid("scale", shape)
    scales = (scale, *opening.column_scale(shape))
    return PairedRowCodes(shape, "INT4", codes, f"INT4, {scale.words}", _signed_half, scales=scales)


def open_packed(opening: Opening) -> CodedTensor:
    """Open compressed-tensors' pack-quantized. Rows read their own words, scales and zero points.

    Raises:
        CorruptCheckpointError: If a companion is missing or does not fit.
        UnsupportedFormatError: If neither shapes nor config tell how many bits a code has.
    """
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
    """Zero points in words along the first axis; implements ``Numbers``.

    Attributes:
        grid: How they lie over the weight, and which integers they are.
        bits: Bits of one.
        unpack: How words are packed.
    """

    grid: Grid
    bits: int
    unpack: Unpack

    def at(self, stored: StoredRows, rows: IntArray) -> torch.Tensor:
        """Zero points of some rows, float32, ``(k, d)`` or ``(k, 1)``. Reads the words that hold them."""
        return self.grid.spread(partial(self._unpacked, stored), rows)

    def _unpacked(self, stored: StoredRows, rows: IntArray) -> torch.Tensor:
        bits, columns = self.bits, self.grid.grid[2]
        # Runs of so many numbers fill whole words.
        per_run, words_per_run = (32, bits) if self.unpack is unpack_dense else (32 // bits, 1)
        runs, places = np.unique(rows // per_run, return_inverse=True)
        n_words = self.grid.spec.shape[-2]
        word_rows = np.minimum((runs[:, None] * words_per_run + np.arange(words_per_run)).reshape(-1), n_words - 1)
        words = stored.read_stored_rows(self.grid.spec.name, word_rows)
        by_run = words.reshape(len(runs), words_per_run, columns).transpose(1, 2)  # (runs, columns, words)
        numbers = self.unpack(by_run.contiguous(), bits)[:, :, :per_run]
        chosen = numbers[torch.from_numpy(places.reshape(-1)), :, torch.from_numpy(rows % per_run)]
        return chosen.to(torch.float32).sub_(2 ** (bits - 1))


def _zeros(opening: Opening, scale: Grid, bits: int, unpack: Unpack) -> Numbers:
    spec = opening.spec("zero_point")
    n, n_rows, columns = scale.grid
    if spec.dtype != "I32":  # one integer each, as older checkpoints of one scale per tensor have
        return replace(opening.grid("zero_point", scale.shape), decode=widen)
    n_words = math.ceil(n_rows * bits / 32) if unpack is unpack_dense else math.ceil(n_rows / (32 // bits))
    if n != 1 or len(spec.shape) != 2 or spec.shape != (n_words, columns):
        raise opening.misfit()
    return PackedZeros(replace(scale, spec=spec), bits, unpack)


def _width(opening: Opening) -> int:
    """Columns of the weight: from groups of known size where they tell, else from ``weight_shape``."""
    codes, scale = opening.codes, opening.spec("scale")
    declared = opening.declared
    if len(declared.group_sizes) == len(declared.bits) == 1 and len(scale.shape) >= 2 and scale.shape[-1] > 1:
        width = scale.shape[-1] * declared.group_sizes[0]
        if width * declared.bits[0] == 32 * codes.shape[-1]:
            return width
    values = opening.small("shape").reshape(-1).tolist()
    if len(values) != len(codes.shape) or tuple(values[:-1]) != codes.shape[:-1] or not 0 < values[-1] < 2**31:
        raise opening.corrupt(
            f"tensor {opening.parts.companions['shape']!r} says that the weight has shape {tuple(values)}; the codes "
            f"in {codes.name!r} have shape {codes.shape}"
        )
    return int(values[-1])


def _bits(opening: Opening, width: int) -> tuple[int, Unpack]:
    """Bits of a code and the way of packing, of those that fit the words of a row."""
    n_words = opening.codes.shape[-1]
    named = opening.declared.bits or (4, 8)
    dense = [(bits, unpack_dense) for bits in named if math.ceil(width * bits / 32) == n_words]
    padded = [(bits, unpack_padded) for bits in named if 32 % bits and math.ceil(width / (32 // bits)) == n_words]
    fitting: list[tuple[int, Unpack]] = [*dense, *padded]
    if dense and padded and opening.declared.packs_densely is not None:
        fitting = [*dense] if opening.declared.packs_densely else [*padded]
    if not fitting:
        raise opening.corrupt(
            f"tensor {opening.codes.name!r} has {n_words} words for a row of {width} columns; codes of "
            f"{' or '.join(map(str, named))} bits do not give as many"
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
        return None  # compressed-tensors: never filled in, hence in order
    if groups.numel() and not 0 <= int(groups.min()) <= int(groups.max()) < scale.grid[2]:
        raise opening.corrupt(
            f"tensor {spec.name!r} beside {opening.codes.name!r} names groups from {int(groups.min())} to "
            f"{int(groups.max())}; there are {scale.grid[2]}"
        )
    return groups


def _unpacked(words: torch.Tensor, *, bits: int, unpack: Unpack) -> torch.Tensor:
    return unpack(words, bits).to(torch.float32).sub_(2 ** (bits - 1))


def _signed_half(codes: torch.Tensor) -> torch.Tensor:
    signed = codes.to(torch.float32)
    return torch.where(signed >= 8, signed - 16, signed)
