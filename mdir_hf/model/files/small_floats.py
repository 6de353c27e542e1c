"""Dtypes of four, six and eight bits that torch does not convert: E2M1, E2M3 and scales in E8M0.

Source: OCP Microscaling Formats (MX) specification 1.0, section 5.3. Codes are decoded by table, so values are exact.
"""

from __future__ import annotations

import torch

_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_E2M3 = (*(m / 8 for m in range(8)), *((1 + m / 8) * 2.0**e for e in range(3) for m in range(8)))
_E8M0 = (*(2.0 ** (code - 127) for code in range(255)), float("nan"))

E2M1 = torch.tensor([*_E2M1, *(-value for value in _E2M1)])
"""The 16 values of four bits, by code; the sign is the highest bit."""

E2M3 = torch.tensor([*_E2M3, *(-value for value in _E2M3)])
"""The 64 values of six bits, by code."""

E8M0 = torch.tensor(_E8M0)
"""The 256 values of eight bits, by code: powers of two, and NaN."""


def decode_e2m1(packed: torch.Tensor) -> torch.Tensor:
    """Decode two numbers from each byte, low half first.

    Args:
        packed: Any dtype of whole bytes, ``(..., w)``.

    Returns:
        float32, ``(..., 2 w)`` for one-byte dtypes, proportionally more for wider ones.
    """
    codes = as_bytes(packed)
    return E2M1[torch.stack((codes & 15, codes >> 4), dim=-1).flatten(-2).int()]


def decode_e2m3(packed: torch.Tensor) -> torch.Tensor:
    """Decode four numbers from every three bytes, lowest bits first.

    Args:
        packed: uint8, ``(..., w)``, w a multiple of 3.

    Returns:
        float32, ``(..., 4 w / 3)``.
    """
    codes = as_bytes(packed)
    low, middle, high = codes.reshape(*codes.shape[:-1], -1, 3).int().unbind(-1)
    word = low | middle << 8 | high << 16
    return E2M3[torch.stack([word >> shift & 63 for shift in (0, 6, 12, 18)], dim=-1).flatten(-2)]


def decode_e8m0(codes: torch.Tensor) -> torch.Tensor:
    """Decode powers of two: ``2^(code - 127)``, float32, of the same shape."""
    return E8M0[as_bytes(codes).int()]


def as_bytes(values: torch.Tensor) -> torch.Tensor:
    """View a tensor as little-endian bytes along its last axis."""
    if values.ndim and values.stride(-1) != 1:  # an axis with one entry counts as contiguous whatever its stride
        values = values.clone(memory_format=torch.contiguous_format)
    return values.contiguous().view(torch.uint8)
