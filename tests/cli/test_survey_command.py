"""``mdir-hf survey`` on the command line."""

import json
import sys
from pathlib import Path

import pytest

from mdir_hf.cli import main
from tests.specimens import gaussian, write_model


def test_it_prints_groups_and_saves_them(population, expected_groups, tmp_path, capsys):
    out = tmp_path / "out"
    assert main(["survey", *population.values(), "--output", str(out), "--tokens", "512", "--json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert body["schema"] == "mdir-hf/survey/3"
    assert {frozenset(group) for group in body["groups"]} == expected_groups
    assert len(body["pairs"]) == 15
    assert json.loads((out / "survey.json").read_text()) == body
    assert (out / "survey.md").read_text().startswith("# Weight ancestry")
    assert (out / "matrix.svg").read_text().count("<svg") == 1
    assert (out / "matrix-dark.png").read_bytes().startswith(b"\x89PNG")
    assert "Dendrogram of 5 models in 2 groups" in (out / "dendrogram.svg").read_text()
    assert "![Dendrogram of each group of relatives](dendrogram.svg)" in (out / "survey.md").read_text()


def test_a_list_in_a_file_with_comments(population, tmp_path, capsys):
    listed = tmp_path / "models.txt"
    listed.write_text("# ours\n" + "\n".join(list(population.values())[:2]) + "  # the second\n\n")
    assert main(["survey", "--from", str(listed), "--output", str(tmp_path / "out"), "--tokens", "256"]) == 0
    out, err = capsys.readouterr()
    assert "2 of 2 models read, 1 pair compared" in out
    assert "saved in" in err


def test_joined_parts_name_no_models(capsys):
    with pytest.raises(SystemExit):
        main(["survey", "some/one", "--output", "out", "--join", "part"])
    assert "--join takes its models from its folders" in capsys.readouterr().err


def test_without_a_folder_nothing_is_read(population, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["survey", *population.values()])
    assert "--output" in capsys.readouterr().err


def test_an_unreachable_scheduler_gives_one_line(population, tmp_path, capsys):
    command = ["survey", *population.values(), "--output", str(tmp_path / "out"), "--scheduler", "nonsense://x"]
    assert main(command) == 1
    err = capsys.readouterr().err
    assert err.startswith("mdir-hf: error: ") and "dask" in err and err.count("\n") == 1


def test_models_of_an_author_and_of_a_collection_are_surveyed(population, loopback_hub, tmp_path, capsys):
    for name, folder in population.items():
        loopback_hub.add_repository(f"lab/{name.replace('/', '-')}", folder)
    slug = loopback_hub.add_collection("me", "Some", ["lab/a-base", "lab/a-tuned"])
    command = [
        "survey",
        "--collection",
        slug,
        "--output",
        str(tmp_path / "some"),
        "--tokens",
        "256",
        "--json",
        "--quiet",
    ]
    assert main(command) == 0
    assert json.loads(capsys.readouterr().out)["groups"] == [["lab/a-base", "lab/a-tuned"]]
    command = ["survey", "--author", "lab", "--limit", "5", "--output", str(tmp_path / "all"), "--tokens", "256"]
    assert main(command) == 0
    out, err = capsys.readouterr()
    assert "5 of 5 models read" in out
    assert "lab: only the 5 models with most downloads" in err


def test_an_author_without_models_gives_one_line(loopback_hub, tmp_path, capsys):
    assert main(["survey", "--author", "nobody", "--output", str(tmp_path / "out")]) == 1
    err = capsys.readouterr().err
    assert err.startswith("mdir-hf: error: nobody: ") and err.count("\n") == 1


def test_parts_from_one_sample_are_joined_into_a_survey_with_trees(population, tmp_path, capsys):
    common = ["--tokens", "256", "--quiet"]
    sample = str(tmp_path / "plan")
    names = [*population.values()]
    assert main(["survey", *names, *common, "--output", sample, "--prepare"]) == 0
    assert f"{sample}: 256 tokens, 6 models" in capsys.readouterr().out.replace("\n", " ")
    folders = [str(tmp_path / f"part-{at}") for at in range(2)]
    for at, folder in enumerate(folders):
        assert main(["survey", *names[at::2], "--sample", sample, "--quiet", "--output", folder]) == 0
        assert "3 of 6 models read, 3 of 15 pairs compared; groups may grow" in capsys.readouterr().out
    whole = str(tmp_path / "whole")
    assert main(["survey", "--join", *folders, "--output", whole, "--quiet", "--json", "--tree"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert len(body["pairs"]) == 15 and body["is_complete"]
    assert (tmp_path / "whole" / "dendrogram.svg").exists()
    assert [len(tree["members"]) for tree in body["trees"]] == [2, 2]
    assert main(["survey", "--sample", sample, "--quiet", "--output", whole]) == 0  # nothing is left to do
    assert "15 pairs compared" in capsys.readouterr().out


def test_the_weakest_pairs_of_a_large_group_are_shown(tmp_path, capsys):
    names = []
    for at in range(7):
        rows = gaussian(400, 64, 0) + 0.1 * at * gaussian(400, 64, 10 + at)
        names.append(str(write_model(tmp_path / f"m{at}", rows)))
    assert main(["survey", *names, "--output", str(tmp_path / "out"), "--tokens", "256", "--quiet"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert sum(" ~ " in line for line in lines) == 15
    assert "  and 6 more related pairs of this group, which agree more" in lines


def test_declarations_are_read_for_joined_parts_too(loopback_hub, population, tmp_path, capsys):
    card = Path(population["a/tuned"]) / "README.md"
    card.write_text("---\nbase_model: lab/a-base\n---\n# T\n")
    for name in ("a/base", "a/tuned", "b/base"):
        loopback_hub.add_repository(f"lab/{name.replace('/', '-')}", population[name])
    out = str(tmp_path / "out")
    assert main(["survey", "--author", "lab", "--output", out, "--tokens", "256", "--quiet"]) == 0
    assert main(["survey", "--join", out, "--output", str(tmp_path / "whole"), "--declared", "--quiet"]) == 0
    said = (tmp_path / "whole" / "survey.md").read_text()
    assert "lab/a-tuned declares lab/a-base: shared ancestry found" in said


# --- trees


def test_each_group_of_a_survey_gets_its_tree(population, tmp_path, capsys):
    out = str(tmp_path / "out")
    command = ["survey", *population.values(), "--output", out, "--tokens", "512", "--quiet", "--tree"]
    assert main([*command, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    body = json.loads((tmp_path / "out" / "tree.json").read_text())
    assert shown["trees"] == body["trees"]
    assert body["schema"] == "mdir-hf/tree/1"
    assert [len(tree["members"]) for tree in body["trees"]] == [2, 2]
    assert body["trees"][0]["copies"] == {population["a/permuted"]: population["a/base"]}
    assert main(command) == 0
    text = capsys.readouterr().out
    assert "No root" in text and text.startswith("in ") and "a-permuted" in text


def test_without_biopython_only_the_tree_is_missing(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "Bio.Phylo.TreeConstruction", None)
    rows = [gaussian(400, 64, 0) + 0.1 * gaussian(400, 64, at) for at in (1, 2, 3)]
    tuned = [str(write_model(tmp_path / f"m{at}", each)) for at, each in enumerate(rows)]
    out = str(tmp_path / "out")
    assert main(["survey", *tuned, "--output", out, "--tokens", "256", "--quiet"]) == 0
    assert len(json.loads((tmp_path / "out" / "survey.json").read_text())["groups"]) == 1
    capsys.readouterr()
    assert main(["survey", *tuned, "--output", out, "--tokens", "256", "--quiet", "--tree"]) == 0
    said = capsys.readouterr().out
    assert "No tree is drawn, because biopython is missing: pip install" in said and "3 models, distances from" in said
