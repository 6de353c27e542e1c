"""``mdir-hf index publish`` proposes surveys and indexes to a data set; ``family`` searches a published index."""

import json

import pytest

from mdir_hf.cli import main
from tests.loopback.commits import OLD_UPLOAD


@pytest.fixture
def dataset(loopback_hub, tmp_path, monkeypatch):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "README.md").write_text("# Lineage\n")
    loopback_hub.add_repository("lab/lineage", tmp_path / "data", kind="dataset")
    monkeypatch.setenv("HF_TOKEN", loopback_hub.outsider_token)
    return "lab/lineage"


@pytest.fixture
def survey(population, tmp_path):
    out = tmp_path / "first-survey"
    names = list(population.values())[:3]
    assert main(["survey", *names, "--output", str(out), "--tokens", "256", "--quiet"]) == 0
    return out


def test_a_survey_is_proposed_without_rows_of_weights(loopback_hub, dataset, survey, capsys):
    capsys.readouterr()
    assert main(["index", "publish", str(survey), "--dataset", dataset]) == 0
    out, _ = capsys.readouterr()
    assert out == f"{loopback_hub.endpoint}/datasets/lab/lineage/discussions/1\n"
    (opened,) = loopback_hub.pull_requests("datasets/lab/lineage")
    assert (opened.title, opened.status) == ("Add first-survey", "open")
    repository = loopback_hub.find("datasets/lab/lineage")
    added = set(repository.commits[opened.commit]) - set(repository.commits[opened.base])
    assert {"first-survey/survey.json", "first-survey/results.jsonl", "first-survey/matrix.svg"} <= added
    assert not any("fingerprints" in path or path.endswith(".safetensors") for path in added)
    content = loopback_hub.content("datasets/lab/lineage", "first-survey/survey.json", "refs/pr/1")
    assert content == (survey / "survey.json").read_bytes()
    assert main(["index", "publish", str(survey), "--dataset", dataset, "--json"]) == 1
    assert "same title and is open" in capsys.readouterr().err


@OLD_UPLOAD
def test_an_index_is_proposed_merged_and_searched_by_its_address(
    loopback_hub, dataset, population, tmp_path, capsys, without_xet
):
    index = str(tmp_path / "bases.safetensors")
    assert main(["index", "build", population["a/base"], population["b/base"], "--output", index]) == 0
    assert main(["index", "publish", index, "--dataset", dataset, "--name", "indices/bases.safetensors"]) == 0
    loopback_hub.merge("datasets/lab/lineage", 1)
    capsys.readouterr()
    url = f"{loopback_hub.endpoint}/datasets/lab/lineage/resolve/main/indices/bases.safetensors"
    assert main(["family", population["a/tuned"], "--index", url, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["identification"]["found"] == [population["a/base"]]


def test_names_outside_the_data_set_are_refused(dataset, survey, capsys):
    for name in ("../up", "/", "a//b"):
        assert main(["index", "publish", str(survey), "--dataset", dataset, "--name", name]) == 1
        assert "not a name in a data set" in capsys.readouterr().err


def test_invalid_results_give_one_line(loopback_hub, dataset, tmp_path, capsys):
    (tmp_path / "x").write_bytes(b"nonsense")
    for place in (tmp_path, tmp_path / "x", tmp_path / "none"):
        assert main(["index", "publish", str(place), "--dataset", dataset]) == 1
        err = capsys.readouterr().err
        assert err.startswith("mdir-hf: error: ") and err.count("\n") == 1
    assert not loopback_hub.pull_requests("datasets/lab/lineage")


def test_a_missing_data_set_is_reported(dataset, survey, capsys):
    assert main(["index", "publish", str(survey), "--dataset", "lab/none"]) == 1
    assert capsys.readouterr().err.count("\n") == 1
