"""Dequantise GGUF blocks to float32 with the ``gguf`` package.

Source of the types: ``enum ggml_type`` and the block structs of ggml.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from mdir_hf.errors import UnsupportedFormatError
from mdir_hf.installing import install_command
from mdir_hf.model.files.decode import Encoding

PLAIN = frozenset({"F64", "F32", "F16", "BF16", "I8", "I16", "I32", "I64"})
"""Types that are not quantised. Their names and bytes are the same in safetensors."""


@dataclass(frozen=True, slots=True)
class GgmlType:
    """A tensor type of ggml, whose blocks store ``n_values`` numbers in ``n_bytes`` bytes (0 if unknown)."""

    number: int
    name: str
    n_values: int
    n_bytes: int

    @property
    def is_in_use(self) -> bool:
        """Whether the size is known and ggml still supports the type."""
        return self.n_bytes > 0 and self.number not in _DROPPED

    @property
    def is_plain(self) -> bool:
        """Whether the type is not quantised."""
        return self.name in PLAIN


_DROPPED = frozenset({*range(31, 34), *range(36, 39)})
"""Numbers of types that interleave rows for certain processors and are no longer supported by ggml."""

GGML_TYPES: dict[int, GgmlType] = {
    number: GgmlType(number, name, n_values, n_bytes)
    for number, name, n_values, n_bytes in (
        (0, "F32", 1, 4),
        (1, "F16", 1, 2),
        (2, "Q4_0", 32, 18),
        (3, "Q4_1", 32, 20),
        (6, "Q5_0", 32, 22),
        (7, "Q5_1", 32, 24),
        (8, "Q8_0", 32, 34),
        (9, "Q8_1", 32, 40),
        (10, "Q2_K", 256, 84),
        (11, "Q3_K", 256, 110),
        (12, "Q4_K", 256, 144),
        (13, "Q5_K", 256, 176),
        (14, "Q6_K", 256, 210),
        (15, "Q8_K", 256, 292),
        (16, "IQ2_XXS", 256, 66),
        (17, "IQ2_XS", 256, 74),
        (18, "IQ3_XXS", 256, 98),
        (19, "IQ1_S", 256, 50),
        (20, "IQ4_NL", 32, 18),
        (21, "IQ3_S", 256, 110),
        (22, "IQ2_S", 256, 82),
        (23, "IQ4_XS", 256, 136),
        (24, "I8", 1, 1),
        (25, "I16", 1, 2),
        (26, "I32", 1, 4),
        (27, "I64", 1, 8),
        (28, "F64", 1, 8),
        (29, "IQ1_M", 256, 56),
        (30, "BF16", 1, 2),
        (31, "Q4_0_4_4", 32, 18),
        (32, "Q4_0_4_8", 32, 18),
        (33, "Q4_0_8_8", 32, 18),
        (34, "TQ1_0", 256, 54),
        (35, "TQ2_0", 256, 66),
        (36, "IQ4_NL_4_4", 32, 18),
        (37, "IQ4_NL_4_8", 32, 18),
        (38, "IQ4_NL_8_8", 32, 18),
        (39, "MXFP4", 32, 17),
        (40, "NVFP4", 64, 36),
        (41, "Q1_0", 128, 18),
        (42, "Q2_0", 64, 18),
    )
}
"""All types of known size, keyed by number."""

I2_S = GgmlType(36, "I2_S", 1, 0)
"""bitnet.cpp's ternary type. ggml used the same number for a type that it no longer supports. I2_S cannot be read,
because the order of its codes depends on the processor that wrote the file."""

OTHER_LAYOUTS: dict[int, tuple[GgmlType, ...]] = {
    36: (I2_S,),
    42: (GgmlType(42, "Q2_0_128", 128, 34), GgmlType(42, "type 42", 1, 0)),
}
"""Types from forks of llama.cpp that reuse a type number; the space between tensors distinguishes them."""

_BY_NAME = {layout.name: layout for group in ([*GGML_TYPES.values()], *OTHER_LAYOUTS.values()) for layout in group}


def ggml_type(number: int) -> GgmlType:
    """Return the type with the given number, of size 0 if unknown."""
    return GGML_TYPES.get(number) or GgmlType(number, f"type {number}", 1, 0)


def type_named(name: str) -> GgmlType:
    """Return the type with the given name."""
    return _BY_NAME.get(name) or ggml_type(int(name.removeprefix("type ")))


VALUES_AT_A_TIME = 1 << 18
"""Number of values dequantised per step, which limits temporary memory to tens of MB."""

_Dequantise = Callable[[np.ndarray], np.ndarray]


def weight_encoding(kind: GgmlType, *, tensor: str) -> Encoding:
    """Return the encoding that decodes blocks of a quantised type, using the ``gguf`` package."""
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
    """Decode blocks of a float16 scale and 2-bit codes, lowest bits first, to ``(code - 1) * scale``."""
    rows = blocks.reshape(-1, 2 + n_values // 4)
    scale = np.ascontiguousarray(rows[:, :2]).view("<f2").astype(np.float32)
    codes = (rows[:, 2:, None] >> np.arange(0, 8, 2, dtype=np.uint8)) & 3
    values: np.ndarray = (codes.reshape(-1, n_values).astype(np.float32) - 1) * scale
    return values.reshape(1, -1)


# Types that the gguf package does not support yet.
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
