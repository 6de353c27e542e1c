"""A survey on a dask cluster of two processes: a worker is killed, a model always fails, the results are the same."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from itertools import combinations

import pytest

from mdir_hf.survey import run as run_module
from mdir_hf.survey.engines import open_executor
from mdir_hf.survey.results import read_survey
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


def test_a_client_killed_in_the_middle_is_resumed_on_the_same_cluster(cluster, population, tmp_path):
    script = (
        "import os, signal, sys\nfrom pathlib import Path\n"
        "from mdir_hf.survey import results, run\nfrom mdir_hf.survey.engines import open_executor\n"
        "run.TILE_MODELS = 2\n"
        "add = results.ResultFile.add_pairs\n"
        "def dying(self, found):\n"
        "    add(self, found)\n"
        "    if len(self.pairs) >= 4:\n        os.kill(os.getpid(), signal.SIGKILL)\n"
        "results.ResultFile.add_pairs = dying\n"
        "with open_executor(scheduler=sys.argv[2]) as executor:\n"
        "    plan = run.SurveyPlan(tuple(sys.argv[3:]), n_tokens=512, progress=False)\n"
        "    run.run_survey(plan, Path(sys.argv[1]), executor=executor)\n"
    )
    names, out = tuple(population.values()), tmp_path / "out"
    command = [sys.executable, "-c", script, str(out), cluster.scheduler_address, *names]
    assert subprocess.run(command, timeout=120).returncode == -signal.SIGKILL
    before = read_survey([out / "results.jsonl"]).pairs
    assert 4 <= len(before) < 15
    with open_executor(scheduler=cluster.scheduler_address) as executor:
        report = run_survey(SurveyPlan(names, n_tokens=512, progress=False), out, executor=executor)
    assert report.is_complete and len(report.pairs) == 15
    assert {pair: report.pairs[pair] for pair in before} == before  # nothing was computed twice
    lines = (out / "results.jsonl").read_text().splitlines()
    assert sum('"kind": "pair"' in line for line in lines) == 15
