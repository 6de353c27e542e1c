"""Measure how well scores separate related pairs from others: LeaFBench's five numbers, and users' decisions.

LeaFBench's numbers are computed as in its code (``evaluate_fingerprinting_method`` at commit c9e2fee), including its
flaws, because only then are they comparable to published ones:

- ACC uses the threshold that does best on the same scores (the largest TPR - FPR). Users do not have that threshold.
- AUC, pAUC and TPR@1%FPR rank pooled pairs. This penalises methods with scores that mean something different in each
  family, but not methods that would choose a wrong threshold.
- MD ("Mahalanobis distance") divides by the covariance of all scores, positives and negatives together, although its
  comment says pooled. It is therefore at most sqrt(N (N - 1) / (n_positive n_negative)) for any method: 2.834 on
  LeaFBench's 845 pairs with 123 positives. Scores of only 0 and 1 reach this limit; graded scores stay below it.
  The paper's table has 2.834 for MDIR and 3.154 for HuRef, which is above this limit. So at least one of the two was
  computed on other pairs or by other code, and the column does not rank them. Its logarithm ignores negative scores.

In addition, decisions are counted at a level or threshold that was fixed in advance.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class LeafBenchMetrics:
    """LeaFBench's numbers for one method, and the threshold that its ACC derived from the scores."""

    accuracy: float
    auc: float
    partial_auc: float
    mahalanobis: float
    tpr_at_1_percent_fpr: float
    threshold: float


@dataclass(frozen=True)
class Decisions:
    """Counts of correct and wrong decisions."""

    true_positives: int
    false_negatives: int
    false_positives: int
    true_negatives: int

    @property
    def n_wrong(self) -> int:
        """Errors of both kinds."""
        return self.false_negatives + self.false_positives


def roc(scores: Sequence[float], related: Sequence[bool]) -> tuple[Floats, Floats, Floats]:
    """Return false and true positive rates with their thresholds, strictest first; the first one accepts no pair.

    Args:
        scores: One per pair, finite; higher means more related.
        related: The truth, with at least one pair of either kind.

    Returns:
        FPR, TPR and thresholds, all (n_distinct + 1,). A pair is accepted if its score is at least the threshold.

    Raises:
        ValueError: If one kind is missing or a score is not finite.
    """
    values, truth = np.asarray(scores, np.float64), np.asarray(related, bool)
    if not np.isfinite(values).all():
        raise ValueError("a score is not finite; leave out pairs without a score, or assign one")
    if truth.all() or not truth.any():
        raise ValueError(f"expected related pairs and others, got {int(truth.sum())} of {len(truth)} related")
    thresholds = np.unique(values)[::-1]
    accepted = np.searchsorted(np.sort(-values), -thresholds, side="right")
    true = np.searchsorted(np.sort(-values[truth]), -thresholds, side="right")
    tpr = np.concatenate([[0.0], true / truth.sum()])
    fpr = np.concatenate([[0.0], (accepted - true) / (~truth).sum()])
    return fpr, tpr, np.concatenate([[math.inf], thresholds])


def leafbench_metrics(scores: Sequence[float], related: Sequence[bool]) -> LeafBenchMetrics:
    """Compute LeaFBench's five numbers.

    Args:
        scores: One per pair, as for :func:`roc`. MD is meant for scores in (0, 1].
        related: True relation of each pair.
    """
    fpr, tpr, thresholds = roc(scores, related)
    best = int(np.argmax(tpr - fpr))
    values, truth = np.asarray(scores, np.float64), np.asarray(related, bool)
    return LeafBenchMetrics(
        accuracy=float(((values >= thresholds[best]) == truth).mean()),
        auc=float(np.trapezoid(tpr, fpr)),
        partial_auc=partial_auc(fpr, tpr),
        mahalanobis=mahalanobis(values, truth),
        tpr_at_1_percent_fpr=float(tpr[fpr <= 0.01].max()),
        threshold=float(thresholds[best]),
    )


def partial_auc(fpr: Floats, tpr: Floats, *, max_fpr: float = 0.05) -> float:
    """Return the area under the ROC up to a false positive rate, rescaled to 0.5 for guessing and 1 at best (McClish).

    The curve is interpolated at its end, so LeaFBench's 0.5 for fewer than two points is not needed.
    """
    end = float(np.interp(max_fpr, fpr, tpr))
    inside = fpr <= max_fpr
    x, y = np.append(fpr[inside], max_fpr), np.append(tpr[inside], end)
    area = float(np.trapezoid(y, x))
    chance = max_fpr**2 / 2
    return 0.5 * (1 + (area - chance) / (max_fpr - chance))


def mahalanobis(scores: Sequence[float] | Floats, related: Sequence[bool] | npt.NDArray[np.bool_]) -> float:
    """Return LeaFBench's MD of (s, s², log s) between related pairs and others, using the covariance of all of them."""
    s, truth = np.asarray(scores, np.float64), np.asarray(related, bool)
    points = np.stack([s, s**2, np.log(np.maximum(s, 1e-10))], axis=1)
    covariance = np.cov(points, rowvar=False) + 1e-6 * np.eye(3)
    apart = points[truth].mean(axis=0) - points[~truth].mean(axis=0)
    return float(np.sqrt(apart @ np.linalg.solve(covariance, apart)))


def mahalanobis_ceiling(n_related: int, n_others: int) -> float:
    """Return the upper bound of MD for any method: the MD of scores equal to the labels, without the 1e-6."""
    n = n_related + n_others
    return math.sqrt(n * (n - 1) / (n_related * n_others))


def decisions(accepted: Iterable[bool], related: Iterable[bool]) -> Decisions:
    """Count decisions against the truth."""
    counts = {(a, r): 0 for a in (False, True) for r in (False, True)}
    for a, r in zip(accepted, related, strict=True):
        counts[bool(a), bool(r)] += 1
    return Decisions(counts[True, True], counts[False, True], counts[True, False], counts[False, False])


def score_of_log10_p(log10_p: float, *, log10_alpha: float = -10.0) -> float:
    """Return a score in (0, 1] that grows as p falls and is one half at p = alpha, for metrics that cannot take log p.

    p itself is unsuitable: 1e-7000 is 0 in floating point, and all p below 1e-300 would tie.
    """
    evidence = max(-log10_p, 0.0) / -log10_alpha
    return max(evidence / (1 + evidence), 1e-10)


def upper_bound_of_rate(n_events: int, n_trials: int, *, level: float = 0.05) -> float:
    """Return the upper end of a one-sided Clopper-Pearson interval for a rate."""
    from scipy.stats import beta

    return 1.0 if n_events == n_trials else float(beta.ppf(1 - level, n_events + 1, n_trials - n_events))
