"""A survey on a dask cluster of two processes: a worker is killed, a model always fails, the results are the same."""

from __future__ import annotations

import os
import signal
import threading
import time
from itertools import combinations

import pytest

from mdir_hf.survey import run as run_module
from mdir_hf.survey.engines import open_executor
from mdir_hf.survey.run import SurveyPlan, run_survey

distributed = pytest.importorskip(
    "distributed", reason="dask.distributed is not installed: pip install 'mdir-hf[cluster]'"
)

pytestmark = [
    pytest.mark.slow,
    # Closing sockets of killed workers is dask's own business.
    pytest.mark.filterwarnings("ignore"),
]


@pytest.fixture
def cluster():
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, host="127.0.0.1"
    ) as cluster:
        yield cluster


def test_a_killed_worker_and_a_broken_model_cost_nothing_else(cluster, population, tmp_path, monkeypatch):
    monkeypatch.setattr(run_module, "TILE_MODELS", 2)  # many tasks, so that the kill falls between them
    broken = population["c/alone"]
    (tmp_path / "models" / "c-alone" / "model.safetensors").write_bytes(b"not a checkpoint")
    names = tuple(population.values())
    alone = run_survey(SurveyPlan(names, n_tokens=512, progress=False), tmp_path / "alone")

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
        together = run_survey(SurveyPlan(names, n_tokens=512, progress=False), tmp_path / "together", executor=executor)
    killer.join()

    assert together.models[broken].error is not None
    assert set(together.pairs) == {pair for pair in combinations(names, 2) if broken not in pair}
    assert all(found.error is None for found in together.pairs.values())
    assert together.groups() == alone.groups()
    for pair, found in alone.pairs.items():
        assert together.pairs[pair].verdict == found.verdict
        # Other numbers of threads sum in another order.
        assert together.pairs[pair].log10_p == pytest.approx(found.log10_p, rel=1e-9)
