from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from mdir_hf.method.layer_map import log_p_of_layers
from mdir_hf.method.screening import (
    NULL_Z,
    SHARED_ROWS,
    log_p_of_pairs,
    log_p_of_screen,
    polar_factors_of_wide,
    row_maximum_moments,
    sample_sizes,
    sampled_rows,
    screen_channels,
    screen_column,
    screen_rows,
)

from mdir_hf.method.polar import cross_product
from mdir_hf.method.power import MatrixSizes, strongest_noise_of_pairs
from mdir_hf.method.significance import log_p_matching

LOG_ALPHA = math.log(1e-10)


def gaussian(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def screened(layers: list[torch.Tensor], n_screened: int = 64) -> torch.Tensor:
    return torch.stack([layer[screen_channels(len(layer), n_screened, seed=0)] for layer in layers])


def test_screened_channels_are_fixed_by_the_seed_and_distinct():
    first = screen_channels(1024, 64, seed=5)
    assert torch.equal(first, screen_channels(1024, 64, seed=5))
    assert not torch.equal(first, screen_channels(1024, 64, seed=6))
    assert len(first.unique()) == 64


@pytest.mark.parametrize("signed", [False, True])
def test_null_moments_match_a_random_direction(signed):
    directions = gaussian(40_000, 200, seed=1).double()
    directions /= directions.norm(dim=1, keepdim=True)
    maxima = (directions.abs() if signed else directions).amax(dim=1)
    mean, sd = row_maximum_moments(200, signed=signed)
    # Five standard errors of a mean and of a standard deviation over 40 000 draws.
    assert float(maxima.mean()) == pytest.approx(mean, abs=5 * sd / 200)
    assert float(maxima.std()) == pytest.approx(sd, rel=5 / math.sqrt(80_000))


def test_null_moments_of_one_coordinate_are_plus_or_minus_one():
    mean, sd = row_maximum_moments(1, signed=False)
    assert (mean, sd) == pytest.approx((0.0, 1.0), abs=1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_batched_polar_factors_match_the_svd(dtype):
    cross = gaussian(5, 16, 90, seed=2).to(dtype)
    left, _, right = torch.linalg.svd(cross, full_matrices=False)
    tolerance = 2e-5 if dtype == torch.float32 else 1e-7  # a Gram matrix squares the condition number, about 10 here
    assert torch.allclose(polar_factors_of_wide(cross), left @ right, atol=tolerance)


def test_batched_polar_factors_drop_missing_directions():
    cross = gaussian(2, 12, 5, seed=3) @ gaussian(2, 5, 60, seed=4)
    energy = polar_factors_of_wide(cross).square().sum(dim=(1, 2))
    assert torch.allclose(energy, torch.full((2,), 5.0), atol=1e-3)


def test_a_dead_layer_gives_a_zero_factor_and_is_null():
    column = screen_column(torch.zeros(3, 16, 64), gaussian(200, 64, seed=5), signed=True)
    assert float(column.polar.abs().max()) == 0.0
    assert column.is_null.all()


@pytest.mark.parametrize("shape", [(48, 100, 33), (1, 64, 1)])
def test_cross_product_is_the_matrix_product(shape):
    rows, columns, n = shape
    a, b = gaussian(rows, n, seed=6), gaussian(columns, n, seed=7)
    expected = a.double() @ b.double().T
    assert torch.allclose(cross_product(a.T, b.T).double(), expected, atol=1e-5 * math.sqrt(n))


def test_cross_product_of_doubles_stays_double():
    product = cross_product(gaussian(8, 4, seed=1).double(), gaussian(8, 5, seed=2).double())
    assert product.dtype == torch.float64


@pytest.mark.parametrize("signed", [False, True])
def test_scores_of_unrelated_layers_are_standard(signed):
    layers = [gaussian(256, 512, seed=i) for i in range(24)]
    scores = np.concatenate(
        [screen_column(screened(layers), gaussian(256, 512, seed=100 + j), signed=signed).z for j in range(24)]
    )
    # 576 cells. The larger of the plain and signed scores has a mean of about 0.5 and a smaller spread. Row maxima are
    # skewed to the right, so one cell in several thousand exceeds 4, which only costs a full test.
    if signed:
        assert 0.1 < scores.mean() < 0.7
    else:
        assert abs(scores.mean()) < 0.2
        assert 0.85 < scores.std() < 1.15
    assert (scores >= NULL_Z).mean() < 0.005


def test_scores_are_standard_in_a_shared_residual_space():
    # The same spectrum, outlier channels and principal directions, none of them on the output side.
    shared = (torch.arange(1, 257) ** -0.7)[:, None] * torch.linalg.qr(gaussian(256, 256, seed=8)).Q
    shared[5] *= 30.0
    layers = [gaussian(200, 256, seed=i) @ shared for i in range(10)]
    scores = np.concatenate(
        [screen_column(screened(layers), gaussian(200, 256, seed=50 + j) @ shared, signed=False).z for j in range(10)]
    )
    assert scores.max() < NULL_Z
    assert abs(scores.mean()) < 0.4


def test_scores_of_layers_of_low_rank_are_standard_too():
    layers = [gaussian(200, 20, seed=i) @ gaussian(20, 256, seed=100 + i) for i in range(12)]
    scores = np.concatenate(
        [screen_column(screened(layers), gaussian(200, 256, seed=50 + j), signed=False).z for j in range(12)]
    )
    assert abs(scores.mean()) < 0.5


def test_unequal_channel_norms_move_a_whole_column():
    norms = torch.exp(1.2 * gaussian(256, 1, seed=9))
    layers = [gaussian(256, 512, seed=i) for i in range(12)]
    stranger = gaussian(256, 512, seed=60) * norms
    relative = (
        layers[7][torch.randperm(256, generator=torch.Generator().manual_seed(62))] + 3.0 * gaussian(256, 512, seed=61)
    ) * norms
    silent = screen_column(screened(layers), stranger, signed=True)
    assert (~silent.is_null).all()
    assert silent.is_bulk.sum() >= 11
    found = screen_column(screened(layers), relative, signed=True)
    assert list(np.flatnonzero(~found.is_null & ~found.is_bulk)) == [7]


def test_short_columns_have_no_bulk():
    layers = [gaussian(200, 200, seed=i) for i in range(4)]
    assert not screen_column(screened(layers), gaussian(200, 200, seed=9), signed=True).is_bulk.any()


def test_best_cell_of_a_column_is_never_in_its_bulk():
    layers = [gaussian(200, 200, seed=i) for i in range(12)]
    column = screen_column(screened(layers), gaussian(200, 200, seed=99), signed=True)
    assert not column.is_bulk[np.argmax(column.z)]


def test_narrower_candidates_are_screened_on_all_their_channels():
    layers = [gaussian(300, 400, seed=i) for i in range(2)]
    column = screen_column(screened(layers), gaussian(40, 400, seed=9), signed=True)
    assert column.polar.shape == (2, 40, 40)


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("width", [129, 256, 1024, 4096, 14336])
def test_the_screens_bound_is_not_significant_within_the_null_law(width, signed):
    mean, sd = row_maximum_moments(width, signed=signed)
    log_p = log_p_matching(
        64 * mean + NULL_Z * math.sqrt(64) * sd,
        sizes=(64, width),
        energies=(64.0, 64.0 * 64 / width),
        signed=signed,
    )
    assert log_p == 0.0


@pytest.mark.parametrize("kind", ["spread", "signed", "few_channels", "power_law"])
def test_no_significant_cell_lies_within_the_null_law(kind):
    channels, width = 256, 512
    n_significant = 0
    for seed in range(24):
        torch.manual_seed(seed)
        layer = torch.randn(channels, width)
        candidate = torch.randn(channels, width)
        permuted = layer[torch.randperm(channels)]
        if kind == "few_channels":
            kept = torch.randperm(channels)[: 30 + 2 * (seed % 12)]
            candidate[kept] = permuted[kept]
        else:
            # From no noise to more than the full test can detect.
            candidate = permuted + (2.0 + 0.25 * seed) * candidate
        if kind == "signed":
            candidate *= torch.randint(0, 2, (channels, 1)) * 2 - 1
        if kind == "power_law":
            spectrum = torch.arange(1, width + 1) ** -0.3
            layer, candidate = layer * spectrum, candidate * spectrum
        is_significant = log_p_of_layers(layer, candidate) < LOG_ALPHA
        n_significant += is_significant
        if is_significant:
            assert not screen_column(screened([layer]), candidate, signed=True).is_null[0], f"missed at seed {seed}"
    assert n_significant >= 10


# --- sampled rows: the sampling, the p of a few shared rows, and strangers


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
            sizes=(6, 20),
            energies=(
                float(sum(energy[i].sum() for i in taken[:k])),
                float(sum(energy[:, where[i]].sum() for i in taken[:k])),
            ),
            n_matched=k,
            signed=True,
        )
        for k in counts
    )
    assert log_p_of_pairs(polar) == pytest.approx(min(0.0, naive + math.log(len(counts))))


@pytest.mark.parametrize(("n_narrow", "n_wide"), [(16, 64), (64, 64), (64, 200)])
def test_haar_factors_are_not_significant(n_narrow, n_wide):
    # The bound holds at every level: one of 200 draws falls below 1e-3 with probability 0.2.
    p = [log_p_of_pairs(partial_isometry(n_narrow, n_wide, seed)) for seed in range(200)]
    assert sum(value < math.log(1e-3) for value in p) <= 2


def layers(n_layers, n_rows, width, seed):
    rows = torch.randn(n_layers, n_rows, width, generator=torch.Generator().manual_seed(seed))
    return torch.nn.functional.normalize(rows, dim=2)


def test_a_few_shared_rows_are_found_and_strangers_do_not_match():
    few, many = layers(4, 96, 512, 1), layers(6, 48, 512, 2)
    silent = screen_rows(few, many)
    assert silent.shape == (6, 4)
    assert log_p_of_screen(silent, any_part=True) > math.log(1e-3)
    for layer in range(4):  # three rows of each, one with its sign flipped, in different places
        many[layer + 1, [5, 17, 40]] = few[layer, [80, 3, 44]] * torch.tensor([[1.0], [-1.0], [1.0]])
    found = screen_rows(few, many)
    assert [int(found[:, j].argmin()) for j in range(4)] == [1, 2, 3, 4]
    assert log_p_of_screen(found, any_part=False) < math.log(1e-10)


def test_one_layer_in_four_is_a_part_but_not_the_whole():
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

    # A fifth of the trace is reserved for real weights (SAFETY), so Gaussian weights are found with a margin.
    assert share_found(1.0) == 1.0
    assert share_found(3.0) < 0.5
