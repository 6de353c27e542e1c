"""Reducing a matrix for a picture: what it shows and where."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mdir_hf.method.polar import matched_order, reduce_peaks


@pytest.mark.parametrize("shape", [(1, 1), (5, 3), (384, 384), (385, 1000), (1000, 7)])
def test_reduction_keeps_the_largest_entry_of_every_block(shape):
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    matrix[-1, -1] = -50.0
    reduced = reduce_peaks(matrix, max_size=384)
    assert reduced.shape == tuple(min(size, 384) for size in shape)
    assert reduced[-1, -1] == 50.0
    assert set(np.unique(reduced)) <= set(np.unique(matrix.abs().numpy()))


@pytest.mark.parametrize("shape", [(1, 1), (256, 256), (300, 170), (512, 1000)])
def test_every_peak_is_in_the_cell_of_its_channels(shape):
    for row, column in [(0, 0), (shape[0] // 3, shape[1] // 2), (shape[0] - 1, shape[1] - 1)]:
        matrix = torch.zeros(shape)
        matrix[row, column] = 1.0
        reduced = reduce_peaks(matrix)
        (i,), (j,) = np.nonzero(reduced)
        assert i == np.searchsorted(np.arange(reduced.shape[0]) * shape[0] // reduced.shape[0], row, side="right") - 1
        assert j == np.searchsorted(np.arange(reduced.shape[1]) * shape[1] // reduced.shape[1], column, "right") - 1


def test_bfloat16_and_gradients_are_read():
    matrix = torch.full((3, 3), -2.0, dtype=torch.bfloat16, requires_grad=True)
    assert reduce_peaks(matrix).dtype == np.float32
    assert (reduce_peaks(matrix) == 2.0).all()


@pytest.mark.parametrize("n", [1, 40, 700])
def test_a_reordered_permutation_stands_on_the_diagonal(n):
    moved = np.random.default_rng(0).permutation(n)
    matrix = torch.zeros(n, n)
    matrix[torch.arange(n), torch.from_numpy(moved)] = -1.0
    # Channels of a matching come in any order.
    channels = np.stack([np.arange(n), moved])[:, np.random.default_rng(1).permutation(n)]
    rows, columns = matched_order(channels, n, n)
    reduced = reduce_peaks(matrix, rows=rows, columns=columns)
    assert (np.diag(reduced) == 1.0).all()
    assert reduced.sum() == len(reduced)


@pytest.mark.parametrize("shape", [(6, 9), (9, 6)])
def test_channels_without_a_partner_come_last(shape):
    channels = np.array([[4, 0, 2], [1, 5, 3]])
    rows, columns = matched_order(channels, *shape)
    assert rows[:3].tolist() == [0, 2, 4] and columns[:3].tolist() == [5, 3, 1]
    assert sorted(rows.tolist()) == list(range(shape[0])) and sorted(columns.tolist()) == list(range(shape[1]))
    assert rows[3:].tolist() == sorted(rows[3:].tolist())
