import math

import numpy as np
import pytest
import torch

from mdir_hf.method.rows import long_rows, pair_rows, usual_rows
from tests.method import reference as textbook


def draw(r=40, n=8, seed=0, dtype=torch.float64):
    return torch.from_numpy(np.random.default_rng(seed).standard_normal((r, n)) + 3.0).to(dtype)


def test_rows_are_centred_first_and_then_given_unit_length():
    x, y = draw(seed=1), draw(n=12, seed=2)
    found = pair_rows(x, y)
    np.testing.assert_allclose(found.reference, textbook.centred_unit_rows(x), atol=1e-14)
    np.testing.assert_allclose(found.candidate, textbook.centred_unit_rows(y), atol=1e-14)
    assert found.is_kept.all()


def test_preparation_turns_with_the_model():
    x, y = draw(seed=1), draw(seed=2)
    x[3] = 0.0
    q = torch.from_numpy(textbook.haar(8, np.random.default_rng(3)))
    plain, turned = pair_rows(x, y), pair_rows(x @ q, y)
    np.testing.assert_allclose(turned.reference, plain.reference @ q, atol=1e-12)
    np.testing.assert_allclose(turned.candidate, plain.candidate, atol=1e-12)
    assert torch.equal(turned.is_kept, plain.is_kept)


def test_scaling_a_model_changes_nothing():
    x, y = draw(seed=1), draw(seed=2)
    np.testing.assert_allclose(pair_rows(1e-4 * x, 50.0 * y).reference, pair_rows(x, y).reference, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_any_floating_dtype_is_computed_in_float64(dtype):
    x = draw(seed=1).to(dtype)
    found = pair_rows(x, draw(seed=2))
    assert found.reference.dtype is torch.float64
    np.testing.assert_allclose(found.reference, textbook.centred_unit_rows(x.double()), atol=1e-14)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_inputs_are_not_changed(dtype):
    x, y = draw(seed=1, dtype=dtype), draw(seed=2, dtype=dtype)
    before = x.clone(), y.clone()
    pair_rows(x, y)
    assert torch.equal(x, before[0])
    assert torch.equal(y, before[1])


def test_a_row_of_zeros_is_dropped_before_the_mean_is_taken():
    x, y = draw(seed=1), draw(seed=2)
    whole = pair_rows(x[4:], y[4:])
    x[:2] = 0.0
    y[2:4] = 0.0
    found = pair_rows(x, y)
    assert found.is_kept.tolist() == [False] * 4 + [True] * 36
    np.testing.assert_allclose(found.reference, whole.reference, atol=1e-14)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_row_that_is_not_finite_is_dropped_without_other_effects(bad):
    x, y = draw(seed=1), draw(seed=2)
    y[7, 3] = bad
    found = pair_rows(x, y)
    assert not found.is_kept[7]
    assert found.is_kept.sum() == 39
    assert torch.isfinite(found.reference).all()
    assert torch.isfinite(found.candidate).all()


@pytest.mark.parametrize("times", [2e3, 1e18, 1e200])
def test_a_few_rows_of_any_length_do_not_become_the_mean_of_all(times):
    x, y = draw(seed=1), draw(seed=2)
    whole = pair_rows(x[3:], y[3:])
    y[:3] *= times
    found = pair_rows(x, y)
    assert found.is_kept.tolist() == [False] * 3 + [True] * 37
    np.testing.assert_allclose(found.candidate, whole.candidate, atol=1e-14)


def test_rows_that_are_all_alike_leave_nothing():
    x = torch.full((20, 8), 0.1, dtype=torch.float64)
    found = pair_rows(x, draw(r=20))
    assert found.reference.shape == (0, 8)
    assert not found.is_kept.any()
    assert not usual_rows(x).any()


def test_a_pair_leaves_out_rows_unusual_in_one_model():
    x = draw(r=40, dtype=torch.float32)
    x[0], x[1], x[2], x[3, 1] = 0.0, x[4:].mean(dim=0), 1e30 * x[2], math.nan
    kept = usual_rows(x)
    assert kept.tolist() == [False] * 4 + [True] * 36
    assert kept.tolist() == pair_rows(x, draw(r=40, seed=1)).is_kept.tolist()
    assert long_rows(x[[0, 1, 2, *range(4, 40)]]).tolist() == [False, False, True, *[False] * 36]


@pytest.mark.parametrize("r", [0, 1])
def test_fewer_than_two_rows_give_no_rows_and_no_warning(r):
    found = pair_rows(draw(r=r), draw(r=r, n=12))
    assert found.reference.shape == (0, 8)
    assert found.candidate.shape == (0, 12)


def test_mostly_empty_rows_keep_the_few_that_are_not():
    x = torch.zeros(30, 8, dtype=torch.float64)
    x[::5] = draw(r=6)
    assert pair_rows(x, draw(r=30)).is_kept.tolist() == [k % 5 == 0 for k in range(30)]
