"""Axes that stand out: rotation-invariant and sparse models, and the statistics of columns against numpy."""

import numpy as np
import pytest
import torch

from mdir_hf.method import axes as axes_module
from mdir_hf.method.axes import privileged_basis_z
from mdir_hf.method.rows import pair_rows


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def gaussian(r, n, seed):
    return torch.from_numpy(np.random.default_rng(seed).standard_normal((r, n)))


def sparse(r, n, seed, share=0.05):
    """Every token loads on a few axes: a model with a privileged basis."""
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.standard_normal((r, n)) * (rng.uniform(size=(r, n)) < share))


@pytest.mark.parametrize("seed", range(4))
def test_the_axes_of_a_rotation_invariant_model_do_not_stand_out(seed):
    rows = pair_rows(gaussian(400, 96, seed), gaussian(400, 96, 50)).reference
    assert abs(privileged_basis_z(rows, generator=generator(seed))) < 4.0


def test_the_axes_of_an_anisotropic_model_do_not_stand_out():
    rng = np.random.default_rng(1)
    q, _ = np.linalg.qr(rng.standard_normal((96, 96)))
    e = torch.from_numpy(rng.standard_normal((2000, 96)) * (1.0 + np.arange(96)) ** -0.5 @ q)
    rows = pair_rows(e, e).reference
    assert abs(privileged_basis_z(rows, generator=generator())) < 4.0


@pytest.mark.parametrize(
    "model",
    [sparse(400, 96, 0), gaussian(400, 96, 0) * torch.from_numpy(np.exp(np.random.default_rng(1).standard_normal(96)))],
    ids=["sparse", "column scales"],
)
def test_the_axes_of_a_model_with_a_basis_of_its_own_stand_out(model):
    rows = pair_rows(model, model).reference
    assert abs(privileged_basis_z(rows, generator=generator())) > 6.0


def test_the_shape_of_columns_matches_the_textbook():
    columns = sparse(60, 2 * axes_module.COLUMNS_AT_ONCE + 3, 0, share=0.5)
    kurtosis, spread = axes_module._shape(columns)

    x = columns.numpy()
    centred = x - x.mean(axis=0)
    log_norm = np.log(centred.std(axis=0))
    # Sums of 60 values in a different order: a few units in the last place of float64.
    np.testing.assert_allclose(kurtosis, (centred**4).mean(axis=0) / centred.var(axis=0) ** 2 - 3.0, rtol=0, atol=1e-12)
    np.testing.assert_allclose(spread, abs(log_norm - log_norm.mean()), rtol=0, atol=1e-12)


def test_too_few_rows_have_no_index():
    rows = pair_rows(gaussian(7, 16, 0), gaussian(7, 16, 1)).reference
    assert privileged_basis_z(rows, generator=generator()) == 0.0


def test_the_index_is_decided_by_its_seed():
    rows = pair_rows(gaussian(100, 48, 0), gaussian(100, 48, 1)).reference
    one, same, other = (privileged_basis_z(rows, generator=generator(seed)) for seed in (3, 3, 4))
    assert one == same != other
