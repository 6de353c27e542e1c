"""Base classes for quantised weights.

Codes are packed into words in two ways. Dense: number i starts at bit ``i * bits`` of a row, lowest bit first, and may
cross into the next word (GPTQ, MLX, compressed-tensors since 0.18). Padded: each word contains ``32 // bits`` whole
numbers, and its highest bits are unused (older compressed-tensors). For 1, 2, 4 and 8 bits, both are the same.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch

from mdir_hf.model.files.decode import as_bytes, decode_e8m0
from mdir_hf.model.files.ranged import IntArray
from mdir_hf.model.sources import StoredRows, StoredTensors, TensorSpec

USUAL_BLOCK = 128
"""Default block size of FP8 checkpoints."""


class Numbers(Protocol):
    """Numbers that apply to a weight's rows, such as scales."""

    def at(self, stored: StoredRows, rows: IntArray) -> torch.Tensor:
        """Return the numbers for the given rows as float32 ``(k, d)``, or ``(k, 1)`` if all columns share one."""
        ...


@dataclass(frozen=True, slots=True)
class Grid:
    """A companion tensor in which each number applies to one block of a weight.

    Attributes:
        shape: Shape of the weight, ``(n_matrices, m, d)``.
        grid: Shape of the companion, ``(1 or n_matrices, r, c)``.
        block: Size of a block, in rows and columns of the weight.
        group_of_column: The companion's column for each column of the weight, ``(d,)``, or None.
    """

    spec: TensorSpec
    shape: tuple[int, int, int]
    grid: tuple[int, int, int]
    block: tuple[int, int]
    decode: Callable[[torch.Tensor], torch.Tensor]
    group_of_column: torch.Tensor | None = None
    divides: bool = False

    def at(self, stored: StoredRows, rows: IntArray) -> torch.Tensor:
        """Return the numbers for the given rows, which are numbered across the weight's matrices."""
        return self.spread(lambda needed: self.decode(self._read(stored, needed)), rows)

    def spread(self, numbers_of: Callable[[IntArray], torch.Tensor], rows: IntArray) -> torch.Tensor:
        """Return the numbers for the given rows like :meth:`at`, reading them with ``numbers_of``."""
        matrix, row = np.divmod(rows, self.shape[1])
        if self.grid[0] == 1:
            matrix = np.zeros_like(matrix)
        needed, places = np.unique(matrix * self.grid[1] + row // self.block[0], return_inverse=True)
        values = numbers_of(needed)[torch.from_numpy(places.reshape(-1))]
        if self.group_of_column is not None:
            return values[:, self.group_of_column]
        if self.grid[2] == 1 or self.grid[2] == self.shape[2]:
            return values
        return values.repeat_interleave(self.block[1], dim=1)[:, : self.shape[2]]

    def _read(self, stored: StoredRows, grid_rows: IntArray) -> torch.Tensor:
        if len(self.spec.shape) >= 2 and self.spec.shape[-1] == self.grid[2]:
            return stored.read_stored_rows(self.spec.name, grid_rows)
        whole = stored.read_stored(self.spec.name).reshape(-1, self.grid[2])
        as_bytes = whole.view(torch.uint8)[torch.from_numpy(grid_rows)]  # torch cannot index every dtype
        return as_bytes.view(whole.dtype)

    @property
    def words(self) -> str:
        """Text that tells users which weights share a number."""
        (_, m, d), (bm, bn) = self.shape, self.block
        if self.group_of_column is not None:
            return f"in {self.grid[2]} groups of columns"
        # A matrix smaller than a block also has a single number.
        is_block = len(self.spec.shape) == 2 and (bm, bn) == (USUAL_BLOCK, USUAL_BLOCK)
        if not is_block and (self.grid == (1, 1, 1) or (bm >= m and bn >= d)):
            return "one scale per tensor"
        if bm == 1:
            return "one scale per row" if bn >= d else f"in groups of {bn}"
        return "one scale per column" if bn == 1 else f"blocks of {bm} x {bn}"


def fit_grid(
    spec: TensorSpec,
    shape: tuple[int, ...],
    *,
    block: tuple[int, int] | None = None,
) -> Grid | None:
    """Infer from shapes how a companion's numbers are spread over a weight, or return None.

    Args:
        spec: The companion, with one number in all, or one per row, expert or block. Blocks at the edge may be cut off.
        shape: Shape of the weight, ``(..., m, d)``.
        block: Size of a block in rows and columns. If unknown, 128 by 128 is tried, then equal blocks.
    """
    weight = (math.prod(shape[:-2]), shape[-2], shape[-1])
    stack = _as_stack(spec.shape, weight)
    if stack is None or stack[0] not in (1, weight[0]) or 0 in (*stack, *weight):
        return None
    configured = (None, None) if block is None else block
    may_be_padded = block is not None and min(block) > 1  # groups along a row are never padded
    rows = _edge(weight[1], stack[1], configured[0], may_be_padded=may_be_padded)
    columns = _edge(weight[2], stack[2], configured[1], may_be_padded=may_be_padded)
    if rows is None or columns is None:
        return None
    return Grid(spec, weight, stack, (rows, columns), decode_numbers)


def column_grid(spec: TensorSpec, shape: tuple[int, ...]) -> Grid | None:
    """Return a grid with one number per column, or None if the shapes do not match."""
    weight = (math.prod(shape[:-2]), shape[-2], shape[-1])
    if math.prod(spec.shape) != weight[2]:
        return None
    return Grid(spec, weight, (1, 1, weight[2]), (weight[1], 1), decode_numbers)


def dividing(grid: Grid) -> Grid:
    """Return a copy of the grid that divides by its numbers."""
    return replace(grid, divides=True)


def widen(stored: torch.Tensor) -> torch.Tensor:
    """Convert to float32."""
    return stored.to(torch.float32)


def decode_numbers(stored: torch.Tensor) -> torch.Tensor:
    """Decode stored numbers to float32. Bytes are powers of two (E8M0)."""
    if stored.dtype == torch.uint8 or stored.dtype == getattr(torch, "float8_e8m0fnu", torch.uint8):
        return decode_e8m0(stored)
    return stored.to(torch.float32)


def _as_stack(shape: tuple[int, ...], weight: tuple[int, int, int]) -> tuple[int, int, int] | None:
    n, m, d = weight
    if math.prod(shape) == 1:
        return (1, 1, 1)
    if len(shape) == 1:
        (length,) = shape
        return {n: (n, 1, 1), m: (1, m, 1)}.get(length)
    if len(shape) == 2 and n > 1:
        first, last = shape
        if first == n:  # one number per row of each expert, or per column if only that fits
            return {1: (n, 1, 1), m: (n, m, 1), d: (n, 1, d)}.get(last)
        return None
    if len(shape) == 2:
        return (1, shape[0], shape[1])
    if len(shape) == 4 and shape[1] == shape[3] == 1:  # ModelOpt keeps the axes within a block
        return (1, shape[0], shape[2])
    if len(shape) == 3:
        if shape[1] == d != m and shape[2] == 1:  # FBGEMM's down projection: one number per output, the last axis
            return (shape[0], 1, d)
        return (shape[0], shape[1], shape[2])
    return None


def _edge(size: int, n_numbers: int, configured: int | None, *, may_be_padded: bool) -> int | None:
    # A padded grid has numbers past the last block. Equal blocks of a power of two are preferred, as in transformers,
    # because the config states only one of several block sizes.
    if n_numbers == size:
        return 1
    equal = None if size % n_numbers else size // n_numbers
    for block in (configured, USUAL_BLOCK):
        if block is not None and -(-size // block) == n_numbers:
            return block
    is_padded = may_be_padded and configured is not None and 1 < -(-size // configured) < n_numbers
    if is_padded and (equal is None or equal & (equal - 1)):
        return configured
    return equal


def unpack_dense(words: torch.Tensor, bits: int) -> torch.Tensor:
    """Unpack words ``(..., w)`` of any size into numbers of 1 to 8 bits, as uint8 ``(..., n)``."""
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
    """Unpack int32 words ``(..., w)`` into numbers of 1 to 8 bits, as uint8 ``(..., w * (32 // bits))``."""
    shifts = bits * torch.arange(32 // bits)
    return torch.bitwise_and(words.long()[..., None] >> shifts, 2**bits - 1).to(torch.uint8).flatten(-2)


@dataclass(frozen=True, slots=True)
class CodedTensor(ABC):
    """One quantised weight of logical shape ``(..., m, d)``."""

    shape: tuple[int, ...]
    dtype: str
    codes: TensorSpec
    meaning: str

    @property
    def rows_together(self) -> int:
        """Number of rows decoded together."""
        return 1

    @property
    def reads_rows(self) -> bool:
        """Whether reading some rows is cheaper than reading all."""
        return True

    @abstractmethod
    def rows(self, stored: StoredRows, rows: IntArray, *, max_gap_bytes: int | None = None) -> torch.Tensor:
        """Return the given rows, numbered across a stack, as float32 ``(k, d)`` without checking the values."""


@dataclass(frozen=True, slots=True)
class RowCodes(CodedTensor):
    """A weight whose codes are stored row by row.

    Attributes:
        decode: Function that decodes rows of codes ``(k, w)`` to a new float32 tensor ``(k, >= d)``, padded beyond d.
        scales: Scales to apply, in order.
        zero: Zero points to subtract first.
        offset: Numbers to add last.
    """

    decode: Callable[[torch.Tensor], torch.Tensor]
    scales: tuple[Grid, ...] = ()
    zero: Numbers | None = None
    offset: Numbers | None = None

    def rows(self, stored: StoredRows, rows: IntArray, *, max_gap_bytes: int | None = None) -> torch.Tensor:
        """Return the given rows."""
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
    """Codes in which each byte combines two neighbouring rows, with the even row in the low half."""

    def rows(self, stored: StoredRows, rows: IntArray, *, max_gap_bytes: int | None = None) -> torch.Tensor:
        """Return the given rows."""
        bytes_ = stored.read_stored_rows(self.codes.name, rows // 2, max_gap_bytes=max_gap_bytes).view(torch.uint8)
        is_odd = torch.from_numpy(rows % 2 == 1)[:, None]
        return self.finish(self.decode(torch.where(is_odd, bytes_ >> 4, bytes_ & 15)), stored, rows)


class KeptTensors:
    """A cache of stored tensors, each read once. Implements ``StoredRows``."""

    def __init__(self, stored: StoredTensors) -> None:
        self._stored = stored
        self._cache: dict[str, torch.Tensor] = {}

    def read_stored(self, name: str) -> torch.Tensor:
        """Return a whole tensor."""
        if name not in self._cache:
            self._cache[name] = self._stored.read_stored(name)
        return self._cache[name]

    def read_stored_rows(self, name: str, rows: IntArray, *, max_gap_bytes: int | None = None) -> torch.Tensor:
        """Return the given rows, without copying if they are consecutive."""
        del max_gap_bytes
        whole = self.read_stored(name)
        matrix = whole.reshape(math.prod(whole.shape[:-1]), whole.shape[-1])
        if rows.size and np.array_equal(rows, np.arange(rows[0], rows[0] + rows.size)):
            return matrix[int(rows[0]) : int(rows[0]) + rows.size]
        return matrix.view(torch.uint8)[torch.from_numpy(rows)].view(matrix.dtype)
