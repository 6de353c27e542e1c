"""Singular value decompositions that converge where LAPACK's fast method gives up."""

from __future__ import annotations

import pytest
import torch

from mdir_hf.method.polar import polar_factor, thin_svd


@pytest.fixture
def gives_up(monkeypatch):
    """torch's SVD, which calls oneMKL or OpenBLAS, converges on nothing."""

    def svd(matrix, **_):
        raise torch.linalg.LinAlgError("The algorithm failed to converge")

    monkeypatch.setattr(torch.linalg, "svd", svd)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(5, 5), (7, 4), (4, 7), (3, 6, 2)])
def test_a_decomposition_that_does_not_converge_is_repeated(gives_up, dtype, shape):
    matrices = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=dtype)
    left, scale, right_t = thin_svd(matrices)
    k = min(shape[-2:])
    assert (left.shape, scale.shape, right_t.shape) == (
        (*shape[:-1], k), (*shape[:-2], k), (*shape[:-2], k, shape[-1]),
    )  # fmt: skip
    assert left.dtype == scale.dtype == right_t.dtype == dtype
    # Rounding of the dtype, times a few operations.
    tolerance = 20 * torch.finfo(dtype).eps
    torch.testing.assert_close(left * scale[..., None, :] @ right_t, matrices, rtol=tolerance, atol=tolerance)
    assert bool((scale.diff(dim=-1) <= 0).all())


def test_the_polar_factor_of_an_orthogonal_matrix_is_the_matrix(gives_up):
    order = torch.eye(24, dtype=torch.float64)[torch.randperm(24, generator=torch.Generator().manual_seed(1))]
    torch.testing.assert_close(polar_factor(order).matrix, order, rtol=0.0, atol=1e-14)
