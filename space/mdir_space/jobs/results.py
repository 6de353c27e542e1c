"""A cache of public results, keyed by commits, level and alpha."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from mdir_hf import HomologyReport, __version__
from mdir_hf.lineage.family import Family
from mdir_hf.model.hub.repository import ResolvedModel
from mdir_hf.report import ModelSummary, ReportArrays
from mdir_space.jobs.access import Access
from mdir_space.jobs.question import FamilyQuestion, PairQuestion, Question, ReconstructionQuestion
from mdir_space.jobs.survey import SurveyResult

MAX_RESULTS = 128
"""Number of cached results. A report with its arrays takes about 2 MB; surveys and families take less."""

WHAT_IS_KEPT = (
    f"The last {MAX_RESULTS} results of public models are kept in memory until the server stops; anyone who asks the "
    "same question or has the address can open them."
)
"""Repeated word for word on the page, in its README, in the guide and in SECURITY.md."""

Key = tuple[object, ...]
Result = HomologyReport | Family | SurveyResult


def result_key(access: Access, question: Question, index: str = "") -> Key | None:
    """Return the cache key of a result; None for private results and reconstructions, which are not cached.

    The key contains commits rather than revisions, because branches move, and repo ids, because reports name them.
    """
    if not access.is_shared or isinstance(question, ReconstructionQuestion):
        return None
    models = tuple((model.repo, model.commit, model.pinned) for model in access.models)
    if isinstance(question, PairQuestion):
        return (models, question.level, question.alpha, __version__)
    if isinstance(question, FamilyQuestion):
        looks = (question.level, question.searches, question.verifies)
        return (models, question.alpha, *looks, index, _written(index), __version__)
    return (models, question.alpha, question.layers, tuple(sorted(access.left_out)), __version__)


class PublicResults:
    """The most recent public results. Thread-safe; lost when the server stops."""

    def __init__(self, most: int = MAX_RESULTS) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._results: OrderedDict[Key, Result] = OrderedDict()

    def get(self, key: Key | None) -> Result | None:
        """Return the result stored under a key, or None."""
        with self._lock:
            if key is None or key not in self._results:
                return None
            self._results.move_to_end(key)
            return self._results[key]

    def keep(self, key: Key | None, result: Result) -> None:
        """Store a result under its key, unless the key is None."""
        if key is None:
            return
        with self._lock:
            self._results[key] = _lightened(result)
            self._results.move_to_end(key)
            while len(self._results) > self._most:
                self._results.popitem(last=False)


def may_be_kept(result: Result, access: Access) -> bool:
    """Return whether a result may be cached: its models are public, and it depends only on commits on the Hub.

    Errors may depend on a visitor's rights, so an incomplete result is stored only if no such rights were used.
    """
    if not access.is_shared or (access.is_with_rights and not is_whole(result)):
        return False
    requested = {(model.repo, model.commit) for model in access.models}
    models_read = {(model.repo, model.commit) for model in _summaries(result)}
    if isinstance(result, SurveyResult) and not models_read <= requested:
        return False  # a branch has moved since its commit was resolved
    places = {(model.repo, model.commit) for model in _summaries(result)} | _under(result)
    files = tuple(f"{repo}@{(commit or '')[:7]}:" for repo, commit in places)
    return all(commit for _, commit in places) and all(
        file.startswith(files) for report in _reports(result) for file in report.io.files
    )


def is_whole(result: Result) -> bool:
    """Return whether all requested models could be read; if not, a later attempt may succeed."""
    if isinstance(result, HomologyReport):
        return True
    if isinstance(result, SurveyResult):
        return all(model.error is None for model in result.report.models.values() if model.model is not None)
    identification, declared = result.found, result.declared
    ancestors = () if identification is None else identification.ancestors
    of_card = [] if declared is None else declared.bases
    under = declared.declared.adapter_of if declared is not None and declared.declared.is_adapter else None
    return (
        not (result.not_searched or result.not_declared)
        and all(ancestor.error is None for ancestor in ancestors if ancestor.base.commit is not None)
        and all(check.report is not None or check.base == under for check in of_card)
    )


def other_repositories(result: Result, access: Access) -> tuple[str, ...]:
    """Return the repositories that a result depends on in addition to the models in the question."""
    models_read = {(model.repo, model.commit) for model in _summaries(result)} | _under(result)
    return tuple(sorted({repo for repo, _ in models_read - {(model.repo, model.commit) for model in access.models}}))


def is_current(result: Result, now: tuple[ResolvedModel, ...]) -> bool:
    """Return whether a new job would give the same result: it is complete, and no declared or adapter base has moved.

    ``now`` has the current commits of the other models.
    """
    commits = {model.repo: model.commit for model in now}
    named_commits = _under(result)
    if isinstance(result, Family) and result.declared is not None:
        bases = [check.report.reference for check in result.declared.bases if check.report is not None]
        named_commits |= {(base.repo, base.commit) for base in bases}
    return is_whole(result) and all(commits.get(repo, commit) == commit for repo, commit in named_commits)


def _reports(result: Result) -> list[HomologyReport]:
    if isinstance(result, HomologyReport):
        return [result]
    if isinstance(result, SurveyResult):
        return []
    of_index = [] if result.found is None else [ancestor.report for ancestor in result.found.ancestors]
    of_card = [] if result.declared is None else [check.report for check in result.declared.bases]
    return [report for report in (*of_index, *of_card) if report is not None]


def _summaries(result: Result) -> Iterator[ModelSummary]:
    if isinstance(result, SurveyResult):
        yield from (model.model for model in result.report.models.values() if model.model is not None)
        return
    if isinstance(result, Family) and result.found is not None:
        yield result.found.model
    for report in _reports(result):
        yield report.reference
        yield report.candidate


def _under(result: Result) -> set[tuple[str, str | None]]:
    """Return the repositories and commits of adapters' bases and of vocabularies."""
    models = _summaries(result)
    places = {place for model in models for place in (*(model.bases or ()), model.tokenizer) if place is not None}
    return {(repo, commit or None) for repo, _, commit in (place.partition("@") for place in places)}


def _lightened(result: Result) -> Result:
    """Return a result without the arrays and notes that cached answers do not show."""
    if isinstance(result, SurveyResult):
        return replace(result, left_out="")  # it is about a list, but the cached survey names its models one by one
    if isinstance(result, HomologyReport):
        return result

    def light(report: HomologyReport | None) -> HomologyReport | None:
        return None if report is None else replace(report, arrays=ReportArrays())

    identification, declared = result.found, result.declared
    if identification is not None:
        ancestors = tuple(replace(ancestor, report=light(ancestor.report)) for ancestor in identification.ancestors)
        identification = replace(identification, ancestors=ancestors)
    if declared is not None:
        declared = replace(
            declared, bases=tuple(replace(check, report=light(check.report)) for check in declared.bases)
        )
    return replace(result, found=identification, declared=declared)


def _written(index: str) -> tuple[int, int] | None:
    """Return the modification time and size of a file; None for a URL."""
    try:
        about = Path(index).stat()
    except OSError:
        return None
    return about.st_mtime_ns, about.st_size
