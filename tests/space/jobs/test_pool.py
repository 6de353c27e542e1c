"""A job that never ends, takes all memory or crashes costs only its own process."""

import asyncio
import os
import signal
import sys
from contextlib import aclosing
from multiprocessing import forkserver

import pytest

from mdir_space.jobs import service as service_module
from mdir_space.jobs.compare import ComparisonJob, ComparisonPlanJob
from mdir_space.jobs.job import JobFailedError
from mdir_space.jobs.limits import Limits
from mdir_space.jobs.question import PairQuestion, RefusedError
from mdir_space.jobs.service import Answered, Running, Service, ServiceSettings
from mdir_space.jobs.visitor import Visitor
from tests.space.coroutines import finish
from tests.space.jobs import bad_jobs
from tests.space.jobs.test_service import ANYBODY, answer, steps_of, until
from tests.space.models import BASE, RELATED, STRANGER

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems do not limit the memory of processes")

QUESTION = PairQuestion(BASE, RELATED)


@pytest.fixture
def jobs_are(monkeypatch):
    """Replace the jobs of comparisons and plans; None restores them."""

    def are(kind):
        monkeypatch.setattr(service_module, "ComparisonJob", kind or ComparisonJob)
        monkeypatch.setattr(service_module, "ComparisonPlanJob", kind or ComparisonPlanJob)

    return are


def is_running(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def pid_at_work(steps):
    """Wait for the first progress event, in which bad jobs report their process ID."""
    async for step in steps:
        if isinstance(step, Running) and step.progress.bytes_read:
            return step.progress.bytes_read
    raise AssertionError("it ended")


@pytest.mark.slow  # waits until a job is over its time
def test_an_endless_job_is_killed_and_leaves_the_queue(hub, jobs_are):
    service = Service(ServiceSettings(Limits(seconds=10.0, n_running=1)))

    async def ask_twice():
        jobs_are(bad_jobs.HoldsTheInterpreter)
        async with aclosing(service.answer(QUESTION, ANYBODY)) as steps:
            pid = await pid_at_work(steps)
            with pytest.raises(RefusedError, match="time limit here"):
                await pid_at_work(aiter_rest(steps))
        jobs_are(None)
        return pid, (await steps_of(service, QUESTION))[-1]

    pid, last = finish(ask_twice())
    assert isinstance(last, Answered)
    assert not is_running(pid)
    assert len(service._queue) == 0


async def aiter_rest(steps):
    async for step in steps:
        if not isinstance(step, Running):
            yield step


def test_a_job_is_killed_when_its_visitor_leaves(hub, jobs_are):
    service = Service(ServiceSettings(Limits(n_running=2)))

    async def leave():
        jobs_are(bad_jobs.HoldsTheInterpreter)
        async with aclosing(service.answer(QUESTION, ANYBODY)) as steps:
            pid = await pid_at_work(steps)
            jobs_are(None)
            other = (await steps_of(service, PairQuestion(BASE, STRANGER), Visitor("another")))[-1]
            was_running = is_running(pid)
        await until(lambda: len(service._queue) == 0)
        await until(lambda: not is_running(pid))
        return other, was_running

    other, was_running = finish(leave())
    assert isinstance(other, Answered)
    assert was_running


def test_a_job_that_takes_all_memory_is_refused_in_a_sentence(hub, jobs_are):
    jobs_are(bad_jobs.TakesAllMemory)
    service = Service(ServiceSettings(Limits(memory_bytes=400 << 20)))
    with pytest.raises(RefusedError, match="exceeded the memory limit here") as caught:
        answer(service, QUESTION)
    assert caught.value.runs_locally
    assert len(service._queue) == 0


def test_a_crash_costs_only_its_own_job(hub, jobs_are):
    service = Service(ServiceSettings())
    jobs_are(bad_jobs.Crashes)
    with pytest.raises(RefusedError, match="exceeded the memory limit"):
        answer(service, QUESTION)
    jobs_are(None)
    assert answer(service, QUESTION).result.verdict.value == "homologous"


def test_jobs_go_on_after_the_fork_server_was_killed(hub):
    service = Service(ServiceSettings())
    answer(service, QUESTION)
    server = forkserver._forkserver._forkserver_pid
    os.kill(server, signal.SIGKILL)
    assert answer(service, PairQuestion(BASE, STRANGER)).result.verdict.value == "no_evidence"
    assert forkserver._forkserver._forkserver_pid != server


def test_a_job_need_not_import_matplotlib(hub, jobs_are):
    jobs_are(bad_jobs.LacksAnImport)
    assert answer(Service(ServiceSettings()), QUESTION).result.verdict.value == "homologous"


def test_an_unexpected_error_is_not_a_refusal_and_leaves_the_queue(hub, jobs_are):
    jobs_are(bad_jobs.IsOurFault)
    service = Service(ServiceSettings())
    with pytest.raises(JobFailedError):
        answer(service, QUESTION)
    assert len(service._queue) == 0


class TestPlans:
    """Plans have the same limits as comparisons, and a separate queue."""

    @pytest.mark.slow  # waits until a job is over its time
    def test_an_endless_plan_is_killed_and_comparisons_continue(self, hub, jobs_are):
        service = Service(ServiceSettings(Limits(plan_seconds=8.0, n_planning=1, n_running=1)))

        async def plan():
            jobs_are(bad_jobs.HoldsTheInterpreter)
            planning = asyncio.create_task(service.plan(QUESTION, ANYBODY))
            await until(lambda: len(service._planning_queue) == 1)
            await asyncio.sleep(0.5)
            jobs_are(None)
            answered = (await steps_of(service, QUESTION, Visitor("another")))[-1]
            with pytest.raises(RefusedError, match="time limit here"):
                await planning
            return answered, await service.plan(QUESTION, ANYBODY)

        answered, found = finish(plan())
        assert isinstance(answered, Answered)
        assert found.n_bytes[0] > 0 and "near" in dict(found.steps)

    def test_a_job_without_waiting_visitors_is_ended(self, hub, jobs_are):
        service = Service(ServiceSettings(Limits(n_planning=1)))
        jobs_are(bad_jobs.HoldsTheInterpreter)

        async def leave():
            planning = asyncio.create_task(service.plan(QUESTION, ANYBODY))
            await until(lambda: len(service._planning_queue) == 1)
            await asyncio.sleep(0.5)
            planning.cancel()
            await until(lambda: len(service._planning_queue) == 0)

        finish(leave())

    def test_no_visitor_may_fill_the_queue(self, hub, jobs_are):
        service = Service(ServiceSettings(Limits(n_planning=1, n_waiting=10, n_per_visitor=2)))
        jobs_are(bad_jobs.HoldsTheInterpreter)

        async def ask_often():
            planning = [asyncio.create_task(service.plan(QUESTION, ANYBODY)) for _ in range(5)]
            await asyncio.sleep(1.0)
            refused = [task for task in planning if task.done()]
            for task in planning:
                task.cancel()
            return [task.exception() for task in refused]

        refused = finish(ask_often())
        assert len(refused) == 3
        assert all(isinstance(error, RefusedError) for error in refused)

    def test_a_plan_may_take_less_memory_than_a_comparison(self, hub, jobs_are):
        jobs_are(bad_jobs.TakesAllMemory)
        service = Service(ServiceSettings(Limits(plan_memory_bytes=300 << 20)))
        with pytest.raises(RefusedError, match="exceeded the memory limit"):
            finish(service.plan(QUESTION, ANYBODY))


@pytest.mark.slow  # waits until a job is over its time
def test_findings_before_a_timeout_are_shown_and_not_cached(hub, jobs_are):
    service = Service(ServiceSettings(Limits(seconds=12.0)))
    jobs_are(bad_jobs.FindsAndThenHangs)
    for _ in range(2):
        last = answer(service, PairQuestion(BASE, STRANGER))
        assert not last.was_kept
        assert "its caveats name the parts that were not compared" in last.cut_short
        assert last.result.verdict.value == "inconclusive"
        assert last.result.neurons is not None and last.result.embedding is None
        assert any("The embeddings have not been compared yet" in caveat for caveat in last.result.caveats)
