"""The power of a test without a significant result, checked against planted copies and against the bound itself."""

import math

import pytest
import torch

from mdir_hf.lineage.index.base_index import _log_p
from mdir_hf.method.embedding import TESTS_PER_MATRIX, look_at_rows
from mdir_hf.method.polar import orthonormal_rows
from mdir_hf.method.power import (
    STRONGEST,
    MatrixSizes,
    expected_trace,
    noise_of_few_rows,
    strongest_noise,
)

LOG_ALPHA = math.log(1e-10)
LOG_LEVEL = LOG_ALPHA - math.log(TESTS_PER_MATRIX)


def test_a_copy_without_noise_keeps_its_whole_trace():
    for rows in (1.0, 4.0, 40.0):
        share, rank = expected_trace(0.0, rows)
        assert share == pytest.approx(1.0, abs=1e-9) and rank == 1.0


def test_on_fewer_rows_than_channels_the_trace_is_the_rank():
    share, rank = expected_trace(0.0, 0.5)
    assert share == pytest.approx(0.5, abs=0.01) and rank == pytest.approx(0.5)


def test_the_trace_falls_with_noise_and_rises_with_rows():
    falling = [expected_trace(noise, 4.0)[0] for noise in (0.0, 0.5, 1.0, 2.0, 4.0, 8.0)]
    assert falling == sorted(falling, reverse=True)
    rising = [expected_trace(3.0, rows)[0] for rows in (1.0, 2.0, 4.0, 8.0, 16.0, 64.0)]
    assert rising == sorted(rising)


@pytest.mark.parametrize("noise", [1.0, 4.0])
def test_the_share_of_the_trace_does_not_depend_on_the_width(noise):
    n, n_rows = 240, 960
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(n_rows, n, generator=generator, dtype=torch.float64)
    y = x + noise * torch.randn(n_rows, n, generator=generator, dtype=torch.float64)
    left, _, right = torch.linalg.svd(y.T @ x)

    # Shares of two sizes differ by O(1/n), 1/96 for the simulated factor, plus sampling error of that order.
    assert float((left @ right).trace()) / n == pytest.approx(expected_trace(noise, 4.0)[0], abs=0.04)


def test_more_rows_exclude_stronger_noise():
    noise = [strongest_noise(MatrixSizes(192, 192, rows), log_level=LOG_LEVEL) for rows in (5, 192, 768, 4096, 50_000)]
    assert noise[0] == 0.0  # rank four is not enough for a search among all orders of the channels
    assert noise == sorted(noise) and noise[-1] <= STRONGEST


@pytest.mark.parametrize(("n", "n_rows"), [(192, 768), (512, 61), (384, 300)])
def test_copies_planted_at_the_stated_noise_are_found(n, n_rows):
    noise = strongest_noise(MatrixSizes(n, n, n_rows), log_level=LOG_LEVEL)
    assert noise > 0.5
    for seed in range(8):
        assert planted(n, n_rows, noise, seed).is_significant, seed
    assert not all(planted(n, n_rows, 2.5 * noise, seed).is_significant for seed in range(8))


def planted(n, n_rows, noise, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n_rows, n, generator=generator)
    y = x + noise * torch.randn(n_rows, n, generator=generator)
    return look_at_rows(x, y[:, torch.randperm(n, generator=generator)], log_alpha=LOG_ALPHA)


@pytest.mark.parametrize("rows_per_channel", [0.02, 0.3, 1.0, 8.0])
def test_noise_alone_keeps_nothing_of_the_trace(rows_per_channel):
    # The trace of a copy falls as 1 / k; the trace of pure noise would stay at about 1 / 96.
    shares = [expected_trace(noise, rows_per_channel)[0] for noise in (100.0, 1000.0, 10_000.0)]
    assert 0.0 < shares[1] < 0.01 * max(1.0, rows_per_channel)
    assert shares[1] == pytest.approx(shares[0] / 10.0, rel=0.3)
    assert shares[2] == pytest.approx(shares[1] / 10.0, rel=0.1)


def test_far_beyond_the_stated_noise_nothing_is_found():
    noise = 6.0 * strongest_noise(MatrixSizes(96, 96, 400), log_level=LOG_LEVEL)
    assert not planted(96, 400, noise, 0).is_significant


@pytest.mark.parametrize(
    ("sizes", "stated"), [((192, 256, 2000), 6.29), ((32, 48, 300), 1.29), ((24, 24, 400), 0.0), ((30, 30, 400), 0.923)]
)
def test_excluded_noise_at_other_widths(sizes, stated):
    # Values of 2026-11-23. In narrow models the match itself is most of the energy.
    found = strongest_noise(MatrixSizes(*sizes), log_level=LOG_ALPHA - 6.0)
    assert found == pytest.approx(stated, rel=0.015)  # the search for the limit is exact to 1 %


def test_many_rows_of_a_channel_act_as_less_noise():
    assert expected_trace(3.0, 64.0) == expected_trace(1.5, 16.0) != expected_trace(1.5, 15.0)
    fewer = expected_trace(1.5 * math.sqrt(15 / 16), 15.0)[0]  # 16 rows are simulated as 16, not as 15
    assert expected_trace(1.5, 16.0)[0] != pytest.approx(fewer, abs=1e-6)


def test_the_simulated_factor_keeps_the_share_of_rows():
    one_row = expected_trace(1.0, 1 / 96)
    assert one_row[1] == 1 / 96
    assert expected_trace(1.0, 0.4 / 96)[0] == pytest.approx(0.4 * one_row[0])
    assert expected_trace(1.0, 10.4 / 96) == expected_trace(1.0, 10 / 96)
    assert expected_trace(1.0, 4.0, 0.001) == expected_trace(1.0, 4.0, 2 / 96)


@pytest.mark.parametrize(("n_pairs", "offset"), [(8, 0.0), (8, 5.0), (3, 0.0)])
def test_few_rows_exclude_the_noise_that_the_formula_gives(n_pairs, offset):
    # Pairs of opposite rows, orthogonal to other pairs: half of the eigenvalues are 2 and the others 0, whatever the
    # norms of the rows and the common offset.
    width, log_level = 400, math.log(1e-6)
    ahead = torch.diag(torch.linspace(1.0, 9.0, n_pairs)) @ torch.eye(n_pairs, width)
    rows = torch.cat([ahead, -ahead]) + offset * torch.ones(width)
    rank = 2 * n_pairs - 1  # centring takes one
    needed = math.sqrt(-2.0 * log_level * rank / width) + 2.33 * math.sqrt(rank / width)
    mean = 2.0 * n_pairs / rank
    expected = math.sqrt(2.0 / mean * ((0.8 * n_pairs / needed) ** 2 - 1.0))

    assert noise_of_few_rows(rows, log_level=log_level) == pytest.approx(expected, rel=0.011)  # exact to 1 %


def test_stated_noise_is_at_most_a_thousand_times_the_weights():
    assert strongest_noise(MatrixSizes(512, 512, 1_000_000_000), log_level=math.log(0.5)) == STRONGEST


@pytest.mark.parametrize(("n_rows", "width"), [(61, 1536), (96, 576), (23, 2048)])
def test_a_copy_of_few_rows_at_the_stated_noise_is_significant(n_rows, width):
    spectrum = torch.linspace(3.0, 0.3, n_rows)[:, None]  # rows of real embeddings are not white noise
    turn = torch.linalg.qr(torch.randn(n_rows, n_rows, generator=torch.Generator().manual_seed(0)))[0]
    rows = turn @ (spectrum * torch.randn(n_rows, width, generator=torch.Generator().manual_seed(1)))
    level = math.log(1e-10 / 8)
    noise = noise_of_few_rows(rows, log_level=level)
    size = float((rows - rows.mean(0)).pow(2).mean().sqrt())

    def log_p(seed, factor):
        noised = rows + factor * noise * size * torch.randn(rows.shape, generator=torch.Generator().manual_seed(seed))
        return _log_p(orthonormal_rows(rows), orthonormal_rows(noised))[1]

    assert sum(log_p(seed, 1.0) < level for seed in range(40)) >= 39
    assert sum(log_p(seed, 3.0) < level for seed in range(40)) <= 4
