"""Quantise tensors like ``llama-quantize --pure`` of llama.cpp, but by plain rounding without its search.

The two most common K-quants are encoded here, because the ``gguf`` package only decodes them.
"""

from __future__ import annotations

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Type


def quantised(matrix: torch.Tensor, kind: str) -> torch.Tensor | tuple[np.ndarray, Type]:
    """Return the stored form of a tensor for a GGUF type: float32 for a vector, blocks for a matrix."""
    if matrix.dim() < 2 or kind == "F32":
        return matrix.float()
    kind = _stored_type(matrix.shape[-1], kind)
    if kind == "F16":
        return matrix.half()
    values = matrix.float().numpy()
    if kind not in _ENCODERS:
        return gguf.quants.quantize(values, Type[kind]), Type[kind]
    blocks = _ENCODERS[kind](values.reshape(-1, 256))
    return blocks.reshape(*values.shape[:-1], -1), Type[kind]


def _stored_type(n_columns: int, kind: str) -> str:
    """The type that llama.cpp uses for rows of this length if another type is requested.

    Not every row can be divided into blocks of 256 numbers. Such rows use a type with blocks of 32, or F16 if these do
    not fit either.
    """
    fallback = _FALLBACKS.get(kind, "F16")
    return next((each for each in (kind, fallback) if n_columns % _block_size(each) == 0), "F16")


def _block_size(kind: str) -> int:
    return gguf.constants.GGML_QUANT_SIZES[Type[kind]][0]


def _q6_k(blocks: np.ndarray) -> np.ndarray:
    """256 numbers: ``d * scale[16] * q``, with 6-bit q: 4 low bits in ql, 2 high bits in qh."""
    groups = blocks.reshape(-1, 16, 16)
    scale = np.abs(groups).max(axis=2) / 31
    d = np.maximum(scale.max(axis=1, keepdims=True) / 127, 1e-8).astype(np.float16)
    steps = np.clip(np.rint(scale / d), 1, 127).astype(np.int8)
    q = np.rint(groups / (d * steps)[:, :, None].astype(np.float32))
    q = (np.clip(q, -32, 31) + 32).astype(np.uint8).reshape(-1, 2, 4, 32)  # halves of 128, four runs of 32
    low, high = q & 0xF, q >> 4
    ql = np.concatenate([low[:, :, 0] | low[:, :, 2] << 4, low[:, :, 1] | low[:, :, 3] << 4], axis=2)
    qh = high[:, :, 0] | high[:, :, 1] << 2 | high[:, :, 2] << 4 | high[:, :, 3] << 6
    n = len(blocks)
    return np.concatenate([ql.reshape(n, -1), qh.reshape(n, -1), steps.view(np.uint8), d.view(np.uint8)], axis=1)


def _q4_k(blocks: np.ndarray) -> np.ndarray:
    """256 numbers: ``d * scale[8] * q - dmin * least[8]``, with 4-bit q; 6-bit scales and minima in 12 bytes."""
    groups = blocks.reshape(-1, 8, 32)
    least = np.minimum(groups.min(axis=2), 0)
    scale = (groups.max(axis=2) - least) / 15
    d = np.maximum(scale.max(axis=1, keepdims=True) / 63, 1e-8).astype(np.float16)
    d_least = np.maximum(-least.min(axis=1, keepdims=True) / 63, 1e-8).astype(np.float16)
    steps = np.clip(np.rint(scale / d), 1, 63).astype(np.uint8)
    minima = np.clip(np.rint(-least / d_least), 0, 63).astype(np.uint8)
    shifted = groups + (d_least * minima)[:, :, None].astype(np.float32)
    q = np.clip(np.rint(shifted / (d * steps)[:, :, None].astype(np.float32)), 0, 15).astype(np.uint8)
    packed = np.empty((len(blocks), 12), np.uint8)
    packed[:, :4] = steps[:, :4] | (steps[:, 4:] >> 4) << 6
    packed[:, 4:8] = minima[:, :4] | (minima[:, 4:] >> 4) << 6
    packed[:, 8:] = (steps[:, 4:] & 0xF) | (minima[:, 4:] & 0xF) << 4
    pairs = q.reshape(-1, 4, 2, 32)
    qs = (pairs[:, :, 0] | pairs[:, :, 1] << 4).reshape(len(blocks), -1)
    return np.concatenate([d.view(np.uint8), d_least.view(np.uint8), packed, qs], axis=1)


_ENCODERS = {"Q4_K": _q4_k, "Q6_K": _q6_k}
_FALLBACKS = {"Q4_K": "Q5_0", "Q6_K": "Q8_0"}
"""``tensor_type_fallback`` of llama.cpp's ``src/llama-quant.cpp``, for the types of 256 that are encoded here."""
