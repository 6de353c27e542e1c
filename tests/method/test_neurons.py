"""Polar factors between rows inside a layer, and MLPs carried into another basis."""

import math

import numpy as np
import pytest
import torch

from mdir_hf.method.gauge import ResidualBasisMap
from mdir_hf.method.matching import best_matching
from mdir_hf.method.neurons import MlpWeights, inner_polar, unit_rows
from tests.method.obfuscation import haar
from tests.method.reference import polar


def draw(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("shape", [(12, 16), (16, 12), (16, 16)])
def test_the_inner_polar_factor_of_few_rows_is_the_textbooks(shape):
    x, y = draw(shape[0], 20), draw(shape[1], 20, seed=1)
    # Entries of an orthogonal factor are at most 1 and take a few hundred roundings.
    np.testing.assert_allclose(inner_polar(x, y).numpy(), polar((x @ y.T).numpy()), atol=1e-10)


def test_the_inner_polar_factor_has_the_rank_of_the_stream():
    u = inner_polar(draw(40, 16), draw(50, 16, seed=1))
    assert float(u.square().sum()) == pytest.approx(16.0, abs=1e-9)


def test_a_truncated_factor_does_not_call_strangers_related():
    # Two strangers with 64 channels and 256 neurons. The null bases that a library returns are arbitrary; these are
    # chosen for the largest trace.
    x, y = draw(256, 64), draw(256, 64, seed=1)
    truncated = inner_polar(x, y)
    left, right = (torch.linalg.qr(rows, mode="complete").Q[:, 64:] for rows in (x, y))
    completed = truncated + left @ torch.from_numpy(polar((left.T @ right).numpy())) @ right.T
    np.testing.assert_allclose((completed @ completed.T).numpy(), np.eye(256), atol=1e-10)
    assert best_matching(completed, signed=False).log_p < math.log(1e-10)
    assert best_matching(truncated, signed=False).log_p == 0.0


def test_on_a_relative_the_rank_aware_bound_is_stronger():
    x = draw(512, 128)
    found = best_matching(inner_polar(x, x + 0.3 * draw(512, 128, seed=1)), signed=False)
    papers = math.lgamma(513) - found.trace**2 / 2
    assert found.log_p < 3 * papers


def test_rows_of_unit_length_keep_their_direction_and_zeros_stay():
    rows = draw(3, 5)
    rows[1] = 0.0
    scaled = unit_rows(rows)
    torch.testing.assert_close(torch.linalg.vector_norm(scaled, dim=1), torch.tensor([1.0, 0.0, 1.0]).double())
    torch.testing.assert_close(scaled[0] * torch.linalg.vector_norm(rows[0]), rows[0])


@pytest.mark.parametrize("gated", [True, False])
def test_a_carried_mlp_computes_the_same_in_the_new_basis(gated):
    n, m = 24, 60
    mlp = MlpWeights(draw(m, n), draw(n, m, seed=1), draw(m, n, seed=2) if gated else None)
    u = haar(n, torch.Generator().manual_seed(0))
    carried = mlp.carried(ResidualBasisMap.rotation(u))
    x = draw(n, seed=3)

    def output(weights, stream):
        hidden = weights.up @ stream
        return weights.down @ (hidden if weights.gate is None else torch.relu(weights.gate @ stream) * hidden)

    torch.testing.assert_close(output(carried, u.T @ x), u.T @ output(mlp, x))
