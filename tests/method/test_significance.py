import itertools
import math

import numpy as np
import pytest
import torch

from mdir_hf.method.matching import best_matching
from mdir_hf.method.significance import (
    LN10,
    log_cost_of_look,
    log_n_matchings,
    log_p_entry,
    log_p_matching,
    log_p_signs,
)
from tests.method.reference import haar

# Closed forms agree up to the rounding of lgamma of a few thousand; 1e-12 relative is a hundred times that.
CLOSE = 1e-12


def square(trace, n, **kwargs):
    energy = kwargs.pop("energy", float(n))
    return log_p_matching(trace, sizes=(n, n), energies=(energy, energy), is_cut=False, **kwargs)


def test_square_full_rank_is_the_papers_formula_with_no_epsilon():
    assert square(100.0, 256) == pytest.approx(math.lgamma(257) - 5000.0, rel=CLOSE)


def test_the_formula_is_continuous_at_half_the_channels():
    for share in (0.49, 0.51, 0.9, 1.0):
        c = share * 512
        assert square(c, 512) == pytest.approx(math.lgamma(513) - c * c / 2, rel=CLOSE)


def test_evenly_spread_energy_has_the_stiefel_exponent():
    n1, n2, c = 64, 256, 20.0
    bound = log_p_matching(c, sizes=(n1, n2), energies=(n1, n1 * n1 / n2), is_cut=False)
    assert bound == pytest.approx(math.lgamma(n2 + 1) - math.lgamma(n2 - n1 + 1) - c * c * n2 / (2 * n1), rel=CLOSE)


def test_energy_in_matched_columns_has_the_safe_exponent():
    n1, n2, c = 64, 256, 40.0
    bound = log_p_matching(c, sizes=(n1, n2), energies=(n1, n1), is_cut=False)
    assert bound == pytest.approx(math.lgamma(n2 + 1) - math.lgamma(n2 - n1 + 1) - c * c / 2, rel=CLOSE)


def test_trimmed_counts_partial_matchings():
    n, k, c = 64, 16, 30.0
    choose = math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
    expected = 2 * choose + math.lgamma(n - k + 1) - c * c * n / (2 * (n - k))
    assert square(c, n, energy=float(n - k), n_matched=n - k) == pytest.approx(expected, rel=CLOSE)


def test_scaling_the_factor_changes_nothing():
    # Any f(S) may replace S in A f(S) B^T; the energies carry its size.
    assert square(30.0, 64) == pytest.approx(square(3.0, 64, energy=0.64), rel=CLOSE)


@pytest.mark.parametrize("trace", [0.0, -3.0])
def test_a_trace_that_is_not_positive_has_p_one(trace):
    assert log_p_matching(trace, sizes=(8, 8), energies=(8.0, 8.0)) == 0.0


def test_an_empty_factor_has_p_one():
    assert log_p_matching(1.0, sizes=(8, 8), energies=(0.0, 0.0)) == 0.0
    assert log_p_matching(9.0, sizes=(8, 8), energies=(1.0, 0.0)) == 0.0
    assert log_p_matching(9.0, sizes=(8, 8), energies=(0.0, 1.0)) == 0.0
    assert log_p_matching(9.0, sizes=(8, 8), energies=(1.0, 1.0), n_matched=0) == 0.0


@pytest.mark.parametrize(("n_narrow", "n_wide", "n_matched"), [(9, 8, None), (8, 8, 9), (8, 8, -1)])
def test_sizes_that_contradict_each_other_are_refused(n_narrow, n_wide, n_matched):
    with pytest.raises(ValueError, match=f"{n_narrow}, {n_wide}"):
        log_p_matching(1.0, sizes=(n_narrow, n_wide), energies=(1.0, 1.0), n_matched=n_matched)


@pytest.mark.parametrize(("n1", "n2"), [(1, 1), (2, 3), (3, 3), (3, 5)])
def test_the_number_of_matchings_agrees_with_counting(n1, n2):
    for m in range(n1 + 1):
        counted = sum(1 for _ in itertools.combinations(range(n1), m)) * sum(
            1 for _ in itertools.permutations(range(n2), m)
        )
        assert log_n_matchings(n1, n2, m) == pytest.approx(math.log(counted), abs=1e-12)
        assert log_n_matchings(n1, n2, m, signed=True) == pytest.approx(math.log(counted * 2**m), abs=1e-12)


def test_one_entry_is_a_matching_of_one_pair():
    alone = log_p_entry(0.5, line_energy=1.0, n_haar=256, n_comparisons=256 * 256)
    pair = log_p_matching(0.5, sizes=(256, 256), energies=(1.0, 1.0), n_matched=1, is_cut=False)
    assert alone == pytest.approx(pair, rel=CLOSE)


def test_an_entry_that_is_not_positive_has_p_one():
    assert log_p_entry(-0.5, line_energy=1.0, n_haar=8, n_comparisons=1) == 0.0


@pytest.mark.parametrize("energy", [0.25, 4.0])
def test_an_entry_counts_by_its_share_of_its_line(energy):
    found = log_p_entry([0.1, 0.9], line_energy=[energy, energy], n_haar=256, n_comparisons=10)
    expected = [min(0.0, math.log(10) - 128 * entry**2 / energy) for entry in (0.1, 0.9)]
    assert found == pytest.approx(expected, rel=CLOSE)


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ([0.5, 0.1, -0.2, 3.0], -(2.0**2) / (2 * 4)),
        ([0.5, 0.0, 0.1], -(2.0**2) / (2 * 2)),  # a zero has no sign
        ([1.0], -0.5),
        ([-1.0, -1.0, -1.0, 1.0], 0.0),
        ([1.0, -1.0], 0.0),
        ([0.0], 0.0),
        ([], 0.0),
    ],
)
def test_signs_are_votes_and_hoeffding_counts_them(entries, expected):
    assert log_p_signs(entries) == expected


def test_signs_of_coins_stay_under_the_bound():
    rng = np.random.default_rng(0)
    log_p = np.array([log_p_signs(row) for row in rng.choice([-1.0, 1.0], size=(20_000, 30))])
    for level in (0.3, 0.1, 0.01):
        assert np.mean(log_p <= math.log(level)) <= level


def test_reports_use_base_ten_logarithms():
    assert math.isclose(LN10, 2.302585092994046)


def exceeds(hits, n, bound):
    """Whether a frequency contradicts an upper bound by more than four binomial standard deviations."""
    bound = min(1.0, bound)
    return hits / n > bound + 4 * math.sqrt(bound * (1 - bound) / n)


@pytest.mark.parametrize("n", (2, 3, 5, 8))
def test_the_trace_of_a_haar_matrix_stays_under_the_bound(n):
    rng = np.random.default_rng(n)
    n_draws = 4000
    traces = np.array([np.trace(haar(n, rng)) for _ in range(n_draws)])
    for c in np.linspace(0.0, n, 25):
        assert not exceeds((traces >= c).sum(), n_draws, math.exp(-c * c / 2))


@pytest.mark.parametrize("n", (2, 3, 5, 8))
def test_the_trace_against_any_fixed_matrix_stays_under_the_bound(n):
    rng = np.random.default_rng(100 + n)
    n_draws = 3000
    draws = [haar(n, rng) for _ in range(n_draws)]
    for fixed in (np.diag(1.0 + np.arange(n)), np.outer(np.ones(n), np.eye(n)[0]), rng.standard_normal((n, n))):
        energy = (fixed**2).sum()
        traces = np.array([(fixed * q).sum() for q in draws])
        for c in np.linspace(0.0, math.sqrt(energy * n), 20):
            assert not exceeds((traces >= c).sum(), n_draws, math.exp(-n * c * c / (2 * energy)))


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("n", (2, 3, 5, 8))
def test_the_best_permutation_of_a_haar_matrix_has_a_valid_p(n, signed):
    rng = np.random.default_rng(200 + n)
    n_draws = 600
    log_p = np.array([best_matching(torch.from_numpy(haar(n, rng)), signed=signed).log_p for _ in range(n_draws)])
    for alpha in (0.5, 0.2, 0.1, 0.05, 0.01):
        assert not exceeds((log_p <= math.log(alpha)).sum(), n_draws, alpha)


RECTANGLES = [
    np.eye(2, 16),  # a pruned copy: all energy in two columns
    np.eye(3, 6)[:, ::-1].copy(),
    np.linalg.qr(np.arange(32.0).reshape(8, 4) ** 1.5 % 7)[0].T,
    np.diag([1.0, 1.0, 0.0, 0.0]),  # rank-deficient
]


@pytest.mark.parametrize("rotated", ["narrow", "wide"])
@pytest.mark.parametrize("factor", RECTANGLES, ids=["pruned", "reversed", "dense", "rank 2 of 4"])
def test_a_rectangular_p_is_valid_whichever_side_is_invariant(factor, rotated):
    rng = np.random.default_rng(11)
    n1, n2 = factor.shape
    n_draws = 600
    log_p, halves = [], []
    for _ in range(n_draws):
        u = haar(n1, rng) @ factor if rotated == "narrow" else factor @ haar(n2, rng)
        matching = best_matching(torch.from_numpy(u), signed=False)
        log_p.append(matching.log_p)
        halves.append(matching.log_p_half)
    for alpha in (0.5, 0.2, 0.1, 0.05, 0.01):
        assert not exceeds((np.array(log_p) <= math.log(alpha)).sum(), n_draws, alpha)
        assert not exceeds((np.array(halves) <= math.log(alpha)).sum(), n_draws, alpha)


def test_the_sharp_form_alone_fails_for_a_narrow_invariant_side():
    rng = np.random.default_rng(12)
    n1, n2, n_draws, alpha = 2, 16, 600, 0.01
    count = math.log(n2 * (n2 - 1))
    hits = 0
    for _ in range(n_draws):
        trace = best_matching(torch.from_numpy(haar(n1, rng) @ np.eye(n1, n2)), signed=False).trace
        hits += count - trace**2 * n2 / (2 * n1) <= math.log(alpha)
    assert exceeds(hits, n_draws, alpha)
    assert hits / n_draws > 0.05


def test_the_shares_that_looks_spend_sum_to_less_than_1():
    shares = [math.exp(-log_cost_of_look(number)) for number in range(1, 1001)]
    assert sum(shares) == pytest.approx(1 - 1 / 1001)
