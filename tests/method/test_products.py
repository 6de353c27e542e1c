"""Matrix products by whichever path: the values are those of a plain product, for every way a matrix may lie."""

import pytest
import torch

from mdir_hf.method.polar import _dense, cross_product


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("cut", [0, 1, 7])
def test_slices_of_wider_matrices_multiply_like_any_other(dtype, cut):
    wide = torch.randn(64, 48, dtype=dtype, generator=torch.Generator().manual_seed(0))
    left, right = wide[:, : 48 - cut], wide[:, cut:]
    expected = left.double().T @ right.double()
    # 64 products of unit size: float32 rounds each to 1e-7.
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
