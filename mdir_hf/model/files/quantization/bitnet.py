"""BitNet: weights of -1, 0 or 1, four to a byte, with one scale.

Byte row i holds rows i, i + m, i + 2m and i + 3m of a weight of 4m rows: two bits each, lowest first, plus 1. The scale
is multiplied by (transformers' AutoBitLinear) or divided by (its BitLinear).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from mdir_hf.model.files.quantization.coded import CodedTensor, RowCodes
from mdir_hf.model.files.quantization.grid import dividing, widen
from mdir_hf.model.files.quantization.opening import Opening
from mdir_hf.model.files.sources import StoredRows
from mdir_hf.model.files.spans import IntArray

PER_BYTE = 4


@dataclass(frozen=True, slots=True)
class QuarteredRowCodes(RowCodes):
    """2-bit codes; the four rows in a row of bytes are a quarter of the matrix apart."""

    def rows(self, stored: StoredRows, rows: IntArray, *, max_gap_bytes: int | None = None) -> torch.Tensor:
        """Return some rows; reads the rows of bytes that hold them."""
        n_byte_rows = self.codes.shape[0]
        packed = stored.read_stored_rows(self.codes.name, rows % n_byte_rows, max_gap_bytes=max_gap_bytes)
        shifts = torch.from_numpy(2 * (rows // n_byte_rows)).to(torch.uint8)[:, None]
        return self.finish(self.decode(packed >> shifts & 3), stored, rows)


def open_ternary(opening: Opening) -> CodedTensor:
    """Open a packed BitNet weight.

    Raises:
        CorruptCheckpointError: If the scale is not one number.
    """
    codes = opening.codes
    shape = (codes.shape[0] * PER_BYTE, codes.shape[1])
    scale = opening.grid("scale", shape)
    if scale.grid != (1, 1, 1):
        raise opening.misfit()
    if opening.declared.settings.get("linear_class") != "autobitlinear":
        scale = dividing(scale)
    meaning = "BitNet, three values"
    return QuarteredRowCodes(shape, "INT2", codes, meaning, lambda packed: widen(packed) - 1, scales=(scale,))
