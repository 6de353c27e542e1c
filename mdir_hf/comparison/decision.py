"""From evidence to a verdict: the rules, in one place.

An embedding settles the question where three things hold (docs/method/verdicts.md). p is below alpha, with and
without the best half of the channels. The placebo with re-paired tokens is not significant. One of the models has no
privileged axes, or the match is stronger or cleaner than shared features on privileged axes make it. Where both models
have privileged axes the p-value is no theorem: in simulations, strangers with sparse features of the same language on
their axes pass the first two.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from mdir_hf.method.matching import CHANNEL_ALPHA
from mdir_hf.method.modules import ModuleEvidence
from mdir_hf.method.significance import log_n_matchings
from mdir_hf.report import PRIVILEGED_Z, Assumption, Level, Reason, SettledBy, Verdict

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

LEAST_CERTAIN_SHARE = 0.5
"""Numbers can be chosen: somebody may renumber a stranger so that channels that are a little alike get the same number.
So p by numbers is stated only where this share of the channels is matched in order and each significant by itself. Of
arranged real strangers 0 to 5 % are (``benchmarks/real/arranged.py``)."""

SURE_TESTS = ("subspaces", "frequencies", "neurons")
"""Tests of a layer that were not significant, behind the fitted rotation, on strangers trained on the same text."""

LEAST_NOISE = 1.0
"""Agreement on a few axes is outweighed by layers that are not significant where these would have been with noise as
large as the weights themselves. Independently trained models of one recipe share some dozens of axes (docs/evidence.md,
"Real models"): of Qwen2.5-Coder-0.5B-Instruct and -1.5B-Instruct 74 channels are significant one by one, no layer."""

FEW_AXES = (
    "The {name}s agree on a few channels only, and not without them: models that were trained independently on like "
    "data share some axes. The layers were compared, and show nothing."
)

_BODY_CAVEATS = {
    "identity": (
        "The embeddings do not agree and the layers do, in the same residual basis: as after a change of tokenizer or "
        "a retraining of the embeddings.",
    ),
    "rotation": (
        "The layers agree once the residual stream of one model is rotated into that of the other. The rotation was "
        "fitted on the {fitted_on} and is no evidence by itself.",
    ),
}

_NEW_EMBEDDINGS_CAVEAT = (
    "The embeddings do not agree and the layers do, in a residual basis that was found on their own keys: as after a "
    "change of tokenizer in a model whose channels were permuted, cut or turned."
)


@dataclass(frozen=True, slots=True)
class Evidence:
    """What was found on one pair of matrices.

    Attributes:
        log_p: Natural log of p over all looks, corrected for all tests.
        log_p_robust: The same without the best half of the channels, of the look that is reported.
        is_settled: Whether some look is significant both ways.
        settled_by: The step that settled it.
        strength: Trace over rank of the look that is reported, in [0, 1].
        coverage: Share of channels matched each by itself.
        off_match_share: Off-match hits, channels that also resemble another than their own, per matched one; see
            :func:`~mdir_hf.method.calibration.count_off_match_channels`.
        re_paired_is_significant: Whether the re-pairing placebo is significant, which it should not be.
        basis_z: Privileged-basis index of either model.
        common_tokens: Common tokens.
        rows_used: Tokens used by the look that is reported.
        widths: Channels of either model.
        is_in_own_order: Whether channels were matched with those of their own number, because no search found them.
        rows_are_equal: Whether every row that a look has read is the same in both, number by number.
        log_p_numbering: Natural log of p by the numbers of the channels, corrected as ``log_p`` is; 0 where an
            architecture gives the numbers a meaning.
        certain_share: Share of the channels that are partners in order and each significant by itself.
        both_numbered: Whether the architectures of both give the numbers of their channels a meaning.
    """

    log_p: float
    log_p_robust: float
    is_settled: bool
    settled_by: SettledBy | None
    strength: float
    coverage: float
    off_match_share: float
    re_paired_is_significant: bool
    basis_z: tuple[float, float]
    common_tokens: int
    rows_used: int
    widths: tuple[int, int]
    is_in_own_order: bool = False
    rows_are_equal: bool = False
    both_numbered: bool = False
    log_p_numbering: float = 0.0
    certain_share: float = 0.0

    @property
    def both_privileged(self) -> bool:
        """Whether the axes of both models stand out, so that neither is rotation invariant."""
        return min(abs(z) for z in self.basis_z) > PRIVILEGED_Z

    @property
    def has_axes(self) -> bool:
        """Whether neither model is known to be rotation invariant, which the bound on the trace asks for."""
        return self.both_privileged or self.both_numbered

    def is_numbered_alike(self, log_alpha: float) -> bool:
        """Whether the numbers of the channels are evidence: significant, and no arranged stranger looks like it."""
        return self.log_p_numbering < log_alpha and self.certain_share >= LEAST_CERTAIN_SHARE

    def headline(self, log_alpha: float) -> tuple[float, Assumption]:
        """Natural log of the p that a verdict on this match states, and what that p rests on."""
        if not self.has_axes:
            return self.log_p, Assumption.ROTATION
        if self.is_numbered_alike(log_alpha):
            return self.log_p_numbering, Assumption.NUMBERING
        return self.log_p, Assumption.CALIBRATION

    @property
    def is_trusted(self) -> bool:
        """Whether it settles the question: significant both ways, calibrated, beyond what shared axes can do."""
        n = min(self.widths)
        would_show = VISIBLE_HIT**2 * n / 2.0 > math.log(2.0 * n * n / CHANNEL_ALPHA)
        is_clean = would_show and self.coverage >= LEAST_COVERAGE and self.off_match_share <= TRUSTED_OFF_MATCH_SHARE
        holds = not self.has_axes or self.strength >= TRUSTED_STRENGTH or is_clean
        return self.is_settled and not self.re_paired_is_significant and holds


@dataclass(frozen=True, slots=True)
class BodySummary:
    """What was found on the layers, as far as the verdict needs it.

    Attributes:
        log_p: Natural log of p of the layer map, corrected for all maps and looks.
        outer: Kind of the residual-basis map that carried the layers.
        fitted_on: Rows of what it was found on, where it was looked for.
        off_match_share: Share of the layer pairs off the map that are significant; near 0 where the null holds.
        placebo_is_significant: Whether some cell is significant at 0.1 % with the residual channels shuffled.
        is_supported: Whether the map stands by itself, or the analysed layers support it; see
            :func:`layers_support`.
    """

    log_p: float
    outer: str
    fitted_on: str
    off_match_share: float
    placebo_is_significant: bool
    is_supported: bool

    @property
    def doubts(self) -> tuple[str, ...]:
        """Why the map is not accepted, however significant: a sentence each."""
        doubts = []
        if self.off_match_share > MAX_OFF_MATCH_SHARE:
            doubts.append(
                f"{self.off_match_share:.0%} of the layer pairs off the map are significant, too. Neighbouring layers "
                "of one model resemble each other, and so do layers of two models that descend from different layers "
                "of a common ancestor. So no layer is said to match another, and the map's p-value does not count."
            )
        if self.placebo_is_significant:
            doubts.append(
                "Layers are significant even with the residual channels of one model shuffled, as happens where rows "
                "of both have few large entries (sparse or heavily pruned weights): the map's p-value does not count."
            )
        if not self.is_supported:
            doubts.append(
                f"Layers agree only behind a rotation fitted on the {self.fitted_on}. The tests that are not "
                "significant on unrelated models of the same language are not significant here either."
            )
        return tuple(doubts)


@dataclass(frozen=True, slots=True)
class Decision:
    """A verdict with its reason, the p that it rests on, and the sentences that go with it.

    Attributes:
        verdict: The verdict.
        reason: Why it is inconclusive, else None.
        settled_by: The step that settled it, else None.
        log_p: Natural log of p of the evidence that the verdict rests on, after every condition: below that of alpha
            exactly where the verdict is homologous.
        caveats: Sentences about the evidence.
        log_p_not_accepted: Smallest natural log of a p below alpha that failed a condition; None where none did.
        accepts_layers: Whether the map of the layers is significant and met every condition.
        assumption: What ``log_p`` of a finding rests on; None where nothing was found.
    """

    verdict: Verdict
    reason: Reason | None
    settled_by: SettledBy | None
    log_p: float
    caveats: tuple[str, ...]
    log_p_not_accepted: float | None = None
    accepts_layers: bool = False
    assumption: Assumption | None = None


def decide(
    evidence: Mapping[str, Evidence],
    *,
    alpha: float,
    level: Level,
    body: BodySummary | None = None,
    layers_are_unreadable: bool = False,
    was_stopped: bool = False,
    layers_noise: float = 0.0,
) -> Decision:
    """Apply the verdict rules.

    Args:
        evidence: Evidence by matrix (embedding, unembedding), in the order tested.
        alpha: The level.
        level: How far the comparison went.
        body: What was found on the layers, None where they were not compared.
        layers_are_unreadable: Whether all or most of them would have been compared, and could not be.
        was_stopped: Whether something that was to be compared is not yet.
        layers_noise: The strongest noise, in units of the weights' RMS, under which a copy would have been found by
            its layers; 0 where they were not compared.

    Returns:
        Homologous where a matrix is trusted, or the layer map is significant and nothing casts doubt on it.
        Inconclusive where one of them is significant without that, where not even a plain copy could have been
        significant, or where layers that should have been compared could not be. No evidence otherwise.
    """
    log_alpha = math.log(alpha)
    doubts = () if body is None or body.log_p >= log_alpha else body.doubts
    accepts_layers = body is not None and body.log_p < log_alpha and not doubts
    refused = [one.log_p for one in evidence.values() if one.log_p < log_alpha and not one.is_trusted]
    refused += [body.log_p] if body is not None and doubts else []
    not_accepted = min(refused, default=None)
    for one in evidence.values():
        if one.is_trusted and one.log_p < log_alpha:
            log_p, assumption = one.headline(log_alpha)
            caveats = (*_caveats_of_finding(one, assumption), *doubts)
            return Decision(
                Verdict.HOMOLOGOUS, None, one.settled_by, log_p, caveats, not_accepted, accepts_layers, assumption
            )
    if body is not None and accepts_layers:
        caveats = _caveats_of_layers(body)
        return Decision(
            Verdict.HOMOLOGOUS,
            None,
            SettledBy.BODY,
            body.log_p,
            caveats,
            not_accepted,
            accepts_layers,
            Assumption.ROTATION,
        )
    found = [*(one.log_p for one in evidence.values()), *([] if body is None else [body.log_p])]
    accepted = min((log_p for log_p in found if log_p >= log_alpha), default=0.0)

    def inconclusive(reason: Reason, caveats: tuple[str, ...] = ()) -> Decision:
        return Decision(Verdict.INCONCLUSIVE, reason, None, accepted, caveats, not_accepted)

    if body is not None and body.log_p < log_alpha:
        return inconclusive(Reason.NULL_NOT_VALIDATED, doubts)
    for one in evidence.values():
        if one.is_settled:
            return inconclusive(Reason.NULL_NOT_VALIDATED, _doubts_of_matrix(one))
    on_few_axes = [name for name, one in evidence.items() if one.log_p < log_alpha]
    if on_few_axes and (body is None or layers_noise < LEAST_NOISE):
        return inconclusive(Reason.FEW_SHARED_AXES)
    if body is None and all(not could_settle(one, alpha) for one in evidence.values()):
        return inconclusive(Reason.TOO_FEW_COMMON_TOKENS)
    if was_stopped:
        return inconclusive(Reason.STOPPED)
    if layers_are_unreadable:
        return inconclusive(Reason.WEIGHTS_UNREADABLE)
    caveats = (*(FEW_AXES.format(name=name) for name in on_few_axes), *_caveats_of_no_evidence(evidence, level, body))
    return Decision(Verdict.NO_EVIDENCE, None, None, accepted, caveats, not_accepted)


def where_tokens_are_unknown(decision: Decision) -> Decision:
    """What a decision is worth where nothing says for certain which row is which token's: a finding stands.

    Any pairing of rows keeps the p-value valid, so what was found was found. That nothing was found says little: a
    plain copy whose rows were paired with others is not found by its embeddings.
    """
    if decision.verdict is not Verdict.NO_EVIDENCE:
        return decision
    return replace(decision, verdict=Verdict.INCONCLUSIVE, reason=Reason.TOKENS_UNKNOWN)


def layers_support(modules: Sequence[tuple[int, int, ModuleEvidence]], outer: str, log_alpha: float) -> bool:
    """Whether the analysed layers support a map.

    A rotation that was fitted on tokens also aligns features that unrelated models learn alike. Behind one, every
    analysed layer must be significant in a test that such features do not reach. Behind any other residual-basis map
    nothing was fitted on meaning, and the map stands by itself.

    Args:
        modules: Algorithm 3 on matched layers: (reference layer, candidate layer, evidence).
        outer: Kind of the residual-basis map that carried the layers.
        log_alpha: Natural log of the level over all of them.
    """
    if outer != "rotation":
        return True
    level = log_alpha - math.log(max(1, len(modules)))
    layers = {(i, j) for i, j, _ in modules}
    sure = {(i, j) for i, j, found in modules if found.test in SURE_TESTS and found.log_p < level}
    return bool(layers) and sure == layers


def could_settle(evidence: Evidence, alpha: float) -> bool:
    """Whether a plain copy would be significant on this many common tokens, without its best half of channels too.

    The polar factor of a copy on r tokens is a projection of rank r - 1 (centring takes one), whose trace is its rank.
    """
    n_narrow, n_wide = sorted(evidence.widths)
    # Where every common row is zero no row could be used: then not even a copy has a rank.
    rank = min((evidence.common_tokens if evidence.rows_used else 0) - 1, n_narrow)
    n_kept = n_narrow - n_narrow // 2
    if rank <= 0:
        return False
    exponent = 0.5 * (rank / 2) ** 2 * n_narrow / (rank / 2)  # half the channels carry half of trace and energy
    # For 8 tests, and the ninth look (9 * 10). Few comparisons have as many; what hangs on it is only whether nothing
    # found is called inconclusive or no evidence.
    return log_n_matchings(n_narrow, n_wide, n_kept) - exponent + math.log(8 * 90) < math.log(alpha)


def _caveats_of_finding(evidence: Evidence, assumption: Assumption) -> tuple[str, ...]:
    caveats = []
    if evidence.rows_are_equal:
        caveats.append("All rows that were looked at first are equal in both models, number by number.")
    if assumption is Assumption.CALIBRATION:
        what = (
            "Some channels stand out from all others in both models (z = "
            f"{evidence.basis_z[0]:.0f} and {evidence.basis_z[1]:.0f}), as in most trained models."
            if evidence.both_privileged
            else "The architectures of both models give the numbers of their channels a meaning."
        )
        caveats.append(
            f"{what} The proof of p asks for one model without such channels, so p bounds nothing here: it says how "
            "much agreed. The verdict rests on how strong and clean the match is (trace over rank "
            f"{evidence.strength:.2f}, {evidence.off_match_share:.2f} off-match hits per matched channel). No pair of "
            "unrelated models that was simulated or measured for this method matched like this."
        )
    if len(set(evidence.widths)) > 1 and assumption is not Assumption.NUMBERING:
        caveats.append(
            "The models differ in width; p is the weaker of the bounds that either model's rotation invariance gives."
        )
    if evidence.is_in_own_order:
        caveats.append(
            "The channels agree in their own order, all of them together; hardly any is significant by itself. This is "
            "what long training or noise leaves of common weights, what a new tokenizer does whose embeddings were "
            "computed from the old ones, and what two models that were only initialised with the same numbers (the "
            "same code and the same seed) can have in common."
        )
    return tuple(caveats)


def _doubts_of_matrix(evidence: Evidence) -> tuple[str, ...]:
    if evidence.re_paired_is_significant:
        return ("The placebo with re-paired tokens is significant, and it should not be.",)
    what = (
        f"Axes stand out in both models (z = {evidence.basis_z[0]:.0f} and {evidence.basis_z[1]:.0f})"
        if evidence.both_privileged
        else "The architectures of both models give the numbers of their channels a meaning"
    )
    return (
        f"{what}, and the match is neither strong (trace over rank {evidence.strength:.2f}) nor clean "
        f"({evidence.off_match_share:.2f} off-match hits per matched channel). Unrelated models whose axes carry some "
        "of the same features look like this, too.",
    )


def _caveats_of_layers(body: BodySummary) -> tuple[str, ...]:
    caveats = tuple(sentence.format(fitted_on=body.fitted_on) for sentence in _BODY_CAVEATS.get(body.outer, ()))
    return caveats if body.outer == "identity" or body.fitted_on == "embeddings" else (*caveats, _NEW_EMBEDDINGS_CAVEAT)


def _caveats_of_no_evidence(
    evidence: Mapping[str, Evidence], level: Level, body: BodySummary | None
) -> tuple[str, ...]:
    caveats = []
    read = next(iter(evidence.values()), None)
    if read is not None and level.is_screen_only and read.rows_used < read.common_tokens:
        caveats.append(
            f"Only {read.rows_used} of {read.common_tokens} common tokens were looked at (level screen); heavily "
            "trained relatives need the full test."
        )
    if read is not None and read.common_tokens < min(read.widths):
        caveats.append(
            f"The models share {read.common_tokens} tokens, fewer than they have channels, which makes the test weak."
        )
    if body is None:
        caveats.append(
            f"The layers were not compared (level {level}). A model whose embeddings were retrained, or whose residual "
            "stream was rotated, is found at level auto or body."
        )
    return tuple(caveats)
