"""Reads rows of a large matrix in blocks, with at most two blocks in memory."""

from __future__ import annotations

from collections.abc import Generator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from mdir_hf.errors import InputError
from mdir_hf.processor import is_one_of_several_ranks


class ReadsRows(Protocol):
    """A source of rows, such as a tensor source."""

    def read_rows(self, name: str, rows: npt.NDArray[np.int64], *, max_gap_bytes: int | None = None) -> torch.Tensor:
        """Return some rows; see ``TensorSource.read_rows``."""
        ...


def iter_row_blocks(
    source: ReadsRows,
    name: str,
    rows: npt.NDArray[np.int64],
    block_rows: int,
    *,
    max_gap_bytes: int | None = None,
) -> Generator[torch.Tensor, None, None]:
    """Yield the rows of a matrix in blocks, in the given order; the next block is read while one is in use.

    Closing the generator early (``break``, an exception, Ctrl-C) waits for the read in progress and leaves no thread.

    Args:
        source: The source that holds the matrix.
        name: Name of the matrix, of shape ``(n_rows, d)``.
        rows: Row numbers, ``(k,)``. Sorted numbers need the fewest requests.
        block_rows: Rows per block, > 0; the last block may be shorter.
        max_gap_bytes: See ``TensorSource.read_rows``.

    Yields:
        Tensors of shape ``(<= block_rows, d)``, float32 (float64 stays float64).

    Raises:
        InputError: If ``block_rows`` is not positive.
        MdirError: Any error from ``read_rows``, raised when the block in question is due.
    """
    if block_rows < 1:
        raise InputError(f"a block must have at least one row, got block_rows={block_rows}")
    pieces = [rows[at : at + block_rows] for at in range(0, len(rows), block_rows)]
    if is_one_of_several_ranks():
        for piece in pieces:
            yield source.read_rows(name, piece, max_gap_bytes=max_gap_bytes)
        return
    reader = ThreadPoolExecutor(max_workers=1, thread_name_prefix="mdir-row-blocks")

    def start(piece: npt.NDArray[np.int64]) -> Future[torch.Tensor]:
        return reader.submit(source.read_rows, name, piece, max_gap_bytes=max_gap_bytes)

    try:
        upcoming = start(pieces[0]) if pieces else None
        for following in [*pieces[1:], None]:
            if upcoming is None:
                return
            block = upcoming.result()
            upcoming = None if following is None else start(following)
            yield block
    finally:
        reader.shutdown(wait=True, cancel_futures=True)
