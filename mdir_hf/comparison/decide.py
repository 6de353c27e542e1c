"""Apply the verdict rules, which docs/method/verdicts.md explains."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from mdir_hf.report import Assumption, MatrixResult, NeuronNumbers, Reason, SettledBy, StackPair, Verdict

LOG10_P_EQUAL_DIGESTS = -256.0 * math.log10(2.0)
"""log10 of the probability that two independent files have the same SHA-256."""


@dataclass(frozen=True, slots=True)
class Decision:
    """A verdict and the step that settled it.

    Attributes:
        log10_p: log10 p of that step; None if it searched for partners. 0 if no step settled the question.
        assumption: The assumption that a homologous verdict rests on; None if files are equal.
    """

    verdict: Verdict
    reason: Reason | None = None
    settled_by: SettledBy | None = None
    log10_p: float | None = 0.0
    assumption: Assumption | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Everything that a verdict depends on.

    Attributes:
        is_sample_fresh: Whether the sample was drawn from system entropy after both models were open.
        neurons: Comparisons of neurons, in order.
        parts: Comparisons of experts and other stacks.
        matrices: Looks at the embeddings or unembeddings.
        has_copied_heads: Whether the attention heads of two layers resemble each other as copies do.
        have_layers: Whether both models have layers.
        have_compared_layers: Whether rows of layers of both models were read, and most layers can be compared.
        have_other_shapes: Whether layers of the two models differ in shape, so that embeddings alone were compared.
        is_unfinished: Whether steps of the comparison are left.
    """

    are_files_equal: bool = False
    is_sample_fresh: bool = True
    neurons: Sequence[NeuronNumbers] = ()
    parts: Sequence[StackPair] = ()
    matrices: Sequence[MatrixResult] = ()
    has_copied_heads: bool = False
    have_layers: bool = True
    have_compared_layers: bool = True
    have_other_shapes: bool = False
    is_unfinished: bool = False

    @property
    def match(self) -> NeuronNumbers | None:
        """The first comparison of neurons in which layers match."""
        return next((neurons for neurons in self.neurons if neurons.matches), None)

    @property
    def matching_parts(self) -> list[StackPair]:
        """Matching parts that both models load, and that answer for a main stack or for language models."""
        return [pair for pair in self._matching_if_loaded if pair.is_loaded]

    @property
    def _matching_if_loaded(self) -> list[StackPair]:
        return [pair for pair in self.parts if pair.layers and (pair.is_main or not self.have_layers)]

    @property
    def has_copies_of_unknown_use(self) -> bool:
        """Whether a part matches that would count if both models are known to load it."""
        return any(pair.is_loaded is None for pair in self._matching_if_loaded)


def decide(evidence: Evidence) -> Decision:
    """Apply the verdict rules.

    ``homologous``: equal files, or neurons of parts that both models load match in a sample that nobody could foresee.
    ``inconclusive``: the caller chose the sample; only embeddings, only attention, or only parts that may not be loaded
    are copies; no layers could be compared; or the comparison is not finished. ``no_evidence``: otherwise.
    """
    if evidence.are_files_equal:
        return Decision(Verdict.HOMOLOGOUS, None, SettledBy.IDENTICAL_FILES, LOG10_P_EQUAL_DIGESTS)
    match, parts = evidence.match, evidence.matching_parts
    if (match is not None or parts) and not evidence.is_sample_fresh:
        return Decision(Verdict.INCONCLUSIVE, Reason.SAMPLE_CHOSEN)
    if match is not None:
        assumption = Assumption.CALIBRATION if match.is_searched else Assumption.NUMBERING
        return Decision(Verdict.HOMOLOGOUS, None, match.step, match.log10_p, assumption)
    if parts:
        log10_p = min(pair.log10_p for pair in parts)
        return Decision(Verdict.HOMOLOGOUS, None, SettledBy.PARTS, log10_p, Assumption.NUMBERING)
    if evidence.has_copies_of_unknown_use:
        return Decision(Verdict.INCONCLUSIVE, Reason.LOADING_UNKNOWN)
    if any(matrix.is_copied for matrix in evidence.matrices):
        return Decision(Verdict.INCONCLUSIVE, Reason.EMBEDDINGS_ONLY)
    if evidence.has_copied_heads:
        return Decision(Verdict.INCONCLUSIVE, Reason.ATTENTION_ONLY)
    if evidence.is_unfinished:
        return Decision(Verdict.INCONCLUSIVE, Reason.UNFINISHED)
    have_compared_rows = any(matrix.rank for matrix in evidence.matrices)
    are_compared = have_compared_rows and (evidence.have_other_shapes or not evidence.have_layers)
    are_compared |= evidence.have_layers and evidence.have_compared_layers
    # A tower does not stand for a language model that cannot be read.
    are_compared |= any(pair.is_loaded and (pair.is_main or not evidence.have_layers) for pair in evidence.parts)
    if not are_compared:
        return Decision(Verdict.INCONCLUSIVE, Reason.WEIGHTS_UNREADABLE)
    return Decision(Verdict.NO_EVIDENCE)
