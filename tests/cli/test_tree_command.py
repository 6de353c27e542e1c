"""``mdir-hf tree`` on the folder of a survey."""

from __future__ import annotations

import json

from mdir_hf.cli import main
from tests.survey.conftest import population

__all__ = ["population"]


def test_each_group_of_a_survey_gets_its_tree(population, tmp_path, capsys):
    out = str(tmp_path / "out")
    assert main(["survey", *population.values(), "--out", out, "--tokens", "512", "--quiet"]) == 0
    capsys.readouterr()
    assert main(["tree", out, "--json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert body["schema"] == "mdir-hf/tree/1"
    assert [len(tree["members"]) for tree in body["trees"]] == [2, 2]
    assert body["trees"][0]["copies"] == {population["a/permuted"]: population["a/base"]}
    assert json.loads((tmp_path / "out" / "tree.json").read_text()) == body
    assert main(["tree", out]) == 0
    text = capsys.readouterr().out
    assert "No root" in text and "models/a-permuted" in text


def test_a_folder_without_survey_is_one_line(tmp_path, capsys):
    assert main(["tree", str(tmp_path)]) == 1
    assert capsys.readouterr().err.count("\n") == 1
