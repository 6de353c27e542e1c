"""A survey end to end: groups, a single read per model, resumption, shards, failures, executors."""

from __future__ import annotations

import json
import os
import shutil
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
from mdir_hf.lineage.survey.folder import LOCK, RESULTS, ROWS, SurveyFolder, read_survey
from mdir_hf.lineage.survey.run import SurveyPlan, open_folder, prepare_survey, run_survey, survey
from mdir_hf.lineage.survey.work import MOST_IN_FLIGHT, open_executor, run_tasks
from mdir_hf.model.open import Reading
from mdir_hf.writing import locked


def plan(population, **options) -> SurveyPlan:
    return SurveyPlan(tuple(population.values()), **{"n_tokens": 512, "progress": False, **options})


def run_in(folder, plan, *, restart=False, **options):
    """Run a survey in a folder."""
    with open_folder(plan, folder, restart=restart) as state:
        return run_survey(plan, state, **options)


def groups(report):
    return {frozenset(group) for group in report.groups()}


def numbers(report):
    return {pair: (found.verdict, found.log10_p) for pair, found in report.pairs.items()}


def test_families_are_found_and_every_pair_occurs_once(population, expected_groups, tmp_path):
    report = run_in(tmp_path / "out", plan(population))
    assert groups(report) == expected_groups
    assert len(report.models) == 6 and report.is_complete and not report.n_not_compared
    assert set(report.pairs) == set(combinations(population.values(), 2))
    lines = [json.loads(line) for line in (tmp_path / "out" / RESULTS).read_text().splitlines()]
    assert sum(line["kind"] == "pair" for line in lines) == 15
    assert sum(line["kind"] == "model" for line in lines) == 6


def test_a_survey_runs_on_the_requested_device(population, tmp_path):
    here = run_in(tmp_path / "here", plan(population, n_tokens=128))
    auto = numbers(run_in(tmp_path / "auto", replace(plan(population, n_tokens=128), device="auto")))
    for pair, (verdict, log10_p) in numbers(here).items():
        # Each survey samples different neurons, and a GPU sums in another order.
        expected = log10_p if log10_p is None else pytest.approx(log10_p, rel=0.05)
        assert auto[pair] == (verdict, expected)
    with pytest.raises(InputError, match="device 'nonsense' cannot be used here"):
        run_in(tmp_path / "none", replace(plan(population), device="nonsense"))
    assert read_survey(tmp_path / "none").pairs == {}


def test_every_model_is_read_once_over_http(population, loopback_hub, tmp_path):
    for name, folder in population.items():
        loopback_hub.add_repository(name, folder)
    names = {name: name for name in population}
    loopback_hub.requests.clear()
    run_in(tmp_path / "out", plan(names, n_tokens=256))
    for name in population:
        ranges = [
            request.range
            for request in loopback_hub.requests
            if request.path.startswith(f"/{name}/") and request.path.endswith(".safetensors") and request.range
        ]
        # The header, and the rows of the embedding, of gate and of up that did not come with it
        assert 1 <= len(ranges) <= 4, ranges


def test_a_survey_stopped_between_pairs_is_resumed(population, tmp_path, monkeypatch):
    compare, n_done = run_module.compare_by_number, 0

    def counting(fingerprints, pairs, *rest):
        nonlocal n_done
        n_done += 1
        if n_done == 4:
            raise KeyboardInterrupt
        return compare(fingerprints, pairs, *rest)

    monkeypatch.setattr(run_module, "compare_by_number", counting)
    with pytest.raises(KeyboardInterrupt):
        run_in(tmp_path / "out", plan(population))
    before = read_survey(tmp_path / "out")
    assert before.pairs and not before.is_complete
    first, *lines = str(before).splitlines()
    assert first == f"not finished: {before.progress_text}; groups may grow"
    assert not any(before.progress_text in line for line in lines)
    monkeypatch.setattr(run_module, "compare_by_number", compare)
    report = run_in(tmp_path / "out", plan(population))
    assert str(report).splitlines()[-1] == report.progress_text
    assert len(report.pairs) == 15 and before.pairs.items() <= report.pairs.items()
    for name in before.readable():
        assert report.models[name] == before.models[name]


def test_results_agree_after_any_loss(population, tmp_path):
    """Damage each kind of file and each line of a finished survey; the next run gives the same results."""
    out = tmp_path / "out"
    whole = numbers(run_in(out, plan(population)))
    path = out / RESULTS
    content = path.read_bytes()
    lines = content.splitlines(keepends=True)
    kinds = [json.loads(line)["kind"] for line in lines]
    assert (kinds.count("settings"), kinds.count("sample"), kinds.count("model"), kinds.count("pair")) == (1, 1, 6, 15)
    for number in range(2, len(lines)):
        place = len(lines[number]) // 2
        flipped = lines[number][:place] + bytes([lines[number][place] ^ 1]) + lines[number][place + 1 :]
        path.write_bytes(b"".join([*lines[:number], flipped, *lines[number + 1 :]]))
        state = SurveyFolder(out)
        # A damaged line costs one model or pair; its neighbours are kept.
        lost = (kinds.count("model") - len(state.models)) + (kinds.count("pair") - len(state.pairs))
        assert state.n_ignored == 1 and lost == (kinds[number] in ("model", "pair"))
    for number in (2, kinds.index("pair")):  # a line is lost without a trace
        path.write_bytes(b"".join([*lines[:number], *lines[number + 1 :]]))
        assert SurveyFolder(out).n_ignored == 0
        assert numbers(run_in(out, plan(population))) == whole
    path.write_bytes(content[:-20])  # cut by a kill
    assert numbers(run_in(out, plan(population))) == whole
    stored = sorted((out / ROWS).iterdir())
    stored[0].unlink()
    stored[1].write_bytes(stored[1].read_bytes()[:-1] + b"x")
    path.write_bytes(b"".join(lines[:-6]))  # without some pairs, which are compared again with rows that are read again
    assert numbers(run_in(out, plan(population))) == whole


def test_rows_of_another_sample_are_never_mixed(population, tmp_path):
    """If the sample is lost, all rows are read again, because neurons of two samples would not agree."""
    out = tmp_path / "out"
    whole = run_in(out, plan(population))
    lines = (out / RESULTS).read_bytes().splitlines(keepends=True)
    (out / RESULTS).write_bytes(b"".join([lines[0], *lines[2:]]))
    assert not SurveyFolder(out).models and SurveyFolder(out).n_ignored >= 6
    again = run_in(out, plan(population))
    assert groups(again) == groups(whole)
    assert {pair: found.verdict for pair, found in again.pairs.items()} == {
        pair: found.verdict for pair, found in whole.pairs.items()
    }


def test_a_second_run_in_the_folder_names_the_first(population, tmp_path):
    with (
        open_folder(plan(population), tmp_path / "out"),
        pytest.raises(InputError, match=rf"process {os.getpid()} on .* is writing there"),
    ):
        run_in(tmp_path / "out", plan(population))
    with locked(tmp_path / "out" / LOCK, tmp_path):  # it is free again
        pass


def test_a_local_model_that_changed_is_read_again(population, tmp_path):
    out = tmp_path / "out"
    whole = numbers(run_in(out, plan(population)))
    changed = tmp_path / "models" / "a-base" / "model.safetensors"
    stranger = tmp_path / "models" / "c-alone" / "model.safetensors"
    changed.write_bytes(stranger.read_bytes())
    report = run_in(out, plan(population))
    assert report.is_related(population["a/base"], population["c/alone"])
    assert numbers(report) != whole
    assert read_survey(out) == report


def test_an_unreadable_model_is_named_and_the_rest_complete(population, expected_groups, tmp_path):
    broken = tmp_path / "models" / "a-base" / "model.safetensors"
    content = broken.read_bytes()
    broken.write_bytes(content[:-100])
    report = run_in(tmp_path / "out", plan(population))
    found = report.models[population["a/base"]]
    assert found.error is not None and "truncated" in found.error
    assert len(report.pairs) == 10
    assert report.is_complete
    broken.write_bytes(content)  # the upload is complete now
    report = run_in(tmp_path / "out", plan(population))
    assert report.models[population["a/base"]].error is None
    assert groups(report) == expected_groups


def test_parts_from_one_sample_are_joined_and_compared(population, expected_groups, tmp_path):
    names = tuple(population.values())
    whole = plan(population)
    with open_folder(whole, tmp_path / "sample") as state:
        prepare_survey(whole, state)
    folders = []
    for at in range(3):
        part = replace(whole, part=names[at::3])
        with open_folder(part, tmp_path / f"part-{at}") as state:
            state.take_over(SurveyFolder(tmp_path / "sample"))
            report = run_survey(part, state)
        assert report.readable() == names[at::3] and not report.is_complete
        folders.append(tmp_path / f"part-{at}")
    with open_folder(whole, tmp_path / "whole") as state:
        state.take_over(SurveyFolder(tmp_path / "sample"))
        at_once = run_survey(whole, state)
    shutil.rmtree(tmp_path / "models")  # no model is read again
    joined = survey(names, n_tokens=512, folder=tmp_path / "joined", earlier=folders, progress=False)
    assert groups(joined) == expected_groups and joined.is_complete and len(joined.pairs) == 15
    assert SurveyFolder(tmp_path / "joined").all_rows().keys() == set(names)
    for pair, result in at_once.pairs.items():
        of_parts = joined.pairs.get(pair) or joined.pairs[pair[::-1]]
        assert (of_parts.verdict, of_parts.log10_p) == (result.verdict, result.log10_p)


def test_parts_of_other_samples_or_lists_are_refused(population, tmp_path):
    names = tuple(population.values())
    for at, chosen in enumerate((names, names, names[:3])):
        with open_folder(SurveyPlan(chosen, n_tokens=512, progress=False), tmp_path / str(at)) as state:
            prepare_survey(SurveyPlan(chosen, n_tokens=512, progress=False), state)
    state = SurveyFolder(tmp_path / "0")
    with pytest.raises(InputError, match="it read other tokens or neurons"):
        state.take_over(SurveyFolder(tmp_path / "1"))
    with pytest.raises(InputError, match="it belongs to another survey"):
        state.take_over(SurveyFolder(tmp_path / "2"))


def test_a_folder_of_other_settings_is_refused(population, tmp_path):
    run_in(tmp_path / "out", plan(population))
    for changed in ({"seed": 1}, {"alpha": 1e-6}, {"n_tokens": 300}):
        with pytest.raises(InputError, match="name another folder"):
            run_in(tmp_path / "out", plan(population, **changed))


def test_a_restart_replaces_the_results_and_leaves_other_files(population, tmp_path):
    out = tmp_path / "out"
    whole = run_in(out, plan(population))
    earlier = {path.name for path in (out / ROWS).iterdir()}
    (out / RESULTS).write_bytes(b"{}\n" + (out / RESULTS).read_bytes())  # no survey can be read from it
    (out / "notes.txt").write_text("mine")
    changed = plan(population, seed=1)
    with open_folder(changed, tmp_path / "locked"), pytest.raises(InputError, match="is writing there"):
        run_in(tmp_path / "locked", changed, restart=True)
    again = run_in(out, changed, restart=True)
    assert groups(again) == groups(whole) and again.settings["seed"] == 1
    assert not earlier & {path.name for path in (out / ROWS).iterdir()}  # rows of another sample
    assert (out / "notes.txt").read_text() == "mine"


def test_the_level_of_a_pair_is_its_share_of_the_survey(population):
    assert plan(population).alpha_of_pair == pytest.approx(1e-10 / 15 / 2)  # half of it is reserved for the layers


def test_rows_dropped_for_the_bound_are_read_again(population, expected_groups, tmp_path):
    report = run_in(tmp_path / "out", plan(population, cache_bytes=200_000))
    assert groups(report) == expected_groups
    assert sum(path.stat().st_size for path in (tmp_path / "out" / ROWS).iterdir()) < 300_000


def gpu_of_this_process(_):
    time.sleep(0.5)  # long enough for the other process to take the next task
    return os.getpid(), os.environ.get("CUDA_VISIBLE_DEVICES")


@pytest.mark.slow
def test_processes_give_the_same_groups_and_share_gpus(population, expected_groups, tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    gpus, failures = set(), []
    with open_executor(workers=2, device="cuda") as executor:
        together = run_in(tmp_path / "together", plan(population), executor=executor)
        tasks = [(number, (number,)) for number in range(4)]
        until = time.monotonic() + 120  # one process may start long after the other
        while len(gpus) < 2 and not failures and time.monotonic() < until:
            run_tasks(executor, gpu_of_this_process, tasks, gpus.add, lambda *failure: failures.append(failure))
    assert failures == []
    assert len(gpus) == 2 and {gpu for _, gpu in gpus} == {"3", "5"}
    assert groups(together) == expected_groups and len(together.pairs) == 15


def test_few_tasks_are_submitted_at_a_time():
    started, most = [], []

    class Waiting(Executor):
        """An executor whose tasks end only when the maximum number is submitted."""

        def submit(self, fn, /, *args, **kwargs):
            started.append(Future())
            if len(started) == MOST_IN_FLIGHT:
                most.append(sum(not future.done() for future in started))
                for future in started:
                    future.set_result(None)
            elif len(started) > MOST_IN_FLIGHT:
                started[-1].set_result(None)
            return started[-1]

    done = []
    run_tasks(Waiting(), print, ((at, (at,)) for at in range(100)), done.append, None)
    assert (most, len(done)) == ([MOST_IN_FLIGHT], 100)


class Dying(ThreadPoolExecutor):
    """A pool in which every task of a given model fails: with an error, or by breaking the pool."""

    def __init__(self, poison: str, *, breaks: bool) -> None:
        super().__init__(1)
        self._poison, self._breaks = poison, breaks

    def submit(self, fn, /, *args, **kwargs):
        if fn is run_module.compare_by_number and any(self._poison in pair for pair in args[1]):
            future = Future()
            future.set_exception(BrokenProcessPool("gone") if self._breaks else MemoryError("worker died"))
            return future
        return super().submit(fn, *args, **kwargs)


def test_a_poisoned_model_affects_only_its_own_pairs(population, tmp_path):
    poison = population["b/tuned"]
    with Dying(poison, breaks=False) as executor:
        report = run_in(tmp_path / "out", plan(population), executor=executor)
    failed = {pair for pair, found in report.pairs.items() if found.error}
    assert failed == {pair for pair in combinations(population.values(), 2) if poison in pair}
    assert len(report.pairs) == 15
    assert all("worker failed" in report.pairs[pair].error for pair in failed)


def test_a_broken_pool_is_reported_and_the_survey_can_be_resumed(population, expected_groups, tmp_path):
    with (
        Dying(population["b/tuned"], breaks=True) as executor,
        pytest.raises(WorkersLostError, match="run the same survey again"),
    ):
        run_in(tmp_path / "out", plan(population), executor=executor)
    assert groups(run_in(tmp_path / "out", plan(population))) == expected_groups


@pytest.mark.slow
def test_a_client_killed_in_the_middle_is_resumed(population, expected_groups, tmp_path):
    out = tmp_path / "out"
    script = (
        "import sys, time\nfrom pathlib import Path\nfrom mdir_hf.lineage.survey import run\n"
        "compare = run.compare_by_number\n"
        "def slow(*a, **k):\n    time.sleep(0.5)\n    return compare(*a, **k)\n"
        "run.compare_by_number = slow\n"
        "run.survey(sys.argv[2:], folder=sys.argv[1], n_tokens=512, progress=False)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script, str(out), *population.values()])
    until = time.monotonic() + 120
    while time.monotonic() < until and not (
        (out / RESULTS).exists() and (out / RESULTS).read_text().count('"pair"') >= 3
    ):
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert 3 <= len(read_survey(out).pairs) < 15
    assert groups(run_in(out, plan(population))) == expected_groups


@pytest.mark.parametrize(
    ("names", "options", "message"),
    [
        (("one",), {}, "at least two models"),
        (("one", "one"), {}, "is in the list twice"),
        (("one", "two"), {"part": ("three",)}, "'three' is not among the models of the sample"),
        (("one", "two"), {"alpha": 0.0}, "alpha must lie"),
        (("no/such-a", "no/such-b"), {"reading": Reading(local_files_only=True)}, "none of the 2 models can be opened"),
    ],
)
def test_an_invalid_survey_is_reported(tmp_path, hf_home, names, options, message):
    with pytest.raises(InputError, match=message):
        run_in(tmp_path / "out", SurveyPlan(names, progress=False, **options))


def test_a_folder_that_is_a_file_is_reported(population, tmp_path):
    Path(tmp_path / "out").write_text("x")
    with pytest.raises(InputError, match="cannot write there"):
        run_in(tmp_path / "out", plan(population))
