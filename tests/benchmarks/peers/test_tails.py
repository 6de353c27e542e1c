import math

import numpy as np
import pytest
from scipy import stats

from benchmarks.peers.tails import fisher_log_p, spearman_log_p


def test_spearman_agrees_with_scipy_above_its_underflow():
    generator = np.random.default_rng(0)
    for _ in range(20):
        order = np.argsort(np.arange(40) + generator.normal(0, generator.uniform(1, 60), 40))
        expected = stats.spearmanr(order, np.arange(40)).pvalue
        assert spearman_log_p(order) == pytest.approx(math.log(expected), rel=1e-6, abs=1e-9)


def test_spearman_is_smooth_below_the_underflow_of_scipy():
    # 3000 numbers are shuffled less and less; p decreases below 1e-290 without a jump.
    generator = np.random.default_rng(0)
    noise = generator.normal(size=3000)
    found = [spearman_log_p(np.argsort(np.arange(3000) + size * noise)) for size in np.linspace(1500, 900, 60)]
    assert found[0] > -640 > -700 > found[-1]
    assert max(np.abs(np.diff(found))) < 40


def test_the_identity_is_as_rare_as_one_of_all_permutations():
    assert spearman_log_p(np.arange(10)) == pytest.approx(math.log(2) - math.lgamma(11))


def test_fisher_agrees_with_scipy():
    p = [0.01, 0.2, 0.5, 0.03]
    assert fisher_log_p([math.log(x) for x in p]) == pytest.approx(math.log(stats.combine_pvalues(p).pvalue))


def test_fisher_of_one_p_is_that_p_far_below_the_range_of_floats():
    assert fisher_log_p([-5000.0]) == pytest.approx(-5000.0)
