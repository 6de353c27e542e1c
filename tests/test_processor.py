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

V2_AT = "25 20 0:22 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
V1_AT = (
    "30 25 0:26 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
    "31 25 0:27 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n"
    "32 25 0:28 / /proc rw - proc proc rw\n"
)


@pytest.fixture
def machine(tmp_path):
    """Write the files of a machine under a folder, by path."""

    def write(files):
        for path, text in files.items():
            file = tmp_path / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        return tmp_path

    return write


def v2(group, quotas):
    """A machine with cgroups of version 2, with ``cpu.max`` for some groups."""
    return {
        "proc/self/cgroup": f"0::{group}\n",
        "proc/self/mountinfo": V2_AT,
        **{f"sys/fs/cgroup/{name}cpu.max": f"{text}\n" for name, text in quotas.items()},
    }


def v1(group, quotas, *, mounted=V1_AT, at="sys/fs/cgroup/cpu,cpuacct"):
    """A machine with cgroups of version 1, with quota and period for some groups."""
    files = {"proc/self/cgroup": f"4:cpu,cpuacct:{group}\n3:cpuset:/\n", "proc/self/mountinfo": mounted}
    for name, (quota, period) in quotas.items():
        files |= {f"{at}/{name}cpu.cfs_quota_us": f"{quota}\n", f"{at}/{name}cpu.cfs_period_us": f"{period}\n"}
    return files


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        (v2("/", {"": "200000 100000"}), 2.0),
        (v2("/", {"": "150000 100000"}), 1.5),
        (v2("/", {"": "max 100000"}), None),
        (v2("/", {}), None),
        (v2("/pod/box", {"pod/box/": "400000 100000"}), 4.0),
        (v2("/pod/box", {"pod/": "300000 100000", "pod/box/": "max 100000"}), 3.0),
        (v2("/pod/box", {"pod/": "100000 100000", "pod/box/": "400000 100000"}), 1.0),
        (v2("/pod/box", {"other/": "100000 100000"}), None),
        (v2("/../neighbour", {"": "200000 100000"}), 2.0),
        (v2("/", {"": "nonsense"}), None),
        (v1("/", {"": (200000, 100000)}), 2.0),
        (v1("/", {"": (-1, 100000)}), None),
        (v1("/", {}), None),
        (v1("/pod/box", {"pod/": (50000, 100000), "pod/box/": (-1, 100000)}), 0.5),
        ({}, None),
        ({"proc/self/cgroup": "0::/\n"}, None),
    ],
)
def test_the_smallest_quota_of_the_group_and_those_above_is_read(machine, files, quota):
    assert cgroup_quota(machine(files)) == quota


def test_a_container_finds_its_group_where_it_is_mounted(machine):
    mounted = "30 25 0:26 /docker/af3 /sys/fs/cgroup/cpu ro - cgroup cgroup rw,cpu\n"
    files = v1("/docker/af3", {"": (200000, 100000)}, mounted=mounted, at="sys/fs/cgroup/cpu")
    assert cgroup_quota(machine({**files, "proc/self/cgroup": "4:cpu:/docker/af3\n"})) == 2.0


def test_both_versions_at_once_are_read(machine):
    files = v1("/", {"": (200000, 100000)})
    files["proc/self/cgroup"] += "0::/\n"
    files["proc/self/mountinfo"] += V2_AT.replace("/sys/fs/cgroup", "/sys/fs/cgroup/unified")
    assert cgroup_quota(machine(files)) == 2.0


@pytest.mark.parametrize(
    ("affinity", "limit", "cores"),
    [(8, "max", 8), (8, "200000", 2), (1, "200000", 1), (8, "150000", 1), (8, "50000", 1), (4, "1600000", 4)],
)
def test_usable_cores_follow_the_affinity_and_the_quota(monkeypatch, machine, affinity, limit, cores):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(affinity)), raising=False)
    assert usable_cores(machine(v2("/", {"": f"{limit} 100000"}))) == cores


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
