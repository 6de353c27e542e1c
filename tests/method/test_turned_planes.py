"""Rotary planes rotated back by their inner products, whatever the residual basis."""

import numpy as np
import pytest
import torch

from mdir_hf.method.heads import turn_back
from tests.method.reference import haar


def planes(n_planes, n, seed):
    rng = np.random.default_rng(seed)
    z = torch.from_numpy(rng.standard_normal((n_planes, n)) + 1j * rng.standard_normal((n_planes, n)))
    return z / z.norm(dim=1, keepdim=True)


def turned(z, seed):
    """Every plane rotated by its own angle, and the residual stream rotated too; also the latter rotation."""
    rng = np.random.default_rng(seed)
    angles = torch.from_numpy(rng.uniform(0, 2 * np.pi, len(z)))
    turn = torch.from_numpy(haar(z.shape[1], rng)).to(z.dtype)
    return z * torch.polar(torch.ones_like(angles), angles)[:, None] @ turn, turn


@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_planes_are_rotated_back_up_to_one_sign(noise):
    reference = planes(40, 60, 2)
    other, turn = turned(reference, 3)
    other = other + noise * planes(40, 60, 4)
    found = turn_back(reference, other)
    agreement = (found * (reference @ turn).conj()).sum(dim=1).real / found.norm(dim=1)
    agreement = agreement * agreement.sum().sign()
    # Without noise, exact to the rounding of an eigenvector of 80; with noise, a row loses 1 - 1/sqrt(1.09) of its
    # norm.
    assert agreement.min() > (1 - 1e-9 if noise == 0 else 0.9)


def test_unturned_planes_stay():
    reference = planes(30, 50, 5)
    found = turn_back(reference, reference)
    sign = (found * reference.conj()).sum().real.sign()
    torch.testing.assert_close(sign * found, reference)


def test_the_rotations_of_planes_do_not_depend_on_the_residual_basis():
    reference, other = planes(20, 40, 6), planes(20, 56, 7)
    turn = torch.from_numpy(haar(56, np.random.default_rng(8))).to(other.dtype)
    one, two = turn_back(reference, other) @ turn, turn_back(reference, other @ turn)
    torch.testing.assert_close((one * two.conj()).sum().real.sign() * two, one)


def test_planes_of_zeros_are_left_alone():
    reference = planes(6, 20, 9)
    other = reference.clone()
    other[2] = 0.0
    assert torch.isfinite(torch.view_as_real(turn_back(reference, other))).all()
