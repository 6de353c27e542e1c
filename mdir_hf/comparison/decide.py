"""Apply the verdict rules, which docs/method/verdicts.md explains."""

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
    StackPair,
    Verdict,
)

COPIED_COSINE = 0.7
"""Paired rows count as copies if their mean cosine is at least this. Unrelated models that were rotated to match reach
0.48; fine-tuned, further pretrained and distilled relatives with copied rows reach at least 0.74
(``benchmarks/real/framing``)."""

TRUSTED_STRENGTH = 0.7
"""Even if both models have privileged axes, a match is accepted if its trace divided by its rank is at least this. In
simulations, unrelated models of width 64 reach 0.63."""

TRUSTED_OFF_MATCH_SHARE = 0.05
"""A match with at most this many off-match hits per matched channel is accepted, too. Unrelated models have at least
0.15; relatives have hardly any, unless they drifted along the axes. Both limits were chosen in simulations
(docs/LOG.md, 2026-11-20, -22)."""

VISIBLE_HIT = 0.5
"""An off-match hit is an entry outside the matching that is significant by itself. With fewer than about 120 channels,
even an entry of this size is not significant, so the absence of hits is not evidence."""

LEAST_COVERAGE = 0.1
"""The absence of off-match hits is evidence only if at least this share of the channels is individually significant."""

MAX_OFF_MATCH_SHARE = 0.1
"""If more than this share of the layer pairs outside the map is significant, the map's p is disregarded."""

LEAST_CERTAIN_SHARE_OF_CHANNELS = 0.5
"""Channels of an unrelated model can be renumbered so that slightly similar channels get the same number. The p-value
from channel numbers is therefore used only if neurons agree, too. In addition, the match must reach
:data:`TRUSTED_STRENGTH` or have few off-match hits, or at least this share of the channels must be matched in order and
individually significant. In real unrelated models with renumbered channels, the share is 0 to 5%
(``benchmarks/real/arranged.py``)."""

SATURATED_SHARE = 0.95
"""If channels match by number, the looks go on until at least this share of them do. log p is then within about 6% of
its minimum, whichever rows were sampled."""

N_BOUNDS = 4
"""Maximum number of bounds on p. The report states the smallest, multiplied by this number. Bounds come from the
channel numbers of either matrix, the neuron numbers (in the layers, or else in other parts, corrected for the number of
parts), and the layer map."""

SURE_TESTS = ("subspaces", "frequencies", "neurons")
"""Layer tests that, after a fitted rotation, were never significant for small unrelated models trained on the same
text. In real unrelated models, neurons in the last layers are significant, so a map found after a rotation must include
half of the layers."""

LEAST_NOISE = 1.0
"""Agreement on a few axes is disregarded if the layers do not agree and their test would detect copies with this much
noise, relative to the weights. Models trained independently with the same recipe share some axes
(benchmarks/results/pages/real-models.md)."""


def is_trusted(matrix: MatrixResult) -> bool:
    """Return whether the agreement between two matrices goes beyond shared axes."""
    holds = not _has_axes(matrix) or _is_strong_or_clean(matrix)
    return matrix.settled_by is not None and not _re_paired_is_significant(matrix) and holds


def is_copied(matrix: MatrixResult) -> bool:
    """Return whether the rows of matched matrices are copies rather than merely aligned."""
    return matrix.settled_by is not None and (matrix.cosine or 0.0) >= COPIED_COSINE


def is_numbered_alike(matrix: MatrixResult, log10_alpha: float) -> bool:
    """Return whether matching channel numbers are evidence of ancestry."""
    numbering = matrix.numbering
    if numbering is None or numbering.log10_p >= log10_alpha:
        return False
    return numbering.certain_share >= LEAST_CERTAIN_SHARE_OF_CHANNELS or _is_strong_or_clean(matrix)


def has_open_numbering(matrix: MatrixResult, log10_alpha: float) -> bool:
    """Return whether more rows may lower p from matching channel numbers or make them evidence."""
    numbering = matrix.numbering
    if numbering is None or numbering.log10_p >= log10_alpha:
        return False
    n_numbered, n_channels = max(numbering.own_number, numbering.in_order), min(*matrix.widths, matrix.channels)
    return n_numbered < SATURATED_SHARE * n_channels or not is_numbered_alike(matrix, log10_alpha)


def _is_strong_or_clean(matrix: MatrixResult) -> bool:
    n = min(matrix.widths)
    would_show = VISIBLE_HIT**2 * n / 2.0 > math.log(2.0 * n * n / CHANNEL_ALPHA)
    is_clean = (
        would_show and (matrix.coverage or 0.0) >= LEAST_COVERAGE and matrix.off_match_share <= TRUSTED_OFF_MATCH_SHARE
    )
    return matrix.strength >= TRUSTED_STRENGTH or is_clean


def _has_axes(matrix: MatrixResult) -> bool:
    """Return whether both models may have privileged axes, in which case p may not be a valid bound."""
    return matrix.both_privileged or matrix.channel_numbers_mean_something


def _re_paired_is_significant(matrix: MatrixResult) -> bool:
    """Return whether the placebo with re-paired tokens is significant or missing."""
    return matrix.placebo is None or matrix.placebo.re_paired.is_significant


def doubts_of_layers(layers: LayersResult) -> tuple[str, ...]:
    """Return a sentence for each reason to doubt a layer map."""
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
    """A verdict, its p-value and the sentences that accompany it.

    Attributes:
        log10_p: log10 of a bound on p. For a homologous verdict, this is the strongest bound, or None if there is none;
            for others, it is the bound from neuron numbers, or 0 if that bound is below alpha.
        log10_p_not_accepted: Smallest log10 p that was below alpha but not accepted.
        accepts_layers: Whether the layer map met all conditions.
        assumption: The assumption behind p; None unless the verdict is homologous.
    """

    verdict: Verdict
    reason: Reason | None
    settled_by: SettledBy | None
    log10_p: float | None
    caveats: tuple[str, ...]
    log10_p_not_accepted: float | None = None
    accepts_layers: bool = False
    assumption: Assumption | None = None

    def headline(self, alpha: float) -> float | None:
        """Return log10 p for the report, limited to the side of alpha that fits the verdict."""
        if self.log10_p is None:
            return None
        log10_alpha = math.log10(alpha)
        if self.verdict is Verdict.HOMOLOGOUS:
            return min(self.log10_p, math.nextafter(log10_alpha, -math.inf))
        return max(min(0.0, self.log10_p), log10_alpha)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """All evidence from one comparison. Fields are None for parts that were not compared.

    Attributes:
        is_sample_fresh: See :class:`~.measurements.Measurements`.
        layers_noise: Strongest noise at which copied layers would be detected, in units of the weights' RMS.
        are_layers_invariant: Whether the layer map's null hypothesis was tested and not rejected.
    """

    alpha: float
    level: Level
    matrices: Mapping[str, MatrixResult]
    layers: LayersResult | None = None
    neurons: NeuronNumbers | None = None
    have_layers: bool = True
    is_sample_fresh: bool = True
    layers_are_unreadable: bool = False
    was_stopped: bool = False
    layers_noise: float = 0.0
    are_layers_invariant: bool = False
    parts: tuple[StackPair, ...] = ()

    @property
    def trusted(self) -> list[MatrixResult]:
        """Results of the matrix pairs whose agreement goes beyond shared axes."""
        return [matrix for matrix in self.matrices.values() if is_trusted(matrix)]

    @property
    def has_witness(self) -> bool:
        """Whether neurons of matched layers agree in gate, up and down."""
        return self.neurons is not None and self.neurons.is_witness

    @property
    def related_parts(self) -> list[StackPair]:
        """Matching parts of the language models, or all matching parts if a model has no layers."""
        return [pair for pair in self.parts if pair.layers and (pair.is_language or not self.have_layers)]


def decide(evidence: Evidence) -> Decision:
    """Apply the verdict rules (docs/method/verdicts.md).

    The verdict is homologous if neurons in layers, experts or other parts of the language models agree in gate, up and
    down, on an unpredictable sample. For models without layers, copied rows of a matrix are sufficient. The verdict is
    inconclusive if only matrices or layer maps agree, if an exact copy would not have been found, or if layers could
    not be compared.
    """
    alpha, level, log10_alpha = evidence.alpha, evidence.level, math.log10(evidence.alpha)
    matrices, layers, neurons = evidence.matrices, evidence.layers, evidence.neurons
    is_significant = layers is not None and layers.log10_p < log10_alpha
    doubts = doubts_of_layers(layers) if layers is not None and is_significant else ()
    accepts_layers = is_significant and not doubts
    is_one_sided = neurons is not None and neurons.log10_p < log10_alpha and not evidence.has_witness
    refused = [matrix.log10_p for matrix in matrices.values() if matrix.log10_p < log10_alpha]
    refused = [] if evidence.has_witness else refused
    refused += [layers.log10_p] if layers is not None and is_significant and not evidence.has_witness else []
    refused += [neurons.log10_p] if neurons is not None and is_one_sided else []
    not_accepted = min(refused, default=None)

    if evidence.has_witness and evidence.is_sample_fresh:
        return _homologous(evidence, log10_alpha, accepts_layers=accepts_layers, doubts=doubts)
    if not evidence.have_layers and any(is_copied(matrix) and is_trusted(matrix) for matrix in matrices.values()):
        return _homologous(evidence, log10_alpha, accepts_layers=False, doubts=())
    if evidence.related_parts and evidence.is_sample_fresh:
        return _homologous(evidence, log10_alpha, accepts_layers=accepts_layers, doubts=doubts)

    bound = 0.0 if neurons is None else neurons.log10_p
    accepted = bound if bound >= log10_alpha else 0.0

    def inconclusive(reason: Reason, sentences: tuple[str, ...] = ()) -> Decision:
        return Decision(Verdict.INCONCLUSIVE, reason, None, accepted, sentences, not_accepted, accepts_layers)

    if evidence.has_witness or evidence.related_parts:
        return inconclusive(Reason.SAMPLE_CHOSEN)
    if neurons is not None and neurons.idle:
        return inconclusive(Reason.NULL_NOT_VALIDATED, (caveats.of_idle_neurons(neurons),))
    if is_significant and not accepts_layers:
        return inconclusive(Reason.NULL_NOT_VALIDATED, doubts)
    if evidence.trusted:
        copied = [name for name, matrix in matrices.items() if is_copied(matrix)]
        sentences = caveats.of_embeddings_only(matrices, level, neurons, copied=copied, layers_agree=accepts_layers)
        return inconclusive(Reason.LAYERS_UNCONFIRMED if accepts_layers else Reason.EMBEDDINGS_ONLY, sentences)
    if layers is not None and accepts_layers:
        return inconclusive(Reason.LAYERS_UNCONFIRMED, caveats.of_layers_unconfirmed(layers, neurons))
    for matrix in matrices.values():
        if matrix.settled_by is not None:
            return inconclusive(Reason.NULL_NOT_VALIDATED, _doubts_of_matrix(matrix))
    if neurons is not None and is_one_sided:
        return inconclusive(Reason.NULL_NOT_VALIDATED, (caveats.of_uncertain_neurons(neurons),))
    on_few_axes = [name for name, matrix in matrices.items() if matrix.log10_p < log10_alpha]
    if on_few_axes and (layers is None or evidence.layers_noise < LEAST_NOISE):
        return inconclusive(Reason.FEW_SHARED_AXES)
    if layers is None and matrices and all(not could_settle(matrix, alpha) for matrix in matrices.values()):
        return inconclusive(Reason.TOO_FEW_COMMON_TOKENS)
    if evidence.was_stopped:
        return inconclusive(Reason.STOPPED)
    if evidence.layers_are_unreadable or not (matrices or layers):
        return inconclusive(Reason.WEIGHTS_UNREADABLE)
    sentences = (*map(caveats.few_axes, on_few_axes), *caveats.of_no_evidence(matrices, level, layers))
    return Decision(Verdict.NO_EVIDENCE, None, None, accepted, sentences, not_accepted)


def _homologous(evidence: Evidence, log10_alpha: float, *, accepts_layers: bool, doubts: tuple[str, ...]) -> Decision:
    neurons, layers = evidence.neurons, evidence.layers
    bounds: list[tuple[float, Assumption]] = [
        (matrix.numbering.log10_p, Assumption.NUMBERING)
        for matrix in evidence.trusted
        if matrix.numbering is not None and is_numbered_alike(matrix, log10_alpha)
    ]
    if neurons is not None and evidence.has_witness and not neurons.is_searched:
        bounds.append((neurons.log10_p, Assumption.NUMBERING))
    if not evidence.has_witness:
        bounds += [(pair.log10_p, Assumption.NUMBERING) for pair in evidence.related_parts]
    if layers is not None and accepts_layers and evidence.are_layers_invariant:
        bounds.append((min(layers.log10_p, layers.log10_p_fisher), Assumption.ROTATION))
    bounds = [(log10_p + math.log10(N_BOUNDS), assumption) for log10_p, assumption in bounds]
    bounds = [bound for bound in bounds if bound[0] < log10_alpha]
    log10_p, assumption = min(bounds, default=(None, Assumption.CALIBRATION), key=lambda bound: bound[0] or 0.0)
    sentences: tuple[str, ...] = ()
    if evidence.trusted:
        settled_by = evidence.trusted[0].settled_by
        sentences += caveats.of_matrix(evidence.trusted[0], assumption)
    elif layers is not None and accepts_layers and (neurons is None or neurons.is_searched):
        settled_by = SettledBy.LAYERS
        sentences += caveats.of_layers(layers)
    else:
        settled_by = SettledBy.NEURONS
    if neurons is not None and evidence.has_witness:
        sentences += caveats.of_neurons(neurons, settles=settled_by is SettledBy.NEURONS)
    if not evidence.has_witness and not evidence.related_parts:
        sentences += (caveats.NO_LAYERS,)
    return Decision(
        Verdict.HOMOLOGOUS,
        None,
        settled_by,
        log10_p,
        (*sentences, *doubts),
        accepts_layers=accepts_layers,
        assumption=assumption,
    )


def where_tokens_are_unknown(decision: Decision) -> Decision:
    """Turn "no evidence" into an inconclusive verdict, because rows may have been paired with the wrong tokens.

    A wrong pairing hides copies, although p remains valid.
    """
    if decision.verdict is not Verdict.NO_EVIDENCE:
        return decision
    return replace(decision, verdict=Verdict.INCONCLUSIVE, reason=Reason.TOKENS_UNKNOWN)


def layers_support(modules: Sequence[tuple[int, int, ModuleEvidence]], residual_map: str, log_alpha: float) -> bool:
    """Return whether the analysed layers support a layer map.

    A rotation fitted on tokens also aligns features that unrelated models share. After a rotation, every layer must
    therefore be significant in a test that shared features do not affect. ``log_alpha`` is the log of the level for all
    layers together.
    """
    if residual_map != "rotation":
        return True
    level = log_alpha - math.log(max(1, len(modules)))
    layers = {(i, j) for i, j, _ in modules}
    sure = {(i, j) for i, j, evidence in modules if evidence.test in SURE_TESTS and evidence.log_p < level}
    return bool(layers) and sure == layers


def could_settle(matrix: MatrixResult, alpha: float) -> bool:
    """Return whether a copy would be significant on these tokens, even without the better half of its channels."""
    n_narrow, n_wide = sorted(matrix.widths)
    # On r tokens, the trace of a copy equals its rank, r - 1. If all common rows are zero, even a copy has no rank.
    rank = min((matrix.common_tokens if matrix.rows_used else 0) - 1, n_narrow)
    n_kept = n_narrow - n_narrow // 2
    if rank <= 0:
        return False
    exponent = 0.5 * (rank / 2) ** 2 * n_narrow / (rank / 2)  # half the channels carry half of trace and energy
    # For 8 tests (there are 6 or 12) and the ninth look (9 * 10). This decides only whether a negative result is called
    # inconclusive or no evidence.
    return log_n_matchings(n_narrow, n_wide, n_kept) - exponent + math.log(8 * 90) < math.log(alpha)


def _doubts_of_matrix(matrix: MatrixResult) -> tuple[str, ...]:
    return (caveats.RE_PAIRED_AGREE if _re_paired_is_significant(matrix) else caveats.weak_match_on_axes(matrix),)
