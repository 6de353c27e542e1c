"""Row maps: reorder blocks of rows and mix the rows of each block, and undo it.

A head is a block of ``d`` rows, a neuron a block of one. One model's rows become the other's by a
permutation of blocks and one invertible matrix for each block (paper, appendix on inner transformations).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from mdir_hf.method.blocks import IntArray


@dataclass(frozen=True, slots=True, eq=False)
class RowMap:
    """Takes the rows of one matrix to the places and axes of another.

    Attributes:
        order: Which block comes to each place, ``(k,)``: a permutation.
        matrices: ``(k, d, d)``, what the block that comes to each place is multiplied by; None for the identity.
    """

    order: IntArray
    matrices: torch.Tensor | None = None

    @property
    def is_identity(self) -> bool:
        """Whether it leaves all rows as they are."""
        return self.matrices is None and bool((self.order == np.arange(len(self.order))).all())

    @property
    def inverse(self) -> RowMap:
        """The map that undoes it."""
        back = np.argsort(self.order).astype(np.int64)
        if self.matrices is None:
            return RowMap(back)
        return RowMap(back, torch.linalg.inv(self.matrices)[torch.from_numpy(back)])

    def apply(self, rows: torch.Tensor) -> torch.Tensor:
        """Map ``(k d, …)`` rows; a vector has entries for rows.

        Raises:
            ValueError: If the rows cannot be divided into its blocks.
        """
        if self.is_identity:
            return rows
        n_blocks = len(self.order)
        if rows.shape[0] % n_blocks:
            raise ValueError(f"{rows.shape[0]} rows cannot be divided into {n_blocks} blocks")
        blocks = rows.reshape(n_blocks, rows.shape[0] // n_blocks, -1)[torch.from_numpy(self.order)]
        if self.matrices is not None:
            blocks = self.matrices.to(blocks) @ blocks
        return blocks.reshape(rows.shape)


def full_order(reference: IntArray, candidate: IntArray, n_blocks: int) -> IntArray:
    """Order all blocks of the candidate: those with a partner by the partner's number, then the others.

    Args:
        reference: Matched blocks of the reference.
        candidate: The candidate's block of each.
        n_blocks: Blocks of the candidate.
    """
    matched = candidate[np.argsort(reference, kind="stable")]
    rest = np.setdiff1d(np.arange(n_blocks, dtype=np.int64), matched)
    return np.concatenate([matched, rest]).astype(np.int64)
