"""Find a model's bases in an index."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
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
from mdir_hf.report import HomologyReport, ModelSummary, NeuronNumbers, SettledBy, n_bytes_text
from mdir_hf.report.words import UNLESS_ROTATED

SCHEMA = "mdir-hf/identification/1"

TESTED_FROM_SHARE = 0.5
"""Channels are matched with a base only if the estimate of ln p reaches this fraction of the required value, because
matching thousands of unrelated channels takes seconds."""


@dataclass(frozen=True, slots=True)
class Ancestor:
    """A base model proposed by a search, and its comparison.

    Attributes:
        log10_p: log10 p according to the index's rows, corrected for three tests of each base.
        neurons: The neurons that p is based on, or None if it is based on tokens.
        report: Comparison at alpha divided by the number of bases, or None.
    """

    base: ModelSummary
    log10_p: float
    common_tokens: int
    neurons: NeuronNumbers | None = None
    report: HomologyReport | None = None
    error: str | None = None

    @property
    def p_is_bound(self) -> bool:
        """Whether p is a bound: it is based on neurons."""
        return self.neurons is not None

    @property
    def evidence(self) -> str:
        """How the index found the base, and the strength of the evidence."""
        by = f"by {self.common_tokens} tokens"
        if self.neurons is not None:
            by = f"by neuron numbers in its {runs_text([m.reference for m in self.neurons.matches])}"
        return f"{by}, log10 p = {min(0, math.ceil(self.log10_p))}" if self.p_is_bound else by

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
            their stored order would have been found; None if there are no such bases.
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
        """Bases confirmed by a comparison or, if not compared, significant according to the index."""
        return tuple(
            ancestor
            for ancestor in self.ancestors
            if (
                ancestor.verdict == "homologous"
                if ancestor.report is not None
                else ancestor.log10_p < math.log10(self.alpha)
            )
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
                    "log10_p": ancestor.log10_p,
                    "p_is_bound": ancestor.p_is_bound,
                    "common_tokens": ancestor.common_tokens,
                    "neurons": None if ancestor.neurons is None else asdict(ancestor.neurons),
                    "verdict": ancestor.verdict,
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
        """Return a JSON object with the schema ``mdir-hf/identification/1``."""
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False, allow_nan=False)

    def __str__(self) -> str:
        bytes_text = n_bytes_text(self.bytes_read)
        lines = [f"{self.model.repo}: searched among {self.n_bases} base models, {bytes_text} read"]
        ancestors_found = self.found
        for ancestor in self.ancestors:
            p = ancestor.evidence
            if ancestor.report is not None:
                p += f", {ancestor.report.verdict.value} by comparison ({ancestor.report.strength})"
            elif ancestor.error is not None:
                p += f", not compared: {ancestor.error}"
            if ancestor in ancestors_found and ancestor.report is None:
                lines.append(f"  significant by the index alone: {ancestor.base.repo}: {p}")
            elif ancestor in ancestors_found:
                lines.append(f"  shared weight ancestry with {ancestor.base.repo}: {p}")
            elif ancestor.error is not None:
                lines.append(f"  {ancestor.base.repo}: {p}")
        if not ancestors_found:
            bases = "the base model" if self.n_bases == 1 else f"any of the {self.n_bases} base models"
            lines.append(f"  no shared ancestry found with {bases} searched; this does not show that there is none")
            if self.excluded_noise is not None:
                have = "has" if self.n_of_width == 1 else "have"
                lines.append(
                    f"  {self.n_of_width} of them {have} its width; a copy of one, under noise of up to "
                    f"{self.excluded_noise:.2g} times the weights, would have been found, {UNLESS_ROTATED}"
                )
        return "\n".join(lines)


def identify(
    model: NamedModel,
    index: BaseIndex,
    *,
    top: int = 5,
    confirm: bool = True,
    settings: Settings = Settings(),
    reading: Reading = Reading(),
    listeners: Listeners = Listeners(progress=False),
) -> Identification:
    """Find the base models in an index that share ancestry with a model.

    Args:
        model: The model.
        index: The bases.
        top: Number of most likely bases to test.
        confirm: Whether to compare the model with significant bases, at their commits.
        settings: Settings of the comparisons. Alpha is shared across all bases, and the byte limit covers all reads.
        reading: How repositories are opened.
        listeners: Callbacks that receive progress.

    Raises:
        MdirError: If the model cannot be read.
        InputError: If the index is empty, or the model has too few informative rows and no neurons.
        VocabularyError: If the model has neither a tokenizer nor neurons.
    """
    *_, identification = identify_in_steps(
        model, index, top=top, confirm=confirm, settings=settings, reading=reading, listeners=listeners
    )
    return identification


def identify_in_steps(
    model: NamedModel,
    index: BaseIndex,
    *,
    top: int = 5,
    confirm: bool = True,
    settings: Settings = Settings(),
    reading: Reading = Reading(),
    listeners: Listeners = Listeners(progress=False),
) -> Iterator[Identification]:
    """Yield the result of :func:`identify` after the search and after each comparison."""
    if not len(index):
        raise InputError("the index holds no base models; add some with `mdir-hf index`")
    alpha, seed, device = settings.alpha, settings.seed, settings.device
    ledger = IoLedger(max_bytes=settings.max_bytes)
    counter = ByteCounter(listeners)
    watch = Watch(ledger, counter.listeners, from_start=True)
    with watch.listening():
        watch.enter("opening")
        opened_model = model.open(reading, ledger)
        query, query_error = _query(opened_model, index)
    watch.enter("index")
    ancestors, n_of_width, noise = [], 0, None
    if query is not None:
        hits = judge_hits(index, query, top=top, alpha=alpha, seed=seed, device=device)
        ancestors = [Ancestor(hit.base, log10_p, hit.common_tokens) for hit, log10_p in hits]
        n_of_width, noise = what_is_excluded(
            index, query.rows.shape[1], query.tokens, alpha, numbers_are_free=query.channel_numbers is None
        )
    if all(ancestor.log10_p >= math.log10(alpha) for ancestor in ancestors):
        with watch.listening():
            neurons = neurons_of(opened_model, every=True)
        if neurons is None and query_error is not None:
            raise query_error
        by_neurons = [] if neurons is None else judge_neurons(index, neurons, top=top, alpha=alpha, device=device)
        names = {ancestor.base.repo for ancestor in by_neurons}
        ancestors = [*by_neurons, *(ancestor for ancestor in ancestors if ancestor.base.repo not in names)][:top]
    ancestors.sort(key=lambda ancestor: ancestor.log10_p)
    identification = Identification(
        opened_model.summary(), tuple(ancestors), len(index), alpha, ledger.bytes_read, n_of_width, excluded_noise=noise
    )
    yield identification
    for at, ancestor in enumerate(ancestors):
        if confirm and ancestor.log10_p < math.log10(alpha):
            base_settings = replace(settings, alpha=alpha / len(index), max_bytes=counter.left_of(settings.max_bytes))
            ancestors[at] = compared(ancestor, model, base_settings, reading, counter.listeners)
            identification = replace(identification, ancestors=tuple(ancestors))
            yield identification


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


def judge_hits(
    index: BaseIndex, query: Fingerprint, *, top: int, alpha: float, seed: int = 0, device: str = "cpu"
) -> list[tuple[Hit, float]]:
    """Search an index, and test the best bases on rows that both models have.

    Returns each hit with its log10 p, corrected for three tests of each base. Tests channels in their stored order and,
    if the search's optimistic estimate allows significance, in any matching.
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

    Neurons are paired by number. log10 p is corrected for all tests on all bases.
    """
    n_tests = TESTS_OF_A_BASE * len(index)
    ancestors = []
    for base in index.search_by_neurons(query, top=top):
        neurons = None
        if base.neurons is not None:
            neurons = count_neurons(base.neurons, query, SettledBy.NUMBER, alpha=alpha / n_tests, device=device)
        if neurons is not None and neurons.matches and neurons.log10_p is not None:
            ancestors.append(Ancestor(base.model, min(0.0, neurons.log10_p + math.log10(n_tests)), 0, neurons))
    return ancestors


def _summary(model: ModelSummary) -> dict[str, Any]:
    names = ("repo", "commit", "architecture", "hidden_size")
    return {name: getattr(model, name) for name in names}
