"""The verdict rules, all in one place.

An embedding settles the question where three things hold (docs/method/verdicts.md). p is below alpha, with and
without the best half of the channels. The placebo with re-paired tokens is not significant. One of the models has no
privileged axes, or the match is stronger or cleaner than shared features on privileged axes make it. Where both models
have privileged axes the p-value is not a theorem: in simulations, strangers with sparse features of the same language
on their axes pass the first two.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from mdir_hf.comparison import caveats
from mdir_hf.method.matching import CHANNEL_ALPHA
from mdir_hf.method.modules import ModuleEvidence
from mdir_hf.method.significance import log_n_matchings
from mdir_hf.report import (
    PLACEBO_LOG10_P,
    Assumption,
    LayersResult,
    Level,
    MatrixResult,
    NeuronNumbers,
    Reason,
    SettledBy,
    Verdict,
)

TRUSTED_STRENGTH = 0.7
"""A match this strong (trace over rank) counts although the axes of both models stand out. Strangers reach 0.63 in
simulations, at width 64."""

TRUSTED_OFF_MATCH_SHARE = 0.05
"""So does a match with this few off-match hits per matched channel. Strangers have 0.15 and more. A relative has next
to none, unless it drifted along the axes, too. Both limits were chosen on the simulations of docs/LOG.md, 2026-11-20
and 2026-11-22."""

VISIBLE_HIT = 0.5
"""An off-match hit is an entry that is significant by itself. In a narrow model not even an entry of this size is: then
that none were counted says nothing. This is so below about 120 channels."""

LEAST_COVERAGE = 0.1
"""The absence of off-match hits counts only where at least a tenth of the channels are matched each by itself."""

MAX_OFF_MATCH_SHARE = 0.1
"""Where more than this share of the layer pairs off the map are significant, the null of the map does not hold."""

LEAST_CERTAIN_SHARE_OF_CHANNELS = 0.5
"""Numbers can be chosen: somebody may renumber a stranger so that channels that are a little alike get the same number.
So p by numbers is stated only where this share of the channels is matched in order and each significant by itself. Of
arranged real strangers 0 to 5 % are (``benchmarks/real/arranged.py``)."""

SURE_TESTS = ("subspaces", "frequencies", "neurons")
"""Tests of a layer that were not significant, behind the fitted rotation, on small strangers trained on the same text.
In the last layers of real strangers neurons are: therefore a map behind a rotation needs half of the layers."""

LEAST_NOISE = 1.0
"""Agreement on a few axes is outweighed by layers that are not significant where these would have been with noise as
large as the weights themselves. Independently trained models of one recipe share some axes
(docs/evidence/real-models.md): of Qwen2.5-Coder-0.5B-Instruct and -1.5B-Instruct 6 of the 256 channels looked at are
significant one by one, no layer."""


def is_trusted(matrix: MatrixResult) -> bool:
    """Whether a pair of matrices settles the question: significant, calibrated, beyond what shared axes can do."""
    n = min(matrix.widths)
    would_show = VISIBLE_HIT**2 * n / 2.0 > math.log(2.0 * n * n / CHANNEL_ALPHA)
    is_clean = (
        would_show and (matrix.coverage or 0.0) >= LEAST_COVERAGE and matrix.off_match_share <= TRUSTED_OFF_MATCH_SHARE
    )
    holds = not _has_axes(matrix) or matrix.strength >= TRUSTED_STRENGTH or is_clean
    return matrix.settled_by is not None and not _re_paired_is_significant(matrix) and holds


def headline_of(matrix: MatrixResult, log10_alpha: float) -> tuple[float, Assumption]:
    """The log10 of the p that a verdict on this match states, and what that p rests on."""
    if not _has_axes(matrix):
        return matrix.log10_p, Assumption.ROTATION
    if is_numbered_alike(matrix, log10_alpha):
        return matrix.numbering.log10_p if matrix.numbering else 0.0, Assumption.NUMBERING
    return matrix.log10_p, Assumption.CALIBRATION


def is_numbered_alike(matrix: MatrixResult, log10_alpha: float) -> bool:
    """Whether the numbers of the channels are evidence: significant, and no arranged stranger looks like it."""
    found = matrix.numbering
    return found is not None and found.log10_p < log10_alpha and found.certain_share >= LEAST_CERTAIN_SHARE_OF_CHANNELS


def _has_axes(matrix: MatrixResult) -> bool:
    """Whether neither model is known to be rotation invariant, which the bound on the trace asks for."""
    return matrix.both_privileged or matrix.channel_numbers_mean_something


def _re_paired_is_significant(matrix: MatrixResult) -> bool:
    """Whether the placebo shows something; where there was none, nothing says that it does not."""
    return matrix.placebo is None or matrix.placebo.re_paired.is_significant


def doubts_of_layers(layers: LayersResult) -> tuple[str, ...]:
    """Why a map of the layers is not accepted, however significant: a sentence each."""
    doubts = []
    if layers.off_match_share > MAX_OFF_MATCH_SHARE:
        doubts.append(caveats.off_match_layers(layers))
    if layers.placebo_log10_p <= PLACEBO_LOG10_P:
        doubts.append(caveats.SHUFFLED_LAYERS_AGREE)
    if not layers.is_supported:
        doubts.append(caveats.rotation_not_supported(layers))
    return tuple(doubts)


@dataclass(frozen=True, slots=True)
class Decision:
    """A verdict with its reason, the p that it rests on, and the sentences that go with it.

    Attributes:
        verdict: The verdict.
        reason: Why it is inconclusive, else None.
        settled_by: The step that settled it, else None.
        log10_p: Of the evidence that the verdict rests on, after every condition: below log10 of alpha exactly where
            the verdict is homologous.
        caveats: Sentences about the evidence.
        log10_p_not_accepted: Smallest log10 of a p below alpha that failed a condition; None where none did.
        accepts_layers: Whether the map of the layers is significant and met every condition.
        assumption: What ``log10_p`` of a finding rests on; None where nothing was found.
    """

    verdict: Verdict
    reason: Reason | None
    settled_by: SettledBy | None
    log10_p: float
    caveats: tuple[str, ...]
    log10_p_not_accepted: float | None = None
    accepts_layers: bool = False
    assumption: Assumption | None = None

    def headline(self, alpha: float) -> float:
        """The p of the report, as log10: rounding does not carry it over the level of significance."""
        log10_alpha = math.log10(alpha)
        if self.verdict is Verdict.HOMOLOGOUS:
            return min(self.log10_p, math.nextafter(log10_alpha, -math.inf))
        return max(min(0.0, self.log10_p), log10_alpha)


def decide(
    matrices: Mapping[str, MatrixResult],
    layers: LayersResult | None = None,
    neurons: NeuronNumbers | None = None,
    *,
    alpha: float,
    level: Level,
    layers_are_unreadable: bool = False,
    was_stopped: bool = False,
    layers_noise: float = 0.0,
) -> Decision:
    """Apply the verdict rules.

    Args:
        matrices: What was found on each pair of matrices (embedding, unembedding), in the order tested.
        layers: What was found on the layers, None where they were not compared.
        neurons: What was found on a few neurons, None where they were not compared.
        alpha: The level of significance.
        level: How far the comparison went.
        layers_are_unreadable: Whether all or most of them would have been compared, and could not be.
        was_stopped: Whether something that was to be compared is not yet.
        layers_noise: The strongest noise, in units of the weights' RMS, under which a copy would have been found by
            its layers; 0 where they were not compared.

    Returns:
        Homologous where a matrix is trusted, where layers match by the numbers of their neurons, or where the layer map
        is significant and nothing casts doubt on it.
        Inconclusive where one of them is significant without that, where not even a plain copy could have been
        significant, or where layers that should have been compared could not be. No evidence otherwise.
    """
    log10_alpha = math.log10(alpha)
    is_significant = layers is not None and layers.log10_p < log10_alpha
    doubts = doubts_of_layers(layers) if layers is not None and is_significant else ()
    accepts_layers = is_significant and not doubts
    refused = [one.log10_p for one in matrices.values() if one.log10_p < log10_alpha and not is_trusted(one)]
    refused += [layers.log10_p] if layers is not None and doubts else []
    few_are_certain = neurons is not None and neurons.log10_p < log10_alpha and not neurons.matches
    refused += [neurons.log10_p] if neurons is not None and few_are_certain else []
    not_accepted = min(refused, default=None)

    def homologous(
        settled_by: SettledBy | None, log10_p: float, said: tuple[str, ...], assumption: Assumption
    ) -> Decision:
        return Decision(Verdict.HOMOLOGOUS, None, settled_by, log10_p, said, not_accepted, accepts_layers, assumption)

    match_by_number = neurons is not None and bool(neurons.matches) and neurons.log10_p < log10_alpha
    for one in matrices.values():
        if is_trusted(one) and one.log10_p < log10_alpha:
            log10_p, assumption = headline_of(one, log10_alpha)
            if assumption is Assumption.CALIBRATION and neurons is not None and match_by_number:
                log10_p, assumption = neurons.log10_p, Assumption.NUMBERING
            return homologous(one.settled_by, log10_p, (*caveats.of_matrix(one, assumption), *doubts), assumption)
    if neurons is not None and match_by_number:
        said = (*caveats.of_neurons(neurons, has_embeddings=bool(matrices)), *doubts)
        return homologous(SettledBy.NEURONS, neurons.log10_p, said, Assumption.NUMBERING)
    if layers is not None and accepts_layers:
        log10_p = min(layers.log10_p, layers.log10_p_fisher)
        return homologous(SettledBy.LAYERS, log10_p, caveats.of_layers(layers), Assumption.ROTATION)
    found = [*(one.log10_p for one in matrices.values()), *([] if layers is None else [layers.log10_p])]
    accepted = min((log10_p for log10_p in found if log10_p >= log10_alpha), default=0.0)

    def inconclusive(reason: Reason, said: tuple[str, ...] = ()) -> Decision:
        return Decision(Verdict.INCONCLUSIVE, reason, None, accepted, said, not_accepted)

    if is_significant:
        return inconclusive(Reason.NULL_NOT_VALIDATED, doubts)
    for one in matrices.values():
        if one.settled_by is not None:
            return inconclusive(Reason.NULL_NOT_VALIDATED, _doubts_of_matrix(one))
    if neurons is not None and few_are_certain:
        return inconclusive(Reason.NULL_NOT_VALIDATED, (caveats.of_uncertain_neurons(neurons),))
    on_few_axes = [name for name, one in matrices.items() if one.log10_p < log10_alpha]
    if on_few_axes and (layers is None or layers_noise < LEAST_NOISE):
        return inconclusive(Reason.FEW_SHARED_AXES)
    if layers is None and matrices and all(not could_settle(one, alpha) for one in matrices.values()):
        return inconclusive(Reason.TOO_FEW_COMMON_TOKENS)
    if was_stopped:
        return inconclusive(Reason.STOPPED)
    if layers_are_unreadable or not (matrices or layers):
        return inconclusive(Reason.WEIGHTS_UNREADABLE)
    said = (*map(caveats.few_axes, on_few_axes), *caveats.of_no_evidence(matrices, level, layers))
    return Decision(Verdict.NO_EVIDENCE, None, None, accepted, said, not_accepted)


def where_tokens_are_unknown(decision: Decision) -> Decision:
    """What a decision is worth where nothing says for certain which row is which token's: a finding stands.

    Any pairing of rows keeps the p-value valid, so what was found was found. That nothing was found says little: a
    plain copy whose rows were paired with others is not found by its embeddings.
    """
    if decision.verdict is not Verdict.NO_EVIDENCE:
        return decision
    return replace(decision, verdict=Verdict.INCONCLUSIVE, reason=Reason.TOKENS_UNKNOWN)


def layers_support(modules: Sequence[tuple[int, int, ModuleEvidence]], residual_map: str, log_alpha: float) -> bool:
    """Whether the analysed layers support a map.

    A rotation that was fitted on tokens also aligns features that unrelated models learn alike. Behind one, every
    analysed layer must be significant in a test that such features do not reach. Behind any other residual-basis map
    nothing was fitted on meaning, and the map stands by itself.

    Args:
        modules: Algorithm 3 on matched layers: (reference layer, candidate layer, evidence).
        residual_map: Kind of the residual-basis map that carried the layers.
        log_alpha: Natural log of the level over all of them.
    """
    if residual_map != "rotation":
        return True
    level = log_alpha - math.log(max(1, len(modules)))
    layers = {(i, j) for i, j, _ in modules}
    sure = {(i, j) for i, j, found in modules if found.test in SURE_TESTS and found.log_p < level}
    return bool(layers) and sure == layers


def could_settle(matrix: MatrixResult, alpha: float) -> bool:
    """Whether a plain copy would be significant on this many common tokens, without its best half of channels too.

    The polar factor of a copy on r tokens is a projection of rank r - 1 (centring takes one), whose trace is its rank.
    """
    n_narrow, n_wide = sorted(matrix.widths)
    # Where every common row is zero no row could be used: then not even a copy has a rank.
    rank = min((matrix.common_tokens if matrix.rows_used else 0) - 1, n_narrow)
    n_kept = n_narrow - n_narrow // 2
    if rank <= 0:
        return False
    exponent = 0.5 * (rank / 2) ** 2 * n_narrow / (rank / 2)  # half the channels carry half of trace and energy
    # For 8 tests (there are 6 or 12), and the ninth look (9 * 10). What hangs on it is only whether nothing
    # found is called inconclusive or no evidence.
    return log_n_matchings(n_narrow, n_wide, n_kept) - exponent + math.log(8 * 90) < math.log(alpha)


def _doubts_of_matrix(matrix: MatrixResult) -> tuple[str, ...]:
    """Why a significant match of a pair of matrices is not accepted."""
    return (caveats.RE_PAIRED_AGREE if _re_paired_is_significant(matrix) else caveats.weak_match_on_axes(matrix),)
