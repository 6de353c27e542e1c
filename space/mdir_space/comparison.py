"""One piece of work for a visitor, seen from the server: says how far it is, and ends when it is told to."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from mdir_hf import GatedRepositoryError, HomologyReport, Progress, ReadPlan, RepositoryNotFoundError
from mdir_space.access import Access
from mdir_space.errand import Errand, cap_of
from mdir_space.limits import Limits
from mdir_space.processes import Processes
from mdir_space.question import Question
from mdir_space.work import Event, Found, Job

Result = TypeVar("Result", HomologyReport, ReadPlan)


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
        self._errand = Errand(processes, self._hear)
        self._allow_local = allow_local
        self._own_token = own_token
        self.plan: ReadPlan | None = None
        self.progress = Progress("opening", 0)
        self.found: HomologyReport | None = None

    @property
    def seconds(self) -> float:
        """Seconds since it was started."""
        return self._errand.seconds

    def stop(self) -> None:
        """End its process, whatever that is doing."""
        self._errand.stop()

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
        self._errand.start()
        job = Job(
            self.access,
            self._question,
            compares=True,
            allow_local=self._allow_local,
            n_bytes=limits.n_bytes,
            memory_bytes=limits.memory_bytes,
            cap_bytes=cap_of(limits.memory_bytes),
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
        self._errand.start()
        job = Job(
            self.access,
            self._question,
            compares=False,
            allow_local=self._allow_local,
            cap_bytes=limits.plan_memory_bytes,
        )
        return self._result(job, ReadPlan, limits.plan_seconds)

    def _result(self, job: Job, kind: type[Result], seconds: float | None) -> Result:
        result = self._errand.run(job, seconds)
        assert isinstance(result, kind), "a job ends with what it is for"
        return result

    def _hear(self, event: Event) -> None:
        if isinstance(event, ReadPlan):
            self.plan = event
        elif isinstance(event, Progress):
            self.progress = event
        elif isinstance(event, Found):
            self.found = self._as_asked(event.report)

    def _as_asked(self, report: HomologyReport) -> HomologyReport:
        access = self.access
        return replace(
            report,
            reference=replace(report.reference, revision=access.reference.revision),
            candidate=replace(report.candidate, revision=access.candidate.revision),
        )
