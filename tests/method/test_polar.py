import math

import numpy as np
import pytest
import torch

from mdir_hf.method import polar
from mdir_hf.method.matching import best_matching
from mdir_hf.method.polar import (
    polar_factor,
    polar_factor_of_rows,
    row_factors,
    whitened_core,
    whitened_polar_factor,
    whitener,
)
from tests.method import reference as textbook

# Entries of an orthogonal factor are at most 1 and cost a few hundred roundings.
ENTRY = 1e-10


def rows(r, n, seed=0, rank=None):
    rng = np.random.default_rng(seed)
    if rank is None:
        return torch.from_numpy(rng.standard_normal((r, n)))
    return torch.from_numpy(rng.standard_normal((r, rank)) @ rng.standard_normal((rank, n)))


def whitened(cross, x, y):
    by = whitener(x), whitener(y)
    return whitened_polar_factor(whitened_core(cross, *by), *by)


@pytest.mark.parametrize("shape", [(16, 16), (12, 30), (30, 12), (1, 8)])
def test_at_full_rank_it_is_the_textbooks_polar_factor(shape):
    cross = rows(*shape)
    factor = polar_factor(cross)
    np.testing.assert_allclose(factor.matrix.numpy(), textbook.polar(cross.numpy()), atol=ENTRY)
    assert factor.rank == min(shape)


def test_a_rank_deficient_factor_keeps_the_datas_directions():
    cross = rows(20, 20, rank=7)
    factor = polar_factor(cross)
    assert factor.rank == 7
    assert float((factor.matrix**2).sum()) == pytest.approx(7.0, abs=ENTRY)
    projector = torch.linalg.pinv(cross) @ cross
    np.testing.assert_allclose((factor.matrix @ projector).numpy(), factor.matrix.numpy(), atol=1e-8)


def test_the_factor_turns_with_the_model():
    cross, q = rows(24, 24), torch.from_numpy(textbook.haar(24, np.random.default_rng(1)))
    np.testing.assert_allclose(polar_factor(cross @ q).matrix, polar_factor(cross).matrix @ q, atol=1e-9)


def test_a_product_of_zeros_has_rank_zero():
    factor = polar_factor(torch.zeros(5, 8, dtype=torch.float64))
    assert factor.rank == 0
    assert not factor.matrix.any()


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_values_that_are_not_finite_are_refused(bad):
    cross = rows(6, 4)
    cross[2, 1] = bad
    with pytest.raises(ValueError, match=r"\(6, 4\).*not finite"):
        polar_factor(cross)


@pytest.mark.parametrize("r", [3, 15, 16, 60])
def test_the_factor_of_few_rows_equals_the_factor_of_their_cross_product(r):
    x, y = rows(r, 16, seed=1), rows(r, 24, seed=2)
    found = polar_factor_of_rows(row_factors(x), row_factors(y), whitened=False)
    np.testing.assert_allclose(found.matrix, polar_factor(x.T @ y).matrix, atol=1e-8)
    assert found.rank == min(r, 16)


@pytest.mark.parametrize("r", [8, 60])
def test_the_whitened_factor_of_rows_equals_the_factor_of_whitened_rows(r):
    x, y = rows(r, 16, seed=1), rows(r, 16, seed=2)
    expected = textbook.polar(textbook.whitened_rows(x.numpy()).T @ textbook.whitened_rows(y.numpy()))
    found = polar_factor_of_rows(row_factors(x), row_factors(y), whitened=True)
    if r < 16:  # the textbook completes the null space: compare inside the span of the rows
        span = row_factors(x).right.numpy()
        np.testing.assert_allclose(span.T @ found.matrix.numpy(), span.T @ expected, atol=1e-8)
    else:
        np.testing.assert_allclose(found.matrix, expected, atol=1e-8)


def test_whitening_by_all_rows_is_whitening_the_rows():
    x, y = rows(80, 16, seed=1), rows(80, 24, seed=2)
    streamed = whitened(x.T @ y, x, y)
    at_once = polar_factor_of_rows(row_factors(x), row_factors(y), whitened=True)
    np.testing.assert_allclose(streamed.matrix, at_once.matrix, atol=1e-8)


def test_whitening_by_a_sample_turns_with_the_model():
    x, y = rows(80, 16, seed=1), rows(80, 16, seed=2)
    q = torch.from_numpy(textbook.haar(16, np.random.default_rng(3)))
    for few in (6, 40):
        plain = whitened(x.T @ y, x[:few], y[:few])
        turned = whitened(x.T @ y @ q, x[:few], (y @ q)[:few])
        np.testing.assert_allclose(turned.matrix, plain.matrix @ q, atol=1e-8)


@pytest.mark.parametrize("shape", [(9, 30), (30, 9)])
def test_row_factors_put_the_rows_together_again(shape):
    x = rows(*shape, rank=5)
    found = row_factors(x)
    assert found.scale.shape == (5,)
    np.testing.assert_allclose((found.left * found.scale) @ found.right.T, x, atol=1e-10)


@pytest.mark.parametrize("has_onednn", [True, False])
def test_a_float32_product_is_the_float64_one_rounded(monkeypatch, has_onednn):
    monkeypatch.setattr(polar, "_HAS_ONEDNN", has_onednn)
    x, y = rows(300, 17, seed=1), rows(300, 23, seed=2)
    found = polar.cross_product(x.float(), y.float())
    assert found.dtype is torch.float32
    np.testing.assert_allclose(found, x.T @ y, atol=1e-3)  # sums of 300 products of size 1, rounded to 6e-8 each


def test_a_torch_without_its_onednn_kernel_still_multiplies(monkeypatch):
    def missing(*_args):
        raise RuntimeError("no kernel")

    monkeypatch.setattr(torch.ops.mkldnn, "_linear_pointwise", missing, raising=False)
    monkeypatch.setattr(polar, "_HAS_ONEDNN", True)
    x = rows(10, 4).float()
    np.testing.assert_allclose(polar.cross_product(x, x), x.T @ x, rtol=1e-6)


class TestNullDirections:
    """A product of rank n < m neurons: which basis its null spaces get is an accident, and no evidence."""

    m = 256

    def product(self, n, noise=None):
        """``W'^T W`` of two (n, m) matrices; noise None for strangers, else a relative that drifted by it."""
        one, other = rows(n, self.m, seed=3), rows(n, self.m, seed=4)
        return (other if noise is None else one + noise * other).T @ one

    def null_bases(self, cross):
        """Some orthonormal bases of what the product maps to nothing, and of what it never reaches."""
        left, _, right_t = torch.linalg.svd(cross)
        rank = polar_factor(cross).rank
        return left[:, rank:], right_t[rank:].T

    def completion(self, cross, *, is_adversarial):
        """A partial isometry between the null spaces: one of largest trace, or one drawn at random."""
        left, right = self.null_bases(cross)
        if is_adversarial:
            between = polar_factor(left.T @ right).matrix
        else:
            between = torch.from_numpy(textbook.haar(left.shape[1], np.random.default_rng(5)))
        return left @ between @ right.T

    @pytest.mark.parametrize("n", [48, 96])
    def test_the_factor_knows_no_null_direction(self, n):
        cross = self.product(n)
        factor, (left, right) = polar_factor(cross), self.null_bases(cross)
        assert factor.rank == n
        assert float((left.T @ factor.matrix).abs().max()) < ENTRY
        assert float((factor.matrix @ right).abs().max()) < ENTRY

    @pytest.mark.parametrize("n", [48, 96])
    @pytest.mark.parametrize("is_adversarial", [True, False])
    def test_a_completed_factor_says_what_its_completion_says(self, n, is_adversarial):
        # Both complete the same strangers' factor to an orthogonal matrix, which is all that the paper's bound asks.
        cross = self.product(n)
        completed = polar_factor(cross).matrix + self.completion(cross, is_adversarial=is_adversarial)
        np.testing.assert_allclose(completed @ completed.T, np.eye(self.m), atol=ENTRY)
        log_p = best_matching(completed, signed=False).log_p
        assert log_p < math.log(1e-10) if is_adversarial else log_p == 0.0

    @pytest.mark.parametrize("n", [48, 96])
    @pytest.mark.parametrize("signed", [False, True])
    def test_the_truncated_factor_of_strangers_is_not_significant(self, n, signed):
        assert best_matching(polar_factor(self.product(n)).matrix, signed=signed).log_p == 0.0

    @pytest.mark.parametrize("n", [48, 96])
    def test_rounding_along_an_adversary_changes_nothing(self, n):
        cross = self.product(n)
        size = 1e-15 * float(torch.linalg.matrix_norm(cross, 2))
        rounded = polar_factor(cross + size * self.completion(cross, is_adversarial=True))
        assert rounded.rank == n
        np.testing.assert_allclose(rounded.matrix, polar_factor(cross).matrix, atol=ENTRY)
        assert best_matching(rounded.matrix, signed=False).log_p == 0.0

    def test_at_rank_n_the_bound_has_m_over_n_times_the_papers_exponent(self):
        n = 96
        found = best_matching(polar_factor(self.product(n, noise=1.0)).matrix, signed=False)
        assert found.log_p == pytest.approx(math.lgamma(self.m + 1) - self.m / n * found.trace**2 / 2, rel=1e-9)
        assert found.log_p < math.log(1e-10)  # the relative is seen without any completion


@pytest.mark.parametrize("smallest", [0.1, 1e-3, 1e-5, 1e-9])
def test_few_rows_keep_small_directions_as_exactly_as_an_svd(smallest):
    # Down to 1e-4 the r x r Gram matrix is good enough; below, the SVD has to decide; both are right.
    rng = np.random.default_rng(0)
    left, right = textbook.haar(12, rng), textbook.haar(40, rng)[:, :12]
    scale = np.geomspace(1.0, smallest, 12)
    found = row_factors(torch.from_numpy((left * scale) @ right.T))
    assert found.scale.shape == (12,)
    np.testing.assert_allclose(found.scale, scale, rtol=1e-6)
    # Neighbouring directions turn by rounding over their size.
    np.testing.assert_allclose(np.abs((found.right.numpy() * right).sum(axis=0)), 1.0, atol=1e-6)
