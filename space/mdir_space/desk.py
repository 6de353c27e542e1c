"""Takes a question, keeps it waiting fairly, has it answered, and says all the while what is going on."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Generic, TypeVar, cast

from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

from mdir_hf import HomologyReport, MdirError, ReadPlan
from mdir_hf.comparison.progress import Progress
from mdir_hf.errors import ByteBudgetError, GatedRepositoryError, MemoryBudgetError, SeveralModelsError
from mdir_hf.lineage.survey.reads import SurveyReads
from mdir_space.access import Access, find_access, sentence, token_of_space
from mdir_space.assignment import Assignment
from mdir_space.comparison import ComparisonJob, PlanJob
from mdir_space.errand import OutOfTimeError, cap_of, was_going_well
from mdir_space.estimate import Pace, duration_text
from mdir_space.family import Family, FamilyJob, FamilyPlan, FamilyPlanJob
from mdir_space.limits import Limits
from mdir_space.many import Surveyed, SurveyJob, SurveyPlanJob
from mdir_space.processes import Processes
from mdir_space.question import Asks, Question, RefusedError
from mdir_space.results import PublicResults, Result, may_be_kept, others_of, result_key, still_stands
from mdir_space.visitor import Visitor
from mdir_space.waiting_room import Ticket, WaitingRoom
from mdir_space.ways import AnyQuestion, FamilyQuestion, SurveyQuestion, is_collection, listed, may_be_author
from mdir_space.work import OutOfMemoryError, Task

POLL_S = 0.1
R = TypeVar("R")
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
        index: Path, or address on the Hub, of the index of base models; empty: there is none.
    """

    limits: Limits = field(default_factory=Limits)
    allow_local: bool = False
    may_sign_in: bool = False
    own_token: str | None = field(default=None, repr=False)
    index: str = ""


@dataclass(frozen=True)
class Waiting:
    """Some work has to wait until ``n_ahead`` others are done."""

    n_ahead: int


@dataclass(frozen=True)
class Working(Generic[R]):
    """Some work goes on.

    Attributes:
        plan: What it plans to read, where it has said so.
        progress: How far it is.
        seconds: For how long it has run.
        found: What it has found, in the form of its result.
        share: How much of all of it is done, in [0, 1]; it never falls.
    """

    plan: ReadPlan | None
    progress: Progress
    seconds: float
    found: R | None = None
    share: float = 0.0


@dataclass(frozen=True)
class Answered(Generic[R]):
    """The answer, whole or cut short.

    Attributes:
        result: It.
        access: How its models were read.
        was_kept: Whether an earlier visitor asked the same.
        is_kept: Whether it is kept for everybody, at an address.
        cut_short: Why something was not looked at, where a limit of this server came before; else empty.
    """

    result: R
    access: Access
    was_kept: bool = False
    is_kept: bool = False
    cut_short: str = ""


Plan = ReadPlan | FamilyPlan | SurveyReads
"""What an answer to each of them is going to read."""
Steps = AsyncGenerator[Waiting | Working[R] | Answered[R], None]
"""What there is to say of a question until it is answered; the last is :class:`Answered`."""


class Desk:
    """Where every question of every visitor arrives: from the page, the API and MCP alike.

    Args:
        serving: How to serve.
    """

    def __init__(self, serving: Serving) -> None:
        self.serving = serving
        self.pace = Pace()
        self._results = PublicResults()
        limits = serving.limits
        self._processes = Processes()
        self._room = WaitingRoom(limits.n_running, limits.n_waiting, limits.n_per_visitor)
        self._workers = ThreadPoolExecutor(limits.n_running, "comparison")
        self._planning_room = WaitingRoom(limits.n_planning, limits.n_waiting, limits.n_per_visitor)
        self._planners = ThreadPoolExecutor(limits.n_planning, "planning")
        self._resolving_room = WaitingRoom(RESOLVING_THREADS, limits.n_waiting, limits.n_per_visitor)
        self._resolvers = ThreadPoolExecutor(RESOLVING_THREADS, "resolving")

    def warm_up(self) -> None:
        """Begin to import, and to ask the Hub for, what the first visitor would wait for otherwise."""
        self._processes.warm_up()
        threading.Thread(target=_prepare_first_answer, name="warm-up", daemon=True).start()

    async def access(self, question: Asks, visitor: Visitor, *, may_lack: bool = False) -> Access:
        """Find what a question is about.

        Args:
            question: The question.
            visitor: Who asks.
            may_lack: Whether models that are not there are left out, as long as there is one.

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
                may_lack=may_lack,
            )

        return await self._asked_of_the_hub(find, visitor)

    async def _asked_of_the_hub(self, ask: Callable[[], R], visitor: Visitor) -> R:
        ticket = self._resolving_room.enter(visitor.key)
        return await _shielded(_submit(self._resolvers, ask, ticket))

    async def kept(self, question: AnyQuestion, visitor: Visitor) -> Answered[Result] | None:
        """Return the answer that was kept of an earlier, public question of the same commits; None: there is none.

        Raises:
            RefusedError: If a model is not there for this visitor.
        """
        access = await self.access(question, visitor, may_lack=isinstance(question, SurveyQuestion))
        return await self._kept(access, question, visitor)

    async def _kept(
        self, access: Access, question: AnyQuestion, visitor: Visitor, *, as_of_now: bool = False
    ) -> Answered[Result] | None:
        """Look a result up; all that it rests on must still be there for everybody.

        Args:
            access: The models of the question.
            question: It.
            visitor: Who asks.
            as_of_now: Whether it must be what the same question would give now.
        """
        index = self.serving.index
        if as_of_now and isinstance(question, FamilyQuestion) and "://" in index:
            return None  # whoever keeps that index may have changed it
        result = self._results.get(result_key(access, question, index))
        if result is None:
            return None
        now = await self._for_everybody(others_of(result, access), visitor)
        if now is None or (as_of_now and not still_stands(result, now.models)):
            return None
        return Answered(result, access, was_kept=True, is_kept=True)

    async def _for_everybody(self, repositories: tuple[str, ...], visitor: Visitor) -> Access | None:
        """Return what repositories stand for now, if everybody may read all of them."""
        if not repositories:
            return Access((), is_shared=True)
        names = tuple(f"hf://models/{repo}" for repo in repositories)
        try:
            now = await self.access(SurveyQuestion(names), visitor.without_rights())
        except RefusedError:
            return None
        return now if now.is_shared else None

    async def plan(self, asked: AnyQuestion, visitor: Visitor) -> Plan:
        """Say what answering a question would read.

        Cancelling this gives up the place in the queue and ends the work.

        Raises:
            RefusedError: If that cannot be said.
        """
        limits = self.serving.limits
        ticket = self._planning_room.enter(visitor.key)
        work: Future[Plan] | None = None
        planning: Assignment[Plan] | None = None
        try:
            while ticket.n_ahead:
                await asyncio.sleep(POLL_S)
            question = await self.understood(asked, visitor)
            if isinstance(question, SurveyQuestion):
                question, _ = await self._listed(question, visitor)
            access = await self.access(question, visitor, may_lack=isinstance(question, SurveyQuestion))
            task = self._plan_of(question)
            planning = Assignment(access, task, self._processes, seconds=limits.plan_seconds)
            work = _submit(self._planners, planning.run, ticket)
            return await _shielded(work)
        except OutOfTimeError as exc:
            raise out_of_time(limits.plan_seconds or 0.0, what="Looking at these models") from exc
        except MdirError as exc:
            raise refusal_of(exc) from exc
        finally:
            if planning is not None:
                planning.stop()
            if work is None:
                ticket.leave()

    def _plan_of(self, question: AnyQuestion) -> Callable[[Access], Task[Plan]]:
        serving = self.serving
        local, cap = serving.allow_local, serving.limits.plan_memory_bytes

        def task(access: Access) -> Task[Plan]:
            if isinstance(question, Question):
                return PlanJob(access, question, allow_local=local, cap_bytes=cap)
            if isinstance(question, SurveyQuestion):
                return SurveyPlanJob(access, question, allow_local=local, cap_bytes=cap)
            return FamilyPlanJob(access, question, serving.index, token_of_space(), allow_local=local, cap_bytes=cap)

        return task

    async def answer(self, question: Question, visitor: Visitor) -> Steps[HomologyReport]:
        """Compare two models, step by step; the last step is :class:`Answered`.

        Closing the iterator gives up the place in the queue and stops the reading.

        Raises:
            RefusedError: If it is not answered.
        """
        limits = self.serving.limits

        def task(access: Access) -> ComparisonJob:
            return ComparisonJob(
                access,
                question,
                allow_local=self.serving.allow_local,
                n_bytes=limits.n_bytes,
                memory_bytes=limits.memory_bytes,
                cap_bytes=cap_of(limits.memory_bytes),
            )

        access = await self.access(question, visitor)
        async with aclosing(self._carried_out(access, task, visitor, "The comparison", question)) as steps:
            async for step in steps:
                yield step

    async def identify(self, question: FamilyQuestion, visitor: Visitor) -> Steps[Family]:
        """Say with which base models a model shares ancestry; as :meth:`answer`."""
        limits = self.serving.limits

        def task(access: Access) -> FamilyJob:
            return FamilyJob(
                access,
                question,
                index=self.serving.index,
                index_token=token_of_space(),
                allow_local=self.serving.allow_local,
                n_bytes=limits.n_bytes,
                memory_bytes=limits.memory_bytes,
                cap_bytes=cap_of(limits.memory_bytes),
            )

        access = await self.access(question, visitor)
        async with aclosing(self._carried_out(access, task, visitor, "The search", question)) as steps:
            async for step in steps:
                yield step

    async def survey(self, question: SurveyQuestion, visitor: Visitor) -> Steps[Surveyed]:
        """Say which of several models share ancestry, as :meth:`answer`; models that are not there are left out.

        A question with one name is about the models of that collection or author, as the Hub lists them.
        """
        limits = self.serving.limits
        question, left_out = await self._listed(question, visitor)

        def task(access: Access) -> SurveyJob:
            return SurveyJob(
                access,
                question,
                left_out,
                allow_local=self.serving.allow_local,
                n_bytes=limits.n_bytes,
                cap_bytes=cap_of(limits.memory_bytes),
            )

        access = await self.access(question, visitor, may_lack=True)
        async with aclosing(self._carried_out(access, task, visitor, "The survey", question)) as steps:
            async for step in steps:
                if isinstance(step, Answered) and step.was_kept:
                    step = replace(step, result=replace(step.result, left_out=left_out))
                yield step

    async def _listed(self, question: SurveyQuestion, visitor: Visitor) -> tuple[SurveyQuestion, str]:
        """Put the models of a list of the Hub in its place, and say what of it is left out."""
        if not question.is_list:
            return question, ""
        (name,) = question.names
        token = visitor.token or self.serving.own_token or token_of_space()
        names, left_out = await self._asked_of_the_hub(lambda: listed(name, token), visitor)
        return SurveyQuestion(names, question.alpha), left_out

    async def understood(self, asked: AnyQuestion, visitor: Visitor) -> AnyQuestion:
        """Return a question, and about one name that is none of a model one about that author."""
        if isinstance(asked, FamilyQuestion) and await self.is_list(asked.model, visitor):
            return SurveyQuestion((asked.model,), asked.alpha)
        return asked

    async def is_list(self, name: str, visitor: Visitor) -> bool:
        """Tell whether a single name is that of a collection or an author, and of no model.

        Cost: no request unless the name has one word.
        """
        if is_collection(name):
            return True
        if not may_be_author(name):
            return False
        try:
            await self.access(FamilyQuestion(name), visitor)
        except RefusedError as refused:
            return refused.is_absent
        return False

    async def _carried_out(
        self,
        access: Access,
        task: Callable[[Access], Task[R]],
        visitor: Visitor,
        what: str,
        question: AnyQuestion,
    ) -> Steps[R]:
        """Wait for a place and have it done, unless its answer is kept; what was found before a limit is one, too."""
        serving = self.serving
        own_token = visitor.token or serving.own_token
        known = await self._kept(access, question, visitor, as_of_now=True)
        if known is not None:
            yield cast("Answered[R]", known)
            return
        ticket = self._room.enter(visitor.key)
        assignment = Assignment(access, task, self._processes, seconds=serving.limits.seconds, own_token=own_token)
        work: Future[R] | None = None
        try:
            while n_ahead := ticket.n_ahead:
                yield Waiting(n_ahead)
                await asyncio.sleep(POLL_S)
            # Somebody ahead may have asked the same.
            answered = cast("Answered[R] | None", await self._kept(access, question, visitor, as_of_now=True))
            if answered is None:
                work = self._workers.submit(assignment.run)
                ended = _event_of(work)
                while not work.done():
                    at, seconds = assignment.progress, assignment.seconds
                    yield Working(assignment.plan, at, seconds, assignment.so_far, assignment.whole.share)
                    with suppress(asyncio.TimeoutError):
                        await asyncio.wait_for(ended.wait(), POLL_S)
                answered = await self._keep(self._answered(work, assignment, what), question, visitor)
        finally:
            assignment.stop()
            if work is None:
                ticket.leave()
            else:  # only now: whoever comes next may ask the same, and must find what was kept
                _leave_after(work, ticket)
        yield answered

    async def _keep(self, answered: Answered[R], question: AnyQuestion, visitor: Visitor) -> Answered[R]:
        result, access = answered.result, answered.access
        if answered.cut_short or not isinstance(result, HomologyReport | Family | Surveyed):
            return answered
        may_be = may_be_kept(result, access)
        if may_be and access.is_with_rights:
            may_be = await self._for_everybody(others_of(result, access), visitor) is not None
        if not may_be:
            return answered
        self._results.keep(result_key(access, question, self.serving.index), result)
        return replace(answered, is_kept=True)

    def _answered(self, work: Future[R], assignment: Assignment[R], what: str) -> Answered[R]:
        found = assignment.so_far
        try:
            result = work.result()
        except MdirError as exc:
            is_late = isinstance(exc, OutOfTimeError)
            refused = (
                out_of_time(self.serving.limits.seconds or 0.0, what=what)
                if is_late
                else refusal_of(exc, assignment.access)
            )
            if found is None or not was_going_well(exc):
                raise refused from exc
            more = "; its caveats say what was not looked at" if isinstance(found, HomologyReport) else ""
            cut_short = f"{refused.message} What was found before is below{more}."
            return Answered(found, assignment.access, cut_short=cut_short)
        if isinstance(result, HomologyReport):
            self.pace.learn(result)
        return Answered(result, assignment.access)


def _prepare_first_answer() -> None:
    # gradio imports it in the middle of its first answer, and answers nobody meanwhile: about a second.
    with suppress(ImportError):
        import_module("matplotlib.pyplot")
    build_hf_headers()  # before its first request of a day the client asks the Hub about agents, and waits


def _submit(workers: ThreadPoolExecutor, work: Callable[[], R], ticket: Ticket) -> Future[R]:
    """Begin work; its place is free when it has ended."""
    future = workers.submit(work)
    _leave_after(future, ticket)
    return future


async def _shielded(work: Future[R]) -> R:
    """Wait for work that goes on when its visitor leaves; how it ends then is asked by nobody, and no fault."""
    waited = asyncio.wrap_future(work)
    waited.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
    return await asyncio.shield(waited)


def _leave_after(work: Future[R], ticket: Ticket) -> None:
    """Free a place when its work has ended; its process is ended soon after a visitor went away."""
    work.add_done_callback(lambda _: ticket.leave())


def _event_of(work: Future[R]) -> asyncio.Event:
    """Return what is set when work has ended, so that its answer need not wait until somebody looks again."""
    ended, loop = asyncio.Event(), asyncio.get_running_loop()

    def tell(_: Future[R]) -> None:
        with suppress(RuntimeError):  # the loop has been closed: nobody waits any more
            loop.call_soon_threadsafe(ended.set)

    work.add_done_callback(tell)
    return ended


def out_of_time(seconds: float, *, what: str = "The comparison") -> RefusedError:
    """Return what is said when something took too long."""
    return RefusedError(
        f"{what} was stopped after {duration_text(seconds)}, the longest that may take here. A lighter level may do; "
        "on your own machine there is no limit.",
        runs_locally=True,
    )


def refusal_of(exc: MdirError, access: Access | None = None) -> RefusedError:
    """Return what a visitor is told about an error of the package.

    Args:
        exc: The error.
        access: The models, for the names of files of which one may be meant.
    """
    if isinstance(exc, ByteBudgetError):
        return RefusedError(
            "The comparison would read more than one may read here. A lighter level reads less; on your own machine "
            "there is no limit.",
            runs_locally=True,
        )
    if isinstance(exc, OutOfMemoryError):
        return RefusedError(
            "The comparison was ended: it needed more memory than one may use here. On your own machine there is no "
            "limit.",
            runs_locally=True,
        )
    if isinstance(exc, MemoryBudgetError):
        return RefusedError(f"The comparison does not fit on this machine: {exc.message}.", runs_locally=True)
    if isinstance(exc, GatedRepositoryError):
        return RefusedError(
            f"{exc.subject or 'The model'} is gated, and your account has not been granted access to it. Ask its owner "
            "for access on its page, and come back."
        )
    if isinstance(exc, SeveralModelsError) and access is not None:
        return RefusedError(sentence(exc), choices=access.files_of(exc))
    return RefusedError(sentence(exc))
