"""Unpacks small unsigned integers from machine words.

There are two ways of packing. Dense: number i starts at bit ``i * bits`` of the row, lowest bit first, even across word
boundaries (GPTQ, MLX, compressed-tensors since 0.18). Padded: a word holds ``32 // bits`` whole numbers and its highest
bits are unused (older compressed-tensors). For 1, 2, 4 and 8 bits they are the same.
"""

from __future__ import annotations

import torch

from mdir_hf.model.files.small_floats import as_bytes


def unpack_dense(words: torch.Tensor, bits: int) -> torch.Tensor:
    """Unpack along the last axis.

    Args:
        words: Integers of any width, ``(..., w)``.
        bits: 1 to 8.

    Returns:
        uint8, ``(..., n)``, with every whole number in the words.
    """
    codes = as_bytes(words)
    if bits == 8:
        return codes
    if 8 % bits == 0:
        shifts = torch.arange(0, 8, bits, dtype=torch.uint8)
        return torch.bitwise_and(codes[..., None] >> shifts, 2**bits - 1).flatten(-2)
    n_whole = codes.shape[-1] * 8 // bits
    # Eight numbers take `bits` bytes, which fit into an int64.
    padding = -codes.shape[-1] % bits
    padded = torch.nn.functional.pad(codes, (0, padding))
    groups = padded.reshape(*padded.shape[:-1], -1, bits).long()
    word = (groups << (8 * torch.arange(bits))).sum(-1, keepdim=True)
    numbers = torch.bitwise_and(word >> (bits * torch.arange(8)), 2**bits - 1)
    return numbers.to(torch.uint8).flatten(-2)[..., :n_whole]


def unpack_padded(words: torch.Tensor, bits: int) -> torch.Tensor:
    """Unpack padded 32-bit words along the last axis.

    Args:
        words: int32, ``(..., w)``.
        bits: 1 to 8.

    Returns:
        uint8, ``(..., w * (32 // bits))``.
    """
    shifts = bits * torch.arange(32 // bits)
    return torch.bitwise_and(words.long()[..., None] >> shifts, 2**bits - 1).to(torch.uint8).flatten(-2)
