"""Numbers shared by several weights: one per block, row, group of columns or tensor."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch

from mdir_hf.model.files.decode import decode_e8m0
from mdir_hf.model.files.ranged import IntArray
from mdir_hf.model.files.sources import StoredRows, TensorSpec

USUAL_BLOCK = 128
"""The block of FP8 checkpoints whose config does not state it."""


class Numbers(Protocol):
    """Numbers that belong to the rows of a weight."""

    def at(self, stored: StoredRows, rows: IntArray) -> torch.Tensor:
        """Return the numbers for some rows, float32, ``(k, d)`` or ``(k, 1)``."""
        ...


@dataclass(frozen=True, slots=True)
class Grid:
    """A companion tensor spread over a weight.

    Attributes:
        spec: Spec of the numbers.
        shape: Shape of the weight as a stack of matrices, ``(n_matrices, m, d)``.
        grid: Shape of the numbers as a stack of matrices, ``(1 or n_matrices, r, c)``.
        block: Rows and columns of the weight that share a number.
        decode: Decodes stored numbers to float32.
        group_of_column: Column of the grid for each column of the weight, ``(d,)``; None for the stored order.
        divides: Whether weights are divided by the numbers.
    """

    spec: TensorSpec
    shape: tuple[int, int, int]
    grid: tuple[int, int, int]
    block: tuple[int, int]
    decode: Callable[[torch.Tensor], torch.Tensor]
    group_of_column: torch.Tensor | None = None
    divides: bool = False

    def at(self, stored: StoredRows, rows: IntArray) -> torch.Tensor:
        """Return the numbers for some rows, float32, ``(k, d)``, or ``(k, 1)`` if all columns share one.

        Args:
            stored: Source of the companion.
            rows: Rows of the weight, numbered across its matrices.
        """
        return self.spread(lambda needed: self.decode(self._read(stored, needed)), rows)

    def spread(self, numbers_of: Callable[[IntArray], torch.Tensor], rows: IntArray) -> torch.Tensor:
        """Spread numbers over some rows, like :meth:`at`, with a given reader."""
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
        """Read rows of the grid in the stored dtype, ``(k, c)``."""
        if len(self.spec.shape) >= 2 and self.spec.shape[-1] == self.grid[2]:
            return stored.read_stored_rows(self.spec.name, grid_rows)
        whole = stored.read_stored(self.spec.name).reshape(-1, self.grid[2])
        as_bytes = whole.view(torch.uint8)[torch.from_numpy(grid_rows)]  # torch cannot index every dtype
        return as_bytes.view(whole.dtype)

    @property
    def words(self) -> str:
        """Which weights share a number, in users' words."""
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
    """Derive from the shapes how a companion is spread over a weight.

    Args:
        spec: The companion: a scalar, one number per row or per expert, or a grid with one number per block. Blocks at
            the far edges may be cut.
        shape: Shape of the weight, ``(..., m, d)``.
        block: Rows and columns of a block, if the config states them. Otherwise blocks of 128 are tried, then equal
            ones.

    Returns:
        The grid, or None for shapes that do not fit.
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
    """Return a grid with one number per column of the weight, or None."""
    weight = (math.prod(shape[:-2]), shape[-2], shape[-1])
    if math.prod(spec.shape) != weight[2]:
        return None
    return Grid(spec, weight, (1, 1, weight[2]), (weight[1], 1), decode_numbers)


def dividing(grid: Grid) -> Grid:
    """Return the same grid, to be divided by."""
    return replace(grid, divides=True)


def widen(stored: torch.Tensor) -> torch.Tensor:
    """Convert to float32."""
    return stored.to(torch.float32)


def decode_numbers(stored: torch.Tensor) -> torch.Tensor:
    """Decode stored numbers to float32; scales that are bytes are powers of two (E8M0)."""
    if stored.dtype == torch.uint8 or stored.dtype == getattr(torch, "float8_e8m0fnu", torch.uint8):
        return decode_e8m0(stored)
    return stored.to(torch.float32)


def _as_stack(shape: tuple[int, ...], weight: tuple[int, int, int]) -> tuple[int, int, int] | None:
    """Interpret a companion's shape as a stack of grids over a stack of matrices."""
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
    """Return how many of ``size`` entries share a number, or None if the sizes do not fit."""
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
