"""Sampled rows: which are taken, what a few shared ones are worth, and what strangers make of them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mdir_hf.method.power import MatrixSizes, strongest_noise_of_pairs
from mdir_hf.method.screening import (
    SHARED_ROWS,
    log_p_of_pairs,
    log_p_of_screen,
    sample_sizes,
    sampled_rows,
    screen_rows,
)
from mdir_hf.method.significance import log_p_matching


@given(n_channels=st.integers(1, 40_000))
def test_samples_share_enough_rows_and_are_no_larger_than_the_matrix(n_channels):
    few, many = sample_sizes(n_channels)
    assert 1 <= many <= few <= n_channels
    assert few * many / n_channels >= min(SHARED_ROWS, many) * 0.99 or few == n_channels


@given(
    n_groups=st.integers(1, 40),
    size=st.integers(1, 200),
    n_rows=st.integers(1, 900),
    run=st.integers(1, 300),
    seed=st.integers(0, 9),
)
def test_rows_are_runs_at_one_place_in_every_head(n_groups, size, n_rows, run, seed):
    rows = sampled_rows(n_groups * size, n_rows, n_groups=n_groups, run=run, seed=seed)
    assert len(rows) == min(n_rows, n_groups * min(run, size))
    assert (np.diff(rows) > 0).all()
    assert rows[0] >= 0
    assert rows[-1] < n_groups * size
    within = rows % size
    assert within.max() - within.min() < min(run, size)
    more = sampled_rows(n_groups * size, 2 * n_rows, n_groups=n_groups, run=run, seed=seed)
    assert np.array_equal(more[: len(rows)], rows)


def partial_isometry(n_narrow, n_wide, seed):
    noise = torch.randn(n_wide, n_narrow, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return torch.linalg.qr(noise)[0].T


def test_the_weight_of_few_entries_bounds_their_matching():
    polar = partial_isometry(6, 20, 0)
    polar[:3] *= 0.1
    polar[[0, 1, 2], [4, 9, 14]] = torch.tensor([0.95, -0.9, 0.93], dtype=torch.float64)
    energy = polar.square()
    best, where = polar.abs().max(dim=1)
    order = sorted(range(6), key=lambda i: -float(best[i]))
    taken, columns = [], set()
    for i in order:
        if int(where[i]) not in columns:
            taken.append(i)
            columns.add(int(where[i]))
    counts = [k for k in (1, 2, 4) if k <= len(taken)]
    naive = min(
        log_p_matching(
            float(sum(best[i] for i in taken[:k])),
            n_narrow=6,
            n_wide=20,
            narrow_energy=float(sum(energy[i].sum() for i in taken[:k])),
            wide_energy=float(sum(energy[:, where[i]].sum() for i in taken[:k])),
            n_matched=k,
            signed=True,
        )
        for k in counts
    )
    assert log_p_of_pairs(polar) == pytest.approx(min(0.0, naive + math.log(len(counts))))


@pytest.mark.parametrize(("n_narrow", "n_wide"), [(16, 64), (64, 64), (64, 200)])
def test_haar_factors_are_not_significant(n_narrow, n_wide):
    # The bound holds at every level: of 200 draws none may lie below 1e-3 but with probability 0.2.
    p = [log_p_of_pairs(partial_isometry(n_narrow, n_wide, seed)) for seed in range(200)]
    assert sum(value < math.log(1e-3) for value in p) <= 2


def layers(n_layers, n_rows, width, seed):
    rows = torch.randn(n_layers, n_rows, width, generator=torch.Generator().manual_seed(seed))
    return torch.nn.functional.normalize(rows, dim=2)


def test_a_few_shared_rows_are_found_and_strangers_are_silent():
    few, many = layers(4, 96, 512, 1), layers(6, 48, 512, 2)
    silent = screen_rows(few, many)
    assert silent.shape == (6, 4)
    assert log_p_of_screen(silent, any_part=True) > math.log(1e-3)
    for layer in range(4):  # three rows of each, with a sign turned, in other places
        many[layer + 1, [5, 17, 40]] = few[layer, [80, 3, 44]] * torch.tensor([[1.0], [-1.0], [1.0]])
    found = screen_rows(few, many)
    assert [int(found[:, j].argmin()) for j in range(4)] == [1, 2, 3, 4]
    assert log_p_of_screen(found, any_part=False) < math.log(1e-10)


def test_one_layer_in_four_is_a_part_and_no_whole():
    cells = np.zeros((6, 4))
    cells[2, 1] = -60.0
    assert log_p_of_screen(cells, any_part=True) < -50.0
    assert log_p_of_screen(cells, any_part=False) == 0.0


def test_pairs_at_the_stated_noise_are_found():
    few, many, width, n_pairs = 242, 121, 896, 4
    level = math.log(1e-6)
    noise = strongest_noise_of_pairs(MatrixSizes(many, few, width + 1), n_pairs=n_pairs, log_level=level)
    assert 0.5 < noise < 20.0

    def share_found(factor):
        n_found = 0
        for seed in range(30):
            first, second = layers(1, few, width, 10 + seed), layers(1, many, width, 100 + seed)
            drawn = layers(1, n_pairs, width, 500 + seed)[0]
            copies = first[0, :n_pairs] + factor * noise * drawn
            second[0, 7 : 7 + n_pairs] = torch.nn.functional.normalize(copies, dim=1)
            n_found += bool(screen_rows(first, second)[0, 0] < level)
        return n_found / 30

    # A fifth of the trace is kept back for real weights (SAFETY), so that Gaussian ones are found with room to spare.
    assert share_found(1.0) == 1.0
    assert share_found(3.0) < 0.5
