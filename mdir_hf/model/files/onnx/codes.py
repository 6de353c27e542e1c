"""Decode quantised ONNX weights: ``(code - zero) * scale``, or ``table[code] * scale``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from mdir_hf.model.files.quantization.coded import unpack_dense

Array = npt.NDArray[Any]

# bitsandbytes' 4-bit numbers, indexed by code, as in ONNX Runtime's kernels.
NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip
_FP4 = (0.0, 0.005208333333333333, 0.6666666666666666, 1.0, 0.3333333333333333, 0.5, 0.16666666666666666, 0.25)
FP4 = (*_FP4, *(-value for value in _FP4))


@dataclass(frozen=True, slots=True)
class Codes:
    """The codes of one weight, with one scale and zero point per tensor, entry of ``axis`` or block.

    Attributes:
        shape: Shape of the codes once unpacked.
        scale: Initialiser of the scales; None if all are 1.
        zero: Initialiser of the zero points; None if all are ``default_zero``.
        block: Number of codes along ``axis`` that share a scale; 0 for one scale per tensor or per entry.
        is_packed: Whether a byte holds several codes and zero points, with the first in its lowest bits.
        table: Values of the 16 codes, packed with the first in the highest bits; empty if codes are numbers.
    """

    stored: str
    shape: tuple[int, ...]
    n_bits: int
    scale: str | None
    zero: str | None
    axis: int
    block: int = 0
    default_zero: int = 0
    is_packed: bool = False
    table: tuple[float, ...] = ()

    @property
    def parts(self) -> tuple[str, ...]:
        """Names of the companion initialisers."""
        return tuple(name for name in (self.scale, self.zero) if name)

    def decode(self, stored: Array, scale: Array | None, zero: Array | None) -> Array:
        """Return the numbers, float32 of shape ``shape``.

        Raises:
            ValueError: If the sizes do not fit.
        """
        if self.table:
            values = np.array(self.table, np.float32)[np.stack((stored >> 4, stored & 15), axis=-1).reshape(-1)]
            values = values[: self.shape[0]]  # an odd number of codes leaves half a byte
        else:
            values = (self._unpacked(stored) if self.is_packed else stored).astype(np.float32)
        values = values.reshape(self.shape)
        values -= self.default_zero if zero is None else self._spread(zero, is_packed=zero.dtype == np.uint8)
        if scale is not None:
            values *= self._spread(scale)
        return values

    def _spread(self, numbers: Array, *, is_packed: bool = False) -> Array:
        """Repeat scales or zero points so that they broadcast against the codes."""
        size = self.shape[self.axis]
        if not self.block:
            if numbers.size == 1:
                return numbers.astype(np.float32).reshape(())
            if numbers.shape != (size,):
                raise ValueError(f"{numbers.shape} scales or zero points do not fit axis {self.axis} of {self.shape}")
            return numbers.astype(np.float32).reshape(-1, *[1] * (len(self.shape) - self.axis - 1))
        block = min(self.block, max(1, size))
        grid = (*self.shape[: self.axis], -(-size // block), *self.shape[self.axis + 1 :])
        if is_packed and self.is_packed:
            numbers = self._unpacked(numbers.reshape(grid[0], -1))[:, : grid[-1]]  # rows end at bytes
        return np.repeat(numbers.astype(np.float32).reshape(grid), block, self.axis).take(range(size), self.axis)

    def _unpacked(self, packed: Array) -> Array:
        return np.asarray(unpack_dense(torch.from_numpy(np.array(packed)), self.n_bits))
