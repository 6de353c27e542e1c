"""Count neurons of one model that are copies of neurons of the other. This is the rule that verdicts rest on.

Neurons are compared by gate and up, behind a rotation that was fitted on *other* neurons of a sample that could not be
foreseen. Framing has not succeeded against this without copying rows (docs/attacks.md).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from mdir_hf.comparison.neuron_sample import NeuronSample
from mdir_hf.method.assignment import best_assignment
from mdir_hf.method.matching import REMARKABLE
from mdir_hf.method.neuron_numbers import count_in_batch, in_span, log_p_own_numbers, match_neurons_by_number
from mdir_hf.method.significance import LN10, log_cost_of_look, log_n_choices
from mdir_hf.report import LayerPair, NeuronNumbers, SettledBy
from mdir_hf.thresholds import LEAST_CERTAIN_SHARE, MOST_NOMINATED

IntArray = npt.NDArray[np.int64]
Pair = tuple[int, int]

STEPS = (SettledBy.NEAR, SettledBy.NUMBER, SettledBy.EVERY, SettledBy.NOISE)
"""Steps that pair neurons by number. Step number s may spend 1 / (s (s + 1)) of alpha, and so may each comparison of
experts or stacks, which come after them."""


def count_neurons(
    reference: NeuronSample,
    candidate: NeuronSample,
    step: SettledBy,
    *,
    alpha: float,
    pairs: Sequence[Pair] | None = None,
    n_nominated_of: int | None = None,
    log_cost: float | None = None,
    is_searched: bool = False,
    is_whitened: bool = False,
    device: str = "cpu",
) -> NeuronNumbers | None:
    """Count, for each pair of layers, the tested neurons that match their partner after a rotation.

    Args:
        reference: Sampled neurons of the reference.
        candidate: Neurons of the candidate, sampled with the same seed, or their partners if ``is_searched``.
        step: The step that compares them; it determines its share of alpha.
        alpha: Significance level of the comparison.
        pairs: Pairs of layers that were chosen before these neurons were read; None for all pairs.
        n_nominated_of: Number of pairs of layers among which ``pairs`` were nominated by other neurons, or None.
        log_cost: Natural log of the factor that corrects p for other steps; None for the cost of ``step``.
        is_searched: Whether partners were found by a search, so that numbers give no p.
        is_whitened: Whether rows are whitened before the rotation is fitted.
        device: torch device.

    Returns:
        The counts; None unless both samples have the same sizes.
    """
    if not reference.is_like(candidate) or not reference.n_tested:
        return None
    sides = [[list(layer) for layer in sample.rows.to(device, torch.float32)] for sample in (reference, candidate)]
    own, certain = np.zeros((2, len(reference.layers), len(candidate.layers)), dtype=np.int64)
    cells = (
        [(i, j) for i in range(len(reference.layers)) for j in range(len(candidate.layers))]
        if pairs is None
        else [(reference.layers.index(i), candidate.layers.index(j)) for i, j in pairs]
    )
    for i, j in cells:
        matches = match_neurons_by_number(
            sides[0][i],
            sides[1][j],
            n_fitted=reference.n_fitted,
            # A search chose each partner among all neurons of a layer; numbers were fixed in advance.
            n_neurons=max(reference.n_neurons, candidate.n_neurons) if is_searched else reference.n_tested,
            is_whitened=is_whitened,
        )
        own[i, j], certain[i, j] = matches.counts
    if is_searched:
        log_p = None
    else:
        cost = log_cost_of_look(STEPS.index(step) + 1) if log_cost is None else log_cost
        log_p = min(0.0, _log_p_of_step(own, None if pairs is None else cells, n_nominated_of) + cost)
    return _numbers(reference, candidate, step, alpha, cells, (own, certain), log_p)


CELLS_AT_ONCE = 256
"""Number of pairs of layers in one batch: 67 MB of rows."""


def count_neurons_of_pairs(
    pairs: Sequence[tuple[NeuronSample, NeuronSample]], *, alpha: float, device: str = "cpu"
) -> list[NeuronNumbers | None]:
    """Count the neurons of many pairs of models by number, in batches, every layer with every layer.

    Returns:
        For each pair, the result of :func:`count_neurons` for the step ``number``.
    """
    results: list[NeuronNumbers | None] = [None] * len(pairs)
    batches: dict[tuple[int, ...], list[int]] = {}
    for at, (reference, candidate) in enumerate(pairs):
        if reference.is_like(candidate) and reference.n_tested:
            shapes = (*reference.rows.shape, *candidate.rows.shape, reference.n_fitted)
            batches.setdefault(shapes, []).append(at)
    cost = log_cost_of_look(STEPS.index(SettledBy.NUMBER) + 1)
    for members in batches.values():
        n_layers = [len(sample.layers) for sample in pairs[members[0]]]
        cells = list(np.ndindex(*n_layers))
        n_at_once = max(1, CELLS_AT_ONCE // len(cells))
        for some in (members[start : start + n_at_once] for start in range(0, len(members), n_at_once)):
            first, second = (torch.stack([pairs[at][side].rows for at in some]).to(device).float() for side in (0, 1))
            own, certain = (
                counts.reshape(len(some), *n_layers)
                for counts in count_in_batch(
                    first.repeat_interleave(n_layers[1], dim=1).flatten(0, 1),
                    second.repeat(1, n_layers[0], 1, 1, 1).flatten(0, 1),
                    n_fitted=pairs[some[0]][0].n_fitted,
                    n_neurons=pairs[some[0]][0].n_tested,
                )
            )
            for number, at in enumerate(some):
                log_p = min(0.0, _log_p_of_step(own[number], None, None) + cost)
                counts = (own[number], certain[number])
                results[at] = _numbers(*pairs[at], SettledBy.NUMBER, alpha, cells, counts, log_p)
    return results


def _numbers(
    reference: NeuronSample,
    candidate: NeuronSample,
    step: SettledBy,
    alpha: float,
    cells: Sequence[Pair],
    counts: tuple[IntArray, IntArray],
    log_p: float | None,
) -> NeuronNumbers:
    """Return the counts of own and certain numbers, and the pairs of layers that match."""
    own, certain = counts
    least = LEAST_CERTAIN_SHARE * reference.n_tested
    best = {j: max((i for i, at in cells if at == j), key=lambda i, j=j: certain[i, j]) for _, j in cells}  # type: ignore[misc]
    is_significant = log_p is None or log_p < math.log(alpha)
    return NeuronNumbers(
        step=step,
        tested=reference.n_tested,
        fitted=reference.n_fitted,
        reference_layers=reference.layers,
        candidate_layers=candidate.layers,
        own_number=_plain(own),
        certain=_plain(certain),
        matches=tuple(
            LayerPair(reference.layers[i], candidate.layers[j])
            for j, i in sorted(best.items())
            if is_significant and certain[i, j] >= least
        ),
        log10_p=None if log_p is None else log_p / LN10,
    )


def _log_p_of_step(own: IntArray, cells: Sequence[Pair] | None, n_nominated_of: int | None) -> float:
    """Return ln p for all pairs of layers of a step together: fixed pairs, nominated pairs, or the best assignment.

    In L pairs of layers without a common layer, k neurons have their own number with probability at most L^k / k!, for
    every choice of the pairs that is independent of these numbers. Other choices cost the number of possible choices.
    """
    if cells is None:
        n_few, n_many = sorted(own.shape)
        n_own = int(own[best_assignment(own)].sum())
        return min(0.0, log_p_own_numbers(n_own, n_few) + math.log(math.perm(n_many, n_few)))
    n_own = int(sum(own[cell] for cell in cells))
    log_p = log_p_own_numbers(n_own, len(cells))
    if n_nominated_of is not None:
        log_p += log_n_choices(n_nominated_of, len(cells))
    return min(0.0, log_p)


def nominated_pairs(counts: NeuronNumbers) -> list[Pair]:
    """Return the pairs of layers in which remarkably many neurons kept their number, best first, each layer once."""
    own = np.array(counts.own_number, dtype=np.int64)
    rows, columns = best_assignment(own)
    pairs = [
        (int(own[i, j]), counts.reference_layers[i], counts.candidate_layers[j])
        for i, j in zip(rows, columns, strict=True)
        if _is_nominated(int(own[i, j]), own.size)
    ]
    return [(i, j) for _, i, j in sorted(pairs, reverse=True)[:MOST_NOMINATED]]


def _is_nominated(n_own: int, n_cells: int) -> bool:
    return log_p_own_numbers(n_own) + math.log(n_cells) < math.log(REMARKABLE)


def _plain(counts: IntArray) -> tuple[tuple[int, ...], ...]:
    return tuple(map(tuple, counts.tolist()))


PLANTED = 5
"""Number of copies planted in each layer."""

NOISES = tuple(0.125 * 1.25**step for step in range(20))
"""Noise levels of the planted copies, up to 8.7 times the weights."""


def excluded_noise(*samples: NeuronSample, alpha: float, nominates: bool = False) -> float:
    """Find the strongest noise at which a copy of either model, in any basis but with neurons in order, is detected.

    If ``nominates`` is set, a copy only needs to be nominated for a larger sample. Takes up to five steps of 40 fits.

    Returns:
        Noise in units of each row's root mean square, or 0 if even the smallest of :data:`NOISES` hides a copy or
        the samples were stored.
    """
    if any(sample.whole is None for sample in samples):
        return 0.0  # stored samples have no rows to plant a copy with
    n_cells = math.prod(len(sample.layers) for sample in samples)
    log_level = math.log(alpha) - log_cost_of_look(STEPS.index(SettledBy.NUMBER) + 1)

    def is_counted(layer: torch.Tensor, noise: float, seed: int, sample: NeuronSample) -> bool:
        generator = torch.Generator().manual_seed(seed)
        added_noise = noise * layer.shape[-1] ** -0.5 * torch.randn(layer.shape, generator=generator)
        planted = torch.nn.functional.normalize(layer + added_noise, dim=-1)
        first, second = (in_span(list(rows), sample.n_fitted) for rows in (layer, planted))
        counts = match_neurons_by_number(first, second, n_fitted=sample.n_fitted, n_neurons=sample.n_tested).counts
        if nominates:
            return _is_nominated(counts.own, n_cells)
        # One copied layer among all pairs, as in :func:`_log_p_of_step`.
        n_few, n_many = sorted(len(each.layers) for each in samples)
        log_p = log_p_own_numbers(counts.own, n_few) + math.log(math.perm(n_many, n_few))
        return counts.certain >= LEAST_CERTAIN_SHARE * sample.n_tested and log_p < log_level

    def is_found(noise: float) -> bool:
        return all(
            any(is_counted(layer, noise, seed, sample) for layer in sample.whole)  # type: ignore[union-attr]
            for sample in samples
            for seed in range(PLANTED)
        )

    n_found = bisect_left(NOISES, True, key=lambda noise: not is_found(noise))
    # A copy may be a little harder to find than all planted ones, so the next weaker level is stated.
    return NOISES[n_found - 1] * NOISES[0] / NOISES[1] if n_found else 0.0
