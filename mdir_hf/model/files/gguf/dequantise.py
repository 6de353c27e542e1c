"""Dequantises GGUF blocks to float32 with the ``gguf`` package."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch

from mdir_hf.errors import UnsupportedFormatError
from mdir_hf.installing import install_command
from mdir_hf.model.files.decode import Encoding
from mdir_hf.model.files.gguf.types import I2_S, GgmlType

VALUES_AT_A_TIME = 1 << 18
"""Numbers dequantised per step, which limits the package's temporary memory to some tens of MB."""

_Dequantise = Callable[[np.ndarray], np.ndarray]


def weight_encoding(kind: GgmlType, *, tensor: str) -> Encoding:
    """Return how blocks of a quantised type are decoded.

    Raises:
        UnsupportedFormatError: If the package is not installed, or does not support the type.
    """
    dequantise = _find(kind, tensor)
    return Encoding(
        n_values=kind.n_values,
        n_bytes=kind.n_bytes,
        decode=partial(_decode, kind=kind, dequantise=dequantise),
        n_decoded=kind.n_values,
    )


def _find(kind: GgmlType, tensor: str) -> _Dequantise:
    claim = f"tensor {tensor!r} holds {kind.name} weights"
    if kind is I2_S:
        raise UnsupportedFormatError(
            f"{claim} of bitnet.cpp, whose order depends on the processor that wrote the file, and the file does not "
            "name it; compare the checkpoint it was made from"
        )
    if kind.name in _OWN:
        return _OWN[kind.name]
    if not kind.n_bytes:
        raise UnsupportedFormatError(
            f"tensor {tensor!r} holds weights of GGUF {kind.name}, which is unknown to this version; "
            "compare another quantisation of the model, or the checkpoint it was made from"
        )
    try:
        import gguf
    except ImportError as exc:
        raise UnsupportedFormatError(
            f"{claim}, and the package that dequantises them is not installed; run `{install_command('gguf')}`"
        ) from exc
    try:
        number = gguf.GGMLQuantizationType(kind.number)
        gguf.quants.dequantize(np.zeros((1, kind.n_bytes), np.uint8), number)
    except (ValueError, NotImplementedError) as exc:
        raise UnsupportedFormatError(
            f"{claim}, which the installed gguf package does not dequantise; update it (`pip install -U gguf`), "
            "or compare another quantisation of the model"
        ) from exc
    return partial(gguf.quants.dequantize, qtype=number)


def _two_bits(blocks: np.ndarray, n_values: int) -> np.ndarray:
    """Decode a float16 scale followed by 2-bit codes, lowest bits first: ``(code - 1) * scale``."""
    rows = blocks.reshape(-1, 2 + n_values // 4)
    scale = np.ascontiguousarray(rows[:, :2]).view("<f2").astype(np.float32)
    codes = (rows[:, 2:, None] >> np.arange(0, 8, 2, dtype=np.uint8)) & 3
    values: np.ndarray = (codes.reshape(-1, n_values).astype(np.float32) - 1) * scale
    return values.reshape(1, -1)


# Types that the package does not support yet.
_OWN: dict[str, _Dequantise] = {
    "Q2_0": partial(_two_bits, n_values=64),
    "Q2_0_128": partial(_two_bits, n_values=128),
}


def _decode(data: bytes, *, kind: GgmlType, dequantise: _Dequantise) -> torch.Tensor:
    n_blocks = len(data) // kind.n_bytes
    out = np.empty(n_blocks * kind.n_values, np.float32)
    step = VALUES_AT_A_TIME // kind.n_values
    # Bad scales overflow here; the result is checked for NaN and infinity later.
    with np.errstate(all="ignore"):
        for first in range(0, n_blocks, step):
            last = min(first + step, n_blocks)
            # One long row of blocks: the package is slow on many short rows.
            blocks = np.frombuffer(data, np.uint8, (last - first) * kind.n_bytes, first * kind.n_bytes)[None]
            out[first * kind.n_values : last * kind.n_values] = dequantise(blocks)[0]
    return torch.from_numpy(out)
