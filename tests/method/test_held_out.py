"""Choose the rotation or the matching that better predicts rows it was not fitted on."""

import numpy as np
import pytest
import torch

from mdir_hf.method.matching import best_matching, matching_in_order
from mdir_hf.method.polar import polar_factor
from mdir_hf.method.rows import pair_rows
from mdir_hf.method.stream_map import rotation_predicts_better
from tests.method.obfuscation import haar

N, ROWS = 96, 400


def rows(seed=0, n_rows=ROWS):
    return torch.randn(n_rows, N, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def is_rotation(x, y, *, in_order=True):
    paired = pair_rows(x, y)
    polar = polar_factor(paired.reference.T @ paired.candidate).matrix
    matching = matching_in_order(polar) if in_order else best_matching(polar, signed=False)
    return rotation_predicts_better(paired, matching)


def plain_qr(seed=1):
    return torch.linalg.qr(torch.randn(N, N, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))).Q


GENERATOR = torch.Generator().manual_seed(2)
ROTATIONS = {
    "Haar": haar(N, GENERATOR),
    "plain QR": plain_qr(),
    "plain QR, negated": -plain_qr(),
    "half of the channels": torch.block_diag(torch.eye(N // 2, dtype=torch.float64), haar(N // 2, GENERATOR)),
    "a reflection": torch.eye(N, dtype=torch.float64) - 2.0 / N,
}


@pytest.mark.parametrize("name", ROTATIONS)
def test_a_rotation_predicts_better_however_large_its_trace(name):
    x = rows()
    assert is_rotation(x, x @ ROTATIONS[name])
    if name != "a reflection":  # it moves each channel by 2 / n; under noise the identity predicts as well
        assert is_rotation(x, x @ ROTATIONS[name] + 0.3 * rows(seed=5))


@pytest.mark.parametrize("noise", [0.0, 1.0, 10.0])
def test_channels_in_place_are_not_a_rotation_under_any_noise(noise):
    x = rows()
    assert not is_rotation(x, x + max(noise, 1e-6) * rows(seed=5))


def test_reordered_channels_are_not_a_rotation():
    x = rows()
    order = torch.from_numpy(np.random.default_rng(0).permutation(N))
    assert not is_rotation(x, x[:, order] + rows(seed=5), in_order=False)


def test_few_rows_are_enough():
    x = rows(n_rows=24)
    assert is_rotation(x, x @ plain_qr())
    assert not is_rotation(x, x + rows(seed=5, n_rows=24))
