"""MLX, and transformers' format for Metal: codes in uint32 words along a row, densely, lowest bits first.

Affine: W = code * scale + bias, by group of columns. The config has bits and group size, for single modules if needed.
The modes mxfp4, mxfp8 and nvfp4 store scales as bytes and have no biases. Source: MLX 0.32, tested against it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from mdir_hf.model.files.quantization.bits import unpack_dense
from mdir_hf.model.files.quantization.coded import CodedTensor, RowCodes
from mdir_hf.model.files.quantization.grid import decode_numbers, widen
from mdir_hf.model.files.quantization.opening import Opening
from mdir_hf.model.files.small_floats import as_bytes, decode_e2m1
from mdir_hf.model.files.sources import TensorSpec

BYTE_MODES = {"mxfp4": (4, 32), "mxfp8": (8, 32), "nvfp4": (4, 16)}
"""Bits per code, and size of a group."""


def open_words(opening: Opening) -> CodedTensor:
    """Open a weight whose codes are uint32 words.

    Raises:
        CorruptCheckpointError: If scales or biases do not fit.
        UnsupportedFormatError: If the config does not determine the bits per code.
    """
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
    """Yield bits and group size for this module, preferring its own settings."""
    for settings in opening.declared.of_module(_module(opening)):
        bits, group = settings.get("bits"), settings.get("group_size")
        if type(bits) is int and type(group) is int and bits > 0 and group > 0:
            yield bits, group
            return


def _module(opening: Opening) -> str:
    return opening.parts.name.removesuffix(".weight")


def _e4m3(stored: torch.Tensor) -> torch.Tensor:
    return decode_numbers(as_bytes(stored).view(torch.float8_e4m3fn))
