import math

import numpy as np
import pytest
import torch

from mdir_hf.method import polar
from mdir_hf.method.matching import best_matching
from mdir_hf.method.polar import (
    _dense,
    cross_product,
    matched_order,
    polar_factor,
    polar_factor_of_rows,
    reduce_peaks,
    row_factors,
    thin_svd,
)
from tests.method import reference as textbook

# Entries of an orthogonal factor are at most 1 and take a few hundred roundings.
ENTRY = 1e-10


def rows(r, n, seed=0, rank=None):
    rng = np.random.default_rng(seed)
    if rank is None:
        return torch.from_numpy(rng.standard_normal((r, n)))
    return torch.from_numpy(rng.standard_normal((r, rank)) @ rng.standard_normal((rank, n)))


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
    if r < 16:  # the textbook completes the null space; compare inside the span of the rows
        span = row_factors(x).right.numpy()
        np.testing.assert_allclose(span.T @ found.matrix.numpy(), span.T @ expected, atol=1e-8)
    else:
        np.testing.assert_allclose(found.matrix, expected, atol=1e-8)


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
    """A product of rank n < m neurons: the bases of its null spaces are arbitrary and are no evidence."""

    m = 256

    def product(self, n, noise=None):
        """``W'^T W`` of two (n, m) matrices: strangers if noise is None, else a relative with this much drift."""
        one, other = rows(n, self.m, seed=3), rows(n, self.m, seed=4)
        return (other if noise is None else one + noise * other).T @ one

    def null_bases(self, cross):
        """Orthonormal bases of the product's null space and of the complement of its range."""
        left, _, right_t = torch.linalg.svd(cross)
        rank = polar_factor(cross).rank
        return left[:, rank:], right_t[rank:].T

    def completion(self, cross, *, is_adversarial):
        """A partial isometry between the null spaces, either random or with the largest trace."""
        left, right = self.null_bases(cross)
        if is_adversarial:
            between = polar_factor(left.T @ right).matrix
        else:
            between = torch.from_numpy(textbook.haar(left.shape[1], np.random.default_rng(5)))
        return left @ between @ right.T

    @pytest.mark.parametrize("n", [48, 96])
    def test_the_factor_ignores_null_directions(self, n):
        cross = self.product(n)
        factor, (left, right) = polar_factor(cross), self.null_bases(cross)
        assert factor.rank == n
        assert float((left.T @ factor.matrix).abs().max()) < ENTRY
        assert float((factor.matrix @ right).abs().max()) < ENTRY

    @pytest.mark.parametrize("n", [48, 96])
    @pytest.mark.parametrize("is_adversarial", [True, False])
    def test_p_of_a_completed_factor_depends_on_the_completion(self, n, is_adversarial):
        # Both complete the strangers' factor to an orthogonal matrix, which is all that the paper's bound requires.
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
        assert found.log_p < math.log(1e-10)  # the relative is detected without any completion


@pytest.mark.parametrize("smallest", [0.1, 1e-3, 1e-5, 1e-9])
def test_few_rows_keep_small_directions_as_exactly_as_an_svd(smallest):
    # Down to 1e-4 the r x r Gram matrix is accurate enough; below, the SVD is needed. Both are right.
    rng = np.random.default_rng(0)
    left, right = textbook.haar(12, rng), textbook.haar(40, rng)[:, :12]
    scale = np.geomspace(1.0, smallest, 12)
    found = row_factors(torch.from_numpy((left * scale) @ right.T))
    assert found.scale.shape == (12,)
    np.testing.assert_allclose(found.scale, scale, rtol=1e-6)
    # Rounding rotates neighbouring directions by the rounding error over their size.
    np.testing.assert_allclose(np.abs((found.right.numpy() * right).sum(axis=0)), 1.0, atol=1e-6)


# --- every path of a matrix product gives the values of a plain product, in every memory layout


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("cut", [0, 1, 7])
def test_slices_of_wider_matrices_multiply_like_any_other(dtype, cut):
    wide = torch.randn(64, 48, dtype=dtype, generator=torch.Generator().manual_seed(0))
    left, right = wide[:, : 48 - cut], wide[:, cut:]
    expected = left.double().T @ right.double()
    # 64 products of unit size, each rounded to 1e-7 in float32.
    torch.testing.assert_close(cross_product(left, right).double(), expected, rtol=0, atol=1e-4)
    torch.testing.assert_close(
        cross_product(left.T, right.T).double(), left.double() @ right.double().T, rtol=0, atol=1e-4
    )


def test_only_slices_are_copied():
    matrix = torch.zeros(8, 6)
    assert _dense(matrix) is matrix
    transposed = matrix.t()
    assert _dense(transposed) is transposed
    assert _dense(matrix[:, :5]).is_contiguous()


# --- singular value decompositions that converge if LAPACK's fast method does not


@pytest.fixture
def svd_never_converges(monkeypatch):
    """Replace torch's SVD, which calls oneMKL or OpenBLAS, with one that never converges."""

    def svd(matrix, **_):
        raise torch.linalg.LinAlgError("The algorithm failed to converge")

    monkeypatch.setattr(torch.linalg, "svd", svd)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(5, 5), (7, 4), (4, 7), (3, 6, 2)])
def test_a_decomposition_that_does_not_converge_is_repeated(svd_never_converges, dtype, shape):
    matrices = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=dtype)
    left, scale, right_t = thin_svd(matrices)
    k = min(shape[-2:])
    assert (left.shape, scale.shape, right_t.shape) == (
        (*shape[:-1], k), (*shape[:-2], k), (*shape[:-2], k, shape[-1]),
    )  # fmt: skip
    assert left.dtype == scale.dtype == right_t.dtype == dtype
    # Rounding in this dtype, times a few operations.
    tolerance = 20 * torch.finfo(dtype).eps
    torch.testing.assert_close(left * scale[..., None, :] @ right_t, matrices, rtol=tolerance, atol=tolerance)
    assert bool((scale.diff(dim=-1) <= 0).all())


def test_the_polar_factor_of_an_orthogonal_matrix_is_the_matrix(svd_never_converges):
    order = torch.eye(24, dtype=torch.float64)[torch.randperm(24, generator=torch.Generator().manual_seed(1))]
    torch.testing.assert_close(polar_factor(order).matrix, order, rtol=0.0, atol=1e-14)


# --- reduce a matrix for a picture: cells and their positions


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
def test_a_reordered_permutation_is_on_the_diagonal(n):
    moved = np.random.default_rng(0).permutation(n)
    matrix = torch.zeros(n, n)
    matrix[torch.arange(n), torch.from_numpy(moved)] = -1.0
    # The channels of a matching come in any order.
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
