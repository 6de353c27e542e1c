import threading

import numpy as np
import pytest
import torch

from mdir_hf.errors import InputError
from mdir_hf.model.files import MemorySource, iter_row_blocks

MATRIX = torch.arange(60, dtype=torch.float32).reshape(20, 3)


class Recording(MemorySource):
    """Records the size of every block read; reads can be held back."""

    def __init__(self, tensors):
        super().__init__(tensors)
        self.blocks = []
        self.may_read = threading.Event()
        self.may_read.set()

    def read_rows(self, name, rows, *, max_gap_bytes=None):
        self.may_read.wait(10)
        self.blocks.append(len(rows))
        return super().read_rows(name, rows, max_gap_bytes=max_gap_bytes)


def block_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("mdir-row-blocks")]


@pytest.mark.parametrize(("block_rows", "sizes"), [(1, [1] * 7), (3, [3, 3, 1]), (7, [7]), (100, [7])])
def test_blocks_hold_all_rows_in_the_requested_order(block_rows, sizes):
    rows = np.array([19, 0, 4, 4, 3, 2, 11])
    blocks = list(iter_row_blocks(MemorySource({"w": MATRIX}), "w", rows, block_rows))
    assert [len(block) for block in blocks] == sizes
    assert torch.equal(torch.cat(blocks), MATRIX[torch.from_numpy(rows)])


def test_no_rows_give_no_blocks():
    assert list(iter_row_blocks(MemorySource({"w": MATRIX}), "w", np.empty(0, dtype=np.int64), 4)) == []


def test_at_most_one_block_is_read_ahead():
    source = Recording({"w": MATRIX})
    blocks = iter_row_blocks(source, "w", np.arange(20), 2)
    next(blocks)
    for thread in block_threads():
        thread.join(0.2)  # long enough to read on if it did
    assert len(source.blocks) <= 2
    blocks.close()


def test_the_next_block_is_read_while_one_is_used():
    source = Recording({"w": MATRIX})
    blocks = iter_row_blocks(source, "w", np.arange(20), 10)
    next(blocks)
    for _ in range(1000):
        if len(source.blocks) == 2:
            break
        threading.Event().wait(0.005)
    assert source.blocks == [10, 10]
    blocks.close()


def test_leaving_early_leaves_no_thread():
    blocks = iter_row_blocks(MemorySource({"w": MATRIX}), "w", np.arange(20), 2)
    next(blocks)
    blocks.close()
    assert block_threads() == []


def test_an_interrupt_leaves_no_thread():
    with pytest.raises(KeyboardInterrupt):
        for _ in iter_row_blocks(MemorySource({"w": MATRIX}), "w", np.arange(20), 2):
            raise KeyboardInterrupt
    assert block_threads() == []


def test_a_block_of_no_rows_is_refused():
    with pytest.raises(InputError, match="block_rows=0"):
        list(iter_row_blocks(MemorySource({"w": MATRIX}), "w", np.arange(3), 0))
