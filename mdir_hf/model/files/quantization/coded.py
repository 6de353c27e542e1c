"""A weight behind its codes: which of their rows to read, and how they become numbers."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from mdir_hf.model.files.quantization.grid import Grid, Numbers
from mdir_hf.model.files.sources import StoredRows, StoredTensors, TensorSpec
from mdir_hf.model.files.spans import IntArray


@dataclass(frozen=True, slots=True)
class CodedTensor(ABC):
    """One quantised weight.

    Attributes:
        shape: Logical shape, ``(..., m, d)``.
        dtype: What a user would call the dtype, e.g. ``INT4``.
        codes: Where its codes are.
        meaning: The scheme in a user's words.
    """

    shape: tuple[int, ...]
    dtype: str
    codes: TensorSpec
    meaning: str

    @property
    def rows_together(self) -> int:
        """Rows that are decoded together, whichever of them is asked for."""
        return 1

    @property
    def reads_rows(self) -> bool:
        """Whether some rows cost less than the whole tensor."""
        return True

    @abstractmethod
    def rows(self, stored: StoredRows, rows: IntArray, *, max_gap_bytes: int | None = None) -> torch.Tensor:
        """Return some rows, float32, ``(k, d)``, in the order asked; values are not checked.

        Args:
            stored: Where codes and companions are read from.
            rows: Row numbers, valid ones, numbered through a stack.
            max_gap_bytes: As in ``TensorSource.read_rows``.
        """


@dataclass(frozen=True, slots=True)
class RowCodes(CodedTensor):
    """Codes that lie row by row: row i of the weight is row i of the codes.

    Attributes:
        decode: From rows of codes, ``(k, w)``, to float32 of their own, ``(k, >= d)``; what is past d is padding.
        scales: What the numbers are multiplied by, one after the other.
        zero: What is subtracted before.
        offset: What is added at last.
    """

    decode: Callable[[torch.Tensor], torch.Tensor]
    scales: tuple[Grid, ...] = ()
    zero: Numbers | None = None
    offset: Numbers | None = None

    def rows(self, stored: StoredRows, rows: IntArray, *, max_gap_bytes: int | None = None) -> torch.Tensor:
        """Return some rows; reads these rows of the codes, and of the companions."""
        codes = stored.read_stored_rows(self.codes.name, rows, max_gap_bytes=max_gap_bytes)
        return self.finish(self.decode(codes)[:, : self.shape[-1]], stored, rows)

    def finish(self, weights: torch.Tensor, stored: StoredRows, rows: IntArray) -> torch.Tensor:
        """Zero points, scales and offsets, applied to decoded rows."""
        if self.zero is not None:
            weights = weights - self.zero.at(stored, rows)
        factor: torch.Tensor | None = None  # scales are joined first, as the libraries do
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
    """Codes of two neighbouring rows in one byte, the even row in its low half.

    Attributes:
        decode: From codes in 0..15, ``(k, d)``, to float32.
    """

    def rows(self, stored: StoredRows, rows: IntArray, *, max_gap_bytes: int | None = None) -> torch.Tensor:
        """Return some rows; reads the rows of bytes that they stand in."""
        bytes_ = stored.read_stored_rows(self.codes.name, rows // 2, max_gap_bytes=max_gap_bytes).view(torch.uint8)
        is_odd = torch.from_numpy(rows % 2 == 1)[:, None]
        return self.finish(self.decode(torch.where(is_odd, bytes_ >> 4, bytes_ & 15)), stored, rows)


class KeptTensors:
    """Stored tensors that are read whole, once, and kept: rows come out of memory. Implements ``StoredRows``."""

    def __init__(self, stored: StoredTensors) -> None:
        self._stored = stored
        self._kept: dict[str, torch.Tensor] = {}

    def read_stored(self, name: str) -> torch.Tensor:
        """Return a whole tensor."""
        if name not in self._kept:
            self._kept[name] = self._stored.read_stored(name)
        return self._kept[name]

    def read_stored_rows(self, name: str, rows: IntArray, *, max_gap_bytes: int | None = None) -> torch.Tensor:
        """Return some rows; a run of neighbours is not copied."""
        del max_gap_bytes
        whole = self.read_stored(name)
        matrix = whole.reshape(math.prod(whole.shape[:-1]), whole.shape[-1])
        if rows.size and np.array_equal(rows, np.arange(rows[0], rows[0] + rows.size)):
            return matrix[int(rows[0]) : int(rows[0]) + rows.size]
        return matrix.view(torch.uint8)[torch.from_numpy(rows)].view(matrix.dtype)
