"""``mdir-hf survey`` as a user types it."""

from __future__ import annotations

import json

from mdir_hf.cli import main
from tests.survey.conftest import expected_groups, population

__all__ = ["expected_groups", "population"]


def test_it_prints_groups_and_saves_them(population, expected_groups, tmp_path, capsys):
    out = tmp_path / "out"
    assert main(["survey", *population.values(), "--out", str(out), "--tokens", "512", "--json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert body["schema"] == "mdir-hf/survey/1"
    assert {frozenset(group) for group in body["groups"]} == expected_groups
    assert len(body["pairs"]) == 15
    assert json.loads((out / "survey.json").read_text()) == body
    assert (out / "survey.md").read_text().startswith("# Weight ancestry")
    assert (out / "matrix.svg").read_text().count("<svg") == 1
    assert (out / "matrix-dark.png").read_bytes().startswith(b"\x89PNG")


def test_a_list_in_a_file_with_comments(population, tmp_path, capsys):
    listed = tmp_path / "models.txt"
    listed.write_text("# ours\n" + "\n".join(list(population.values())[:2]) + "  # the second\n\n")
    assert main(["survey", "--from", str(listed), "--out", str(tmp_path / "out"), "--tokens", "256"]) == 0
    out, err = capsys.readouterr()
    assert "2 of 2 models read, 1 pairs compared" in out
    assert "saved in" in err


def test_shards_are_joined(population, tmp_path, capsys):
    folders = [str(tmp_path / f"part-{at}") for at in range(2)]
    for at, folder in enumerate(folders):
        assert main(["survey", *population.values(), "--out", folder, "--tokens", "256", "--shard", f"{at}/2"]) == 0
    capsys.readouterr()
    assert main(["survey", "--join", *folders, "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["pairs"]) == 15


def test_without_a_folder_nothing_is_read(population, capsys):
    assert main(["survey", *population.values()]) == 1
    assert "--out" in capsys.readouterr().err


def test_a_scheduler_that_does_not_answer_is_one_line(population, tmp_path, capsys):
    command = ["survey", *population.values(), "--out", str(tmp_path / "out"), "--scheduler", "nonsense://x"]
    assert main(command) == 1
    err = capsys.readouterr().err
    assert err.startswith("mdir-hf: error: ") and "dask" in err and err.count("\n") == 1
