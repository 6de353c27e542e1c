"""Parts of a report that only some reports have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Annotated, Literal, NamedTuple

from annotated_types import Ge, Le

from mdir_hf.report.parts import Count, ExpertName, LayerPair, Log10P, ReportRecord
from mdir_hf.report.terms import REMARKABLE_LOG10_P, ModuleRole, Outcome, ResidualMap, Term, Verdict

Correlation = Annotated[float, Ge(0.0), Le(1.0)]


class ExpertOrigin(NamedTuple):
    """A candidate expert, the reference expert it came from, and log10 p."""

    candidate: ExpertName
    reference: ExpertName
    log10_p: Log10P


@dataclass(frozen=True, slots=True)
class ModuleResult(ReportRecord):
    """Result of the paper's Algorithm 3 for one projection of a matched pair of layers.

    Attributes:
        layer: The matched layers.
        role: The projection.
        trace: The largest trace over all permutations of its rows.
        normalized_trace: The trace divided by the rank of the polar factor.
        log10_p: log10 p by the paper's formula, times the number of layers.
    """

    layer: LayerPair
    role: ModuleRole
    trace: float
    normalized_trace: float
    log10_p: Log10P

    @property
    def is_significant(self) -> bool:
        """Whether p is at most 0.1%."""
        return self.log10_p <= REMARKABLE_LOG10_P


@dataclass(frozen=True, slots=True)
class Exclusion(ReportRecord):
    """Relations that a "no" excludes, each as the smallest correlation of matched weights that would have been found.

    Copies with independent noise were planted in the rows that were read. A field is None if that part was not
    compared.

    Attributes:
        neurons: Correlation of neurons in the sampled layers, with neurons in place, in any basis.
        keys: Correlation of keys, gate and up in the layers whose heads were compared, with layers, heads and neurons
            in any order and the stream in any basis.
        embedding: Correlation of the centred rows of the embeddings, with channels in any order.
    """

    neurons: Correlation | None
    keys: Correlation | None
    embedding: Correlation | None


class Treatment(Term):
    """How a comparison treated a part of a model."""

    COMPARED = "compared"
    """All weights that the method can test were read."""
    SAMPLED = "sampled"
    """A sample of its rows, neurons or layers was read."""
    REPRESENTED = "represented"
    """It is represented by another part, which was read."""
    NOT_COMPARED = "not_compared"
    """None of its weights were read for a test."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartCoverage(ReportRecord):
    """How one part of a model was treated. A part that matches in part has several entries with the same name.

    Attributes:
        part: Name of the part, as in ``mdir-hf inspect``.
        layers: Number of its layers; 0 if it has none.
        tensors: Number of its tensors in the files.
        bytes: Stored size of its tensors; None if a file's header was not read.
        treatment: Whether the part was compared, sampled, represented by another part or not compared.
        reason: How much was sampled, or why the part was not compared; None if all of it was compared.
        is_match: Whether it holds copies of a part of the other model; None if it was not compared.
        is_loaded: Whether the model loads it, according to config and class; None if unknown.
    """

    part: str
    layers: Count
    tensors: Count
    bytes: Count | None
    treatment: Treatment
    reason: str | None
    is_match: bool | None
    is_loaded: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage(ReportRecord):
    """How every part of both models was treated. Together, a model's parts contain every tensor of its files.

    Attributes:
        reference: Parts of the reference.
        candidate: Parts of the candidate.
    """

    reference: tuple[PartCoverage, ...]
    candidate: tuple[PartCoverage, ...]


class FactKind(Term):
    """The kind of a fact on equal values of two models."""

    ROUNDED = "rounded", "values of one model are values of the other, rounded"
    REPEATED_LAYERS = "repeated_layers", "one model holds layers of the other twice"
    NEW_TOKENS = "new_tokens", "one model has rows for further tokens, at the mean of the others"
    ADAPTER = "adapter", "one model is stored as an adapter on the other"
    ON_RECORD = "on_record", "dates of the two repositories on the Hub"


@dataclass(frozen=True, slots=True)
class DirectionFact(ReportRecord):
    """A fact on equal values of two models. It names both ways in which that can come about, and no first model.

    Attributes:
        fact: Kind of fact.
        evidence: The equal values and how they can come about, in one sentence.
    """

    fact: FactKind
    evidence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StackPair(ReportRecord):
    """The comparison of two stacks, or of two sets of experts.

    Attributes:
        reference: Name of the part of the reference, as in ``mdir-hf inspect``.
        candidate: Name of the part of the candidate.
        verdict: ``homologous`` if the neurons of a layer kept their numbers, but ``inconclusive`` if the caller set the
            sample seed; otherwise ``no_evidence``.
        log10_p: log10 p, corrected for all pairs of layers, tests and looks.
        layers: Pairs of layers that match.
        experts: Pairs of experts that match; None for other parts.
        reference_is_loaded: Whether the reference loads its part, according to config and class; None if unknown.
        candidate_is_loaded: Whether the candidate loads its part; None if unknown.
    """

    reference: str
    candidate: str
    verdict: Verdict
    log10_p: Log10P
    layers: tuple[LayerPair, ...]
    experts: tuple[ExpertOrigin, ...] | None = None
    reference_is_loaded: bool | None = True
    candidate_is_loaded: bool | None = True

    @property
    def is_loaded(self) -> bool | None:
        """Whether both models load these parts; None if that is unknown."""
        sides = (self.reference_is_loaded, self.candidate_is_loaded)
        return False if False in sides else None if None in sides else True

    @property
    def is_main(self) -> bool:
        """Whether a part is the main stack of its model, or both belong to language models."""
        has_main = MAIN_STACK in (self.reference, self.candidate)
        return has_main or (_is_language(self.reference) and _is_language(self.candidate))


MAIN_STACK = "language model"
"""Name of the stack that a verdict answers for: the decoder of an encoder-decoder, or the only stack."""

LANGUAGE_STACKS = (MAIN_STACK, "talker", "draft model", "multi-token prediction")
"""Stacks that belong to a language model. Towers are excluded, because half of all vision-language models share one."""


def _is_language(part: str) -> bool:
    return part in LANGUAGE_STACKS or part.startswith("experts of layer ")


Cosine = Annotated[float, Ge(-1.0), Le(1.0)]
OfRows = Annotated[float, Ge(0.0), Le(1.0)]


class ComparedExpert(NamedTuple):
    """A candidate expert, its best match in the reference, and the mean cosine of their rows.

    If no expert matches, ``reference`` and ``cosine`` are None.
    """

    candidate: ExpertName
    reference: ExpertName
    cosine: Cosine | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectionResult(ReportRecord):
    """One projection of a candidate layer, compared with the reference's projections.

    Attributes:
        layer: The candidate layer, and the reference layer with which most projections agree (if none agree, the layer
            at the same depth).
        role: Kind of projection.
        outcome: How the projection changed.
        share: Share of the sampled rows that agree; None if the projection does not agree or was not compared.
        cosine: Mean cosine between sampled rows and their partners or, if nothing agrees, the rows with the same
            number.
        deciles: The nine deciles of those cosines, ascending.
        log10_p: log10 of a bound on p, corrected for all tests in the table.
        rows: Number of sampled rows behind ``cosine`` and ``deciles``.
        moved: Kind of unit that was permuted, or None.
        is_turned: Whether rows were rotated inside their heads.
        source: Reference layer that the projection came from, if it is not the one in ``layer``.
        reason: Why the projection was not compared.
        experts: The compared experts of a mixture. The denominator of ``share`` includes experts without a match.
        unread_experts: Number of experts of each layer that were not compared.
    """

    layer: LayerPair
    role: ModuleRole
    outcome: Outcome
    share: OfRows | None = None
    cosine: Cosine | None = None
    deciles: tuple[Cosine, ...] = ()
    log10_p: Log10P = 0.0
    rows: Count = 0
    moved: Literal["heads", "neurons", "channels", "experts"] | None = None
    is_turned: bool = False
    source: Count | None = None
    reason: str | None = None
    experts: tuple[ComparedExpert, ...] | None = None
    unread_experts: tuple[Count, Count] = (0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerDrift(ReportRecord):
    """How much of a layer agrees with its counterpart, and how far the layer has drifted.

    Attributes:
        layer: The two layers, counted from 0; at the same depth if nothing agrees.
        agreeing: Number of projections that agree with their counterparts.
        compared: Number of projections that were compared.
        cosine: Mean cosine of the agreeing rows, or None.
    """

    layer: LayerPair
    agreeing: Count
    compared: Count
    cosine: Cosine | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTable(ReportRecord):
    """Results for all projections of all candidate layers.

    Attributes:
        residual_map: The map from the reference's residual basis to the candidate's.
        fitted_on: Rows on which ``residual_map`` was fitted, or None.
        is_confirmed: Whether the verdict is homologous and neurons of layers match. If not, outcomes
            state only whether rows agree, because matrices can be edited to make rows agree.
        tests: Number of tests for which each p is corrected.
        results: One result for each projection, layer by layer.
    """

    residual_map: ResidualMap
    fitted_on: str | None
    is_confirmed: bool
    tests: Count
    results: tuple[ProjectionResult, ...]

    def drift(self) -> tuple[LayerDrift, ...]:
        """Return the drift of each candidate layer."""
        by_layer: dict[LayerPair, list[ProjectionResult]] = {}
        for result in self.results:
            if result.outcome is not Outcome.NOT_COMPARED:
                by_layer.setdefault(result.layer, []).append(result)
        return tuple(_drift_of(layer, results) for layer, results in by_layer.items())

    def counts(self) -> dict[Outcome, int]:
        """Return the number of projections with each outcome."""
        totals = Counter(result.outcome for result in self.results)
        return {outcome: totals[outcome] for outcome in Outcome if totals[outcome]}


def _drift_of(layer: LayerPair, results: Sequence[ProjectionResult]) -> LayerDrift:
    without = (Outcome.REPLACED, Outcome.NO_AGREEMENT, Outcome.FROM_LAYER)
    cosines = [
        result.cosine
        for result in results
        if result.outcome not in without and result.source is None and result.cosine is not None
    ]
    cosine = sum(cosines) / len(cosines) if cosines else None
    return LayerDrift(layer=layer, agreeing=len(cosines), compared=len(results), cosine=cosine)


def unconfirmed(table: LayerTable) -> LayerTable:
    """Return the table as shown if no neurons match: it states only whether rows agree."""
    return replace(table, is_confirmed=False, results=tuple(map(without_history, table.results)))


def without_history(result: ProjectionResult) -> ProjectionResult:
    """Return the result with an outcome that states only whether rows agree."""
    if result.outcome in (Outcome.NOT_COMPARED, Outcome.ROWS_AGREE, Outcome.NO_AGREEMENT):
        return result
    outcome = Outcome.NO_AGREEMENT if result.outcome is Outcome.REPLACED else Outcome.ROWS_AGREE
    return replace(result, outcome=outcome)


@dataclass(frozen=True, slots=True)
class WeightFile:
    """One weight file.

    Attributes:
        path: Path in the repository.
        sha256: Digest of its content; None if unknown without reading the file.
    """

    path: str
    sha256: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """Facts about a model that go into a bill of materials.

    Attributes:
        repo: Repo id on the Hub; None for a folder, whose path is not published.
        name: The repo id, or the name of the folder.
        commit: Commit that was read; None for a folder.
        licence: Licence declared by its card.
        date: Date of the commit according to the Hub.
    """

    repo: str | None
    name: str
    commit: str | None
    files: tuple[WeightFile, ...] = ()
    licence: str | None = None
    date: datetime | None = None
