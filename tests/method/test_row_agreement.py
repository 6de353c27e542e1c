"""Sampled rows under their own numbers: the bound, the reason to centre rows, and the meaning of the shares."""

import math

import numpy as np
import pytest
import torch

from mdir_hf.method.neurons import unit_rows
from mdir_hf.method.row_agreement import (
    N_STEPS,
    QUINTIC,
    centred_rows,
    compare_rows,
    deciles,
    flattened,
    log_p_fixed,
    share_alike_of_columns,
)


def gaussian(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def naive_log_p(x, y):
    """The bound of one pair by an SVD, row by row, in numpy."""
    x, y = (side / np.linalg.norm(side, axis=1, keepdims=True) for side in (x, y))
    x, y = x - x.mean(axis=0), y - y.mean(axis=0)
    left, scale, right = np.linalg.svd(x @ y.T)
    scale = scale / np.linalg.norm(scale)
    for _ in range(N_STEPS):
        scale = sum(c * scale**power for c, power in zip(QUINTIC, (1, 3, 5), strict=True))
    factor = left @ np.diag(scale) @ right
    return min(0.0, math.log(2.0) - (len(x) - 1) * np.trace(factor) ** 2 / (2.0 * (factor**2).sum()))


def test_the_bound_matches_a_naive_reference():
    x = gaussian(2, 24, 40, seed=1, dtype=torch.float64)
    y = torch.cat(
        [x[:1] + 2.0 * gaussian(1, 24, 40, seed=2, dtype=torch.float64), gaussian(2, 24, 40, seed=3).double()]
    )
    found = compare_rows(x, y).log_p
    expected = [[naive_log_p(a.numpy(), b.numpy()) for b in y] for a in x]
    assert np.allclose(found, expected, rtol=1e-9, atol=1e-9)
    assert found[0, 0] < -20.0


def test_single_precision_changes_no_log_p_by_a_millionth():
    x = gaussian(3, 64, 256, seed=4)
    y = x + gaussian(3, 64, 256, seed=5)
    wide = compare_rows(x.double(), y.double()).log_p.diagonal()
    assert np.allclose(compare_rows(x, y).log_p.diagonal(), wide, rtol=1e-6)


def test_polynomial_factors_turn_with_their_rows():
    # The proof requires f to act only on singular values: U of Q M is Q U.
    cross, turn = gaussian(12, 12, seed=6, dtype=torch.float64), torch.linalg.qr(gaussian(12, 12, seed=7).double()).Q
    assert torch.allclose(flattened(turn @ cross), turn @ flattened(cross), atol=1e-12)
    wide = gaussian(5, 12, seed=8, dtype=torch.float64)
    assert torch.allclose(flattened(wide.T), flattened(wide).T, atol=1e-12)


def test_strangers_with_outliers_and_a_shared_mean_do_not_match():
    # 10,000 pairs that share heavy channels and a mean row as long as the rest of a row.
    scale = torch.ones(96)
    scale[:6] = 12.0
    mean = gaussian(96, seed=9) * scale
    sides = [gaussian(100, 32, 96, seed=seed) * scale + mean for seed in (10, 11)]
    log_p = compare_rows(*sides).log_p
    assert (log_p < math.log(0.01)).mean() < 0.005
    assert log_p.min() > math.log(1e-5)


def test_uncentred_rows_would_match_strangers():
    # Different rows of the same layer, which share only their mean row.
    mean = gaussian(256, seed=12)
    x, y = (gaussian(64, 256, seed=seed) + mean for seed in (13, 14))
    factor = flattened(unit_rows(x) @ unit_rows(y).T).double()
    uncentred = log_p_fixed(float(factor.trace()), float(factor.square().sum()), 65, log_n_choices=math.log(2.0))
    assert uncentred < math.log(1e-10)
    assert compare_rows(x[None], y[None]).log_p[0, 0] > math.log(0.01)


def test_the_null_of_a_fixed_matching_is_a_bound():
    # Haar rotations of one side's centred space, for any fixed other side.
    x = gaussian(9, 30, seed=15, dtype=torch.float64)
    ones = torch.ones(9, 1, dtype=torch.float64)
    basis = torch.linalg.qr(torch.cat([ones, gaussian(9, 8, seed=16).double()], dim=1)).Q[:, 1:]
    turns = torch.linalg.qr(gaussian(4000, 8, 8, seed=17, dtype=torch.float64))
    turned = basis @ (turns.Q * turns.R.diagonal(dim1=1, dim2=2).sign()[:, None]) @ basis.T @ centred_rows(x)
    factor = flattened(centred_rows(x) @ turned.mT)
    trace = factor.diagonal(dim1=1, dim2=2).sum(1).numpy()
    log_p = log_p_fixed(trace, factor.square().sum((1, 2)).numpy(), 9, log_n_choices=math.log(2.0))
    for level in (0.3, 0.1, 0.03, 0.01):
        assert (log_p < math.log(level)).mean() <= level


def test_rows_of_the_opposite_sign_agree_as_well():
    x = gaussian(1, 32, 64, seed=18)
    found = compare_rows(x, -x)
    assert found.log_p[0, 0] == pytest.approx(compare_rows(x, x).log_p[0, 0], rel=1e-6)
    assert found.own_share[0, 0] == 1.0
    assert found.cosine[0, 0] == pytest.approx(-1.0)


@pytest.mark.parametrize(
    ("n_replaced", "noise", "share"), [(0, 0.3, 1.0), (0, 3.0, 1.0), (32, 0.3, 0.5), (48, 0.0, 0.25)]
)
def test_the_share_tells_replaced_rows_from_noise(n_replaced, noise, share):
    x = gaussian(4, 64, 256, seed=19)
    y = x + noise * gaussian(4, 64, 256, seed=20)
    y[:, :n_replaced] = gaussian(4, n_replaced, 256, seed=21)
    found = compare_rows(x, y)
    kept, error = found.kept_share.diagonal(), found.kept_error.diagonal()
    assert np.all(np.abs(kept - share) < 3.0 * error + 0.03)


def test_moved_columns_show_in_the_share_of_columns():
    x = gaussian(64, 300, seed=22)
    y = x + 0.3 * gaussian(64, 300, seed=23)
    assert share_alike_of_columns(x, y)[0] > 0.97
    y[:, :200] = y[:, torch.randperm(200, generator=torch.Generator().manual_seed(24))]
    assert share_alike_of_columns(x, y)[0] == pytest.approx(1 / 3, abs=0.05)


def test_zero_rows_and_equal_rows_have_no_partner():
    x = gaussian(1, 16, 32, seed=25)
    x[0, :4] = 0.0
    x[0, 5] = x[0, 4]
    found = compare_rows(x, x)
    assert found.own_share[0, 0] == 10 / 16
    assert compare_rows(torch.zeros_like(x), x).log_p[0, 0] == 0.0


def test_deciles_ascend_and_hold_the_median():
    values = deciles(np.linspace(-1.0, 1.0, 101))
    assert len(values) == 9
    assert values[4] == pytest.approx(0.0)
    assert list(values) == sorted(values)


def test_layers_at_their_own_places_agree_as_among_all_pairs():
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(5, 16, 40, generator=generator)
    y = x + torch.randn(5, 16, 40, generator=generator)
    every, own = compare_rows(x, y), compare_rows(x, y, own_places=True)
    places = np.arange(5)
    for name in ("log_p", "cosine", "own_share", "kept_share", "kept_error", "row_cosines"):
        expected, found = (getattr(agreement, name) for agreement in (every, own))
        assert np.allclose(found[places, places], expected[places, places], rtol=1e-4, atol=1e-6), name
        assert found.shape == expected.shape
    assert not own.log_p[0, 1:].any()
