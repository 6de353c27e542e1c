"""Parts of a result that not every report has: coverage, direction, pairs of stacks, projections, facts of models."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Annotated, Literal

from annotated_types import Ge, Le

from mdir_hf.report.parts import Count, ExpertOrigin, LayerPair, Log10P, ModelSummary, ReportRecord
from mdir_hf.report.terms import ModuleRole, Outcome, ResidualMap, Term, Verdict


class Treatment(Term):
    """How a comparison treated a part of a model."""

    COMPARED = "compared"
    """All of its weights that the method can test were read."""
    SAMPLED = "sampled"
    """A sample of its rows, neurons or layers was read."""
    REPRESENTED = "represented"
    """Another part that was read represents it."""
    NOT_COMPARED = "not_compared"
    """None of it was read for a test."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartCoverage(ReportRecord):
    """How one part of a model was treated.

    Attributes:
        part: Name of the part, as in ``mdir-hf inspect``.
        layers: Number of its layers; 0 for a part without layers.
        bytes: Their stored size; None if the header of a file was not read.
        reason: How much was sampled, the part that represents it, or why it was not compared; None if all was compared.
    """

    part: str
    layers: Count
    tensors: Count
    bytes: Count | None
    treatment: Treatment
    reason: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage(ReportRecord):
    """How every part of both models was treated. The parts of a model hold every tensor of its files."""

    reference: tuple[PartCoverage, ...]
    candidate: tuple[PartCoverage, ...]


FOLLOWERS = ("norms, biases and buffers", "storage")
"""Prefixes of parts that are read with another part or not at all; the line names the other part."""

LEAST_SHARE = 0.001
"""Parts with a smaller share of the bytes are omitted from the line."""


def not_compared_text(parts: Iterable[PartCoverage]) -> str | None:
    """Name the parts of a model that were not compared, with their shares of the bytes.

    Returns:
        ``vision tower (24 layers, 12 % of the bytes), connector (3 %)``; None if every part with weights was compared.
    """
    ledger = tuple(parts)
    sizes = [entry.bytes for entry in ledger]
    total = None if None in sizes else sum(size for size in sizes if size is not None)
    named: list[str] = []
    for entry in ledger:
        if entry.treatment is not Treatment.NOT_COMPARED or entry.part.startswith(FOLLOWERS):
            continue
        share = entry.bytes / total if total and entry.bytes is not None else None
        if share is not None and share < LEAST_SHARE:
            continue
        details = []
        if entry.layers:
            details.append(f"{entry.layers} layer{'' if entry.layers == 1 else 's'}")
        if share is not None:
            details.append(f"{_percent(share)} of the bytes" if not named else _percent(share))
        named.append(f"{_name(entry)} ({', '.join(details)})" if details else _name(entry))
    return ", ".join(named) or None


def _name(entry: PartCoverage) -> str:
    if not entry.part.startswith("unplaced"):
        return entry.part
    tensors = f"{entry.tensors} tensor{'' if entry.tensors == 1 else 's'}"
    return f"{tensors} without a known role" if "known role" in entry.part else f"{tensors} ({entry.reason})"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.095 else f"{100 * share:.1f} %"


class FactKind(Term):
    """A fact that shows a direction, or a date of an upload."""

    ROUNDED = "rounded", "values of one model are values of the other, rounded"
    REPEATED_LAYERS = "repeated_layers", "one model holds layers of the other twice"
    NEW_TOKENS = "new_tokens", "one model has rows for further tokens, at the mean of the others"
    ADAPTER = "adapter", "one model is an adapter on the other"
    ON_RECORD = "on_record_earlier", "the Hub has a record of one model earlier"


def fact_side(model: ModelSummary) -> str:
    """Return the name of a model in a fact: at its commit, with its folder and variant if it has any."""
    return model.pinned + "".join(f" ({part})" for part in (model.subfolder, model.variant) if part)


@dataclass(frozen=True, slots=True)
class DirectionFact(ReportRecord):
    """One fact. In JSON ``earlier`` is called ``from``, and ``later`` is called ``to``.

    A fact on weights says that ``later`` was made from ``earlier``, or from a relative of it with the same values, rows
    or layers. Models are ``owner/name@commit``, or folders; ``evidence`` is one sentence.
    """

    fact: FactKind
    earlier: str
    later: str
    evidence: str

    @property
    def is_of_weights(self) -> bool:
        """Whether the fact rests on weights; dates of records show no derivation."""
        return self.fact is not FactKind.ON_RECORD

    def to_dict(self) -> dict[str, str]:
        """Return plain containers with the names of the JSON."""
        return {"fact": str(self.fact), "from": self.earlier, "to": self.later, "evidence": self.evidence}


@dataclass(frozen=True, slots=True, kw_only=True)
class StackPair(ReportRecord):
    """A stack of the reference compared with one of the candidate, named as in ``mdir-hf inspect``.

    Attributes:
        verdict: ``homologous`` if neurons of a layer agree by their numbers (``inconclusive`` if a given seed chose the
            sample), else ``no_evidence``.
        log10_p: log10 p, corrected for all pairs of layers, tests and looks.
        experts: The pairs of experts that match, if the experts of two layers were compared; None for other parts.
    """

    reference: str
    candidate: str
    verdict: Verdict
    log10_p: Log10P
    layers: tuple[LayerPair, ...]
    experts: tuple[ExpertOrigin, ...] | None = None

    @property
    def is_language(self) -> bool:
        """Whether both parts belong to language models: their layers, experts in them, a talker, a draft model."""
        return _is_language(self.reference) and _is_language(self.candidate)


LANGUAGE_STACKS = ("language model", "talker", "draft model", "multi-token prediction")
"""Stacks that are evidence on a language model. Towers are not: half of all vision-language models share one."""


def _is_language(part: str) -> bool:
    return part in LANGUAGE_STACKS or part.startswith("experts of layer ")


Cosine = Annotated[float, Ge(-1.0), Le(1.0)]
OfRows = Annotated[float, Ge(0.0), Le(1.0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectionResult(ReportRecord):
    """One projection of a layer of the candidate, compared with the projections of the reference.

    Attributes:
        layer: The layer of the reference that most projections of the candidate's layer agree with, and the layer of
            the candidate, counted from 0. If none agrees, the layer at the same depth.
        share: Share of the sampled rows that agree; None without agreement or comparison.
        cosine: Mean cosine of sampled rows with their partners; 1 minus it is the drift. If nothing agrees, the mean
            for rows of the same number. None if the projection was not compared.
        deciles: The nine deciles of those cosines, ascending.
        log10_p: log10 of the bound of the test that found it, corrected for all tests of the table; at most 0.
        moved: Kind of rows that changed places: heads, neurons, or channels of a state-space mixer.
        source: Layer of the reference that it comes from, if it differs from the one in ``layer``.
        reason: Why it was not compared.
    """

    layer: LayerPair
    role: ModuleRole
    outcome: Outcome
    share: OfRows | None = None
    cosine: Cosine | None = None
    deciles: tuple[Cosine, ...] = ()
    log10_p: Log10P = 0.0
    rows: Count = 0
    moved: Literal["heads", "neurons", "channels"] | None = None
    is_turned: bool = False
    source: Count | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerDrift(ReportRecord):
    """How much of a layer agrees with its counterpart, and how far that moved.

    Attributes:
        layer: Layers of reference and candidate, counted from 0; at the same depth if nothing agrees.
        agreeing: Projections that agree with the counterpart, under their own numbers or moved.
        cosine: Mean cosine of the sampled rows of those that agree; None without agreement.
    """

    layer: LayerPair
    agreeing: Count
    compared: Count
    cosine: Cosine | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTable(ReportRecord):
    """All projections of all layers of the candidate.

    Attributes:
        fitted_on: The rows on which that map was fitted; None if it was not fitted.
        is_confirmed: Whether the second witness found layers related. Rows can be arranged so that they agree, so the
            table says ``kept`` and ``replaced`` only if it did; else ``rows_agree`` and ``no_agreement``. These also
            stand for a layer that resembles several layers of the reference alike.
        tests: Number of tests for which each p is corrected.
        tested_layers: Named layers of the candidate, whose projections were also tested whole.
    """

    residual_map: ResidualMap
    fitted_on: str | None
    is_confirmed: bool
    tests: Count
    results: tuple[ProjectionResult, ...]
    tested_layers: tuple[Count, ...] = ()

    def drift(self) -> tuple[LayerDrift, ...]:
        """The drift of each layer of the candidate, over its projections that agree."""
        by_layer: dict[LayerPair, list[ProjectionResult]] = {}
        for result in self.results:
            if result.outcome is not Outcome.NOT_COMPARED:
                by_layer.setdefault(result.layer, []).append(result)
        return tuple(_drift_of(layer, results) for layer, results in by_layer.items())

    def counts(self) -> dict[Outcome, int]:
        """The number of projections by outcome, in the order of the outcomes."""
        totals = Counter(result.outcome for result in self.results)
        return {outcome: totals[outcome] for outcome in Outcome if totals[outcome]}


def _drift_of(layer: LayerPair, results: Sequence[ProjectionResult]) -> LayerDrift:
    """Sum up the projections of one layer."""
    without = (Outcome.REPLACED, Outcome.NO_AGREEMENT, Outcome.FROM_LAYER)
    cosines = [
        result.cosine
        for result in results
        if result.outcome not in without and result.source is None and result.cosine is not None
    ]
    cosine = sum(cosines) / len(cosines) if cosines else None
    return LayerDrift(layer=layer, agreeing=len(cosines), compared=len(results), cosine=cosine)


def unconfirmed(table: LayerTable) -> LayerTable:
    """Return the table without the second witness: rows agree or not, without a statement on their history."""
    return replace(table, is_confirmed=False, results=tuple(map(without_history, table.results)))


def without_history(result: ProjectionResult) -> ProjectionResult:
    """Return a result that states whether rows agree, and not that a projection was kept, moved or replaced."""
    if result.outcome in (Outcome.NOT_COMPARED, Outcome.ROWS_AGREE, Outcome.NO_AGREEMENT):
        return result
    outcome = Outcome.NO_AGREEMENT if result.outcome is Outcome.REPLACED else Outcome.ROWS_AGREE
    return replace(result, outcome=outcome)


@dataclass(frozen=True, slots=True)
class WeightFile:
    """One weight file; its digest is None if it is not known without reading a large file."""

    path: str
    sha256: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """The facts on one model that a bill of materials names.

    Attributes:
        repo: Repo id on the Hub; None for a folder, whose path is not published.
        name: The repo id, or the name of the folder.
        commit: Commit that was read; None for a folder.
        date: Date of the commit according to the Hub.
    """

    repo: str | None
    name: str
    commit: str | None
    files: tuple[WeightFile, ...] = ()
    licence: str | None = None
    date: datetime | None = None
