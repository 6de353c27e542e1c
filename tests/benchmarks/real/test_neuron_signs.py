"""The signs of neurons: fair coins between strangers whatever else they share, one-sided between relatives."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import binom

from benchmarks.real.neuron_signs import Votes, vote

N_NEURONS, N = 200, 64


def layer(seed):
    return tuple(torch.randn(2, N_NEURONS, N, generator=torch.Generator().manual_seed(seed)))


def test_a_noised_reordered_relative_votes_with_one_voice():
    gate, up = layer(0)
    order = torch.randperm(N_NEURONS, generator=torch.Generator().manual_seed(1))
    noise = layer(2)
    votes = vote((gate, up), (gate[order] + noise[0], up[order] + noise[1]), None)
    assert votes.n > 100
    assert votes.agreeing / votes.n > 0.99
    assert votes.log10_p < -30


def test_a_rotated_relative_is_found_behind_its_map():
    gate, up = layer(0)
    turn = torch.linalg.qr(torch.randn(N, N, generator=torch.Generator().manual_seed(1))).Q
    turned = (gate @ turn, up @ turn)
    assert vote((gate, up), turned, turn.T) == Votes(N_NEURONS, N_NEURONS)
    assert vote((gate, up), turned, None).log10_p > -3


def test_strangers_that_share_gates_and_axes_vote_as_coins_do():
    # The same detectors and the same directions, as if language dictated both; only signs are each model's own.
    gate, up = layer(0)
    draws = []
    for seed in range(200):
        coins = torch.randint(2, (2, N_NEURONS, 1), generator=torch.Generator().manual_seed(seed)) * 2 - 1
        draws.append(vote((gate, up * coins[0]), (gate, up * coins[1]), None).agreeing)
    # Mean and variance of 200 binomial draws: four standard errors of each.
    assert np.mean(draws) == pytest.approx(N_NEURONS / 2, abs=4 * math.sqrt(N_NEURONS / 4 / 200))
    assert np.var(draws) == pytest.approx(N_NEURONS / 4, rel=4 * math.sqrt(2 / 200))


@pytest.mark.parametrize(
    ("agreeing", "n"), [(0, 0), (50, 100), (60, 100), (75, 100), (99, 100), (100, 100), (3200, 5888)]
)
def test_the_bound_is_above_the_binomial_tail_and_near_it(agreeing, n):
    exact = binom.logsf(agreeing - 1, n, 0.5) / math.log(10.0) if n else 0.0
    bound = Votes(agreeing, n).log10_p
    # A Chernoff bound is off by a factor of about the square root of n.
    assert bound >= exact or bound == pytest.approx(exact)
    assert bound <= exact + 1 + math.log10(n + 1)


def test_so_many_votes_that_p_underflows_still_have_one():
    assert Votes(8192, 8192).log10_p == pytest.approx(-8192 * math.log10(2))
