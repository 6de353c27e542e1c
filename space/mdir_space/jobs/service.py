"""Answer all questions from the page, the API and MCP: queue them, run their jobs and cache results."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any, Generic, TypeVar, overload

import gradio as gr
from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

from mdir_hf import HomologyReport, MdirError, ReadPlan
from mdir_hf.comparison.progress import Progress
from mdir_hf.lineage.family import Family
from mdir_hf.lineage.survey.reads import SurveyReads
from mdir_space.jobs.access import Access, find_access, token_of_space
from mdir_space.jobs.compare import ComparisonJob, ComparisonPlanJob
from mdir_space.jobs.estimate import Pace
from mdir_space.jobs.family import FamilyJob, FamilyPlan, FamilyPlanJob
from mdir_space.jobs.job import Job
from mdir_space.jobs.job_queue import JobQueue, QueueEntry
from mdir_space.jobs.lease import Lease, Leases
from mdir_space.jobs.limits import Limits
from mdir_space.jobs.listing import listed_models
from mdir_space.jobs.memory import share_heaps
from mdir_space.jobs.pool import JobRun, JobTimeoutError, ProcessPool, hit_limit, memory_cap
from mdir_space.jobs.question import (
    FamilyQuestion,
    PairQuestion,
    Question,
    ReconstructionQuestion,
    RefusedError,
    SurveyQuestion,
    is_collection,
    may_be_author,
)
from mdir_space.jobs.reconstruction import Downloads, ReconstructionJob, ReconstructionResult, without_arrays
from mdir_space.jobs.refusals import refusal_of, timeout_refusal
from mdir_space.jobs.results import (
    PublicResults,
    Result,
    is_current,
    may_be_kept,
    other_repositories,
    result_key,
)
from mdir_space.jobs.survey import SurveyJob, SurveyPlanJob, SurveyResult
from mdir_space.jobs.visitor import Visitor, visitor_of

POLL_S = 0.1
R = TypeVar("R")
RESOLVING_THREADS = 16
"""Number of threads for requests that resolve names on the Hub."""


@dataclass(frozen=True)
class ServiceSettings:
    """Settings of this server.

    Attributes:
        allow_local: Whether folders and files on this machine may be named; only for a private server.
        may_sign_in: Whether the page has a sign-in button.
        own_token: Token used to read models for all visitors of a private server.
        index: Path or Hub URL of the index of base models; empty for no index.
        named_models: Models that the page offers by name, such as the demo's.
    """

    limits: Limits = field(default_factory=Limits)
    allow_local: bool = False
    may_sign_in: bool = False
    own_token: str | None = field(default=None, repr=False)
    index: str = ""
    named_models: tuple[str, ...] = ()


@dataclass(frozen=True)
class Queued:
    """The job is waiting.

    Attributes:
        n_ahead: Number of waiting jobs ahead of it, and this one.
        n_waiting: Number of all waiting jobs.
        seconds: Estimated time until it starts, in seconds.
    """

    n_ahead: int
    n_waiting: int
    seconds: float


@dataclass(frozen=True)
class Running(Generic[R]):
    """The job is running.

    Attributes:
        plan: The plan of the job, once the job has sent it.
        progress: Progress within the current stage.
        seconds: Time since the start, in seconds.
        share: The completed share of the whole job, in [0, 1], which never decreases.
    """

    plan: ReadPlan | None
    progress: Progress
    seconds: float
    interim: R | None = None
    share: float = 0.0


@dataclass(frozen=True)
class Answered(Generic[R]):
    """The answer, complete or cut short by a limit.

    Attributes:
        access: How the models were read.
        was_kept: Whether the result comes from the cache.
        is_kept: Whether the result is in the cache, and therefore has a permanent URL.
        cut_short: A sentence on the limit that cut the answer short, or empty.
    """

    result: R
    access: Access
    was_kept: bool = False
    is_kept: bool = False
    cut_short: str = ""


Plan = ReadPlan | FamilyPlan | SurveyReads
"""The planned reads of a job, for any kind of question."""
Steps = AsyncGenerator[Queued | Running[R] | Answered[R], None]
"""States of a question until it is answered; the last one is :class:`Answered`."""
NAMES = {
    PairQuestion: "The comparison",
    ReconstructionQuestion: "The reconstruction",
    FamilyQuestion: "The search",
    SurveyQuestion: "The survey",
}


class Service:
    """Answers questions.

    Attributes:
        pace: Speed of comparisons.
        downloads: Files of reconstructions.
        leases: Leases of the sessions of pages and API calls.
    """

    def __init__(self, settings: ServiceSettings) -> None:
        self.settings = settings
        self.pace = Pace()
        self.downloads = Downloads()
        self.leases = Leases()
        self._results = PublicResults()
        limits = settings.limits
        self._pool = ProcessPool()
        self._queue = JobQueue(limits.n_running, limits.n_waiting, limits.n_per_visitor)
        self._workers = ThreadPoolExecutor(limits.n_running, "job")
        self._planning_queue = JobQueue(limits.n_planning, limits.n_waiting, limits.n_per_visitor)
        self._planners = ThreadPoolExecutor(limits.n_planning, "planning")
        self._resolving_queue = JobQueue(RESOLVING_THREADS, limits.n_waiting, limits.n_per_visitor)
        self._resolvers = ThreadPoolExecutor(RESOLVING_THREADS, "resolving")

    def warm_up(self) -> None:
        """Start imports and requests that would otherwise delay the first visitor."""
        share_heaps()
        # matplotlib.style records warnings while it loads, including those from imports in other threads.
        import_module("matplotlib.style")
        self._pool.warm_up()
        threading.Thread(target=_prepare_first_answer, name="warm-up", daemon=True).start()

    def visitor(
        self,
        request: Any,  # noqa: ANN401 - of gradio or of starlette
        account: gr.OAuthProfile | None = None,
        account_token: gr.OAuthToken | None = None,
        *,
        lease: Lease | None = None,
    ) -> Visitor:
        """Return the sender of a request, with a lease: the given one, or the lease of gradio's session, if any."""
        visitor = visitor_of(request, account, account_token, n_proxies=self.settings.limits.n_proxies)
        session = getattr(request, "session_hash", None)
        if lease is None and session:
            lease = self.leases.take(session, visitor.key)
        return replace(visitor, lease=lease)

    async def access(self, question: Question, visitor: Visitor) -> Access:
        """Find the models of a question. A survey leaves out models that cannot be read, unless no model can be read.

        Raises:
            RefusedError: If this visitor cannot read a model.
        """
        settings = self.settings

        def find() -> Access:
            return find_access(
                question,
                visitor.token or settings.own_token,
                allow_local=settings.allow_local,
                may_sign_in=settings.may_sign_in,
                may_lack=isinstance(question, SurveyQuestion),
                served=settings.named_models,
            )

        return await self._ask_hub(find, visitor)

    async def _ask_hub(self, ask: Callable[[], R], visitor: Visitor) -> R:
        entry = self._resolving_queue.enter(visitor.key)
        return await _shielded(_submit(self._resolvers, ask, entry))

    async def kept_answer(self, question: Question, visitor: Visitor) -> Answered[Result] | None:
        """Return the cached answer to a public question about the same commits, or None.

        Raises:
            RefusedError: If this visitor cannot read a model.
        """
        return await self._kept_answer(await self.access(question, visitor), question, visitor)

    async def _kept_answer(
        self, access: Access, question: Question, visitor: Visitor, *, must_be_current: bool = False
    ) -> Answered[Result] | None:
        """Return a cached result, or None if something that it depends on is no longer public.

        If ``must_be_current``, a new job must also be sure to give the same result.
        """
        index = self.settings.index
        if must_be_current and isinstance(question, FamilyQuestion) and "://" in index:
            return None  # the index may have been changed by its owner
        result = self._results.get(result_key(access, question, index))
        if result is None:
            return None
        now = await self._if_public(other_repositories(result, access), visitor)
        if now is None or (must_be_current and not is_current(result, now.models)):
            return None
        return Answered(result, access, was_kept=True, is_kept=True)

    async def _survey_without_layers(self, access: Access, question: Question, visitor: Visitor) -> SurveyResult | None:
        """Return the cached survey that a survey with layers can continue, or None."""
        if not isinstance(question, SurveyQuestion) or not question.layers:
            return None
        kept_answer = await self._kept_answer(access, replace(question, layers=False), visitor, must_be_current=True)
        if kept_answer is None or not isinstance(kept_answer.result, SurveyResult):
            return None
        return replace(kept_answer.result, pictures={})  # it goes to another process

    async def _if_public(self, repositories: tuple[str, ...], visitor: Visitor) -> Access | None:
        """Return the current commits of repositories, or None unless all are public."""
        if not repositories:
            return Access((), is_shared=True)
        names = tuple(f"hf://models/{repo}" for repo in repositories)
        try:
            now = await self.access(SurveyQuestion(names), visitor.without_rights())
        except RefusedError:
            return None
        return now if now.is_shared and not now.left_out else None

    async def plan(self, requested: Question, visitor: Visitor) -> Plan:
        """Plan the reads of an answer. Cancelling leaves the queue and kills the process.

        Raises:
            RefusedError: If no plan can be made.
        """
        limits = self.settings.limits
        entry = self._planning_queue.enter(visitor.key)
        work: Future[Plan] | None = None
        run: JobRun[Plan] | None = None
        try:
            while entry.n_ahead:
                _check_presence(visitor)
                await asyncio.sleep(POLL_S)
            question, _ = await self._listed(await self.resolve_author(requested, visitor), visitor)
            access = await self.access(question, visitor)
            earlier = await self._survey_without_layers(access, question, visitor)
            run = JobRun(access, self._plan_job(question, earlier), self._pool, timeout_s=limits.plan_seconds)
            work = _submit(self._planners, run.run, entry)
            ended = _event_of(work)
            while not work.done():
                _check_presence(visitor)
                await _wait(ended)
            return work.result()
        except JobTimeoutError as exc:
            raise timeout_refusal(limits.plan_seconds or 0.0, what="Looking at these models") from exc
        except MdirError as exc:
            raise refusal_of(exc, None if run is None else run.access) from exc
        finally:
            if run is not None:
                run.stop()
            if work is None:
                entry.leave()

    def _plan_job(self, question: Question, earlier: SurveyResult | None) -> Callable[[Access], Job[Plan]]:
        settings = self.settings
        limits: dict[str, Any] = {"allow_local": settings.allow_local, "cap_bytes": settings.limits.plan_memory_bytes}

        def job(access: Access) -> Job[Plan]:
            if isinstance(question, PairQuestion):
                return ComparisonPlanJob(access=access, question=question, **limits)
            if isinstance(question, SurveyQuestion):
                return SurveyPlanJob(access=access, question=question, earlier=earlier, **limits)
            index: dict[str, Any] = {"index": settings.index, "index_token": token_of_space()}
            return FamilyPlanJob(access=access, question=question, **index, **limits)

        return job

    def _job(
        self, question: Question, left_out: str, earlier: SurveyResult | None, report: HomologyReport | None
    ) -> Callable[[Access], Job[Result | ReconstructionResult]]:
        settings = self.settings
        limits: dict[str, Any] = {
            "allow_local": settings.allow_local,
            "n_bytes": settings.limits.n_bytes,
            "memory_bytes": settings.limits.memory_bytes,
            "cap_bytes": memory_cap(settings.limits.memory_bytes),
        }

        def job(access: Access) -> Job[Result | ReconstructionResult]:
            if isinstance(question, ReconstructionQuestion):
                return ReconstructionJob(access=access, question=question, report=report, **limits)
            if isinstance(question, PairQuestion):
                return ComparisonJob(access=access, question=question, **limits)
            if isinstance(question, SurveyQuestion):
                return SurveyJob(access=access, question=question, left_out=left_out, earlier=earlier, **limits)
            index: dict[str, Any] = {"index": settings.index, "index_token": token_of_space()}
            return FamilyJob(access=access, question=question, **index, **limits)

        return job

    @overload  # a reconstruction is a question about a pair, too, and overloads are tried in order
    def answer(  # type: ignore[overload-overlap]
        self, question: ReconstructionQuestion, visitor: Visitor
    ) -> Steps[ReconstructionResult]: ...
    @overload
    def answer(self, question: PairQuestion, visitor: Visitor) -> Steps[HomologyReport]: ...
    @overload
    def answer(self, question: FamilyQuestion, visitor: Visitor) -> Steps[Family]: ...
    @overload
    def answer(self, question: SurveyQuestion, visitor: Visitor) -> Steps[SurveyResult]: ...
    @overload
    def answer(self, question: Question, visitor: Visitor) -> Steps[Any]: ...
    async def answer(self, question: Question, visitor: Visitor) -> Steps[Any]:
        """Answer a question step by step; the last step is :class:`Answered`.

        A survey leaves out models that cannot be read. If it has a single name, it covers the models in that collection
        or by that author. Closing the iterator leaves the queue and kills the process.

        Raises:
            RefusedError: If the question is not answered.
        """
        question, left_out = await self._listed(question, visitor)
        access = await self.access(question, visitor)
        earlier = await self._survey_without_layers(access, question, visitor)
        report = None
        if isinstance(question, ReconstructionQuestion):
            compared = await self._kept_answer(access, question.comparison, visitor, must_be_current=True)
            if compared is not None and isinstance(compared.result, HomologyReport):
                report = without_arrays(compared.result)
        job = self._job(question, left_out, earlier, report)
        async with aclosing(self._run(question, access, job, visitor)) as steps:
            async for step in steps:
                if isinstance(step, Answered) and step.was_kept and isinstance(step.result, SurveyResult):
                    step = replace(step, result=replace(step.result, left_out=left_out))
                yield step

    async def _listed(self, question: Question, visitor: Visitor) -> tuple[Question, str]:
        """Replace a collection or an author with its models, and return a sentence on models left out."""
        if not isinstance(question, SurveyQuestion) or not question.is_list:
            return question, ""
        (name,) = question.names
        token = visitor.token or self.settings.own_token or token_of_space()
        names, left_out = await self._ask_hub(lambda: listed_models(name, token), visitor)
        return replace(question, names=names), left_out

    async def resolve_author(self, question: Question, visitor: Visitor) -> Question:
        """Return the question, or a survey of an author's models if it names only that author."""
        if isinstance(question, FamilyQuestion) and await self.is_list(question.model, visitor):
            return SurveyQuestion((question.model,), question.alpha, question.level == "layers")
        return question

    async def is_list(self, name: str, visitor: Visitor) -> bool:
        """Return whether a name is a collection or an author and not a model.

        Sends one request if the name is a single word.
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

    async def _run(
        self,
        question: Question,
        access: Access,
        job_for: Callable[[Access], Job[Result | ReconstructionResult]],
        visitor: Visitor,
    ) -> Steps[Any]:
        """Return the cached answer, or wait in the queue and run the job."""
        settings = self.settings
        own_token = visitor.token or settings.own_token
        kept_answer = await self._kept_answer(access, question, visitor, must_be_current=True)
        if kept_answer is not None:
            yield kept_answer
            return
        entry = self._queue.enter(visitor.key)
        run = JobRun(access, job_for, self._pool, timeout_s=settings.limits.seconds, own_token=own_token)
        work: Future[Result | ReconstructionResult] | None = None
        try:
            while n_ahead := entry.n_ahead:
                _check_presence(visitor)
                seconds = self.pace.job_s * n_ahead / settings.limits.n_running
                yield Queued(n_ahead, self._queue.n_waiting, seconds)
                await asyncio.sleep(POLL_S)
            # A visitor ahead in the queue may have asked the same question.
            answered = await self._kept_answer(access, question, visitor, must_be_current=True)
            if answered is None:
                work = self._workers.submit(run.run)
                ended = _event_of(work)
                while not work.done():
                    _check_presence(visitor)
                    yield Running(run.plan, run.progress, run.seconds, run.interim, run.total.share)
                    await _wait(ended)
                self.pace.learn_job(run.seconds)
                answered = await self._keep(self._answered(work, run, question), question, visitor)
        finally:
            run.stop()
            if work is None:
                entry.leave()
            else:  # not earlier: the next visitor may ask the same question and must get the cached answer
                _leave_after(work, entry)
        yield answered

    async def _keep(self, answered: Answered[Any], question: Question, visitor: Visitor) -> Answered[Any]:
        result, access = answered.result, answered.access
        if isinstance(result, ReconstructionResult):
            return replace(answered, result=self.downloads.hold(result))
        if answered.cut_short or not may_be_kept(result, access):
            return answered
        if access.is_with_rights and await self._if_public(other_repositories(result, access), visitor) is None:
            return answered
        self._results.keep(result_key(access, question, self.settings.index), result)
        return replace(answered, is_kept=True)

    def _answered(self, work: Future[Any], run: JobRun[Any], question: Question) -> Answered[Any]:
        interim, what = run.interim, NAMES[type(question)]
        is_lighter = getattr(question, "level", "auto") != "auto" and not isinstance(question, ReconstructionQuestion)
        try:
            result = work.result()
        except MdirError as exc:
            if isinstance(exc, JobTimeoutError):
                refused = timeout_refusal(self.settings.limits.seconds or 0.0, what=what, is_lighter=is_lighter)
            else:
                refused = refusal_of(exc, run.access, what=what, is_lighter=is_lighter)
            if interim is None or not hit_limit(exc):
                raise refused from exc
            more = "; its caveats name the parts that were not compared" if isinstance(interim, HomologyReport) else ""
            cut_short = f"{refused.message} The results so far are below{more}."
            return Answered(interim, run.access, cut_short=cut_short)
        if isinstance(result, HomologyReport):
            self.pace.learn(result)
        return Answered(result, run.access)


def _prepare_first_answer() -> None:
    # gradio would import it during its first answer and block all others for about a second.
    with suppress(ImportError):
        import_module("matplotlib.pyplot")
    build_hf_headers()  # the client looks up agents before its first request of the day, which takes time


def _submit(workers: ThreadPoolExecutor, work: Callable[[], R], entry: QueueEntry) -> Future[R]:
    """Start work, and leave the queue when it ends."""
    future = workers.submit(work)
    _leave_after(future, entry)
    return future


async def _shielded(work: Future[R]) -> R:
    """Wait for work that continues even if the visitor leaves; later errors are then ignored."""
    waited = asyncio.wrap_future(work)
    waited.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
    return await asyncio.shield(waited)


def _leave_after(work: Future[R], entry: QueueEntry) -> None:
    """Leave the queue when work ends. If its visitor leaves, that is soon, because the process is killed."""
    work.add_done_callback(lambda _: entry.leave())


def _check_presence(visitor: Visitor) -> None:
    if visitor.is_gone:
        raise RefusedError("The connection that waited for this answer was closed, so the work was stopped.")


async def _wait(ended: asyncio.Event) -> None:
    """Wait for an event, or for the next poll."""
    with suppress(asyncio.TimeoutError):
        await asyncio.wait_for(ended.wait(), POLL_S)


def _event_of(work: Future[R]) -> asyncio.Event:
    """Return an event that is set when work ends, so that an answer need not wait for the next poll."""
    ended, loop = asyncio.Event(), asyncio.get_running_loop()

    def wake(_: Future[R]) -> None:
        with suppress(RuntimeError):  # the loop is closed, so there is no waiter
            loop.call_soon_threadsafe(ended.set)

    work.add_done_callback(wake)
    return ended
