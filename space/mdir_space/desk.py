"""Takes a question, keeps it waiting fairly, has it answered, and says all the while what is going on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from mdir_hf import (
    ByteBudgetError,
    GatedRepositoryError,
    HomologyReport,
    MdirError,
    MemoryBudgetError,
    Progress,
    ReadPlan,
)
from mdir_space.access import Access, find_access, sentence
from mdir_space.comparison import Comparison, OutOfTimeError, open_checker
from mdir_space.estimate import Pace, duration_text
from mdir_space.limits import Limits
from mdir_space.question import Question, RefusedError
from mdir_space.results import PublicResults, result_key
from mdir_space.visitor import Visitor
from mdir_space.waiting_room import WaitingRoom

POLL_S = 0.1
GRACE_S = 15.0
"""How long a comparison that is out of time may take to notice it."""
RESOLVING_THREADS = 16
"""Threads that wait for the Hub to say what a name stands for; they do nothing else."""


@dataclass(frozen=True)
class Serving:
    """How this server serves.

    Attributes:
        limits: What one visitor and all of them may ask.
        allow_local: Whether folders and files of this machine may be named; only ever on one's own machine.
        may_sign_in: Whether the page has a button to sign in.
        own_token: On one's own machine: the token to read with for whoever has the page open.
    """

    limits: Limits = field(default_factory=Limits)
    allow_local: bool = False
    may_sign_in: bool = False
    own_token: str | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Waiting:
    """A comparison has to wait until ``n_ahead`` others are done."""

    n_ahead: int


@dataclass(frozen=True)
class Working:
    """A comparison is at work: what it plans to read, once known, how far it is, and for how long it has run."""

    plan: ReadPlan | None
    progress: Progress
    seconds: float


@dataclass(frozen=True)
class Answered:
    """The report, and how its models were read; ``was_kept``: an earlier visitor asked the same."""

    report: HomologyReport
    access: Access
    was_kept: bool


Step = Waiting | Working | Answered


class Desk:
    """Where every question of every visitor arrives: from the page, the API and MCP alike.

    Args:
        serving: How to serve.
    """

    def __init__(self, serving: Serving) -> None:
        self.serving = serving
        self.pace = Pace()
        self._results = PublicResults()
        self._room = WaitingRoom(serving.limits)
        self._workers = ThreadPoolExecutor(serving.limits.n_running, "comparison")
        self._resolvers = ThreadPoolExecutor(RESOLVING_THREADS, "resolving")

    async def access(self, question: Question, visitor: Visitor) -> Access:
        """Find what a question is about.

        Raises:
            RefusedError: If a model is not there for this visitor.
        """
        serving = self.serving

        def find() -> Access:
            return find_access(
                question,
                visitor.token or serving.own_token,
                allow_local=serving.allow_local,
                may_sign_in=serving.may_sign_in,
            )

        return await asyncio.get_running_loop().run_in_executor(self._resolvers, find)

    async def plan(self, question: Question, visitor: Visitor) -> ReadPlan:
        """Say what a comparison would read.

        Raises:
            RefusedError: If that cannot be said.
        """
        access = await self.access(question, visitor)

        def plan() -> ReadPlan:
            checker = open_checker(access, question, allow_local=self.serving.allow_local)
            return checker.plan(access.candidate.pinned, level=question.level)

        try:
            return await asyncio.get_running_loop().run_in_executor(self._resolvers, plan)
        except MdirError as exc:
            raise refusal_of(exc) from exc

    async def answer(self, question: Question, visitor: Visitor) -> AsyncIterator[Step]:
        """Answer a question, step by step; the last step is :class:`Answered`.

        Closing the iterator gives up the place in the queue and stops the reading.

        Raises:
            RefusedError: If it is not answered.
        """
        access = await self.access(question, visitor)
        serving, key = self.serving, result_key(access, question)
        known = self._results.get(key)
        if known is not None:
            yield Answered(known, access, was_kept=True)
            return
        ticket = self._room.enter(visitor.key)
        comparison = Comparison(
            access,
            question,
            serving.limits,
            allow_local=serving.allow_local,
            own_token=visitor.token or serving.own_token,
        )
        work: Future[HomologyReport] | None = None
        try:
            while n_ahead := ticket.n_ahead:
                yield Waiting(n_ahead)
                await asyncio.sleep(POLL_S)
            report = self._results.get(key)  # somebody ahead may have asked the same
            was_kept = report is not None
            if report is None:
                work = self._workers.submit(comparison.run)
                # The place is free when the thread has ended, which may be some time after a visitor went away.
                work.add_done_callback(lambda _: ticket.leave())
                while not work.done():
                    yield Working(comparison.plan, comparison.progress, comparison.seconds)
                    await asyncio.sleep(POLL_S)
                    self._check_time(comparison)
                report = self._result(work)
                self._results.keep(result_key(comparison.access, question), report)
                self.pace.learn(report)
            yield Answered(report, comparison.access, was_kept)
        finally:
            comparison.stop()
            if work is None:
                ticket.leave()

    def _check_time(self, comparison: Comparison) -> None:
        # The comparison looks at the clock itself, at each sign of life; in the middle of a long product it gives none.
        allowed = self.serving.limits.seconds
        if allowed is not None and comparison.seconds > allowed + GRACE_S:
            raise out_of_time(allowed)

    def _result(self, work: Future[HomologyReport]) -> HomologyReport:
        try:
            return work.result()
        except OutOfTimeError as exc:
            raise out_of_time(self.serving.limits.seconds or 0.0) from exc
        except MdirError as exc:
            raise refusal_of(exc) from exc


def out_of_time(seconds: float) -> RefusedError:
    """Return what is said when a comparison took too long."""
    return RefusedError(
        f"The comparison was stopped after {duration_text(seconds)}, the longest that one may take here. A lighter "
        "level may do; on your own machine there is no limit.",
        runs_locally=True,
    )


def refusal_of(exc: MdirError) -> RefusedError:
    """Return what a visitor is told about an error of the package."""
    if isinstance(exc, ByteBudgetError):
        return RefusedError(
            "The comparison would read more than one may read here. A lighter level reads less; on your own machine "
            "there is no limit.",
            runs_locally=True,
        )
    if isinstance(exc, MemoryBudgetError):
        return RefusedError(f"The comparison does not fit on this machine: {exc.message}.", runs_locally=True)
    if isinstance(exc, GatedRepositoryError):
        return RefusedError(
            f"{exc.subject or 'The model'} is gated, and your account has not been granted access to it. Ask its owner "
            "for access on its page, and come back."
        )
    return RefusedError(sentence(exc))
