"""Moved rows: permuted heads, permuted neurons, and strangers."""

import numpy as np
import pytest
import torch

from mdir_hf.method.row_agreement import match_heads, search_rows
from tests.method.test_row_agreement import gaussian


def test_permuted_heads_are_found_in_every_layer():
    x = gaussian(3, 4, 16, 128, seed=1)
    order = torch.tensor([2, 0, 3, 1])
    y = x[:, order] + gaussian(3, 4, 16, 128, seed=2)
    found = match_heads(x.flatten(1, 2), y.flatten(1, 2), n_heads=(4, 4))
    assert np.all(found.log_p.diagonal() < -100.0)
    off = found.log_p[~np.eye(3, dtype=bool)]
    assert np.all(off > -5.0)
    for layer in range(3):
        assert found.candidate[layer, layer].tolist() == np.argsort(order.numpy()).tolist()


def test_heads_that_were_cut_are_found_among_the_others():
    x = gaussian(1, 6, 8, 96, seed=3)
    y = x[:, [5, 1, 2]]
    found = match_heads(x.flatten(1, 2), y.flatten(1, 2), n_heads=(6, 3))
    pairs = sorted(zip(found.reference[0, 0].tolist(), found.candidate[0, 0].tolist(), strict=True))
    assert pairs == [(1, 1), (2, 2), (5, 0)]
    assert found.log_p[0, 0] < -20.0


def test_strangers_have_no_heads_in_common():
    found = match_heads(gaussian(20, 64, 128, seed=4), gaussian(20, 64, 128, seed=5), n_heads=(8, 8))
    assert (found.log_p < np.log(0.01)).mean() < 0.005


@pytest.mark.parametrize("is_signed", [False, True])
def test_permuted_neurons_are_found_by_a_sample(is_signed):
    every = gaussian(400, 128, seed=6)
    order = torch.randperm(400, generator=torch.Generator().manual_seed(7))
    signs = torch.where(gaussian(400, seed=8) < 0.0, -1.0, 1.0) if is_signed else torch.ones(400)
    other = (every * signs[:, None] + 0.3 * gaussian(400, 128, seed=9))[order]
    found = search_rows(every[:64], other, is_signed=is_signed)
    assert found.log_p < -300.0
    assert (order.numpy()[found.partners] == np.arange(64)).mean() > 0.95
    assert np.array_equal(found.signs, signs[:64].numpy().astype(int))


def test_a_search_among_strangers_finds_nothing():
    rows = [gaussian(200, 96, seed=seed) for seed in range(10, 30)]
    log_p = [search_rows(a[:64], b, is_signed=False).log_p for a, b in zip(rows[:10], rows[10:], strict=True)]
    assert min(log_p) == 0.0
