"""A lease lasts while its owner is connected, and a job ends with the lease of its visitor."""

import asyncio
from contextlib import aclosing

import pytest

from mdir_space.jobs.lease import LEASE_S, Lease, Leases
from mdir_space.jobs.limits import Limits
from mdir_space.jobs.question import PairQuestion, RefusedError
from mdir_space.jobs.service import Answered, Queued, Running, Service, ServiceSettings
from mdir_space.jobs.visitor import Visitor
from tests.loopback.faults import Fault
from tests.space.coroutines import finish
from tests.space.models import BASE, RELATED, STRANGER


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def gone():
    """A lease whose owner left long ago."""
    clock = Clock()
    lease = Lease("address 1.2.3.4", clock)
    clock.now += LEASE_S + 1.0
    return lease


def test_a_lease_lasts_while_its_owner_is_connected():
    clock = Clock()
    lease = Lease("a", clock)
    clock.now += LEASE_S - 0.1
    assert not lease.is_over
    with lease.connected():
        with lease.connected():
            clock.now += 100.0
        clock.now += 100.0
        assert not lease.is_over
    clock.now += LEASE_S - 0.1
    assert not lease.is_over
    clock.now += 0.2
    assert lease.is_over
    lease.renew()
    assert not lease.is_over


def test_a_closed_connection_frees_its_place_within_five_seconds():
    assert LEASE_S + 2 * 0.1 < 5.0  # a job looks at its lease every 0.1 s, and its process is killed in less


def test_leases_know_their_owners_and_the_least_recently_used():
    clock = Clock()
    leases = Leases(clock)
    for name in "xyz":
        leases.take(name, "a" if name != "y" else "")
    clock.now += LEASE_S + 0.1
    assert leases.over() == ["x", "y", "z"]
    leases.take("x", "b")
    leases.take("y", "b")
    assert leases.over() == ["z"]
    assert (leases.of("a"), leases.of("b")) == (["z", "x"], ["y"])
    leases.end("z")
    leases.end("z")
    assert "z" not in leases and len(leases) == 2


def test_a_job_ends_with_the_lease_of_its_visitor(hub):
    service = Service(ServiceSettings(Limits(n_running=1)))
    hub.faults.append(Fault("slow", origin="cdn", path="stranger", times=None, delay_s=0.5))
    clock = Clock()
    visitor = Visitor("address 1.2.3.4", lease=Lease("address 1.2.3.4", clock))

    async def leave_while_it_runs():
        seen = []
        with pytest.raises(RefusedError, match="connection that waited"):
            async with aclosing(service.answer(PairQuestion(BASE, STRANGER), visitor)) as steps:
                async for step in steps:
                    seen.append(step)
                    if isinstance(step, Running) and step.progress.bytes_read:
                        clock.now += LEASE_S + 1.0
        assert isinstance(seen[-1], Running)
        while len(service._queue):
            await asyncio.sleep(0.05)

    finish(asyncio.wait_for(leave_while_it_runs(), 60))


def test_a_place_in_the_queue_ends_with_the_lease_of_its_visitor(hub):
    service = Service(ServiceSettings(Limits(n_running=1, n_per_visitor=4)))
    first = service._queue.enter("somebody else")

    async def ask(visitor):
        async with aclosing(service.answer(PairQuestion(BASE, RELATED), visitor)) as steps:
            return [step async for step in steps]

    async def wait_behind_the_dead():
        for _ in range(4):
            with pytest.raises(RefusedError, match="connection that waited"):
                await ask(Visitor("address 1.2.3.4", lease=gone()))
        asking = asyncio.ensure_future(ask(Visitor("address 1.2.3.4")))
        while not service._queue.n_waiting:
            await asyncio.sleep(0.05)
        await asyncio.sleep(0.3)
        first.leave()
        return await asking

    steps = finish(asyncio.wait_for(wait_behind_the_dead(), 60))
    assert {step.n_ahead for step in steps if isinstance(step, Queued)} == {1}
    assert isinstance(steps[-1], Answered)


def test_a_plan_ends_with_the_lease_of_its_visitor(hub):
    service = Service(ServiceSettings(Limits(n_planning=1)))
    with pytest.raises(RefusedError, match="connection that waited"):
        finish(service.plan(PairQuestion(BASE, RELATED), Visitor("address 1.2.3.4", lease=gone())))

    async def until_it_left():
        while len(service._planning_queue):
            await asyncio.sleep(0.05)

    finish(asyncio.wait_for(until_it_left(), 60))
