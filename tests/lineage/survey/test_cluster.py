"""A survey on a dask cluster gives the same results with killed workers and broken models."""

from __future__ import annotations

import collections
import contextlib
import os
import signal
import threading
import time
from itertools import combinations

import pytest

from mdir_hf.errors import WorkersLostError
from mdir_hf.lineage.survey import run as run_module
from mdir_hf.lineage.survey.run import survey
from mdir_hf.lineage.survey.work import open_executor, run_tasks

dask = pytest.importorskip("dask")
distributed = pytest.importorskip(
    "distributed", reason="dask.distributed is not installed; the extra 'cluster' brings it"
)

# dask warns about sockets of killed workers.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def workers_here():
    """Start a cluster in this process with a number of workers of two threads each, so that tasks can meet."""
    with contextlib.ExitStack() as stack:

        def start(n_workers):
            cluster = distributed.LocalCluster(
                n_workers=n_workers, threads_per_worker=2, processes=False, dashboard_address=None
            )
            return stack.enter_context(cluster)

        yield start


def test_a_worker_with_a_gpu_has_one_task_at_a_time():
    most = {}

    def one_at_a_time():
        worker = distributed.get_worker().address
        at_work[worker] += 1
        most[worker] = max(most.get(worker, 0), at_work[worker])
        time.sleep(0.05)
        at_work[worker] -= 1

    at_work = collections.Counter()
    RUN_HERE["one_at_a_time"] = one_at_a_time
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=4, processes=False, dashboard_address=None, resources={"GPU": 1}
    ) as cluster:
        failures = []
        with open_executor(scheduler=cluster.scheduler_address, device="cuda") as executor:
            run_tasks(
                executor,
                run_here,
                [(number, ("one_at_a_time",)) for number in range(12)],
                lambda _: None,
                lambda *failure: failures.append(failure),
            )
    assert failures == []
    assert set(most.values()) == {1}


RUN_HERE = {}


def run_here(name):
    RUN_HERE[name]()


def test_a_scheduler_that_stops_is_reported(workers_here):
    cluster, given_up = workers_here(1), []

    def tasks():
        yield 0, (0.0,)
        cluster.close()
        yield from ((at, (0.0,)) for at in range(1, 9))

    with (
        dask.config.set({"distributed.comm.timeouts.connect": "1s"}),
        open_executor(scheduler=cluster.scheduler_address) as executor,
        pytest.raises(WorkersLostError, match="run the same survey again"),
    ):
        run_tasks(executor, time.sleep, tasks(), print, lambda at, why: given_up.append(why))
    assert given_up == []


@pytest.fixture(scope="module")
def cluster():
    """Two worker processes; a killed worker is restarted."""
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, host="127.0.0.1"
    ) as cluster:
        yield cluster


@pytest.mark.slow
def test_a_killed_worker_and_a_broken_model_affect_nothing_else(cluster, population, tmp_path, monkeypatch):
    monkeypatch.setattr(run_module, "PAIRS_AT_ONCE", 1)  # many tasks, so that the kill happens between them
    broken = population["c/alone"]
    (tmp_path / "models" / "c-alone" / "model.safetensors").write_bytes(b"not a checkpoint")
    names = tuple(population.values())
    alone = survey(names, n_tokens=512, progress=False)

    victim = next(worker.pid for worker in cluster.workers.values())

    def kill() -> None:
        path = tmp_path / "together" / "results.jsonl"
        until = time.monotonic() + 60
        while time.monotonic() < until and not (path.exists() and '"kind": "pair"' in path.read_text()):
            time.sleep(0.01)
        os.kill(victim, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    with open_executor(scheduler=cluster.scheduler_address) as executor:
        together = survey(names, n_tokens=512, folder=tmp_path / "together", executor=executor, progress=False)
    killer.join()

    assert together.models[broken].error is not None
    assert set(together.pairs) == {pair for pair in combinations(names, 2) if broken not in pair}
    assert all(found.error is None for found in together.pairs.values())
    assert together.groups() == alone.groups()
    for pair, found in alone.pairs.items():
        assert together.pairs[pair].verdict == found.verdict
        # Each survey samples different neurons, and the number of threads changes the order of sums.
        assert (together.pairs[pair].log10_p is None) == (found.log10_p is None)
        if found.log10_p is not None:
            assert together.pairs[pair].log10_p == pytest.approx(found.log10_p, rel=0.05)
