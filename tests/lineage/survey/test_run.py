"""A survey end to end: groups, a single read per model, resumption, shards, failures, executors."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest

from mdir_hf.errors import InputError, WorkersLostError
from mdir_hf.lineage.survey import run as run_module
from mdir_hf.lineage.survey.result_file import RESULTS, read_survey
from mdir_hf.lineage.survey.run import SurveyPlan, run_survey
from mdir_hf.lineage.survey.work import RESERVE, Engine, open_engine
from mdir_hf.model.open import Reading


def plan(population, **options) -> SurveyPlan:
    return SurveyPlan(tuple(population.values()), **{"n_tokens": 512, "progress": False, **options})


def groups(report):
    return {frozenset(group) for group in report.groups()}


def numbers(report):
    return {pair: (found.verdict, found.log10_p) for pair, found in report.pairs.items()}


def test_families_are_found_and_every_pair_occurs_once(population, expected_groups, tmp_path):
    report = run_survey(plan(population), tmp_path / "out")
    assert groups(report) == expected_groups
    assert len(report.models) == 6 and not report.missing()
    assert set(report.pairs) == set(combinations(population.values(), 2))
    lines = [json.loads(line) for line in (tmp_path / "out" / RESULTS).read_text().splitlines()]
    assert sum(line["kind"] == "pair" for line in lines) == 15
    assert sum(line["kind"] == "model" for line in lines) == 6


def test_a_survey_runs_on_the_requested_device(population, tmp_path):
    here = run_survey(plan(population, n_tokens=128), tmp_path / "here")
    auto = numbers(run_survey(replace(plan(population, n_tokens=128), device="auto"), tmp_path / "auto"))
    for pair, (verdict, log10_p) in numbers(here).items():
        # Each survey samples different neurons, and a GPU sums in another order.
        expected = log10_p if log10_p is None else pytest.approx(log10_p, rel=0.05)
        assert auto[pair] == (verdict, expected)
    with pytest.raises(InputError, match="device 'nonsense' cannot be used here"):
        run_survey(replace(plan(population), device="nonsense"), tmp_path / "none")
    assert read_survey([tmp_path / "none" / RESULTS]).pairs == {}


def test_every_model_is_read_once_over_http(population, loopback_hub, tmp_path):
    for name, folder in population.items():
        loopback_hub.add_repository(name, folder)
    names = {name: name for name in population}
    loopback_hub.requests.clear()
    run_survey(plan(names, n_tokens=256), tmp_path / "out")
    for name in population:
        ranges = [
            request.range
            for request in loopback_hub.requests
            if request.path.startswith(f"/{name}/") and request.path.endswith(".safetensors") and request.range
        ]
        # The header, and the rows of the embedding, of gate and of up that did not come with it
        assert 1 <= len(ranges) <= 4, ranges


def test_a_survey_stopped_between_pairs_is_resumed(population, expected_groups, tmp_path, monkeypatch):
    whole = numbers(run_survey(plan(population), tmp_path / "whole"))
    compare = run_module.compare_tile
    n_done = 0

    def counting(*args, **options):
        nonlocal n_done
        n_done += 1
        if n_done == 6:
            raise KeyboardInterrupt
        return compare(*args, **options)

    monkeypatch.setattr(run_module, "compare_tile", counting)
    with pytest.raises(KeyboardInterrupt):
        run_survey(plan(population), tmp_path / "out")
    assert len(read_survey([tmp_path / "out" / RESULTS]).pairs) == 5
    n_done = 100
    report = run_survey(plan(population), tmp_path / "out")
    assert n_done == 100 + 10
    assert numbers(report) == whole


def test_a_line_cut_by_a_kill_is_computed_again(population, tmp_path):
    whole = run_survey(plan(population), tmp_path / "out")
    path = tmp_path / "out" / RESULTS
    path.write_bytes(path.read_bytes()[:-20])
    assert len(read_survey([path]).pairs) == 14
    assert numbers(run_survey(plan(population), tmp_path / "out")) == numbers(whole)
    assert len(path.read_text().splitlines()) == 1 + 6 + 15


def test_an_unreadable_model_is_named_and_the_rest_complete(population, expected_groups, tmp_path):
    broken = tmp_path / "models" / "a-base" / "model.safetensors"
    content = broken.read_bytes()
    broken.write_bytes(content[:-100])
    report = run_survey(plan(population), tmp_path / "out")
    found = report.models[population["a/base"]]
    assert found.error is not None and "truncated" in found.error
    assert len(report.pairs) == 10
    assert not report.missing()
    broken.write_bytes(content)  # the upload is complete now
    report = run_survey(plan(population), tmp_path / "out")
    assert report.models[population["a/base"]].error is None
    assert groups(report) == expected_groups


def test_joined_shards_equal_the_whole_survey(population, tmp_path, monkeypatch):
    monkeypatch.setattr(run_module, "TILE_MODELS", 2)
    whole = run_survey(plan(population), tmp_path / "whole")
    paths = []
    for at in range(3):
        run_survey(plan(population, shard=(at, 3)), tmp_path / f"shard-{at}")
        paths.append(tmp_path / f"shard-{at}" / RESULTS)
    parts = [read_survey([path]) for path in paths]
    assert sum(len(part.pairs) for part in parts) == 15
    assert numbers(read_survey(paths)) == numbers(whole)
    with pytest.raises(InputError, match="belongs to another survey"):
        run_survey(plan(population, seed=1), tmp_path / "other")
        read_survey([*paths, tmp_path / "other" / RESULTS])


def test_a_folder_of_other_settings_is_refused(population, tmp_path):
    run_survey(plan(population), tmp_path / "out")
    for changed in ({"seed": 1}, {"alpha": 1e-6}, {"n_tokens": 300}):
        with pytest.raises(InputError, match="name another folder"):
            run_survey(plan(population, **changed), tmp_path / "out")


def test_the_level_of_a_pair_is_its_share_of_the_survey(population):
    assert plan(population).alpha_of_pair == pytest.approx(1e-10 / 15 / 2)  # half of it is reserved for the layers


def test_rows_dropped_for_the_bound_are_read_again(population, expected_groups, tmp_path):
    report = run_survey(plan(population, cache_bytes=200_000), tmp_path / "out")
    assert groups(report) == expected_groups
    assert sum(path.stat().st_size for path in (tmp_path / "out" / "fingerprints").iterdir()) < 300_000


def gpu_of_this_process(_):
    time.sleep(0.5)  # long enough for the other process to take the next task
    return os.getpid(), os.environ.get("CUDA_VISIBLE_DEVICES")


@pytest.mark.slow
def test_processes_give_the_same_results_and_share_gpus(population, tmp_path, monkeypatch):
    alone = run_survey(plan(population), tmp_path / "alone")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    gpus, failures = set(), []
    with open_engine(workers=2, device="cuda") as engine:
        together = run_survey(plan(population), tmp_path / "together", engine=engine)
        tasks = [(number, (number,)) for number in range(4)]
        until = time.monotonic() + 120  # one process may start long after the other
        while len(gpus) < 2 and not failures and time.monotonic() < until:
            engine.run(gpu_of_this_process, tasks, gpus.add, lambda *failure: failures.append(failure))
    assert failures == []
    assert len(gpus) == 2 and {gpu for _, gpu in gpus} == {"3", "5"}
    assert {p: v for p, (v, _) in numbers(together).items()} == {p: v for p, (v, _) in numbers(alone).items()}
    for pair, (_, log10_p) in numbers(alone).items():
        # The number of threads changes the order of sums.
        expected = log10_p if log10_p is None else pytest.approx(log10_p, rel=1e-9)
        assert numbers(together)[pair][1] == expected


def test_a_local_engine_submits_few_extra_tasks():
    started, most = [], []

    class Waiting(Executor):
        """An executor whose tasks end only when the maximum number is submitted."""

        def submit(self, fn, /, *args, **kwargs):
            started.append(Future())
            if len(started) == 6 + RESERVE:  # the maximum before a task ends
                most.append(sum(not future.done() for future in started))
                for future in started:
                    future.set_result(None)
            elif len(started) > 6 + RESERVE:
                started[-1].set_result(None)
            return started[-1]

    done = []
    Engine(Waiting(), lambda: 6).run(print, ((at, (at,)) for at in range(30)), done.append, None)
    assert (most, len(done)) == ([6 + RESERVE], 30)
    with open_engine(workers=3) as engine:
        assert engine.n_workers() == 3


class Dying(ThreadPoolExecutor):
    """A pool in which every task of a given model fails: with an error, or by breaking the pool."""

    def __init__(self, poison: str, *, breaks: bool) -> None:
        super().__init__(1)
        self._poison, self._breaks = poison, breaks

    def submit(self, fn, /, *args, **kwargs):
        if fn is run_module.compare_tile and any(self._poison in pair for pair in args[1]):
            future = Future()
            future.set_exception(BrokenProcessPool("gone") if self._breaks else MemoryError("worker died"))
            return future
        return super().submit(fn, *args, **kwargs)


def test_a_poisoned_model_affects_only_its_own_pairs(population, tmp_path):
    poison = population["b/tuned"]
    with Dying(poison, breaks=False) as executor:
        report = run_survey(plan(population), tmp_path / "out", engine=Engine(executor, lambda: 1))
    failed = {pair for pair, found in report.pairs.items() if found.error}
    assert failed == {pair for pair in combinations(population.values(), 2) if poison in pair}
    assert len(report.pairs) == 15
    assert all("worker failed" in report.pairs[pair].error for pair in failed)


def test_a_broken_pool_is_reported_and_the_survey_can_be_resumed(population, expected_groups, tmp_path):
    with (
        Dying(population["b/tuned"], breaks=True) as executor,
        pytest.raises(WorkersLostError, match="run the same survey again"),
    ):
        run_survey(plan(population), tmp_path / "out", engine=Engine(executor, lambda: 1))
    assert groups(run_survey(plan(population), tmp_path / "out")) == expected_groups


@pytest.mark.slow
def test_a_client_killed_in_the_middle_is_resumed(population, expected_groups, tmp_path):
    out = tmp_path / "out"
    script = (
        "import sys, time\nfrom pathlib import Path\nfrom mdir_hf.lineage.survey import run\n"
        "compare = run.compare_tile\n"
        "def slow(*a, **k):\n    time.sleep(0.5)\n    return compare(*a, **k)\n"
        "run.compare_tile = slow\n"
        "run.run_survey(run.SurveyPlan(tuple(sys.argv[2:]), n_tokens=512, progress=False), Path(sys.argv[1]))\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script, str(out), *population.values()])
    until = time.monotonic() + 120
    while time.monotonic() < until and not (
        (out / RESULTS).exists() and (out / RESULTS).read_text().count('"pair"') >= 3
    ):
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    n_before = len(read_survey([out / RESULTS]).pairs)
    assert 3 <= n_before < 15
    assert groups(run_survey(plan(population), out)) == expected_groups


@pytest.mark.parametrize(
    ("names", "options", "message"),
    [
        (("one",), {}, "at least two models"),
        (("one", "one"), {}, "is in the list twice"),
        (("one", "two"), {"shard": (2, 2)}, "no shard 2 of 2"),
        (("one", "two"), {"alpha": 0.0}, "alpha must lie"),
        (("no/such-a", "no/such-b"), {"reading": Reading(local_files_only=True)}, "none of the 2 models can be opened"),
    ],
)
def test_an_invalid_survey_is_reported(tmp_path, hf_home, names, options, message):
    with pytest.raises(InputError, match=message):
        run_survey(SurveyPlan(names, progress=False, **options), tmp_path / "out")


def test_a_folder_that_is_a_file_is_reported(population, tmp_path):
    Path(tmp_path / "out").write_text("x")
    with pytest.raises(InputError, match="cannot write a survey"):
        run_survey(plan(population), tmp_path / "out")
