from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from scipy import stats

from mdir_hf.method.layer_order import ordered_matching
from mdir_hf.method.matching import best_matching
from mdir_hf.method.significance import (
    LN10,
    count_related,
    log_cost_of_look,
    log_n_matchings,
    log_n_ordered_maps,
    log_p_by_layer,
    log_p_entry,
    log_p_fisher,
    log_p_hommel,
    log_p_looks,
    log_p_matching,
    log_p_of_best,
    log_p_ordered_map,
    log_p_rueger,
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


def test_the_looks_pay_ln_s_times_s_plus_1():
    assert log_p_looks([-10.0]) == pytest.approx(-10.0 + math.log(2))
    assert log_p_looks([0.0, -10.0, -9.0]) == pytest.approx(-10.0 + math.log(6))


def test_stopping_at_the_first_significant_look_keeps_the_level():
    # The worst case for optional stopping: independent looks, each exactly uniform.
    rng = np.random.default_rng(5)
    n_runs, alpha = 20_000, 0.05
    logs = np.log(rng.uniform(size=(n_runs, 40)))
    stopped = sum(log_p_looks(list(run)) <= math.log(alpha) for run in logs)
    naive = (logs <= math.log(alpha)).any(axis=1).sum()
    assert stopped / n_runs <= alpha + 4 * math.sqrt(alpha * (1 - alpha) / n_runs)
    assert naive / n_runs > 0.5  # the correction is needed


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
    log_p, trimmed = [], []
    for _ in range(n_draws):
        u = haar(n1, rng) @ factor if rotated == "narrow" else factor @ haar(n2, rng)
        matching = best_matching(torch.from_numpy(u), signed=False)
        log_p.append(matching.log_p)
        trimmed.append(matching.log_p_trimmed["n/2"])
    for alpha in (0.5, 0.2, 0.1, 0.05, 0.01):
        assert not exceeds((np.array(log_p) <= math.log(alpha)).sum(), n_draws, alpha)
        assert not exceeds((np.array(trimmed) <= math.log(alpha)).sum(), n_draws, alpha)


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


# --- combine


def dependent_log_p(kind: str, n_rows: int, n: int) -> np.ndarray:
    """Rows of n valid p-values with a given dependence."""
    rng = np.random.default_rng(3)
    if kind == "independent":
        return np.log(rng.uniform(size=(n_rows, n)))
    if kind == "equal":
        return np.log(np.repeat(rng.uniform(size=(n_rows, 1)), n, axis=1))
    shared = rng.normal(size=(n_rows, 1))
    return stats.norm.logcdf(math.sqrt(0.7) * shared + math.sqrt(0.3) * rng.normal(size=(n_rows, n)))


def rueger_worst_case(n_rows: int, n: int, k: int) -> np.ndarray:
    """Uniform p-values with the smallest possible k-th value: a random k of n share one value below k/n."""
    rng = np.random.default_rng(5)
    rows = np.empty((n_rows, n))
    for row, u in zip(rows, rng.uniform(size=n_rows), strict=True):
        row[:] = rng.uniform(k / n, 1.0, size=n)
        row[rng.permutation(n)[:k]] = u * k / n
    return np.log(rows)


def test_the_best_of_several_is_multiplied_by_their_number():
    assert log_p_of_best(-10.0, 7) == pytest.approx(-10.0 + math.log(7))
    assert log_p_of_best(-1.0, 7) == 0.0


def test_rueger_at_half_is_twice_the_median():
    log_p = np.log([0.001, 0.002, 0.01, 0.5, 0.6, 0.7])
    assert log_p_rueger(log_p, 3) == pytest.approx(math.log(2 * 0.01))


def test_rueger_at_one_is_bonferroni():
    log_p = np.log([0.2, 0.001, 0.6, 0.9])
    assert log_p_rueger(log_p, 1) == pytest.approx(math.log(4 * 0.001))


def test_rueger_ignores_a_single_accident():
    assert log_p_rueger([-1e6, 0.0, 0.0, 0.0], 2) == 0.0


@pytest.mark.parametrize("k", [0, 5])
def test_rueger_refuses_a_rank_that_does_not_exist(k):
    with pytest.raises(ValueError, match=rf"expected 1 <= k <= 4 p-values, got k = {k}"):
        log_p_rueger([-1.0] * 4, k)


@pytest.mark.parametrize("kind", ["independent", "equal", "correlated"])
@pytest.mark.parametrize("combine", [lambda p: log_p_rueger(p, 5), log_p_hommel], ids=["rueger", "hommel"])
def test_combined_p_is_valid_under_any_dependence(kind, combine):
    combined = np.array([combine(row) for row in dependent_log_p(kind, 4000, 10)])
    for level in (0.01, 0.05, 0.2):
        # Four standard errors of a share over 4000 draws.
        assert np.mean(combined <= math.log(level)) <= level + 4 * math.sqrt(level / 4000)


def test_rueger_is_attained_by_the_worst_dependence():
    combined = np.array([log_p_rueger(row, 5) for row in rueger_worst_case(4000, 10, 5)])
    assert np.mean(combined <= math.log(0.2)) == pytest.approx(0.2, abs=4 * math.sqrt(0.16 / 4000))


def test_hommel_never_pays_more_than_the_harmonic_number():
    log_p = np.log([1e-9, 2e-9, 3e-3, 0.4])
    best = min(log_p_rueger(log_p, k) for k in range(1, 5))
    assert log_p_hommel(log_p) == pytest.approx(best + math.log(1 + 1 / 2 + 1 / 3 + 1 / 4))


def test_hommel_takes_the_best_rank_wherever_it_is():
    # Times 4, 2, 4/3 and 1: the third is the best.
    log_p = np.log([1.0e-9, 1.9e-9, 2.0e-9, 0.4])
    expected = math.log(2.0e-9 * 4 / 3) + math.log(1 + 1 / 2 + 1 / 3 + 1 / 4)
    assert log_p_hommel(log_p[::-1]) == pytest.approx(expected)
    assert log_p_hommel([0.0, 0.0]) == 0.0


def test_hommel_sees_a_map_with_a_tenth_of_related_layers():
    log_p = [-500.0] * 3 + [0.0] * 27
    assert log_p_rueger(log_p, 15) == 0.0
    assert log_p_hommel(log_p) < -490.0


def test_related_layers_are_counted_up_to_the_first_insignificant_layer():
    assert count_related([-100.0, -100.0, -100.0, -2.0, 0.0], math.log(0.01)) == 3


@pytest.mark.parametrize("k", [1, 2, 3])
def test_the_kth_layer_counts_at_alpha_over_those_left(k):
    # The first of three is compared with alpha / 3, the second with alpha / 2, the third with alpha; equality is
    # enough.
    limits = [math.log(0.01) - math.log(n) for n in (3, 2, 1)]
    assert all(limit + math.log(n) == math.log(0.01) for limit, n in zip(limits, (3, 2, 1), strict=True))
    assert count_related(limits[:k] + [0.0] * (3 - k), math.log(0.01)) == k
    above = [*limits[: k - 1], limits[k - 1] + 1e-9]
    assert count_related(above + [0.0] * (3 - k), math.log(0.01)) == k - 1


def test_number_of_related_layers_is_all_or_none_at_the_ends():
    assert count_related([-50.0] * 6, math.log(0.01)) == 6
    assert count_related([0.0] * 6, math.log(0.01)) == 0


def test_related_layers_are_overcounted_at_most_at_rate_alpha():
    log_p = dependent_log_p("correlated", 4000, 10)
    log_p[:, :4] = -1000.0
    too_many = np.mean([count_related(row, math.log(0.05)) > 4 for row in log_p])
    assert too_many <= 0.05 + 4 * math.sqrt(0.05 / 4000)


def test_fisher_is_the_chi_square_tail():
    log_p = np.log([0.03, 0.4, 0.2, 0.009])
    assert log_p_fisher(log_p) == pytest.approx(stats.chi2.logsf(-2 * log_p.sum(), df=8), rel=1e-12)


def test_fisher_stays_finite_far_beyond_the_range_of_floats():
    log_p = [-4000.0] * 48
    assert -48 * 4000.0 < log_p_fisher(log_p) < -48 * 4000.0 + 48 * math.log(48 * 4000.0)


def test_fishers_sum_holds_for_layers_that_are_turned_independently():
    # One vector in four layers of both models, in the plane, where p of an angle is exact. At most 5 % of 2,000 p may
    # be at most 5 %; the band is four binomial deviations. With one rotation for all layers it would be 14 %.
    generator = np.random.default_rng(5)
    angles = generator.uniform(0.0, 2.0 * math.pi, (2000, 4))
    p = np.arccos(np.cos(angles)) / math.pi
    share = np.mean([log_p_fisher(np.log(of_layers)) <= math.log(0.05) for of_layers in p])
    assert abs(share - 0.05) < 4.0 * math.sqrt(0.05 * 0.95 / 2000)


def test_fisher_of_no_evidence_is_one():
    assert log_p_fisher([0.0, 0.0]) == 0.0
    assert log_p_fisher([]) == 0.0


def test_ordered_maps_are_counted():
    # Pairs of 2-subsets: C(4, 2) C(3, 2).
    assert log_n_ordered_maps(4, 3, 2) == pytest.approx(math.log(6 * 3))


def test_p_of_an_ordered_map_is_corrected_for_all_ordered_maps():
    expected = log_p_fisher([-40.0, -50.0]) + math.log(6 * 3) + math.log(3)
    assert log_p_ordered_map([-40.0, -50.0], 4, 3) == pytest.approx(expected)


def test_searched_ordered_map_is_valid_for_independent_cells():
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(1500):
        cells = np.log(rng.uniform(size=(4, 5)))
        pairs = ordered_matching(cells, 1.0)
        hits += log_p_ordered_map([float(cells[pair]) for pair in pairs], 4, 5) <= math.log(0.1)
    assert hits / 1500 <= 0.1


def test_layers_of_the_shallower_model_are_the_unit():
    log_p = np.zeros((2, 3))
    log_p[0, 2], log_p[1, 0] = -20.0, -9.0
    np.testing.assert_allclose(log_p_by_layer(log_p), np.array([-20.0, -9.0]) + math.log(3))
    np.testing.assert_allclose(log_p_by_layer(log_p.T), log_p_by_layer(log_p))


def test_square_map_counts_by_candidate_layer():
    log_p = np.array([[-30.0, -20.0], [0.0, 0.0]])
    np.testing.assert_allclose(log_p_by_layer(log_p), np.array([-30.0, -20.0]) + math.log(2))


@pytest.mark.parametrize("log_p", [[-0.5, -0.2], [-1e-3], [-0.9]])
def test_fisher_is_the_chi_square_tail_near_one_too(log_p):
    assert log_p_fisher(log_p) == pytest.approx(stats.chi2.logsf(-2 * sum(log_p), df=2 * len(log_p)), rel=1e-9)


def test_a_map_without_pairs_is_not_significant():
    assert log_p_ordered_map([], 6, 4) == 0.0
    # One pair has Fisher's p, times 6 times 4 possible pairs and 4 possible numbers of pairs.
    assert log_p_ordered_map([-50.0], 6, 4) == pytest.approx(-50.0 + math.log(6 * 4) + math.log(4))


def test_p_of_a_map_and_of_a_layer_is_at_most_one():
    assert log_p_ordered_map([-0.1, -0.1], 6, 4) == 0.0
    assert log_p_by_layer(np.zeros((6, 4))).tolist() == [0.0] * 4
