"""``mdir-hf tree`` on the folder of a survey."""

from __future__ import annotations

import json
import sys

from mdir_hf.cli import main
from tests.lineage.survey.conftest import population
from tests.specimens import gaussian, write_model

__all__ = ["population"]


def test_each_group_of_a_survey_gets_its_tree(population, tmp_path, capsys):
    out = str(tmp_path / "out")
    assert main(["survey", *population.values(), "--output", out, "--tokens", "512", "--quiet"]) == 0
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


def test_without_biopython_a_survey_and_its_relatives_are_there(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "Bio.Phylo.TreeConstruction", None)
    rows = [gaussian(400, 64, 0) + 0.1 * gaussian(400, 64, at) for at in (1, 2, 3)]
    tuned = [str(write_model(tmp_path / f"m{at}", each)) for at, each in enumerate(rows)]
    out = str(tmp_path / "out")
    assert main(["survey", *tuned, "--output", out, "--tokens", "256", "--quiet"]) == 0
    assert len(json.loads((tmp_path / "out" / "survey.json").read_text())["groups"]) == 1
    capsys.readouterr()
    assert main(["tree", out]) == 0
    said = capsys.readouterr().out
    assert "No tree is drawn, because biopython is missing: pip install" in said and "3 models, distances from" in said
