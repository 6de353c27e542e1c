"""Frozen dataclasses for the parts of a report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Annotated, ClassVar, Literal, NamedTuple

from annotated_types import Ge, Le

from mdir_hf.report.terms import (
    PRIVILEGED_Z,
    REMARKABLE_LOG10_P,
    LayerPattern,
    ModuleRole,
    Outcome,
    ResidualMap,
    SettledBy,
    Term,
    Transformation,
    Verdict,
)
from mdir_hf.thresholds import COPIED_COSINE

Count = Annotated[int, Ge(0), Le(2**63)]
Log10P = Annotated[float, Le(0.0)]
Correlation = Annotated[float, Ge(0.0), Le(1.0)]
Cosine = Annotated[float, Ge(-1.0), Le(1.0)]
Share = Annotated[float, Ge(0.0), Le(1.0)]
ExpertName = Annotated[int, Ge(0), Le(2**63)] | Literal["shared"] | None
"""Number of a routed expert, ``shared`` for a shared expert, or None for the MLP of a dense layer."""


class ReportRecord:
    """Base class for the records in a report. The JSON has exactly their fields."""

    __slots__ = ()
    __pydantic_config__: ClassVar[dict[str, object]] = {"extra": "forbid", "allow_inf_nan": False}


@dataclass(frozen=True, slots=True)
class PrintedAlgorithm1(ReportRecord):
    """Algorithm 1 as printed in the paper, applied to all common tokens. It does not affect the verdict.

    Attributes:
        common_tokens: Number of tokens used.
        trace: The largest trace over all permutations.
        rank: Rank of the product; the paper requires it to equal ``width``.
        width: Number of channels of the narrower embedding.
        log10_p: log10 p from the paper's formula, d! exp(-trace^2 / 2), uncorrected; None if the widths differ.
        axes_stand_out: Whether the axes of both embeddings stand out, contrary to the paper's assumption; None if
            unknown.
    """

    common_tokens: Count
    trace: float
    rank: Count
    width: Count
    log10_p: Log10P | None
    axes_stand_out: bool | None

    @property
    def holds(self) -> bool | None:
        """Whether the assumption behind p holds; None if unknown."""
        if self.rank < self.width or self.axes_stand_out:
            return False
        return None if self.axes_stand_out is None else True


@dataclass(frozen=True, slots=True)
class MatrixResult(ReportRecord):
    """One look at a pair of matrices: the embeddings or the unembeddings (``lm_head``).

    It describes the models, and never makes a verdict ``homologous``.

    Attributes:
        common_tokens: Number of tokens in both vocabularies.
        rows_used: Number of tokens whose rows were compared.
        rank: Rank of the polar factor U.
        trace: The statistic c, the sum of the matched entries of U.
        normalized_trace: c divided by the number of channels of the narrower matrix.
        matched_channels: Number of individually significant channels, at 1% over all entries.
        transformation: Transformation between the matrices; ``none`` if no matching is significant.
        scale: The factor s in E' ~ s E P; None without a significant matching.
        cosine: Mean cosine of paired rows after the matching, or None.
        log10_p: log10 p of the trace by the paper's formula, corrected for all matchings that were tried. It bounds a
            probability only if the axes of at most one matrix stand out.
        axes_z: For each model, z-score of how far its axes stand out from random directions.
        is_significant: Whether p is below alpha, with all channels and without the best half of them.
        widths: Number of channels in each matrix.
        rows_are_equal: Whether all compared rows are identical in both models, value for value.
        printed: Algorithm 1 as printed in the paper, on all common tokens; None unless the level is ``paper``.
    """

    common_tokens: Count
    rows_used: Count
    rank: Count
    trace: float
    normalized_trace: float
    matched_channels: Count
    transformation: Transformation
    scale: float | None
    cosine: float | None
    log10_p: Log10P
    axes_z: tuple[float, float]
    is_significant: bool
    widths: tuple[Count, Count]
    rows_are_equal: bool = False
    printed: PrintedAlgorithm1 | None = None

    @property
    def is_copied(self) -> bool:
        """Whether the rows of matched matrices are copies rather than merely aligned."""
        return self.is_significant and (self.cosine or 0.0) >= COPIED_COSINE

    @property
    def axes_stand_out(self) -> bool:
        """Whether the axes of both matrices stand out, so that ``log10_p`` bounds no probability."""
        return min(map(abs, self.axes_z)) > PRIVILEGED_Z


class LayerPair(NamedTuple):
    """A reference layer and a candidate layer, counted from 0."""

    reference: Count
    candidate: Count


class AncestorLayer(NamedTuple):
    """A candidate layer and its match in the reference, counted from 0, with log10 p for the pair."""

    reference: Count
    candidate: Count
    log10_p: float


@dataclass(frozen=True, slots=True)
class NeuronNumbers(ReportRecord):
    """One comparison of neurons: how many tested neurons match their partner, for each pair of layers.

    Neurons are compared in gate and up (in up, if there is no gate), after a rotation fitted on other neurons.

    Attributes:
        step: The step of the comparison.
        tested: Number of neurons tested in each layer.
        fitted: Number of other neurons used to fit the rotation.
        reference_layers: Reference layer for each row of ``own_number``.
        candidate_layers: Candidate layer for each column.
        own_number: Number of tested neurons whose most similar neuron of the other layer is their partner, for each
            pair of layers. Partners have the same number, or were found by a search.
        certain: How many of these are more similar to their partner than any random pair would be, in gate and up
            together, and similar in each.
        matches: Pairs of layers that match: at least half of the tested neurons are certain, and p is below alpha.
        log10_p: log10 p of this step, by the numbers of the neurons of all its pairs of layers; None if partners were
            found by a search, which gives no bound.
    """

    step: SettledBy
    tested: Count
    fitted: Count
    reference_layers: tuple[Count, ...]
    candidate_layers: tuple[Count, ...]
    own_number: tuple[tuple[Count, ...], ...]
    certain: tuple[tuple[Count, ...], ...]
    matches: tuple[LayerPair, ...]
    log10_p: Log10P | None

    @property
    def is_searched(self) -> bool:
        """Whether partners were found by a search."""
        return self.log10_p is None

    @property
    def certain_in_matches(self) -> int:
        """Number of certain neurons in matching pairs of layers."""
        return sum(
            self.certain[self.reference_layers.index(match.reference)][self.candidate_layers.index(match.candidate)]
            for match in self.matches
        )

    @property
    def most_certain(self) -> int:
        """Largest number of certain neurons in any pair of layers."""
        return max(map(max, self.certain))


@dataclass(frozen=True, slots=True)
class LayersResult(ReportRecord):
    """Candidate layers and the reference layers that they agree with. It describes the models and decides nothing.

    Attributes:
        method: ``sampled rows``, or ``algorithm 2`` of the paper on whole matrices.
        role: The projection in ``matrix``.
        residual_map: The map from the reference's residual basis to the candidate's.
        fitted_on: Rows on which ``residual_map`` was fitted, or None.
        pattern: The arrangement of the matches.
        matches: Candidate layers that agree with a reference layer.
        reference_layers: Layer number for each row of ``matrix``.
        candidate_layers: Layer number for each column.
        matrix: log10 p of every pair of layers, corrected for all tests.
    """

    method: Literal["sampled rows", "algorithm 2"]
    role: ModuleRole
    residual_map: ResidualMap
    fitted_on: str | None
    pattern: LayerPattern
    matches: tuple[AncestorLayer, ...]
    reference_layers: tuple[Count, ...]
    candidate_layers: tuple[Count, ...]
    matrix: tuple[tuple[float, ...], ...]


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
    ADAPTER = "adapter", "one model is stored as an adapter on the other"


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
    share: Share | None = None
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
