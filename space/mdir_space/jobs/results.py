"""The cache of public results. Its keys are commits, level and alpha, not names as typed."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from mdir_hf import HomologyReport, __version__
from mdir_hf.lineage.family import Family
from mdir_hf.model.hub.resolve import ResolvedModel
from mdir_hf.report import ModelSummary, ReportArrays
from mdir_space.jobs.access import Access
from mdir_space.jobs.question import FamilyQuestion, PairQuestion, Question
from mdir_space.jobs.survey import SurveyResult

MAX_RESULTS = 128
"""A report with its pictures' arrays takes about 2 MB; a survey with its pictures, or a family, takes less."""

WHAT_IS_KEPT = (
    f"The last {MAX_RESULTS} results of public models are kept in memory until the server stops; anyone who asks the "
    "same question or has the address can open them."
)
"""Stands on the page, in its README, in the guide and in SECURITY.md, in these words."""

Key = tuple[object, ...]
Result = HomologyReport | Family | SurveyResult


def result_key(access: Access, question: Question, index: str = "") -> Key | None:
    """Return what a result depends on; None for what is not for everybody.

    Commits and not revisions: a branch moves. Repository ids stay in, because a report names them.

    Args:
        access: The models.
        question: What is asked of them.
        index: Path or address of the index that is searched.
    """
    if not access.is_shared:
        return None
    models = tuple((model.repo, model.commit, model.pinned) for model in access.models)
    if isinstance(question, PairQuestion):
        return (models, question.level, question.alpha, __version__)
    if isinstance(question, FamilyQuestion):
        looks = (question.level, question.searches, question.verifies)
        return (models, question.alpha, *looks, index, _written(index), __version__)
    return (models, question.alpha, question.layers, tuple(sorted(access.left_out)), __version__)


class PublicResults:
    """The last results that everybody may see. Thread safe; lost when the server stops."""

    def __init__(self, most: int = MAX_RESULTS) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._results: OrderedDict[Key, Result] = OrderedDict()

    def get(self, key: Key | None) -> Result | None:
        """Return the result kept under a key, if there is one."""
        with self._lock:
            if key is None or key not in self._results:
                return None
            self._results.move_to_end(key)
            return self._results[key]

    def keep(self, key: Key | None, result: Result) -> None:
        """Keep a result under its key; not under None."""
        if key is None:
            return
        with self._lock:
            self._results[key] = _lightened(result)
            self._results.move_to_end(key)
            while len(self._results) > self._most:
                self._results.popitem(last=False)


def may_be_kept(result: Result, access: Access) -> bool:
    """Tell whether a result is for everybody, as far as its question goes, and rests on commits of the Hub alone.

    Why something could not be read may hang on a visitor's rights, so that such a result is kept only where none were
    used.
    """
    if not access.is_shared or (access.is_with_rights and not is_whole(result)):
        return False
    asked = {(model.repo, model.commit) for model in access.models}
    if isinstance(result, SurveyResult) and not {(model.repo, model.commit) for model in _summaries(result)} <= asked:
        return False  # a model has moved since its commit was found
    places = {(model.repo, model.commit) for model in _summaries(result)} | _under(result)
    files = tuple(f"{repo}@{(commit or '')[:7]}:" for repo, commit in places)
    return all(commit for _, commit in places) and all(
        file.startswith(files) for report in _reports(result) for file in report.io.files
    )


def is_whole(result: Result) -> bool:
    """Tell whether all that was asked for could be read; what could not may be there the next time."""
    if isinstance(result, HomologyReport):
        return True
    if isinstance(result, SurveyResult):
        return all(one.error is None for one in result.report.models.values() if one.model is not None)
    found, declared = result.found, result.declared
    of_index = [] if found is None else [one for one in found.ancestors if one.base.commit is not None]
    of_card = [] if declared is None else declared.bases
    under = declared.declared.adapter_of if declared is not None and declared.declared.is_adapter else None
    return (
        not (result.not_searched or result.not_declared)
        and all(one.error is None for one in of_index)
        and all(one.report is not None or one.base == under for one in of_card)
    )


def other_repositories(result: Result, access: Access) -> tuple[str, ...]:
    """Return the repositories that a result rests on beside those of the question."""
    read = {(model.repo, model.commit) for model in _summaries(result)} | _under(result)
    return tuple(sorted({repo for repo, _ in read - {(model.repo, model.commit) for model in access.models}}))


def is_current(result: Result, now: tuple[ResolvedModel, ...]) -> bool:
    """Tell whether a result would be the same now: whole, and no base has moved that a card or an adapter names.

    Args:
        result: It.
        now: What the names of the other models stand for.
    """
    commits = {model.repo: model.commit for model in now}
    named = _under(result)
    if isinstance(result, Family) and result.declared is not None:
        bases = [one.report.reference for one in result.declared.bases if one.report is not None]
        named |= {(base.repo, base.commit) for base in bases}
    return is_whole(result) and all(commits.get(repo, commit) == commit for repo, commit in named)


def _reports(result: Result) -> list[HomologyReport]:
    if isinstance(result, HomologyReport):
        return [result]
    if isinstance(result, SurveyResult):
        return []
    of_index = [] if result.found is None else [one.report for one in result.found.ancestors]
    of_card = [] if result.declared is None else [one.report for one in result.declared.bases]
    return [report for report in (*of_index, *of_card) if report is not None]


def _summaries(result: Result) -> Iterator[ModelSummary]:
    if isinstance(result, SurveyResult):
        yield from (one.model for one in result.report.models.values() if one.model is not None)
        return
    if isinstance(result, Family) and result.found is not None:
        yield result.found.model
    for report in _reports(result):
        yield report.reference
        yield report.candidate


def _under(result: Result) -> set[tuple[str, str | None]]:
    """Return what lies under adapters, and where vocabularies were read from: repositories and their commits."""
    models = _summaries(result)
    named = {place for model in models for place in (*(model.bases or ()), model.tokenizer) if place is not None}
    return {(repo, commit or None) for repo, _, commit in (place.partition("@") for place in named)}


def _lightened(result: Result) -> Result:
    """Return a result without arrays and notes that no cached answer shows."""
    if isinstance(result, SurveyResult):
        return replace(result, left_out="")  # said of the list that named the models, and these are known by name
    if isinstance(result, HomologyReport):
        return result

    def light(report: HomologyReport | None) -> HomologyReport | None:
        return None if report is None else replace(report, arrays=ReportArrays())

    found, declared = result.found, result.declared
    if found is not None:
        found = replace(found, ancestors=tuple(replace(one, report=light(one.report)) for one in found.ancestors))
    if declared is not None:
        declared = replace(declared, bases=tuple(replace(one, report=light(one.report)) for one in declared.bases))
    return replace(result, found=found, declared=declared)


def _written(index: str) -> tuple[int, int] | None:
    """Return what changes when a file is written anew; None for an address."""
    try:
        about = Path(index).stat()
    except OSError:
        return None
    return about.st_mtime_ns, about.st_size
