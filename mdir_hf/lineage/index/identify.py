"""Find a model's bases in an index."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from mdir_hf.comparison.api import compare
from mdir_hf.comparison.neuron_sample import NeuronSample
from mdir_hf.comparison.neurons import count_neurons
from mdir_hf.comparison.progress import ByteCounter, Watch
from mdir_hf.comparison.settings import Listeners, Settings
from mdir_hf.errors import InputError, MdirError, StoppedError, VocabularyError, one_line
from mdir_hf.lineage.fingerprints.fingerprint import Fingerprint, expect_usual_rows, neurons_of, take_fingerprint
from mdir_hf.lineage.index.base_index import BaseIndex, Hit
from mdir_hf.lineage.index.building import TESTS_OF_A_BASE, what_is_excluded
from mdir_hf.method.embedding import look_at_rows
from mdir_hf.method.significance import LN10
from mdir_hf.model.hub import IoLedger
from mdir_hf.model.open import NamedModel, Reading
from mdir_hf.model.opened import Model
from mdir_hf.render.sentence import runs_text
from mdir_hf.report import HomologyReport, ModelSummary, NeuronNumbers, SettledBy, Verdict, n_bytes_text
from mdir_hf.report.words import UNLESS_ROTATED

SCHEMA = "mdir-hf/identification/2"

TESTED_FROM_SHARE = 0.5
"""Channels are matched with a base only if the estimate of ln p reaches this fraction of the required value, because
matching thousands of unrelated channels takes seconds."""


@dataclass(frozen=True, slots=True)
class Ancestor:
    """A base model that an index proposes, and its comparison with the model.

    An index only proposes: its rows are few, and its neurons are the same for every model. Only a comparison decides.

    Attributes:
        log10_score: Score for ranking, lower is better. It is the log10 of an estimate of p, and not a bound.
        is_nominated: Whether the score is good enough for a comparison.
        neurons: The neurons in the index that match, or None if the base was proposed by its tokens.
        report: Comparison at alpha divided by the number of bases, or None.
        error: Reason why the comparison failed, or None.
    """

    base: ModelSummary
    log10_score: float
    common_tokens: int
    is_nominated: bool
    neurons: NeuronNumbers | None = None
    report: HomologyReport | None = None
    error: str | None = None

    @property
    def log10_p(self) -> float | None:
        """log10 p of the comparison; None without a comparison, or if its p is not a bound."""
        return None if self.report is None else self.report.log10_p

    @property
    def p_is_bound(self) -> bool:
        """Whether :attr:`log10_p` bounds a probability."""
        return self.log10_p is not None

    @property
    def evidence(self) -> str:
        """How the index proposed the base; ``by comparison`` if it did not."""
        if not self.is_nominated:
            return "by comparison"
        if self.neurons is None:
            return f"by {self.common_tokens} tokens"
        return f"by neuron numbers in its {runs_text([match.reference for match in self.neurons.matches])}"

    @property
    def verdict(self) -> str | None:
        """Verdict of the comparison, or None."""
        return None if self.report is None else self.report.verdict.value


@dataclass(frozen=True, slots=True)
class Identification:
    """The result of an index search for a model.

    Attributes:
        ancestors: Proposed bases, most likely first.
        n_bases: Number of bases searched.
        alpha: Significance level, shared across all bases.
        bytes_read: Bytes of the model that the search read.
        n_of_width: Number of searched bases that have the model's width and share enough tokens with it.
        excluded_noise: Largest noise, in units of the weights' RMS, at which a copy of such a base with channels in
            their stored order would have been proposed; None if there are no such bases.
    """

    model: ModelSummary
    ancestors: tuple[Ancestor, ...]
    n_bases: int
    alpha: float
    bytes_read: int
    n_of_width: int = 0
    excluded_noise: float | None = None

    @property
    def found(self) -> tuple[Ancestor, ...]:
        """Bases whose comparison with the model is homologous."""
        return tuple(ancestor for ancestor in self.ancestors if ancestor.verdict == Verdict.HOMOLOGOUS)

    @property
    def with_shared_weights(self) -> tuple[Ancestor, ...]:
        """Bases whose comparison is homologous, or finds copies in a part such as a tower."""
        return tuple(
            ancestor
            for ancestor in self.ancestors
            if ancestor in self.found
            or (ancestor.report and any(pair.verdict is Verdict.HOMOLOGOUS for pair in ancestor.report.parts or ()))
        )

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-serialisable dict."""
        return {
            "schema": SCHEMA,
            "model": _summary(self.model),
            "found": [ancestor.base.repo for ancestor in self.found],
            "candidates": [
                {
                    "base": _summary(ancestor.base),
                    "is_nominated": ancestor.is_nominated,
                    "common_tokens": ancestor.common_tokens,
                    "neurons": None if ancestor.neurons is None else asdict(ancestor.neurons),
                    "verdict": ancestor.verdict,
                    "log10_p": ancestor.log10_p,
                    "report": None if ancestor.report is None else ancestor.report.to_dict(),
                    "error": ancestor.error,
                }
                for ancestor in self.ancestors
            ],
            "bases": self.n_bases,
            "alpha": self.alpha,
            "bytes_read": self.bytes_read,
            "bases_of_width": self.n_of_width,
            "excluded_noise": self.excluded_noise,
        }

    def to_json(self) -> str:
        """Return a JSON object with the schema ``mdir-hf/identification/2``."""
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False, allow_nan=False)

    def __str__(self) -> str:
        bytes_text = n_bytes_text(self.bytes_read)
        lines = [f"{self.model.repo}: searched among {self.n_bases} base models, {bytes_text} read"]
        for ancestor in self.ancestors:
            report = ancestor.report
            if report is not None and report.verdict is Verdict.HOMOLOGOUS:
                proposed = f"{ancestor.evidence}, " if ancestor.is_nominated else ""
                how = f"{proposed}{report.verdict.value} by comparison ({report.strength})"
                lines.append(f"  shared weight ancestry with {ancestor.base.repo}: {how}")
            elif report is not None:
                how = f"proposed {ancestor.evidence}: " if ancestor.is_nominated else ""
                lines.append(f"  {how}{ancestor.base.repo}; by comparison: {report.sentence}")
            elif ancestor.is_nominated:
                why = f": {ancestor.error}" if ancestor.error is not None else ""
                lines.append(f"  proposed {ancestor.evidence}: {ancestor.base.repo}; not compared{why}")
            elif ancestor.error is not None:
                lines.append(f"  {ancestor.base.repo}; not compared: {ancestor.error}")
        if not self.found:
            lines += self._nothing_found()
        return "\n".join(lines)

    def _nothing_found(self) -> list[str]:
        if any(ancestor.is_nominated and ancestor.report is None for ancestor in self.ancestors):
            return ["  a proposal is not a finding; compare the models"]
        bases = "the base model" if self.n_bases == 1 else f"any of the {self.n_bases} base models"
        reports = [ancestor.report for ancestor in self.ancestors if ancestor.report is not None]
        pairs = [pair for report in reports for pair in report.parts or ()]
        of_main = " of the main stack" if any(pair.verdict is Verdict.HOMOLOGOUS for pair in pairs) else ""
        n_failed = sum(ancestor.error is not None for ancestor in self.ancestors)
        if n_failed:
            return [f"  no shared ancestry{of_main} found; {n_failed} of {self.n_bases} bases could not be compared"]
        lines = [f"  no shared ancestry{of_main} found with {bases} searched; this does not show that there is none"]
        are_all_compared = len(reports) == self.n_bases
        if self.excluded_noise is not None and not are_all_compared:
            have = "has" if self.n_of_width == 1 else "have"
            lines.append(
                f"  {self.n_of_width} of them {have} its width and enough of its tokens; a copy of one, under noise of "
                f"up to {self.excluded_noise:.2g} times the weights, would have been proposed, {UNLESS_ROTATED}"
            )
        return lines


def identify(
    model: NamedModel,
    index: BaseIndex,
    *,
    top: int = 5,
    settings: Settings = Settings(),
    reading: Reading = Reading(),
    listeners: Listeners = Listeners(progress=False),
) -> Identification:
    """Find the base models in an index that share ancestry with a model.

    Args:
        model: The model.
        index: The bases.
        top: Number of most likely bases to rank by tokens, and again by neurons.
        settings: Settings of the comparisons. Alpha is shared across all bases, and the byte limit covers all reads.
        reading: How repositories are opened.
        listeners: Callbacks that receive progress.

    Raises:
        MdirError: If the model cannot be read.
        InputError: If the index is empty, or the model has too few informative rows and no neurons.
        VocabularyError: If the model has neither a tokenizer nor neurons.
    """
    *_, identification = identify_in_steps(
        model, index, top=top, settings=settings, reading=reading, listeners=listeners
    )
    return identification


def identify_in_steps(
    model: NamedModel,
    index: BaseIndex,
    *,
    top: int = 5,
    settings: Settings = Settings(),
    reading: Reading = Reading(),
    listeners: Listeners = Listeners(progress=False),
) -> Iterator[Identification]:
    """Yield the result of :func:`identify` after each search of the index and after each comparison.

    The first search is by tokens. Neurons are read only if it leads to no finding.
    """
    if not len(index):
        raise InputError("the index holds no base models; add some with `mdir-hf index build`")
    ledger = IoLedger(max_bytes=settings.max_bytes)
    counter = ByteCounter(listeners)
    watch = Watch(ledger, counter.listeners, from_start=True)
    with watch.listening():
        watch.enter("opening")
        opened_model = model.open(reading, ledger)
        query, query_error = _query(opened_model, index)
    watch.enter("index")
    identification = Identification(opened_model.summary(), (), len(index), settings.alpha, ledger.bytes_read)
    if query is not None:
        n_of_width, noise = what_is_excluded(
            index,
            query.rows.shape[1],
            query.tokens,
            settings.alpha,
            numbers_are_free=query.channel_numbers is None,
        )
        by_tokens = _nominated_by_tokens(index, query, top=top, settings=settings)
        identification = replace(identification, ancestors=by_tokens, n_of_width=n_of_width, excluded_noise=noise)

    def with_reports(identification: Identification) -> Iterator[Identification]:
        for ancestor in identification.ancestors:
            if ancestor.is_nominated and ancestor.report is None and ancestor.error is None:
                base_settings = replace(
                    settings, alpha=settings.alpha / len(index), max_bytes=counter.left_of(settings.max_bytes)
                )
                judged = compared(ancestor, model, base_settings, reading, counter.listeners)
                ancestors = (judged if each is ancestor else each for each in identification.ancestors)
                identification = replace(identification, ancestors=tuple(ancestors))
                yield identification

    is_nominated = any(ancestor.is_nominated for ancestor in identification.ancestors)
    if is_nominated:
        yield identification
        for step in with_reports(identification):
            identification = step
            yield identification
    if identification.found:
        return
    try:
        with watch.listening(), ledger.limited(counter.left_of(settings.max_bytes)):
            neurons = neurons_of(opened_model, every=True)
    except StoppedError:
        raise
    except MdirError:
        if not is_nominated:
            raise
        return  # the comparisons so far are a result
    if neurons is None and query_error is not None:
        raise query_error
    if neurons is not None:
        by_neurons = judge_neurons(index, neurons, top=top, alpha=settings.alpha, device=settings.device)
        identification = replace(identification, ancestors=_joined(identification.ancestors, by_neurons, top=top))
    identification = replace(identification, bytes_read=ledger.bytes_read)
    yield identification
    yield from with_reports(identification)


def _joined(by_tokens: Sequence[Ancestor], by_neurons: Sequence[Ancestor], *, top: int) -> tuple[Ancestor, ...]:
    """Return the bases nominated by neurons and, up to ``top``, others; comparisons that were made are kept."""
    done = {ancestor.base.repo for ancestor in by_tokens if ancestor.report is not None or ancestor.error is not None}
    new = [ancestor for ancestor in by_neurons if ancestor.base.repo not in done]
    names = {ancestor.base.repo for ancestor in new}
    rest = [ancestor for ancestor in by_tokens if ancestor.base.repo not in names]
    ranked = sorted((*new, *rest), key=lambda ancestor: (not ancestor.is_nominated, ancestor.log10_score))
    n_nominated = sum(ancestor.is_nominated for ancestor in ranked)
    return tuple(ranked[: max(top, n_nominated)])


def _query(model: Model, index: BaseIndex) -> tuple[Fingerprint | None, MdirError | None]:
    try:
        query = take_fingerprint(model, index.tokens, with_neurons=False)
        expect_usual_rows(query, query.model.repo)
    except (VocabularyError, InputError) as exc:
        return None, exc
    return query.of_usual_rows(), None


def compared(
    ancestor: Ancestor, model: NamedModel, settings: Settings, reading: Reading, listeners: Listeners
) -> Ancestor:
    """Compare a proposed base with the model, and add the report or the error."""
    if ancestor.base.commit is None and not reading.allow_local:
        return replace(ancestor, error="the index was made from a folder, and names no repository of this base")
    try:
        base = NamedModel(ancestor.base.repo, revision=ancestor.base.commit)
        report = compare(base, model, reading=reading, settings=settings, listeners=listeners)
        return replace(ancestor, report=report)
    except StoppedError:
        raise
    except MdirError as exc:
        return replace(ancestor, error=one_line(exc))


def _nominated_by_tokens(index: BaseIndex, query: Fingerprint, *, top: int, settings: Settings) -> tuple[Ancestor, ...]:
    """Rank bases by their token rows; see :func:`judge_hits`."""
    hits = judge_hits(index, query, top=top, alpha=settings.alpha, device=settings.device)
    ancestors = (
        Ancestor(hit.base, score, hit.common_tokens, is_nominated=score < math.log10(settings.alpha))
        for hit, score in hits
    )
    return tuple(sorted(ancestors, key=lambda ancestor: ancestor.log10_score))


def judge_hits(
    index: BaseIndex, query: Fingerprint, *, top: int, alpha: float, device: str = "cpu"
) -> list[tuple[Hit, float]]:
    """Search an index, and score the best bases on rows that both models have.

    The score is the log10 of p for rotated streams, corrected for three tests of each base. Models that were framed
    reach it without copied weights, so it only nominates. Tests channels in their stored order and, if the search's
    optimistic estimate allows significance, in any matching.
    """
    results = []
    alpha_of_base = alpha / (TESTS_OF_A_BASE * len(index))
    correction = math.log(TESTS_OF_A_BASE * len(index))
    for hit in index.search(query, top=top):
        base = index.fingerprint(hit.base)
        own_order = base.channel_numbers is None and query.channel_numbers is None
        log_p = hit.identity_log_p if own_order else 0.0
        if log_p >= math.log(alpha_of_base) and hit.log_p < TESTED_FROM_SHARE * math.log(alpha_of_base):
            # An index has too few rows to require that p also holds without the best half of the channels.
            look = look_at_rows(
                *base.common_rows(query),
                log_alpha=math.log(alpha_of_base),
                must_be_robust=False,
                own_order=own_order,
                device=device,
            )
            log_p = log_p if look is None else min(log_p, look.log_p)
        results.append((hit, min(0.0, (log_p + correction) / LN10)))
    return results


def judge_neurons(
    index: BaseIndex, query: NeuronSample, *, top: int, alpha: float, device: str = "cpu"
) -> list[Ancestor]:
    """Search an index by neurons, and return those bases with a layer that matches one of the model's layers.

    Neurons are paired by number, in the sample that all models in an index share. Anybody can foresee it, so the bases
    are only nominated.
    """
    n_tests = TESTS_OF_A_BASE * len(index)
    ancestors = []
    for base in index.search_by_neurons(query, top=top):
        neurons = None
        if base.neurons is not None:
            neurons = count_neurons(base.neurons, query, SettledBy.NUMBER, alpha=alpha / n_tests, device=device)
        if neurons is not None and neurons.matches and neurons.log10_p is not None:
            score = min(0.0, neurons.log10_p + math.log10(n_tests))
            ancestors.append(Ancestor(base.model, score, 0, is_nominated=True, neurons=neurons))
    return ancestors


def _summary(model: ModelSummary) -> dict[str, Any]:
    names = ("repo", "commit", "architecture", "hidden_size")
    return {name: getattr(model, name) for name in names}
