"""One piece of work for a visitor, seen from the server: says how far it is, and ends when it is told to."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import TypeVar

from mdir_hf import (
    ByteBudgetError,
    GatedRepositoryError,
    HomologyReport,
    MdirError,
    Progress,
    ReadPlan,
    RepositoryNotFoundError,
    StoppedError,
)
from mdir_space.access import Access
from mdir_space.limits import Limits
from mdir_space.processes import LostError, Processes
from mdir_space.question import Question
from mdir_space.work import Done, Failed, Found, Job, OutOfMemoryError

LISTEN_S = 0.05
"""How long it takes at most to notice that it was stopped, or that its time is over."""

OPENING_BYTES = 512 << 20
"""What a process may take beside what its plan states: headers, vocabularies, the client of the Hub."""

Result = TypeVar("Result", HomologyReport, ReadPlan)


class OutOfTimeError(StoppedError):
    """The work took longer than it may."""


LIMITS = (ByteBudgetError, OutOfTimeError, OutOfMemoryError)
"""What ends work that was going well."""


class Comparison:
    """A comparison, or its plan, that is going to be made, is being made, or has been made.

    Args:
        access: What to compare, and how to read it.
        question: Level and alpha.
        limits: When to give up.
        processes: Where it is done.
        allow_local: Whether folders of this machine may be read.
        own_token: The visitor's token, for what turns out to need it: a public adapter may stand on a gated base.

    Attributes:
        access: How the models are read.
        plan: What it is going to read, once that is known.
        progress: How far it is.
        found: What the embeddings say, once that is known and there are layers to be looked at.
    """

    def __init__(
        self,
        access: Access,
        question: Question,
        limits: Limits,
        processes: Processes,
        *,
        allow_local: bool,
        own_token: str | None = None,
    ) -> None:
        self.access = access
        self._question = question
        self._limits = limits
        self._processes = processes
        self._allow_local = allow_local
        self._own_token = own_token
        self._is_stopped = threading.Event()
        self._started = time.monotonic()
        self.plan: ReadPlan | None = None
        self.progress = Progress("opening", 0)
        self.found: HomologyReport | None = None

    @property
    def seconds(self) -> float:
        """Seconds since it was started."""
        return time.monotonic() - self._started

    def stop(self) -> None:
        """End its process, whatever that is doing."""
        self._is_stopped.set()

    def run(self) -> HomologyReport:
        """Compare; blocks.

        Returns:
            The report, with the revisions that were asked for beside the commits that were compared.

        Raises:
            StoppedError: After :meth:`stop`.
            OutOfTimeError: If it took too long.
            OutOfMemoryError: If it took too much memory, or its process was ended from outside.
            MdirError: If the question cannot be answered.
        """
        limits = self._limits
        self._started = time.monotonic()
        job = Job(
            self.access,
            self._question,
            compares=True,
            allow_local=self._allow_local,
            n_bytes=limits.n_bytes,
            memory_bytes=limits.memory_bytes,
            cap_bytes=None if limits.memory_bytes is None else limits.memory_bytes + OPENING_BYTES,
        )
        try:
            report = self._result(job, HomologyReport, limits.seconds)
        except (GatedRepositoryError, RepositoryNotFoundError):
            if self.access.is_private or self._own_token is None:
                raise
            self.access = replace(self.access, token=self._own_token, is_private=True, is_shared=False)
            report = self._result(replace(job, access=self.access), HomologyReport, limits.seconds)
        return self._as_asked(report)

    def find_plan(self) -> ReadPlan:
        """Say what :meth:`run` would read; blocks.

        Raises:
            MdirError: As :meth:`run`.
        """
        limits = self._limits
        self._started = time.monotonic()
        job = Job(
            self.access,
            self._question,
            compares=False,
            allow_local=self._allow_local,
            cap_bytes=limits.plan_memory_bytes,
        )
        return self._result(job, ReadPlan, limits.plan_seconds)

    def _result(self, job: Job, kind: type[Result], seconds: float | None) -> Result:
        self._check(seconds)
        with self._processes.working_on(job) as process:
            while True:
                try:
                    event = process.hear(LISTEN_S)
                except LostError as exc:
                    self._check(seconds)
                    raise OutOfMemoryError("its process was ended, most likely for want of memory") from exc
                if isinstance(event, Done):
                    assert isinstance(event.result, kind), "a job ends with what it is for"
                    return event.result
                if isinstance(event, Failed):
                    raise event.error
                if isinstance(event, ReadPlan):
                    self.plan = event
                elif isinstance(event, Progress):
                    self.progress = event
                elif isinstance(event, Found):
                    self.found = self._as_asked(event.report)
                self._check(seconds)

    def _as_asked(self, report: HomologyReport) -> HomologyReport:
        access = self.access
        return replace(
            report,
            reference=replace(report.reference, revision=access.reference.revision),
            candidate=replace(report.candidate, revision=access.candidate.revision),
        )

    def _check(self, seconds: float | None) -> None:
        if self._is_stopped.is_set():
            raise StoppedError("stopped by the visitor")
        if seconds is not None and self.seconds > seconds:
            raise OutOfTimeError(f"stopped after {self.seconds:.0f} s")


def was_going_well(exc: MdirError) -> bool:
    """Tell whether work ended because of a limit, so that what was found before it still holds."""
    return isinstance(exc, LIMITS)
