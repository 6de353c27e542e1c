"""Other projects' metrics, on cases with a known result and against written-out definitions."""

import math

import numpy as np
import pytest
from scipy.stats import mannwhitneyu

from benchmarks.metrics import (
    decisions,
    leafbench_metrics,
    mahalanobis,
    mahalanobis_ceiling,
    partial_auc,
    roc,
    score_of_log10_p,
    upper_bound_of_rate,
)


def draws(seed, n=400, ties=False):
    rng = np.random.default_rng(seed)
    related = rng.uniform(size=n) < 0.3
    scores = rng.normal(size=n) + 1.2 * related
    scores = 1 / (1 + np.exp(-scores))
    return (np.round(scores, 1) if ties else scores), related


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_auc_is_the_share_in_the_right_order_with_ties_as_half(seed, ties):
    scores, related = draws(seed, ties=ties)
    u = mannwhitneyu(scores[related], scores[~related]).statistic
    expected = u / (related.sum() * (~related).sum())
    assert leafbench_metrics(scores, related).auc == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("ties", [False, True])
def test_accuracy_uses_the_best_threshold(ties):
    scores, related = draws(5, ties=ties)
    best = max(
        sorted(set(scores), reverse=True),
        key=lambda t: (scores[related] >= t).mean() - (scores[~related] >= t).mean(),
    )
    metrics = leafbench_metrics(scores, related)
    assert metrics.threshold == best
    assert metrics.accuracy == np.mean((scores >= best) == related)


def test_the_rate_at_one_percent_is_the_best_allowed():
    scores, related = draws(6, n=1000)
    allowed = [t for t in scores if (scores[~related] >= t).mean() <= 0.01]
    expected = max((scores[related] >= t).mean() for t in allowed)
    assert leafbench_metrics(scores, related).tpr_at_1_percent_fpr == expected


def test_perfect_scores_have_one_everywhere_and_the_ceiling_of_md():
    related = np.array([True] * 123 + [False] * 722)
    metrics = leafbench_metrics(related.astype(float), related)
    assert (metrics.accuracy, metrics.auc, metrics.tpr_at_1_percent_fpr) == (1.0, 1.0, 1.0)
    assert metrics.partial_auc == pytest.approx(1.0)
    # LeaFBench's sizes: the paper's table has 2.834 for this package's method.
    assert mahalanobis_ceiling(123, 722) == pytest.approx(2.834, abs=5e-4)
    assert metrics.mahalanobis == pytest.approx(2.834, abs=5e-4)


@pytest.mark.parametrize("seed", range(5))
def test_md_never_exceeds_its_ceiling(seed):
    scores, related = draws(seed)
    assert mahalanobis(scores, related) < mahalanobis_ceiling(int(related.sum()), int((~related).sum()))


def test_md_is_the_distance_by_the_covariance_of_all_scores():
    scores, related = np.array([0.9, 0.8, 0.2, 0.1]), np.array([True, True, False, False])
    points = [(s, s * s, math.log(s)) for s in scores]
    mean = [sum(p[k] for p in points) / 4 for k in range(3)]
    covariance = np.array(
        [[sum((p[j] - mean[j]) * (p[k] - mean[k]) for p in points) / 3 for k in range(3)] for j in range(3)]
    )
    apart = np.array([(points[0][k] + points[1][k] - points[2][k] - points[3][k]) / 2 for k in range(3)])
    expected = math.sqrt(apart @ np.linalg.inv(covariance + 1e-6 * np.eye(3)) @ apart)
    assert mahalanobis(scores, related) == pytest.approx(expected, rel=1e-9)


def test_uninformative_scores_have_half_of_everything():
    related = [True, False] * 50
    fpr, tpr, _ = roc([0.5] * 100, related)
    assert leafbench_metrics([0.5] * 100, related).auc == 0.5
    assert partial_auc(fpr, tpr) == pytest.approx(0.5)


def test_the_partial_area_is_interpolated_at_its_end():
    # The curve is a straight line to (0.1, 0.8): up to 0.05 it is a triangle of 0.05 * 0.4 / 2.
    fpr, tpr = np.array([0.0, 0.1, 1.0]), np.array([0.0, 0.8, 1.0])
    chance = 0.05**2 / 2
    assert partial_auc(fpr, tpr) == pytest.approx(0.5 * (1 + (0.01 - chance) / (0.05 - chance)))


def test_scores_that_cannot_be_ranked_are_refused():
    with pytest.raises(ValueError, match="not finite"):
        roc([0.1, math.nan], [True, False])
    with pytest.raises(ValueError, match="2 of 2 related"):
        roc([0.1, 0.2], [True, True])


def test_decisions_are_counted_by_kind():
    counted = decisions([True, True, False, False, False], [True, False, True, False, False])
    assert (counted.true_positives, counted.false_positives) == (1, 1)
    assert (counted.false_negatives, counted.true_negatives, counted.n_wrong) == (1, 2, 2)


def test_the_score_of_a_p_keeps_the_order_below_underflow():
    assert score_of_log10_p(-7000.0) > score_of_log10_p(-5000.0) > score_of_log10_p(-10.0) == 0.5
    assert score_of_log10_p(0.0) == 1e-10


def test_no_event_in_n_trials_bounds_the_rate_by_about_three_over_n():
    assert upper_bound_of_rate(0, 2000) == pytest.approx(1 - 0.05 ** (1 / 2000), rel=1e-9)
    assert upper_bound_of_rate(3, 3) == 1.0
