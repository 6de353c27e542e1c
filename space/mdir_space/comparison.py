"""One comparison in a thread of its own: says how far it is, and can be stopped."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

from mdir_hf import (
    GatedRepositoryError,
    HomologyChecker,
    HomologyReport,
    Progress,
    ReadPlan,
    RepositoryNotFoundError,
    StoppedError,
)
from mdir_space.access import Access
from mdir_space.limits import Limits
from mdir_space.question import Question


class OutOfTimeError(StoppedError):
    """The comparison took longer than one may."""


class Comparison:
    """A comparison that is going to run, runs, or has run.

    Args:
        access: What to compare, and how to read it.
        question: Level and alpha.
        limits: When to give up.
        allow_local: Whether folders of this machine may be read.
        own_token: The visitor's token, for what turns out to need it: a public adapter may stand on a gated base.

    Attributes:
        access: How the models are read.
        plan: What it is going to read, once that is known.
        progress: How far it is.
        seconds: How long it has run.
    """

    def __init__(
        self, access: Access, question: Question, limits: Limits, *, allow_local: bool, own_token: str | None = None
    ) -> None:
        self.access = access
        self._question = question
        self._limits = limits
        self._allow_local = allow_local
        self._own_token = own_token
        self._is_stopped = threading.Event()
        self._started = time.monotonic()
        self.plan: ReadPlan | None = None
        self.progress = Progress("opening", 0)

    @property
    def seconds(self) -> float:
        """Seconds since it was started."""
        return time.monotonic() - self._started

    def stop(self) -> None:
        """Have it end at its next sign of life; what is being read at the moment is the last that is read."""
        self._is_stopped.set()

    def run(self) -> HomologyReport:
        """Compare; blocks.

        Returns:
            The report, with the revisions that were asked for beside the commits that were compared.

        Raises:
            StoppedError: After :meth:`stop`.
            OutOfTimeError: If it took too long.
            MdirError: If the question cannot be answered.
        """
        self._started = time.monotonic()
        try:
            report = self._compare()
        except (GatedRepositoryError, RepositoryNotFoundError):
            if self.access.token is not None or self._own_token is None:
                raise
            self.access = replace(self.access, token=self._own_token, is_shared=False)
            report = self._compare()
        access = self.access
        return replace(
            report,
            reference=replace(report.reference, revision=access.reference.revision),
            candidate=replace(report.candidate, revision=access.candidate.revision),
        )

    def _compare(self) -> HomologyReport:
        self._check()
        checker = open_checker(self.access, self._question, allow_local=self._allow_local)
        report = checker.compare(
            self.access.candidate.pinned,
            level=self._question.level,
            max_bytes=self._limits.n_bytes,
            max_memory_bytes=self._limits.memory_bytes,
            progress=False,
            on_plan=self._planned,
            on_progress=self._progressed,
        )
        self._check()
        return report

    def _planned(self, plan: ReadPlan) -> None:
        self.plan = plan

    def _progressed(self, progress: Progress) -> None:
        self.progress = progress
        self._check()

    def _check(self) -> None:
        if self._is_stopped.is_set():
            raise StoppedError("stopped by the visitor")
        if self._limits.seconds is not None and self.seconds > self._limits.seconds:
            raise OutOfTimeError(f"stopped after {self.seconds:.0f} s")


def open_checker(access: Access, question: Question, *, allow_local: bool) -> HomologyChecker:
    """Open the one model; no weights are read.

    With a token no cache is read or written: what it may read stays with its owner.
    """
    return HomologyChecker.from_pretrained(
        access.reference.pinned,
        token=access.token if access.token is not None else False,
        allow_local=allow_local,
        use_caches=access.token is None,
        alpha=question.alpha,
    )
