"""The harness end to end, over small models that stand in for the real ones under their own names."""

import json

import pytest

from benchmarks.leafbench.__main__ import main
from benchmarks.leafbench.running import RunSettings, run_suite
from benchmarks.leafbench.suites import LabelledPair, Suite, leafbench
from mdir_hf.lineage.survey.results import RESULTS
from tests.model.hub.fixtures import hf_home, loopback_hub
from tests.specimens import gaussian, tokens, write_model

__all__ = ["hf_home", "loopback_hub"]

V, N = 300, 32


def stand_ins(hub, place, *, missing=(), first=65):
    """Serve a small model for each of LeaFBench's 65: those of a family are one base and its noisy copies."""
    suite = leafbench()
    bases = {pair.candidate: pair.reference for pair in reversed(suite.pairs) if pair.related}
    families = sorted(set(bases.values()))
    for number, model in enumerate(suite.models):
        if model in missing or number >= first:
            continue
        family = families.index(bases[model])
        rows = gaussian(V, N, family) + 0.1 * gaussian(V, N, 1000 + number)
        # Every family has a tokenizer of its own, which shares most words with the others.
        folder = write_model(place / f"{number}", rows, words=tokens(V, first=20 * family))
        hub.add_repository(model, folder)
    return suite


def small_suite(suite, n_references=2, n_candidates=20):
    references = list(dict.fromkeys(pair.reference for pair in suite.pairs))[:n_references]
    candidates = suite.models[:n_candidates]
    pairs = tuple(pair for pair in suite.pairs if pair.reference in references and pair.candidate in candidates)
    return Suite("leafbench", "a part of LeaFBench", pairs)


@pytest.mark.slow
def test_the_whole_of_leafbench_is_planned_run_and_reported(loopback_hub, tmp_path, capsys):
    stand_ins(loopback_hub, tmp_path / "models")
    assert main(["plan", "--suite", "leafbench", "--tokens", "160"]) == 0
    planned = capsys.readouterr().out
    assert "65 models can be opened, 0 cannot; 845 pairs" in planned
    assert "peak memory" in planned
    assert main(["run", "--suite", "leafbench", "--tokens", "160", "--out", str(tmp_path / "out")]) == 0
    assert capsys.readouterr().out.count("homologous") == 123
    assert main(["report", "--suite", "leafbench", str(tmp_path / "out"), "--save", str(tmp_path / "saved")]) == 0
    text = capsys.readouterr().out
    assert "845 of 845 pairs compared" in text
    report = json.loads((tmp_path / "saved" / "leafbench-leafbench.json").read_text())
    assert report["decisions"] == {
        "true_positives": 123, "false_negatives": 0, "false_positives": 0, "true_negatives": 722,
    }  # fmt: skip
    assert report["metrics"]["auc"] == 1.0
    assert (
        report["metrics"]["mahalanobis"] <= report["metrics"]["mahalanobis_ceiling"] == pytest.approx(2.834, abs=1e-3)
    )
    assert all(found["homologous"] == found["pairs"] for name, found in report["by_relation"].items() if name != "none")


def test_every_model_is_read_once_and_nothing_is_run_twice(loopback_hub, tmp_path):
    suite = small_suite(stand_ins(loopback_hub, tmp_path / "models", first=20))
    settings = RunSettings(n_tokens=160)
    first = list(run_suite(suite, tmp_path / "out", settings))
    assert len(first) == len(suite.pairs)
    lines = [json.loads(line) for line in (tmp_path / "out" / RESULTS).read_text().splitlines()]
    assert sum(line["kind"] == "model" for line in lines) == len(suite.models)
    n_requests = len(loopback_hub.requests)
    assert list(run_suite(suite, tmp_path / "out", settings)) == []
    assert len(loopback_hub.requests) == n_requests


def test_a_run_stopped_in_the_middle_goes_on_where_it_was(loopback_hub, tmp_path):
    suite = small_suite(stand_ins(loopback_hub, tmp_path / "models", first=20))
    settings = RunSettings(n_tokens=160)
    running = run_suite(suite, tmp_path / "out", settings)
    begun = [next(running) for _ in range(7)]
    running.close()
    rest = list(run_suite(suite, tmp_path / "out", settings))
    assert [(found.reference, found.candidate) for found in [*begun, *rest]] == [
        (pair.reference, pair.candidate) for pair in suite.pairs
    ]


def test_shards_are_joined_by_the_report(loopback_hub, tmp_path, capsys):
    suite = small_suite(stand_ins(loopback_hub, tmp_path / "models", first=20))
    for at in range(2):
        list(run_suite(suite, tmp_path / f"{at}" / "leafbench", RunSettings(n_tokens=160, shard=(at, 2))))
    assert main(["report", "--suite", "leafbench", "--json", str(tmp_path / "0"), str(tmp_path / "1")]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["n_compared"] == len(suite.pairs)
    assert report["n_not_run"] == 845 - len(suite.pairs)


def test_a_missing_model_costs_its_own_pairs_and_is_tried_again(loopback_hub, tmp_path):
    missing = "Qwen/Qwen2.5-Math-7B"
    suite = small_suite(stand_ins(loopback_hub, tmp_path / "models", missing=(missing,), first=20))
    settings = RunSettings(n_tokens=160)
    failed = [found for found in run_suite(suite, tmp_path / "out", settings) if found.error]
    assert {found.candidate for found in failed} == {missing}
    loopback_hub.add_repository(missing, write_model(tmp_path / "late", gaussian(V, N, 5)))
    again = list(run_suite(suite, tmp_path / "out", settings))
    assert {found.candidate for found in again} == {missing}
    assert all(found.error is None for found in again)


def test_higher_levels_compare_pair_by_pair(loopback_hub, tmp_path):
    suite = small_suite(stand_ins(loopback_hub, tmp_path / "models", first=20), n_references=1, n_candidates=16)
    found = {
        pair.candidate: pair.verdict for pair in run_suite(suite, tmp_path / "out", RunSettings(level="embedding"))
    }
    assert len(found) == 16
    for pair in suite.pairs:
        assert (found[pair.candidate] == "homologous") == pair.related


@pytest.mark.slow
def test_a_plan_names_what_cannot_be_opened_and_the_rest_goes_on(loopback_hub, tmp_path, capsys):
    stand_ins(loopback_hub, tmp_path / "models", missing=("Qwen/Qwen2.5-Math-7B",))
    assert main(["plan", "--suite", "leafbench", "--level", "auto", "--shard", "0/13"]) == 0
    planned = capsys.readouterr().out
    assert "64 models can be opened, 1 cannot; 64 pairs" in planned
    assert "cannot open Qwen/Qwen2.5-Math-7B" in planned


def test_other_options_in_the_same_folder_are_refused(loopback_hub, tmp_path, capsys):
    stand_ins(loopback_hub, tmp_path / "models")
    suite = Suite("leafbench", "", (LabelledPair("Qwen/Qwen2.5-7B", "Qwen/Qwen2.5-7B-Instruct", True, "instruct"),))
    list(run_suite(suite, tmp_path / "leafbench", RunSettings(n_tokens=160)))
    assert main(["run", "--suite", "leafbench", "--tokens", "128", "--out", str(tmp_path)]) == 1
    assert "name another folder" in capsys.readouterr().err
