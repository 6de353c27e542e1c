"""Strangers: independent Gaussian models of many shapes, on every path of the test, never have a small p."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import binomtest

from mdir_hf.method.embedding import TESTS_PER_MATRIX, look_at_rows
from mdir_hf.method.matching import best_matching, matching_in_order
from mdir_hf.method.polar import polar_factor
from tests.method.reference import haar

SHAPES = [
    # n_reference, n_candidate, tokens, pairs
    (8, 8, 40, 60),
    (16, 16, 60, 40),
    (64, 64, 200, 20),
    (128, 128, 400, 10),
    (256, 256, 800, 2),
    (64, 64, 20, 25),  # fewer tokens than channels
    (16, 48, 120, 30),
    (32, 128, 50, 15),
]


def test_the_shapes_make_two_hundred_pairs():
    assert sum(shape[3] for shape in SHAPES) >= 200


@pytest.mark.parametrize(("n_reference", "n_candidate", "n_tokens", "n_pairs"), SHAPES)
def test_no_pair_of_strangers_has_a_p_below_one_in_a_thousand(n_reference, n_candidate, n_tokens, n_pairs):
    rng = np.random.default_rng([n_reference, n_candidate, n_tokens])
    smallest = 0.0
    for _ in range(n_pairs):
        e = torch.from_numpy(rng.standard_normal((n_tokens, n_reference)))
        f = torch.from_numpy(rng.standard_normal((n_tokens, n_candidate)))
        for n_rows in (n_tokens // 4, n_tokens // 2, n_tokens):
            # A level below every p, so that all tests of both views are made and no shortcut hides a small p.
            look = look_at_rows(e[:n_rows], f[:n_rows], log_alpha=-1e9)
            smallest = min(smallest, look.matching.log_p)
            assert look.log_p == min(0.0, look.matching.log_p + math.log(TESTS_PER_MATRIX))
            assert look.matching.log_p_half > math.log(1e-3)
    assert smallest > math.log(1e-3)


@pytest.mark.parametrize("shared", ["token spectrum", "row norms", "duplicate rows", "mean direction"])
def test_structure_shared_by_strangers_makes_no_small_p(shared):
    rng = np.random.default_rng(7)
    n, n_tokens = 64, 300
    for _ in range(8):
        e, f = (rng.standard_normal((n_tokens, n)) for _ in range(2))
        if shared == "token spectrum":
            z = rng.standard_normal((n_tokens, n_tokens)) * (1.0 + np.arange(n_tokens)) ** -1.0
            e, f = z @ e, z @ f
        elif shared == "row norms":
            norms = np.exp(rng.standard_normal((n_tokens, 1)))
            e, f = norms * e, norms * f
        elif shared == "duplicate rows":
            e[200:], f[200:] = e[:100], f[:100]
        else:
            e, f = e + 5.0 * rng.standard_normal(n), f + 5.0 * rng.standard_normal(n)
        assert look_at_rows(torch.from_numpy(e), torch.from_numpy(f), log_alpha=-1e9).log_p > math.log(1e-3)


def test_one_model_with_a_basis_of_its_own_makes_no_small_p():
    # The theorem only requires one model to be rotation invariant.
    rng = np.random.default_rng(8)
    for _ in range(10):
        e = rng.standard_normal((300, 64)) * (rng.uniform(size=(300, 64)) < 0.03)
        f = rng.standard_normal((300, 64))
        for one, other in ((e, f), (f, e)):
            look = look_at_rows(torch.from_numpy(one), torch.from_numpy(other), log_alpha=-1e9)
            assert look.log_p > math.log(1e-3)


@pytest.mark.parametrize("kind", ["Gaussian", "sparse in one", "few rows"])
def test_channels_in_their_own_order_have_valid_p_values(kind):
    # This p has no correction for the number of matchings: it is exact up to exp(-c^2 / 2) above a normal tail.
    rng = np.random.default_rng([10, len(kind)])
    n, n_rows, n_draws = 24, 16 if kind == "few rows" else 80, 600
    log_p, by_signs, halves = [], [], []
    for _ in range(n_draws):
        e, f = rng.standard_normal((2, n_rows, n))
        if kind == "sparse in one":
            e = e * (rng.uniform(size=e.shape) < 0.1)
        found = matching_in_order(polar_factor(torch.from_numpy(e.T @ f)).matrix)
        log_p.append(found.log_p)
        by_signs.append(found.log_p_signs)
        halves.append(found.log_p_half)
    for alpha in (0.5, 0.2, 0.1, 0.05, 0.01):
        for values in (log_p, by_signs, halves):
            n_below = (np.array(values) <= math.log(alpha)).sum()
            assert binomtest(int(n_below), n_draws, alpha, alternative="greater").pvalue > 1e-4
    # The bound is not vacuous: a normal c passes exp(-c^2 / 2) = 0.2 in 3.6 of a hundred draws.
    assert (np.array(log_p) <= math.log(0.2)).sum() > 0


def test_votes_require_only_free_signs():
    # Two models with the same outstanding axes and free signs: neither is invariant under rotations.
    rng = np.random.default_rng(12)
    n, n_draws = 32, 400
    sizes = np.exp(rng.standard_normal(n))
    features = rng.standard_normal((200, n)) * (rng.uniform(size=(200, n)) < 0.05)
    log_p, by_signs = [], []
    for _ in range(n_draws):
        e, f = (features * sizes * rng.choice([-1.0, 1.0], size=n) for _ in range(2))
        found = matching_in_order(polar_factor(torch.from_numpy(e.T @ f)).matrix)
        log_p.append(found.log_p)
        by_signs.append(found.log_p_signs)
    for alpha in (0.2, 0.05, 0.01):
        assert (
            binomtest(int((np.array(by_signs) <= math.log(alpha)).sum()), n_draws, alpha, alternative="greater").pvalue
            > 1e-4
        )
    assert (np.array(log_p) <= math.log(1e-10)).mean() > 0.1  # the other bound does not apply here


def test_the_null_of_an_embedding_matches_a_haar_matrix():
    rng = np.random.default_rng(9)
    n, n_draws = 32, 200
    exact = [best_matching(torch.from_numpy(haar(n, rng)), signed=False).trace for _ in range(n_draws)]
    embeddings = [
        best_matching(
            polar_factor(torch.from_numpy(rng.standard_normal((100, n)).T @ rng.standard_normal((100, n)))).matrix,
            signed=False,
        ).trace
        for _ in range(n_draws)
    ]
    spread = math.sqrt((np.var(exact) + np.var(embeddings)) / n_draws)
    assert abs(np.mean(exact) - np.mean(embeddings)) < 4 * spread
    # From a table of a separate simulation, one power of two below its range: well under the threshold at 0.1 %.
    assert max(embeddings) < math.sqrt(2 * (math.lgamma(n + 1) + math.log(1e3)))
