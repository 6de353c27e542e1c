"""Work that never ends, takes all memory or crashes costs its own process and nobody else."""

import asyncio
import os
import subprocess
import sys
from contextlib import aclosing

import pytest

from mdir_space import desk as desk_module
from mdir_space import processes
from mdir_space.comparison import ComparisonJob, PlanJob
from mdir_space.desk import Answered, Desk, Serving, Working
from mdir_space.limits import Limits
from mdir_space.question import Question, RefusedError
from mdir_space.visitor import Visitor
from mdir_space.work import BrokenWorkError
from tests.space import bad_jobs
from tests.space.coroutines import finish
from tests.space.models import BASE, RELATED, STRANGER
from tests.space.test_desk import ANYBODY, answer, steps_of, until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere processes are not bounded in memory")

QUESTION = Question(BASE, RELATED)


@pytest.fixture
def jobs_are(monkeypatch):
    """Say what comparisons and plans do; None: what they are for."""

    def are(kind):
        monkeypatch.setattr(desk_module, "ComparisonJob", kind or ComparisonJob)
        monkeypatch.setattr(desk_module, "PlanJob", kind or PlanJob)

    return are


def is_running(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def pid_at_work(steps):
    """Wait for the first progress, in which bad jobs tell the number of their process."""
    async for step in steps:
        if isinstance(step, Working) and step.progress.bytes_read:
            return step.progress.bytes_read
    raise AssertionError("it ended")


def test_what_never_ends_is_ended_and_its_place_is_free(hub, jobs_are):
    desk = Desk(Serving(Limits(seconds=10.0, n_running=1)))

    async def ask_twice():
        jobs_are(bad_jobs.HoldsTheInterpreter)
        async with aclosing(desk.answer(QUESTION, ANYBODY)) as steps:
            pid = await pid_at_work(steps)
            with pytest.raises(RefusedError, match="longest that may take"):
                await pid_at_work(aiter_rest(steps))
        jobs_are(None)
        return pid, (await steps_of(desk, QUESTION))[-1]

    pid, last = finish(ask_twice())
    assert isinstance(last, Answered)
    assert not is_running(pid)
    assert len(desk._room) == 0


async def aiter_rest(steps):
    async for step in steps:
        if not isinstance(step, Working):
            yield step


def test_it_is_ended_when_its_visitor_leaves_and_others_are_answered_meanwhile(hub, jobs_are):
    desk = Desk(Serving(Limits(n_running=2)))

    async def leave():
        jobs_are(bad_jobs.HoldsTheInterpreter)
        async with aclosing(desk.answer(QUESTION, ANYBODY)) as steps:
            pid = await pid_at_work(steps)
            jobs_are(None)
            other = (await steps_of(desk, Question(BASE, STRANGER, "screen"), Visitor("another")))[-1]
            was_running = is_running(pid)
        await until(lambda: len(desk._room) == 0)
        await until(lambda: not is_running(pid))
        return other, was_running

    other, was_running = finish(leave())
    assert isinstance(other, Answered)
    assert was_running


def test_whoever_takes_all_memory_is_told_so_in_one_sentence(hub, jobs_are):
    jobs_are(bad_jobs.TakesAllMemory)
    desk = Desk(Serving(Limits(memory_bytes=400 << 20)))
    with pytest.raises(RefusedError, match="needed more memory than one may use here") as caught:
        answer(desk, QUESTION)
    assert caught.value.runs_locally
    assert len(desk._room) == 0


def test_a_process_that_crashes_takes_nobody_along(hub, jobs_are):
    desk = Desk(Serving())
    jobs_are(bad_jobs.Crashes)
    with pytest.raises(RefusedError, match="was ended"):
        answer(desk, QUESTION)
    jobs_are(None)
    assert answer(desk, QUESTION).result.verdict.value == "homologous"


def test_the_next_process_starts_though_the_one_that_has_them_was_killed(hub, monkeypatch):
    monkeypatch.setattr(processes, "subprocess", subprocess)  # a program, as in a Space
    desk = Desk(Serving())
    answer(desk, QUESTION)
    desk._processes._nursery._process.kill()
    desk._processes._nursery._process.wait(10)
    assert answer(desk, Question(BASE, STRANGER, "screen")).result.verdict.value == "no_evidence"


def test_a_fault_of_ours_is_not_shown_as_a_refusal_and_frees_the_place(hub, jobs_are):
    jobs_are(bad_jobs.IsOurFault)
    desk = Desk(Serving())
    with pytest.raises(BrokenWorkError):
        answer(desk, QUESTION)
    assert len(desk._room) == 0


class TestPlans:
    """Making a plan has the same bounds, and other places than comparisons."""

    def test_one_that_never_ends_is_ended_and_comparisons_go_on_meanwhile(self, hub, jobs_are):
        desk = Desk(Serving(Limits(plan_seconds=8.0, n_planning=1, n_running=1)))

        async def plan():
            jobs_are(bad_jobs.HoldsTheInterpreter)
            planning = asyncio.create_task(desk.plan(QUESTION, ANYBODY))
            await until(lambda: len(desk._planning_room) == 1)
            await asyncio.sleep(0.5)
            jobs_are(None)
            answered = (await steps_of(desk, QUESTION, Visitor("another")))[-1]
            with pytest.raises(RefusedError, match="longest that may take"):
                await planning
            return answered, await desk.plan(QUESTION, ANYBODY)

        answered, found = finish(plan())
        assert isinstance(answered, Answered)
        assert found.common_tokens == 1499

    def test_one_that_nobody_waits_for_is_ended(self, hub, jobs_are):
        desk = Desk(Serving(Limits(n_planning=1)))
        jobs_are(bad_jobs.HoldsTheInterpreter)

        async def leave():
            planning = asyncio.create_task(desk.plan(QUESTION, ANYBODY))
            await until(lambda: len(desk._planning_room) == 1)
            await asyncio.sleep(0.5)
            planning.cancel()
            await until(lambda: len(desk._planning_room) == 0)

        finish(leave())

    def test_no_visitor_may_fill_the_queue(self, hub, jobs_are):
        desk = Desk(Serving(Limits(n_planning=1, n_waiting=10, n_per_visitor=2)))
        jobs_are(bad_jobs.HoldsTheInterpreter)

        async def ask_often():
            planning = [asyncio.create_task(desk.plan(QUESTION, ANYBODY)) for _ in range(5)]
            await asyncio.sleep(1.0)
            refused = [task for task in planning if task.done()]
            for task in planning:
                task.cancel()
            return [task.exception() for task in refused]

        refused = finish(ask_often())
        assert len(refused) == 3
        assert all(isinstance(error, RefusedError) for error in refused)

    def test_one_may_take_less_memory_than_a_comparison(self, hub, jobs_are):
        jobs_are(bad_jobs.TakesAllMemory)
        desk = Desk(Serving(Limits(plan_memory_bytes=300 << 20)))
        with pytest.raises(RefusedError, match="needed more memory"):
            finish(desk.plan(QUESTION, ANYBODY))


def test_what_was_found_before_the_limit_is_shown_and_kept_for_nobody(hub, jobs_are):
    desk = Desk(Serving(Limits(seconds=12.0)))
    jobs_are(bad_jobs.FindsAndThenHangs)
    for _ in range(2):
        last = answer(desk, Question(BASE, STRANGER))
        assert not last.was_kept
        assert "its caveats say what was not looked at" in last.cut_short
        assert last.result.verdict.value == "inconclusive"
        assert last.result.embedding is not None and last.result.layers is None
        assert any("not compared" in caveat for caveat in last.result.caveats)
