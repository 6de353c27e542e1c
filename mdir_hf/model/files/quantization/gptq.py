"""Decode GPTQ and AWQ weights: codes of 2, 3, 4 or 8 bits in int32 words, stored ``(d_in, d_out)``.

W[out, in] = (code - zero) * scale; groups of input channels share a zero point and scale. A row of the weight is a
column in the file, so any row requires the whole tensor.

GPTQ packs codes densely along the input, and zero points along the output. Its first format stores ``zero - 1``, and
its second ``zero``. Some checkpoints in the second format are labelled as the first (vLLM, pull request 38966), so if
all zero points are in the middle of the range, their values determine the format. AWQ packs codes and zero points along
the output, with the eight codes of a word in the order 0, 2, 4, 6, 1, 3, 5, 7. Source: AutoGPTQ 0.7 (qlinear_cuda_old),
AutoAWQ 0.2 (packing_utils).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from mdir_hf.errors import CorruptCheckpointError
from mdir_hf.model.files.quantization.coded import CodedTensor, unpack_dense
from mdir_hf.model.files.quantization.opening import Opening
from mdir_hf.model.files.ranged import IntArray
from mdir_hf.model.sources import StoredRows, TensorSpec

GPTQ_BITS = (2, 3, 4, 8)
FOR_KERNELS = frozenset({"marlin", "bitblas", "qqq", "gptq_p", "gemv_fast", "llm_awq", "paroquant"})
"""Unsupported layouts that use the same tensor names (from GPTQModel's list of formats)."""

_AWQ_PLACE = (0, 4, 1, 5, 2, 6, 3, 7)
"""Position within a word of each of eight neighbouring columns."""


@dataclass(frozen=True, slots=True)
class ColumnCodes(CodedTensor):
    """A weight whose codes are stored as ``(d_in, d_out)``.

    Attributes:
        columns: Function that computes rows ``(k, d_in)`` of the ``(d_out, d_in)`` matrix.
        transposed: Whether the logical tensor is ``(d_in, d_out)``.
    """

    columns: Callable[[StoredRows, IntArray], torch.Tensor]
    transposed: bool = False

    @property
    def rows_together(self) -> int:
        """Number of rows decoded together: all rows if the logical tensor is transposed, else one."""
        return self.shape[0] if self.transposed else 1

    @property
    def reads_rows(self) -> bool:
        """Always False."""
        return False

    def rows(self, stored: StoredRows, rows: IntArray, *, max_gap_bytes: int | None = None) -> torch.Tensor:
        """Return the given rows."""
        del max_gap_bytes
        if not self.transposed:
            return self.columns(stored, rows)
        whole = self.columns(stored, np.arange(self.shape[1], dtype=np.int64))
        return whole.T[torch.from_numpy(rows)].contiguous()


@dataclass(frozen=True, slots=True)
class _Layout:
    qweight: TensorSpec
    qzeros: TensorSpec | None
    scales: TensorSpec
    g_idx: TensorSpec | None
    bits: int
    d_in: int
    group_size: int
    is_awq: bool
    zeros_are_one_less: bool
    is_symmetric: bool | None
    label: str

    def columns(self, stored: StoredRows, rows: IntArray) -> torch.Tensor:
        index = torch.from_numpy(rows)
        scales = stored.read_stored(self.scales.name)[:, index].to(torch.float32)
        zeros = self._zeros(stored)[:, index].to(torch.float32)
        codes = self._codes(stored, index).to(torch.float32)  # (k, d_in)
        groups = self._groups(stored)
        return (codes - zeros.T[:, groups]).mul_(scales.T[:, groups])

    def _codes(self, stored: StoredRows, index: torch.Tensor) -> torch.Tensor:
        words = stored.read_stored(self.qweight.name)
        if not self.is_awq:
            return unpack_dense(words[:, index].T.contiguous(), self.bits)[:, : self.d_in]
        return _awq_columns(words, index).T.contiguous()

    def _zeros(self, stored: StoredRows) -> torch.Tensor:
        middle = 2 ** (self.bits - 1)
        if self.qzeros is None:
            return torch.full(self.scales.shape, middle)
        words = stored.read_stored(self.qzeros.name)
        if self.is_awq:
            return _awq_columns(words, torch.arange(self.scales.shape[1])).int()
        zeros = unpack_dense(words, self.bits)[:, : self.scales.shape[1]].int()
        one_less = self.zeros_are_one_less
        if self.is_symmetric is not False and bool((zeros == zeros[0, 0]).all()):
            one_less = {middle: False, middle - 1: True}.get(int(zeros[0, 0]), one_less)
        return (zeros + 1) & (2**self.bits - 1) if one_less else zeros

    def _groups(self, stored: StoredRows) -> torch.Tensor:
        if self.g_idx is None:
            return torch.arange(self.d_in) // self.group_size
        groups = stored.read_stored(self.g_idx.name).long()
        lowest, highest = int(groups.min()), int(groups.max())
        if lowest < 0 or highest >= self.scales.shape[0]:
            raise CorruptCheckpointError(
                f"tensor {self.g_idx.name!r} of {self.qweight.name!r} names groups from {lowest} to {highest}; "
                f"there are {self.scales.shape[0]}",
                subject=self.label,
            )
        return groups


def open_qweight(opening: Opening) -> CodedTensor:
    """Open a weight stored as ``qweight``: GPTQ or AWQ, depending on the shapes."""
    codes, scales = opening.codes, opening.spec("scales")
    if codes.dtype != "I32" or len(codes.shape) != 2 or len(scales.shape) != 2 or 0 in (*codes.shape, *scales.shape):
        raise opening.refuse(f"{codes.dtype} words, scales of shape {scales.shape}, unlike the int32 of GPTQ and AWQ")
    declared = opening.declared
    if declared.layout in FOR_KERNELS:
        raise opening.refuse(f"its tensors are laid out for {declared.layout.replace('_', '-')} kernels")
    n_groups, d_out = scales.shape
    zeros = opening.spec("qzeros") if opening.has("qzeros") else None
    g_idx = opening.spec("group_of_row") if opening.has("group_of_row") else None
    is_awq = codes.shape[1] != d_out
    if is_awq and codes.shape[0] == scales.shape[0]:
        raise opening.refuse("AWQ in the layout of its GEMV kernels")
    bits = _bits(opening, d_out, zeros, g_idx)
    if bits is None or (is_awq and (bits != 4 or codes.shape[1] * 8 != d_out)):
        raise opening.misfit()
    d_in = codes.shape[0] if is_awq else codes.shape[0] * 32 // bits
    if zeros is not None and zeros.shape != (n_groups, -(-d_out * bits // 32)):
        raise opening.misfit()
    if g_idx is not None and g_idx.shape != (d_in,):
        raise opening.misfit()
    even = -(-d_in // n_groups)
    group_size = next((size for size in declared.group_sizes if -(-d_in // size) == n_groups), even)
    if -(-d_in // group_size) != n_groups:
        raise opening.misfit()
    layout = _Layout(
        codes,
        zeros,
        scales,
        g_idx,
        bits,
        d_in,
        group_size,
        is_awq=is_awq,
        zeros_are_one_less="v2" not in declared.layout,
        is_symmetric=declared.is_symmetric,
        label=opening.stored.label,
    )
    method = "AWQ" if is_awq or declared.method == "awq" else "GPTQ"
    groups_text = f"in groups of {group_size}" if n_groups > 1 else "one scale per row"
    transposed = declared.stores_transposed(opening.parts.name)
    shape = (d_in, d_out) if transposed else (d_out, d_in)
    return ColumnCodes(shape, f"INT{bits}", codes, f"{method}, {bits} bits {groups_text}", layout.columns, transposed)


def _bits(opening: Opening, d_out: int, zeros: TensorSpec | None, g_idx: TensorSpec | None) -> int | None:
    fitting = list(GPTQ_BITS)
    if zeros is not None and len(zeros.shape) == 2:
        fitting = [bits for bits in fitting if -(-d_out * bits // 32) == zeros.shape[1]]
    if g_idx is not None and len(g_idx.shape) == 1:
        fitting = [bits for bits in fitting if opening.codes.shape[0] * 32 // bits == g_idx.shape[0]]
    declared_bits = [bits for bits in fitting if bits in opening.declared.bits]
    if len(declared_bits) == 1 or len(fitting) == 1:
        return (declared_bits or fitting)[0]
    return None


def _awq_columns(words: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    needed, word = torch.unique(index // 8, return_inverse=True)
    codes = unpack_dense(words[:, needed], 4)
    return codes[:, 8 * word + torch.tensor(_AWQ_PLACE)[index % 8]]
