"""Results that everybody may see, kept by what was compared and never by its name."""

from __future__ import annotations

import threading
from collections import OrderedDict

from mdir_hf import HomologyReport, __version__
from mdir_space.access import Access
from mdir_space.question import Question

MOST_RESULTS = 128
"""A report with its pictures' arrays takes about 2 MB."""

Key = tuple[object, ...]


def result_key(access: Access, question: Question) -> Key | None:
    """Return what a result depends on; None for what is not for everybody.

    Commits and not revisions: a branch moves. Repository ids stay in, because a report names them.
    """
    if not access.is_shared:
        return None
    models = [(model.repo, model.commit, model.pinned) for model in (access.reference, access.candidate)]
    return (*models, question.level, question.alpha, __version__)


class PublicResults:
    """The last results that everybody may see. Thread safe; lost when the server stops."""

    def __init__(self, most: int = MOST_RESULTS) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._reports: OrderedDict[Key, HomologyReport] = OrderedDict()

    def get(self, key: Key | None) -> HomologyReport | None:
        """Return the result kept under a key, if there is one."""
        with self._lock:
            if key is None or key not in self._reports:
                return None
            self._reports.move_to_end(key)
            return self._reports[key]

    def keep(self, key: Key | None, report: HomologyReport) -> None:
        """Keep a result under its key; not under None, and not if it rests on more than the two commits in the key."""
        if key is None or not _is_of_two_commits(report):
            return
        with self._lock:
            self._reports[key] = report
            self._reports.move_to_end(key)
            while len(self._reports) > self._most:
                self._reports.popitem(last=False)


def _is_of_two_commits(report: HomologyReport) -> bool:
    """Tell whether no third repository was read: the base of an adapter may move, or be closed to others."""
    names = tuple(f"{model.repo}@{(model.commit or '')[:7]}:" for model in (report.reference, report.candidate))
    return all(file.startswith(names) for file in report.io.files)
