"""The second witness: neurons are compared after a rotation fitted on other neurons of the same layer.

A framer can make unrelated models match in their embeddings, and in rows with the same number. Framing has not
succeeded after a rotation fitted on *other* neurons of an unforeseeable sample (docs/attacks.md). Gate and up are
tested first, then down.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from scipy.optimize import linear_sum_assignment

from mdir_hf.comparison.neuron_sample import NeuronOutputs, NeuronSample
from mdir_hf.method.matching import REMARKABLE
from mdir_hf.method.neuron_numbers import (
    NeuronMatches,
    OwnNumbers,
    in_span,
    log_p_own_numbers,
    match_neurons_by_number,
    own_numbers,
)
from mdir_hf.method.neurons import unit_rows
from mdir_hf.method.significance import LN10, log_cost_of_look
from mdir_hf.report import LayerPair, NeuronNumbers

IntArray = npt.NDArray[np.int64]

TESTS = 2
"""Number of tests per look: one for the best pair of layers, and one for all layers together."""

LEAST_SHARE_OF_NEURONS = 0.75
"""Two layers match only if at least this share of the tested neurons match the neuron with the same number, with
certainty, in gate and up. On samples that a framer cannot foresee, framed models match 13 of 64 numbers, at most 3 of
them with certainty (``benchmarks/real/framing``)."""

LEAST_SHARE_BY_DOWN = 0.5
"""At least this share of the tested neurons must also match the neuron with the same number in down. Models that are
framed in gate and up reach 8 of 64, or 29 of 64 if there is no gate; a copy with noise three times as strong as its
weights reaches 38."""

LEAST_SHARE_OF_OWN_NUMBERS = 0.9
"""Under strong noise, no single neuron is certain, but all of them together are. So two layers also match if at least
this share of the tested neurons match the neuron with the same number, and if neurons with the same number are similar
in both gate and up (:data:`LEAST_Z`). Framed models reach a third on samples that a framer cannot foresee."""

LEAST_Z = 6.0
"""Minimum mean cosine of neurons with the same number, for gate and for up, in standard deviations."""

LEAST_SHARE_OF_STRENGTH = 0.25
"""Minimum mean squared strength of the agreeing neurons in each model, as a share of the mean over all sampled neurons.
Copied neurons with zero or tiny output fall below it."""

LEAST_SQUARE = 1e-4
"""A neuron is considered inactive if its squared strength is below this share of the mean square. In real layers, the
smallest share is 0.01."""

MOST_STRENGTH_RATIO = 50.0
"""Largest factor by which the strengths of two matching layers may differ, each relative to its model's stream. An
attacker could add copied layers that write next to nothing to an unrelated model. Noise of k RMS on all weights changes
the ratio by a factor of k^2, and a new random embedding changes it by a factor of about ten."""

MOST_PROFILE_RATIO = 4.0
"""Largest factor by which the strengths of two matching layers may differ, each relative to the strongest layer read
from its model. Copied layers that do next to nothing in an unrelated model exceed it. Related models in the zoo differ
by a factor of at most 2, however they were modified."""

CLEAR_STRENGTH_RATIO = 3.0
"""If the relative strengths of two matching layers differ by more than this factor, the sample may contain only faint
copies by chance, so more neurons are read. If 81% of the neurons are copies with a third of the strength, they still
contribute 32% of the mean square. Related pairs in the zoo reach 2.5, and ternary copies 3.6."""

MOST_SHIFT = 0.4
"""Largest shift that all matched gates may have in common, as a multiple of a gate's length. If part of the stream is
the same for every token, gates that are shifted against it never open, so the copies do nothing. Zoo models that were
trained much longer at the full learning rate reach 0.34."""

MOST_OFFSET_CHANGE = 1.0
"""Largest mean difference allowed between partners' offsets, because biases can switch copies off. Zoo models reach
0.6."""

MOST_CONSTANT_CHANGE = 8.0
"""Largest mean difference allowed between the constant parts of partners' responses, in standard deviations. If biases
of earlier layers give every token the same large component, a small shift of the gates against it switches copies off.
Zoo models reach 5.5; a model framed in this way reaches at least 21 in each layer."""

PLACE = 16
"""Position of the first look at neurons; fewer looks at matrices and layers come before it. Look s of a comparison may
spend 1 / (s (s + 1)) of alpha."""

LOOKS_AT_NEURONS = 12
"""Maximum number of looks at neurons per comparison; the first has position :data:`PLACE`."""


def compare_neurons(
    reference: NeuronSample,
    candidate: NeuronSample,
    *,
    alpha: float,
    device: str = "cpu",
    place: int = PLACE,
    is_searched: bool = False,
    n_nominated_of: int | None = None,
) -> NeuronNumbers | None:
    """Count, for each pair of layers, the tested neurons that match the neuron with the same number.

    They are compared after a rotation fitted on the other neurons. ``place`` is the position of this look, which
    determines its share of alpha. If a search paired the neurons (``is_searched``), each must be certain by itself. If
    layers were nominated, p is corrected for the ``n_nominated_of`` pairs they were chosen from. Returns None unless
    both samples have the same sizes.
    """
    if not reference.is_like(candidate):
        return None
    sides = [[list(layer) for layer in sample.rows.to(device, torch.float32)] for sample in (reference, candidate)]
    n_fitted, n_neurons, n_tested = reference.n_fitted, reference.n_neurons, reference.n_tested
    cells = [
        [match_neurons_by_number(x, y, n_fitted=n_fitted, n_neurons=n_neurons) for y in sides[1]] for x in sides[0]
    ]
    own = np.array([[cell.counts.own for cell in row] for row in cells], dtype=np.int64)
    certain = np.array([[cell.counts.certain for cell in row] for row in cells], dtype=np.int64)
    log_p = _log_p(own, n_nominated_of or own.size)
    cost = log_cost_of_look(place) + math.log(TESTS)
    log_p_of_all = float(log_p.min())
    if n_nominated_of is None:
        log_p_of_all = min(log_p_of_all, _log_p_together(own))
    strength = certain.copy()
    if not is_searched:
        least_own = LEAST_SHARE_OF_OWN_NUMBERS * n_tested
        are_alike = np.array([[cell.least_z >= LEAST_Z for cell in row] for row in cells])
        strength = np.where(are_alike & (own >= least_own), own, certain)
    agreeing = _agreeing_cells(strength, log_p + cost < math.log(alpha), n_tested)
    own_by_down = np.zeros_like(own)
    idle: list[tuple[int, int]] = []
    have_outputs = reference.outputs is not None and candidate.outputs is not None
    if reference.outputs is not None and candidate.outputs is not None:
        by_down = {
            cell: _match_outputs(reference.outputs, candidate.outputs, cell, n_fitted, n_neurons, device)
            for cell in agreeing
        }
        for cell, matches in by_down.items():
            own_by_down[cell] = matches.counts.own
        least = LEAST_SHARE_BY_DOWN * n_tested
        idle = [
            cell
            for cell in agreeing
            if cells[cell[0]][cell[1]].shift > MOST_SHIFT
            or _are_switched_off(reference.outputs, candidate.outputs, cell, cells[cell[0]][cell[1]])
            or _is_idle(reference.outputs, candidate.outputs, cell, cells, n_fitted, is_searched=is_searched)
        ]
        agreeing = [cell for cell in agreeing if own_by_down[cell] >= least and cell not in idle]

    def pairs(positions: Sequence[tuple[int, int]]) -> tuple[LayerPair, ...]:
        return tuple(LayerPair(reference.layers[i], candidate.layers[j]) for i, j in positions)

    return NeuronNumbers(
        tested=n_tested,
        fitted=n_fitted,
        reference_layers=reference.layers,
        candidate_layers=candidate.layers,
        own_number=_plain(own),
        certain=_plain(certain),
        matches=pairs(agreeing),
        log10_p=min(0.0, log_p_of_all + cost) / LN10,
        own_number_by_down=_plain(own_by_down) if have_outputs else None,
        idle=pairs(idle),
    )


def _match_outputs(
    reference: NeuronOutputs,
    candidate: NeuronOutputs,
    cell: tuple[int, int],
    n_fitted: int,
    n_neurons: int,
    device: str,
) -> NeuronMatches:
    """Match the ``down`` columns of two layers, using a rotation fitted on them alone."""
    x, y = (side.rows[at].to(device, torch.float32) for side, at in zip((reference, candidate), cell, strict=True))
    return match_neurons_by_number([x], [y], n_fitted=n_fitted, n_neurons=n_neurons)


def _are_switched_off(
    reference: NeuronOutputs, candidate: NeuronOutputs, cell: tuple[int, int], matches: NeuronMatches
) -> bool:
    """Return whether biases shift the responses of matched gates too far."""
    offsets = _mean_change(reference.offsets, candidate.offsets, cell, matches)
    constants = _mean_change(reference.constants, candidate.constants, cell, matches)
    return offsets > MOST_OFFSET_CHANGE or constants > MOST_CONSTANT_CHANGE


def _mean_change(
    reference: torch.Tensor | None, candidate: torch.Tensor | None, cell: tuple[int, int], matches: NeuronMatches
) -> float:
    """Return the absolute mean difference between partners' ``(layers, neurons)`` responses, or 0 if unknown."""
    if reference is None or candidate is None or not bool(matches.is_own.any()):
        return 0.0
    n_tested = len(matches.is_own)
    differences = candidate[cell[1], -n_tested:] - reference[cell[0], -n_tested:]
    return abs(float(differences[matches.is_own].mean()))


def _is_idle(
    reference: NeuronOutputs,
    candidate: NeuronOutputs,
    cell: tuple[int, int],
    matches: Sequence[Sequence[NeuronMatches]],
    n_fitted: int,
    *,
    is_searched: bool,
) -> bool:
    """Return whether agreeing neurons write too little, compared with their own layer or with the other model."""
    match = matches[cell[0]][cell[1]]
    least = LEAST_SHARE_OF_NEURONS * len(match.is_certain)
    # A stranger's neuron with its own number by chance may write more than all idle copies together. So neurons that
    # are not certain count only if the certain ones are too few, as under strong noise.
    is_certain = match.is_certain if is_searched or int(match.is_certain.sum()) >= least else match.is_own
    sides = list(zip((reference, candidate), cell, strict=True))
    for outputs, at in sides:
        of_side, mean_square = outputs.strengths[at].square(), outputs.mean_square(at)
        is_active = of_side[n_fitted:] > LEAST_SQUARE * mean_square
        if int((is_certain & is_active).sum()) < LEAST_SHARE_OF_NEURONS * len(is_certain):
            return True
        # Neurons that the rotation was fitted on count as well: all tested ones may be copies by luck.
        if not float(of_side[n_fitted:][is_certain].mean()) >= LEAST_SHARE_OF_STRENGTH * mean_square > 0.0:
            return True
    ratio = _strength_ratio(reference, candidate, cell)
    return (ratio is not None and ratio > MOST_STRENGTH_RATIO) or _profile_ratio(sides) > MOST_PROFILE_RATIO


def _strength_ratio(reference: NeuronOutputs, candidate: NeuronOutputs, cell: tuple[int, int]) -> float | None:
    """Return the ratio of two layers' strengths (at least 1), relative to their streams, or None if unknown."""
    sides = list(zip((reference, candidate), cell, strict=True))
    if min(outputs.stream_scale for outputs, _ in sides) <= 0.0:
        return None
    # Gate and up read the stream behind a norm, so only down and the stream have scales of their own.
    relative = [math.sqrt(outputs.mean_square(at)) / outputs.stream_scale for outputs, at in sides]
    return max(relative) / min(relative) if min(relative) > 0.0 else math.inf


def _profile_ratio(sides: Sequence[tuple[NeuronOutputs, int]]) -> float:
    """Return the ratio of two layers' strengths (at least 1), relative to their models' strongest layers."""
    if min(outputs.strongest for outputs, _ in sides) <= 0.0:
        return 1.0
    relative = [math.sqrt(outputs.mean_square(at)) / outputs.strongest for outputs, at in sides]
    return max(relative) / min(relative) if min(relative) > 0.0 else math.inf


def nominated_pairs(counts: NeuronNumbers) -> list[LayerPair]:
    """Return candidate layers in which remarkably many neurons kept their number, with their best reference layers."""
    own = np.array(counts.own_number, dtype=np.int64)
    best = [(int(own[:, j].argmax()), j) for j in range(own.shape[1])]
    return [
        LayerPair(counts.reference_layers[i], counts.candidate_layers[j])
        for i, j in best
        if _is_nominated(int(own[i, j]), own.size)
    ]


def _is_nominated(n_own: int, n_cells: int) -> bool:
    return log_p_own_numbers(n_own) + math.log(n_cells) < math.log(REMARKABLE)


def doubtful_matches(
    reference: NeuronSample, candidate: NeuronSample, matches: Sequence[LayerPair], *, if_unknown: bool
) -> tuple[LayerPair, ...]:
    """Return the matches whose samples may contain only faint copies, so more neurons have to be read.

    If ``if_unknown``, include matches whose strength ratio is unknown because a model has no embedding.
    """
    if reference.outputs is None or candidate.outputs is None:
        return ()
    doubtful = []
    for match in matches:
        cell = reference.layers.index(match.reference), candidate.layers.index(match.candidate)
        if reference.outputs.is_measured(cell[0]) and candidate.outputs.is_measured(cell[1]):
            continue
        ratio = _strength_ratio(reference.outputs, candidate.outputs, cell)
        is_doubtful = if_unknown if ratio is None else ratio > CLEAR_STRENGTH_RATIO
        if is_doubtful:
            doubtful.append(match)
    return tuple(doubtful)


def _plain(counts: IntArray) -> tuple[tuple[int, ...], ...]:
    return tuple(map(tuple, counts.tolist()))


def _log_p(own: IntArray, n_pairs: int) -> npt.NDArray[np.float64]:
    """Return ln p of each pair of layers, corrected for ``n_pairs``."""
    return np.array([[log_p_own_numbers(int(k)) for k in row] for row in own]) + math.log(n_pairs)


def _log_p_together(own: IntArray) -> float:
    """Return ln p for all layers together, paired by position or by the best assignment."""
    n_few, n_many = sorted(own.shape)
    if n_few == n_many:
        return log_p_own_numbers(int(np.trace(own)), n_few)
    n_own = int(own[linear_sum_assignment(own, maximize=True)].sum())
    return min(0.0, log_p_own_numbers(n_own, n_few) + math.log(math.perm(n_many, n_few)))


def _agreeing_cells(strength: IntArray, is_significant: npt.NDArray[np.bool_], n_tested: int) -> list[tuple[int, int]]:
    """Return candidate layers that agree in gate and up, with their best reference layers."""
    cells = ((int(strength[:, j].argmax()), j) for j in range(strength.shape[1]))
    return [cell for cell in cells if strength[cell] >= LEAST_SHARE_OF_NEURONS * n_tested and is_significant[cell]]


PLANTED = 5
"""Number of copies planted in each layer."""

NOISES = tuple(0.125 * 1.25**step for step in range(20))
"""Noise levels of the planted copies, up to 8.7 times the weights."""


def excluded_noise(*samples: NeuronSample, alpha: float, nominates: bool = False) -> float:
    """Find the strongest noise at which a copy of either model, in any basis but with neurons in order, is detected.

    If ``nominates`` is set, a copy only needs to be nominated for a larger sample. Takes up to five steps of 40 fits.

    Returns:
        Noise in units of each row's root mean square, or 0 if even the smallest of :data:`NOISES` hides a copy.
    """
    n_cells = math.prod(len(sample.layers) for sample in samples)
    log_level = math.log(alpha) - math.log(n_cells) - log_cost_of_look(PLACE) - math.log(TESTS)

    def counts(layer: torch.Tensor, noise: float, seed: int, sample: NeuronSample) -> bool:
        numbers = _numbers_of_copy(layer, noise, seed, sample)
        if nominates:
            return _is_nominated(numbers.own, n_cells)
        is_certain = numbers.certain >= LEAST_SHARE_OF_NEURONS * sample.n_tested
        return is_certain and log_p_own_numbers(numbers.own) < log_level

    def is_found(noise: float) -> bool:
        return all(
            any(counts(layer, noise, seed, sample) for layer in sample.whole)
            for sample in samples
            if sample.whole is not None
            for seed in range(PLANTED)
        )

    n_found = bisect_left(NOISES, True, key=lambda noise: not is_found(noise))
    return NOISES[n_found - 1] / NOISES[1] * NOISES[0] if n_found else 0.0


def _numbers_of_copy(layer: torch.Tensor, noise: float, seed: int, sample: NeuronSample) -> OwnNumbers:
    """Copy a layer with noise, and count the neurons that match the neuron with the same number."""
    generator = torch.Generator().manual_seed(seed)
    added_noise = noise * layer.shape[-1] ** -0.5 * torch.randn(layer.shape, generator=generator)
    planted = torch.nn.functional.normalize(layer + added_noise, dim=-1)
    sides = (in_span(list(rows), sample.n_fitted) for rows in (layer, planted))
    return own_numbers(*sides, n_fitted=sample.n_fitted, n_neurons=sample.n_neurons)


def resemblances(sample: NeuronSample) -> torch.Tensor:
    """Compute the similarities between each layer's tested neurons, which do not depend on the basis.

    Returns:
        ``(layers, matrices * pairs)`` float32 cosines of all neuron pairs, with centred unit rows; the inner product of
        two rows is the correlation of two layers.
    """
    tested = torch.nn.functional.normalize(sample.rows[:, :, sample.n_fitted :].float(), dim=-1)
    n = tested.shape[2]
    above = torch.triu_indices(n, n, 1)
    cosines = (tested @ tested.transpose(2, 3))[:, :, above[0], above[1]]
    return unit_rows((cosines - cosines.mean(dim=2, keepdim=True)).flatten(1))
