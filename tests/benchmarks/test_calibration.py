"""The calibration's own statistics, on data with a known distribution."""

import math

import pytest
import torch

from benchmarks.calibration import fixed_matching, haar_exceedances, varimax
from benchmarks.evidence.calibration import binomial_band, normal_tail


def rows(seed, n=24):
    return torch.randn(200, n, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_z_of_a_fixed_matching_is_standard_for_random_axes():
    found = [fixed_matching(rows(2 * seed), rows(2 * seed + 1)) for seed in range(400)]
    z, votes = (torch.tensor([float(one[key]) for one in found]) for key in ("z", "votes"))
    # Four standard errors of a mean and of a deviation of 400 normal draws; the sum of 24 random signs deviates by its
    # root.
    for values in (z, votes / math.sqrt(24)):
        assert abs(values.mean()) < 4 / 20
        assert abs(values.std() - 1) < 4 / math.sqrt(800)


def test_varimax_is_a_rotation_that_finds_sparse_axes_again():
    generator = torch.Generator().manual_seed(3)
    sparse = torch.randn(2000, 6, dtype=torch.float64, generator=generator) ** 3
    turn = torch.linalg.qr(torch.randn(6, 6, dtype=torch.float64, generator=generator)).Q
    found = varimax(sparse @ turn)
    torch.testing.assert_close(found @ found.T, torch.eye(6, dtype=torch.float64))
    # turn @ found is a signed permutation: one entry near 1 in every row.
    assert (turn @ found).abs().amax(dim=1).min() > 0.98


@pytest.mark.parametrize("n", [2, 3, 5])
def test_haar_matrices_pass_a_level_at_most_as_often_as_the_bound_allows(n):
    n_draws = 4000
    counts = haar_exceedances(n, (0.3, 0.1, 0.01), n_draws=n_draws, seed=1)
    assert all(count <= float(level) * n_draws for level, count in counts.items())
    assert counts["0.3"] > 0  # the test could have failed


def test_bands_and_tails_match_the_textbook():
    assert normal_tail(1.959964) == pytest.approx(0.025, abs=1e-6)
    low, high = binomial_band(1000, 0.5)
    assert (low, high) == (459, 541)
