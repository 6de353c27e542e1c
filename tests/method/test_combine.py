import math

import numpy as np
import pytest
from scipy import stats

from mdir_hf.method.layer_order import ordered_matching
from mdir_hf.method.significance import (
    count_related,
    log_n_ordered_maps,
    log_p_by_layer,
    log_p_fisher,
    log_p_hommel,
    log_p_of_best,
    log_p_ordered_map,
    log_p_rueger,
)


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
    """Uniform p-values whose k-th smallest is as small as can be: a random k of n share one value below k/n."""
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


def test_related_layers_are_counted_up_to_the_first_that_stands():
    assert count_related([-100.0, -100.0, -100.0, -2.0, 0.0], math.log(0.01)) == 3


@pytest.mark.parametrize("k", [1, 2, 3])
def test_the_kth_layer_counts_at_alpha_over_those_left(k):
    # Of three, the first is held to alpha / 3, the second to alpha / 2, the third to alpha: equal is enough.
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
    # One vector in four layers of both models, and in the plane, where p of an angle is exact. Of 2,000 p 5 % are to be
    # at most 5 %; the band is four binomial deviations. Under one turn for all layers 14 % would be.
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


def test_ordered_map_pays_for_every_map_it_could_have_been():
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


def test_a_map_of_no_pairs_says_nothing():
    assert log_p_ordered_map([], 6, 4) == 0.0
    # One pair: its p is Fisher's; it was one of 6 times 4, and the number of pairs one of 4.
    assert log_p_ordered_map([-50.0], 6, 4) == pytest.approx(-50.0 + math.log(6 * 4) + math.log(4))


def test_p_of_a_map_and_of_a_layer_is_at_most_one():
    assert log_p_ordered_map([-0.1, -0.1], 6, 4) == 0.0
    assert log_p_by_layer(np.zeros((6, 4))).tolist() == [0.0] * 4
