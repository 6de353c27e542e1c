"""Quantised weights: which rows of the codes to read, and how to decode them.

Unpacks small unsigned integers from machine words. There are two ways of packing. Dense: number i starts at bit ``i *
bits`` of the row, lowest bit first, even across word boundaries (GPTQ, MLX, compressed-tensors since 0.18). Padded: a
word holds ``32 // bits`` whole numbers and its highest bits are unused (older compressed-tensors). For 1, 2, 4 and 8
bits they are the same.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from mdir_hf.model.files.decode import as_bytes
from mdir_hf.model.files.quantization.grid import Grid, Numbers
from mdir_hf.model.files.ranged import IntArray
from mdir_hf.model.files.sources import StoredRows, StoredTensors, TensorSpec


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


@dataclass(frozen=True, slots=True)
class CodedTensor(ABC):
    """One quantised weight.

    Attributes:
        shape: Logical shape, ``(..., m, d)``.
        dtype: Dtype in users' words, e.g. ``INT4``.
        codes: Spec of its codes.
        meaning: The scheme in users' words.
    """

    shape: tuple[int, ...]
    dtype: str
    codes: TensorSpec
    meaning: str

    @property
    def rows_together(self) -> int:
        """Number of rows that are always decoded together."""
        return 1

    @property
    def reads_rows(self) -> bool:
        """Whether reading some rows costs less than reading the whole tensor."""
        return True

    @abstractmethod
    def rows(self, stored: StoredRows, rows: IntArray, *, max_gap_bytes: int | None = None) -> torch.Tensor:
        """Return some rows as float32, ``(k, d)``, in the requested order, without checking the values.

        Args:
            stored: Source of codes and companions.
            rows: Valid row numbers, numbered across a stack.
            max_gap_bytes: See ``TensorSource.read_rows``.
        """


@dataclass(frozen=True, slots=True)
class RowCodes(CodedTensor):
    """Codes stored row by row: row i of the weight is row i of the codes.

    Attributes:
        decode: Decodes rows of codes, ``(k, w)``, to new float32 numbers, ``(k, >= d)``; numbers past d are padding.
        scales: Scales to multiply by, one after the other.
        zero: Zero points, subtracted first.
        offset: Offset, added last.
    """

    decode: Callable[[torch.Tensor], torch.Tensor]
    scales: tuple[Grid, ...] = ()
    zero: Numbers | None = None
    offset: Numbers | None = None

    def rows(self, stored: StoredRows, rows: IntArray, *, max_gap_bytes: int | None = None) -> torch.Tensor:
        """Return some rows; reads the same rows of the codes and of the companions."""
        codes = stored.read_stored_rows(self.codes.name, rows, max_gap_bytes=max_gap_bytes)
        return self.finish(self.decode(codes)[:, : self.shape[-1]], stored, rows)

    def finish(self, weights: torch.Tensor, stored: StoredRows, rows: IntArray) -> torch.Tensor:
        """Apply zero points, scales and offset to decoded rows."""
        if self.zero is not None:
            weights = weights - self.zero.at(stored, rows)
        factor: torch.Tensor | None = None  # scales are multiplied with each other first, as in the libraries
        for scale in self.scales:
            numbers = scale.at(stored, rows)
            if factor is not None:
                factor = factor / numbers if scale.divides else factor * numbers
            elif scale.divides:
                weights = weights.div_(numbers)
            else:
                factor = numbers
        if factor is not None:
            weights = weights.mul_(factor)
        return weights if self.offset is None else weights.add_(self.offset.at(stored, rows))


@dataclass(frozen=True, slots=True)
class PairedRowCodes(RowCodes):
    """Codes of two neighbouring rows per byte, with the even row in the low half.

    Attributes:
        decode: Decodes codes in 0..15, ``(k, d)``, to float32.
    """

    def rows(self, stored: StoredRows, rows: IntArray, *, max_gap_bytes: int | None = None) -> torch.Tensor:
        """Return some rows; reads the rows of bytes that hold them."""
        bytes_ = stored.read_stored_rows(self.codes.name, rows // 2, max_gap_bytes=max_gap_bytes).view(torch.uint8)
        is_odd = torch.from_numpy(rows % 2 == 1)[:, None]
        return self.finish(self.decode(torch.where(is_odd, bytes_ >> 4, bytes_ & 15)), stored, rows)


class KeptTensors:
    """Stored tensors that are read once, whole, and cached. Implements ``StoredRows``."""

    def __init__(self, stored: StoredTensors) -> None:
        self._stored = stored
        self._cache: dict[str, torch.Tensor] = {}

    def read_stored(self, name: str) -> torch.Tensor:
        """Return a whole tensor."""
        if name not in self._cache:
            self._cache[name] = self._stored.read_stored(name)
        return self._cache[name]

    def read_stored_rows(self, name: str, rows: IntArray, *, max_gap_bytes: int | None = None) -> torch.Tensor:
        """Return some rows; consecutive rows are not copied."""
        del max_gap_bytes
        whole = self.read_stored(name)
        matrix = whole.reshape(math.prod(whole.shape[:-1]), whole.shape[-1])
        if rows.size and np.array_equal(rows, np.arange(rows[0], rows[0] + rows.size)):
            return matrix[int(rows[0]) : int(rows[0]) + rows.size]
        return matrix.view(torch.uint8)[torch.from_numpy(rows)].view(matrix.dtype)
