"""Results that everybody may see, kept by what was compared and never by its name."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from mdir_hf import HomologyReport, ModelSummary, ReportArrays, ResolvedModel, __version__
from mdir_space.access import Access
from mdir_space.family import Family
from mdir_space.many import Surveyed
from mdir_space.question import Question
from mdir_space.ways import AnyQuestion, FamilyQuestion

MOST_RESULTS = 128
"""A report with its pictures' arrays takes about 2 MB; a survey with its pictures, or a family, takes less."""

Key = tuple[object, ...]
Result = HomologyReport | Family | Surveyed


def result_key(access: Access, question: AnyQuestion, index: str = "") -> Key | None:
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
    if isinstance(question, Question):
        return (models, question.level, question.alpha, __version__)
    if isinstance(question, FamilyQuestion):
        looks = (question.level, question.searches, question.verifies)
        return (models, question.alpha, *looks, index, _written(index), __version__)
    return (models, question.alpha, tuple(sorted(access.left_out)), __version__)


class PublicResults:
    """The last results that everybody may see. Thread safe; lost when the server stops."""

    def __init__(self, most: int = MOST_RESULTS) -> None:
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
        """Keep a result under its key; not under None, and not if it :func:`may_be_kept` no more."""
        if key is None or not may_be_kept(result):
            return
        with self._lock:
            self._results[key] = _lightened(result)
            self._results.move_to_end(key)
            while len(self._results) > self._most:
                self._results.popitem(last=False)


def may_be_kept(result: Result) -> bool:
    """Tell whether a result is whole, and rests on nothing but the commits of the models that it names.

    The base of an adapter may move, or be closed to others. What could not be read may be there the next time.
    """
    if isinstance(result, HomologyReport):
        return _is_of_two_commits(result)
    if isinstance(result, Surveyed):
        read = [one for one in result.report.models.values() if one.model is not None]
        return all(one.error is None for one in read) and all(_is_alone(summary) for summary in _summaries(result))
    found, declared = result.found, result.declared
    if result.not_searched or result.not_declared:
        return False
    if found is not None and any(one.error is not None and one.base.commit is not None for one in found.ancestors):
        return False
    if declared is not None and any(one.report is None for one in declared.bases):
        return False
    reports = _reports(result)
    return all(map(_is_alone, _summaries(result))) and all(map(_is_of_two_commits, reports))


def others_of(result: Result, access: Access) -> tuple[ModelSummary, ...]:
    """Return the models that a result rests on beside those of the question."""
    asked = {(model.repo, model.commit) for model in access.models}
    others = {(one.repo, one.commit): one for one in _summaries(result) if (one.repo, one.commit) not in asked}
    return tuple(others.values())


def is_of(result: Result, access: Access) -> bool:
    """Tell whether the models of a survey were read at the commits that were found for it."""
    return not isinstance(result, Surveyed) or not others_of(result, access)


def still_stands(result: Result, now: tuple[ResolvedModel, ...]) -> bool:
    """Tell whether a result would be the same now: no base that a card declares has moved.

    Args:
        result: It.
        now: What the names of the other models stand for.
    """
    if not isinstance(result, Family) or result.declared is None:
        return True
    commits = {model.repo: model.commit for model in now}
    declared = [one.report.reference for one in result.declared.bases if one.report is not None]
    return all(commits.get(base.repo, base.commit) == base.commit for base in declared)


def _reports(family: Family) -> list[HomologyReport]:
    of_index = [] if family.found is None else [one.report for one in family.found.ancestors]
    of_card = [] if family.declared is None else [one.report for one in family.declared.bases]
    return [report for report in (*of_index, *of_card) if report is not None]


def _summaries(result: Result) -> Iterator[ModelSummary]:
    if isinstance(result, Surveyed):
        yield from (one.model for one in result.report.models.values() if one.model is not None)
        return
    if isinstance(result, Family) and result.found is not None:
        yield result.found.model
    for report in [result] if isinstance(result, HomologyReport) else _reports(result):
        yield report.reference
        yield report.candidate


def _is_alone(model: ModelSummary) -> bool:
    """Whether it is no adapter, which stands on another repository."""
    return model.commit is not None and not model.bases


def _is_of_two_commits(report: HomologyReport) -> bool:
    """Tell whether no third repository was read."""
    names = tuple(f"{model.repo}@{(model.commit or '')[:7]}:" for model in (report.reference, report.candidate))
    return all(file.startswith(names) for file in report.io.files)


def _lightened(result: Result) -> Result:
    """Return a result without what nobody is going to be shown of it."""
    if isinstance(result, Surveyed):
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
