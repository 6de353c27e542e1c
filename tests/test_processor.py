"""Count usable cores, and restore every number of threads. These tests do not measure time."""

import os
import threading
from contextlib import contextmanager

import numpy  # noqa: F401  its BLAS is one of the pools
import pytest
import torch
from threadpoolctl import OpenBLASController, threadpool_info, threadpool_limits

from mdir_hf import processor
from mdir_hf.processor import LARGE, all_cores, cgroup_quota, one_pool, usable_cores


@pytest.fixture
def machine(tmp_path):
    """Write the files of a control group under a folder, by path."""

    def write(files):
        for path, text in files.items():
            file = tmp_path / "sys/fs/cgroup" / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        return tmp_path

    return write


def v1(quota, period):
    return {"cpu/cpu.cfs_quota_us": f"{quota}\n", "cpu/cpu.cfs_period_us": f"{period}\n"}


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({"cpu.max": "200000 100000\n"}, 2.0),
        ({"cpu.max": "150000 100000\n"}, 1.5),
        ({"cpu.max": "max 100000\n"}, None),
        ({"cpu.max": "nonsense"}, None),
        ({"cpu.max": "1 0"}, None),
        (v1(200000, 100000), 2.0),
        (v1(-1, 100000), None),
        ({}, None),
    ],
)
def test_the_quota_of_the_container_is_read(machine, files, quota):
    assert cgroup_quota(machine(files)) == quota


@pytest.mark.parametrize(
    ("affinity", "limit", "cores"),
    [(8, "max", 8), (8, "200000", 2), (1, "200000", 1), (8, "150000", 1), (8, "50000", 1), (4, "1600000", 4)],
)
def test_usable_cores_follow_the_affinity_and_the_quota(monkeypatch, machine, affinity, limit, cores):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(affinity)), raising=False)
    assert usable_cores(machine({"cpu.max": f"{limit} 100000"})) == cores


@pytest.mark.parametrize(("reported", "cores"), [(6, 6), (None, 1)])
def test_without_an_affinity_the_reported_processors_count(monkeypatch, machine, reported, cores):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: reported)
    assert usable_cores(machine({})) == cores


# The caller's settings are restored.


@pytest.fixture(autouse=True)
def three_threads_of_eight_cores(monkeypatch):
    monkeypatch.setattr(processor, "usable_cores", lambda: 8)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    limits = threadpool_limits(2, user_api="blas")
    OpenBLASController.clear_controlling_thread()  # as if set by an environment variable
    yield
    limits.restore_original_limits()
    torch.set_num_threads(before)


def blas_threads():
    return {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}


def in_a_new_thread(call):
    found = []
    thread = threading.Thread(target=lambda: found.append(call()))
    thread.start()
    thread.join(60)
    assert found
    return found[0]


def threads_everywhere():
    """Numbers of threads: torch here, torch in new threads, and the other libraries."""
    return torch.get_num_threads(), in_a_new_thread(torch.get_num_threads), blas_threads()


def test_an_exception_restores_everything():
    with pytest.raises(KeyError), one_pool(), all_cores(LARGE):
        raise KeyError
    assert threads_everywhere() == (3, 3, {2})
    with one_pool():
        assert threads_everywhere() == (1, 3, {1})


def test_one_pool_inside_another_changes_nothing():
    with one_pool():
        with one_pool():
            assert torch.get_num_threads() == 1
        assert threads_everywhere() == (1, 3, {1})
    assert threads_everywhere() == (3, 3, {2})


def test_large_work_has_as_many_threads_as_the_caller_had():
    with one_pool():
        with all_cores(LARGE):
            assert threads_everywhere() == (3, 3, {1})
        assert threads_everywhere() == (1, 3, {1})


def test_large_work_has_no_more_threads_than_there_are_cores(monkeypatch):
    monkeypatch.setattr(processor, "usable_cores", lambda: 2)
    with one_pool():
        with all_cores(LARGE):
            assert torch.get_num_threads() == 2
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 3


def test_large_work_inside_large_work_goes_on_with_the_cores_it_has():
    with one_pool(), all_cores(LARGE):
        with all_cores(LARGE):
            assert torch.get_num_threads() == 3
        assert torch.get_num_threads() == 3


def test_outside_of_one_pool_large_work_runs_as_the_caller_had_it():
    with all_cores(LARGE):
        assert threads_everywhere() == (3, 3, {2})


def test_a_caller_with_one_thread_keeps_it():
    torch.set_num_threads(1)
    with one_pool(), all_cores(LARGE):
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 1


# Several threads of one process.


@contextmanager
def inside(threads=None):
    """Run another Python thread in one_pool until this context ends; yield the thread counts before, in and after."""
    entered, may_leave, seen = threading.Event(), threading.Event(), []

    def run():
        if threads is not None:
            torch.set_num_threads(threads)
        seen.append(torch.get_num_threads())
        with one_pool():
            seen.append(torch.get_num_threads())
            entered.set()
            may_leave.wait(60)
        seen.append(torch.get_num_threads())

    thread = threading.Thread(target=run)
    thread.start()
    assert entered.wait(60)
    try:
        yield seen
    finally:
        may_leave.set()
        thread.join(60)


def test_a_thread_outside_keeps_its_threads():
    with inside() as seen:
        assert torch.get_num_threads() == 3
        assert in_a_new_thread(torch.get_num_threads) == 3
    assert seen == [3, 1, 3]


def test_many_comparisons_at_once_leave_everything_as_it_was():
    at_large_work, most = 0, 0
    failures = []

    def compare():
        nonlocal at_large_work, most
        for _ in range(10):
            with one_pool():
                with all_cores(LARGE):
                    at_large_work += 1
                    most = max(most, at_large_work)
                    if torch.get_num_threads() != 3:
                        failures.append(torch.get_num_threads())
                    at_large_work -= 1
                if torch.get_num_threads() != 1:
                    failures.append(torch.get_num_threads())
            if torch.get_num_threads() != 3:
                failures.append(torch.get_num_threads())

    threads = [threading.Thread(target=compare) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []
    assert most == 1
    assert threads_everywhere() == (3, 3, {2})
