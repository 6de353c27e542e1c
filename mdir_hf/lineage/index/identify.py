"""Finds the base models in an index that share ancestry with a model."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

from mdir_hf.comparison.api import compare
from mdir_hf.comparison.neuron_sample import NeuronSample
from mdir_hf.comparison.neurons import compare_neurons
from mdir_hf.comparison.progress import BytesTold, Watch
from mdir_hf.comparison.settings import Listeners, Settings
from mdir_hf.errors import InputError, MdirError, StoppedError, VocabularyError, one_line
from mdir_hf.lineage.fingerprints.fingerprint import Fingerprint, neurons_of, take_fingerprint
from mdir_hf.lineage.index.base_index import BaseIndex, Hit, expect_usual_rows
from mdir_hf.lineage.index.planning import TESTS_OF_A_BASE, what_is_excluded
from mdir_hf.method.embedding import EmbeddingTest
from mdir_hf.method.significance import LN10
from mdir_hf.model.hub import IoLedger
from mdir_hf.model.open import NamedModel, Reading
from mdir_hf.model.opened import Model
from mdir_hf.render.sentence import runs_text
from mdir_hf.report import Assumption, HomologyReport, ModelSummary, NeuronNumbers, n_bytes_text
from mdir_hf.report.words import UNLESS_ROTATED

SCHEMA = "mdir-hf/identification/1"

TESTED_FROM_SHARE = 0.5
"""A base is tested only if the guess of the search reaches this share of the needed ln p: matching the thousands of
channels of two unrelated models takes seconds."""


@dataclass(frozen=True, slots=True)
class Ancestor:
    """A base model that a search proposed, and what became of it.

    Attributes:
        base: The base model, at the commit that the index holds.
        log10_p: Of the rows that the index keeps, corrected for three tests of every base; at most 0.
        common_tokens: Tokens that this p rests on.
        neurons: Neurons that it rests on, where tokens showed nothing.
        report: The comparison of the two models at the level alpha over the number of bases; None where none was made.
        error: Why that comparison could not be made.
    """

    base: ModelSummary
    log10_p: float
    common_tokens: int
    neurons: NeuronNumbers | None = None
    report: HomologyReport | None = None
    error: str | None = None

    @property
    def p_is_bound(self) -> bool:
        """Whether p bounds a chance: by numbers of neurons; by tokens where a comparison rests on rotation."""
        report = self.report
        by_tokens = report is not None and report.p_is_bound and report.assumption is Assumption.ROTATION
        return self.neurons is not None or by_tokens

    @property
    def evidence(self) -> str:
        """What the index found it by, and how strong that is; p is rounded up."""
        by = f"by {self.common_tokens} tokens"
        if self.neurons is not None:
            by = f"by the numbers of neurons in {runs_text([m.reference for m in self.neurons.matches])} of it"
        return f"{by}, log10 p = {min(0, math.ceil(self.log10_p))}" if self.p_is_bound else by

    @property
    def verdict(self) -> str | None:
        """Verdict of the comparison; None without a comparison."""
        return None if self.report is None else self.report.verdict.value


@dataclass(frozen=True, slots=True)
class Identification:
    """What an index knows of a model.

    Attributes:
        model: The model.
        ancestors: The bases proposed, most likely first.
        n_bases: Bases that were looked at.
        alpha: Level over all of them.
        bytes_read: Bytes read of the model for the search.
        n_of_width: Those of them that are as wide as the model, and share enough tokens with it to be searched: a plain
            copy of a base is as wide as it is.
        excluded_noise: Of each of those, a copy under noise of up to this strength would have been found: in units of
            the weights' own root mean square, the channels where they were. None where there is no such base.
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
        """Those that a comparison confirmed; where none was made, those significant by the index alone."""
        return tuple(
            one
            for one in self.ancestors
            if (one.verdict == "homologous" if one.report is not None else one.log10_p < math.log10(self.alpha))
        )

    def to_dict(self) -> dict[str, Any]:
        """As plain containers."""
        return {
            "schema": SCHEMA,
            "model": _summary(self.model),
            "found": [one.base.repo for one in self.found],
            "candidates": [
                {
                    "base": _summary(one.base),
                    "log10_p": one.log10_p,
                    "p_is_bound": one.p_is_bound,
                    "common_tokens": one.common_tokens,
                    "neurons": None if one.neurons is None else asdict(one.neurons),
                    "verdict": one.verdict,
                    "report": None if one.report is None else one.report.to_dict(),
                    "error": one.error,
                }
                for one in self.ancestors
            ],
            "bases": self.n_bases,
            "alpha": self.alpha,
            "bytes_read": self.bytes_read,
            "bases_of_width": self.n_of_width,
            "excluded_noise": self.excluded_noise,
        }

    def to_json(self) -> str:
        """One JSON object of the schema ``mdir-hf/identification/1``."""
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False, allow_nan=False)

    def __str__(self) -> str:
        read = n_bytes_text(self.bytes_read)
        lines = [f"{self.model.repo}: looked for among {self.n_bases} base models, {read} read"]
        found = self.found
        for one in self.ancestors:
            p = one.evidence
            if one.report is not None:
                p += f", {one.report.verdict.value} by comparison ({one.report.strength})"
            elif one.error is not None:
                p += f", not compared: {one.error}"
            if one in found and one.report is None:
                lines.append(f"  significant by the index alone: {one.base.repo}: {p}")
            elif one in found:
                lines.append(f"  shared weight ancestry with {one.base.repo}: {p}")
            elif one.error is not None:
                lines.append(f"  {one.base.repo}: {p}")
        if not found:
            lines.append("  no shared ancestry found with any of them; this does not show that there is none")
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
    on_step: Callable[[Identification], None] = lambda found: None,
) -> Identification:
    """Find the base models of an index that a model shares ancestry with.

    Args:
        model: The model.
        index: The bases.
        top: How many of the most likely ones are looked at closely.
        confirm: Whether those that the index finds significant are compared with the model itself, from their commits.
        settings: Of those comparisons; its alpha holds over all bases of the index, its cap on bytes over all that is
            read.
        reading: How repositories are opened.
        listeners: Who is told of the search, and then of each comparison.
        on_step: Called with what is known, once the index was searched and after each comparison.

    Returns:
        The bases proposed with their evidence. A comparison that cannot be made is an error of that base only.

    Raises:
        MdirError: If the model cannot be read.
        InputError: If the index is empty, or too few rows of the model tell something and it has no neurons.
        VocabularyError: If it has neither a tokenizer nor neurons.
    """
    if not len(index):
        raise InputError("the index holds no base models; add some with `mdir-hf index`")
    alpha, seed, device = settings.alpha, settings.seed, settings.device
    ledger = IoLedger(max_bytes=settings.max_bytes)
    told = BytesTold(listeners)
    watch = Watch(ledger, told.listeners, from_start=True)
    with watch.listening():
        watch.enter("opening")
        opened = model.open(reading, ledger)
        query, why = _query(opened, index)
    watch.enter("index")
    ancestors, n_of_width, noise = [], 0, None
    if query is not None:
        hits = judge_hits(index, query, top=top, alpha=alpha, seed=seed, device=device)
        ancestors = [Ancestor(hit.base, log10_p, hit.common_tokens) for hit, log10_p in hits]
        n_of_width, noise = what_is_excluded(
            index, query.rows.shape[1], query.tokens, alpha, numbers_are_free=query.channel_numbers is None
        )
    if all(one.log10_p >= math.log10(alpha) for one in ancestors):
        with watch.listening():
            neurons = neurons_of(opened, every=True)
        if neurons is None and why is not None:
            raise why
        by_neurons = [] if neurons is None else judge_neurons(index, neurons, top=top, alpha=alpha, device=device)
        names = {one.base.repo for one in by_neurons}
        ancestors = [*by_neurons, *(one for one in ancestors if one.base.repo not in names)][:top]
    ancestors.sort(key=lambda one: one.log10_p)
    found = Identification(
        opened.summary(), tuple(ancestors), len(index), alpha, ledger.bytes_read, n_of_width, excluded_noise=noise
    )
    on_step(found)
    for at, one in enumerate(ancestors):
        if confirm and one.log10_p < math.log10(alpha):
            of_a_base = replace(settings, alpha=alpha / len(index), max_bytes=told.left_of(settings.max_bytes))
            ancestors[at] = compared(one, model, of_a_base, reading, told.listeners)
            found = replace(found, ancestors=tuple(ancestors))
            on_step(found)
    return found


def _query(model: Model, index: BaseIndex) -> tuple[Fingerprint | None, MdirError | None]:
    """Read the rows of the index's tokens, or say why they tell nothing: then neurons may have the answer."""
    try:
        query = take_fingerprint(model, index.tokens, with_neurons=False)
        expect_usual_rows(query, query.model.repo)
    except (VocabularyError, InputError) as exc:
        return None, exc
    return query.of_usual_rows(), None


def compared(one: Ancestor, model: NamedModel, settings: Settings, reading: Reading, listeners: Listeners) -> Ancestor:
    """Compare a base with the model, and say what became of it.

    Args:
        one: The base, as the index proposed it.
        model: The model.
        settings: Of the comparison; alpha is that of one base.
        reading: How both are opened.
        listeners: Who is told.

    Raises:
        StoppedError: If a listener raises.
    """
    if one.base.commit is None and not reading.allow_local:
        return replace(one, error="the index was made from a folder, and names no repository of this base")
    try:
        base = NamedModel(one.base.repo, revision=one.base.commit)
        report = compare(base, model, reading=reading, settings=settings, listeners=listeners)
        return replace(one, report=report)
    except StoppedError:
        raise
    except MdirError as exc:
        return replace(one, error=one_line(exc))


def judge_hits(
    index: BaseIndex, query: Fingerprint, *, top: int, alpha: float, seed: int = 0, device: str = "cpu"
) -> list[tuple[Hit, float]]:
    """Search an index, and test what it ranks first on the rows that both kept.

    Args:
        index: The bases.
        query: The model, on the sample of the index.
        top: How many are looked at closely.
        alpha: Level over all bases.
        seed: Seed of every random choice.
        device: torch device of the matrix products.

    Returns:
        The hits with their log10 p, corrected for three tests of every base, at most 0. The first test is of
        channels in one order, where their numbers mean nothing in either model. The second, of all matchings of
        channels, is made only if the first is not significant and the guess of the search is near enough to the level.
        That guess is too optimistic rather than too strict: it counts the best partner of every channel, and no
        matching has a larger trace. The third is that of neurons (:func:`judge_neurons`).
    """
    found = []
    alpha_of_base = alpha / (TESTS_OF_A_BASE * len(index))
    correction = math.log(TESTS_OF_A_BASE * len(index))
    for hit in index.search(query, top=top):
        base = index.fingerprint(hit.base)
        own_order = base.channel_numbers is None and query.channel_numbers is None
        log_p = hit.identity_log_p if own_order else 0.0
        if log_p >= math.log(alpha_of_base) and hit.log_p < TESTED_FROM_SHARE * math.log(alpha_of_base):
            # An index keeps too few rows to ask for a p that holds without the best half of the channels as well.
            test = EmbeddingTest(
                log_alpha=math.log(alpha_of_base),
                seed=seed,
                device=device,
                must_be_robust=False,
                own_order=own_order,
            )
            test.screen(*base.common_rows(query))
            log_p = min(log_p, test.log_p)
        found.append((hit, min(0.0, (log_p + correction) / LN10)))
    return found


def judge_neurons(
    index: BaseIndex, query: NeuronSample, *, top: int, alpha: float, device: str = "cpu"
) -> list[Ancestor]:
    """Find the bases whose neurons have the numbers of the model's.

    Args:
        index: The bases.
        query: Neurons of all layers of the model.
        top: How many bases are looked at closely.
        alpha: Level over all bases.
        device: torch device of the matrix products.

    Returns:
        Those with matching layers, with log10 p corrected for all tests of every base of the index.
    """
    n_tests = TESTS_OF_A_BASE * len(index)
    found = []
    for base in index.search_by_neurons(query, top=top):
        neurons = None
        if base.neurons is not None:
            neurons = compare_neurons(base.neurons, query, alpha=alpha / n_tests, device=device)
        if neurons is not None and neurons.matches:
            found.append(Ancestor(base.model, min(0.0, neurons.log10_p + math.log10(n_tests)), 0, neurons))
    return found


def _summary(model: ModelSummary) -> dict[str, Any]:
    names = ("repo", "commit", "architecture", "hidden_size")
    return {name: getattr(model, name) for name in names}
