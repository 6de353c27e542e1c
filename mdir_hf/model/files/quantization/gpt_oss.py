"""MXFP4 as in gpt-oss, which stores experts as ``…_blocks`` and ``…_scales``.

Blocks are uint8 ``(experts, out, in / 32, 16)``, scales uint8 ``(experts, out, in / 32)``; W = code * 2^(scale - 127).
The unquantised file has ``(experts, in, out)``, so a row is a column of the file and costs the whole expert.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from mdir_hf.model.files.quantization.coded import CodedTensor
from mdir_hf.model.files.quantization.opening import Opening
from mdir_hf.model.files.small_floats import decode_e2m1, decode_e8m0
from mdir_hf.model.files.sources import StoredRows, TensorSpec
from mdir_hf.model.files.spans import IntArray

GROUP = 32


@dataclass(frozen=True, slots=True)
class ExpertBlocks(CodedTensor):
    """The experts of one layer, ``(experts, in, out)``, each read separately."""

    scales: TensorSpec

    @property
    def rows_together(self) -> int:
        """Number of rows of an expert."""
        return self.shape[1]

    def rows(self, stored: StoredRows, rows: IntArray, *, max_gap_bytes: int | None = None) -> torch.Tensor:
        """Return some rows; reads whole experts."""
        expert, row = np.divmod(rows, self.shape[1])
        out = torch.empty((rows.size, self.shape[2]), dtype=torch.float32)
        for number in np.unique(expert).tolist():
            slots = np.flatnonzero(expert == number)
            matrix = self._expert(stored, number, max_gap_bytes)
            out[torch.from_numpy(slots)] = matrix.T[torch.from_numpy(row[slots])]
        return out

    def _expert(self, stored: StoredRows, number: int, max_gap_bytes: int | None) -> torch.Tensor:
        """Return one expert, ``(out, in)``."""
        _, d_in, d_out = self.shape
        n_groups = d_in // GROUP
        blocks = np.arange(d_out * n_groups, dtype=np.int64) + number * d_out * n_groups
        outputs = np.arange(d_out, dtype=np.int64) + number * d_out
        packed = stored.read_stored_rows(self.codes.name, blocks, max_gap_bytes=max_gap_bytes)
        scales = decode_e8m0(stored.read_stored_rows(self.scales.name, outputs, max_gap_bytes=max_gap_bytes))
        return decode_e2m1(packed).view(d_out, n_groups, GROUP).mul_(scales[:, :, None]).view(d_out, d_in)


def open_expert_blocks(opening: Opening) -> CodedTensor:
    """Open the experts of a layer.

    Raises:
        CorruptCheckpointError: If the scales are missing or do not fit.
    """
    codes, scales = opening.codes, opening.spec("block_scales")
    if len(codes.shape) != 4 or 0 in codes.shape or codes.shape[-1] * 2 != GROUP or scales.shape != codes.shape[:-1]:
        raise opening.misfit()
    if codes.dtype != "U8" or scales.dtype not in ("U8", "F8_E8M0"):
        raise opening.refuse(f"blocks of {codes.dtype} with scales of {scales.dtype}, not the bytes of MXFP4")
    n_experts, d_out, n_groups, _ = codes.shape
    shape = (n_experts, n_groups * GROUP, d_out)
    return ExpertBlocks(shape, "MXFP4", codes, f"MXFP4, in groups of {GROUP}", scales)
