"""``mdir-hf index build``, and the search of an index by ``mdir-hf family``."""

import json
from pathlib import Path

import pytest

from mdir_hf.cli import main
from mdir_hf.lineage.index.base_index import BaseIndex
from tests.specimens import gaussian, write_model


@pytest.fixture
def folders(tmp_path):
    base = gaussian(1500, 96, 0)
    return {
        name: str(write_model(tmp_path / name, values))
        for name, values in {
            "base": base,
            "other": gaussian(1500, 96, 1),
            "tuned": base + 0.2 * gaussian(1500, 96, 2),
        }.items()
    }


def test_an_index_is_built_extended_and_searched(folders, tmp_path, capsys):
    index = str(tmp_path / "bases.safetensors")
    assert main(["index", "build", folders["base"], "--output", index]) == 0
    assert "1 base models" in capsys.readouterr().out
    assert main(["index", "build", folders["other"], "--output", index]) == 0
    assert "2 base models" in capsys.readouterr().out
    assert main(["family", folders["tuned"], "--index", index, "--json"]) == 0
    body = json.loads(capsys.readouterr().out)["identification"]
    assert body["schema"] == "mdir-hf/identification/2"
    assert body["found"] == [folders["base"]]
    assert body["bases"] == 2


def test_an_index_is_described_as_json(folders, tmp_path, capsys):
    index = str(tmp_path / "bases.safetensors")
    assert main(["index", "build", str(tmp_path), folders["base"], "--output", index, "--json"]) == 0
    built = json.loads(capsys.readouterr().out)
    assert (built["output"], built["bases"], built["not_added"]) == (index, 1, 1) and built["bytes"] > 0
    assert main(["index", "atlas", folders["base"], "--output", str(tmp_path / "atlas"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["bases"] == [{"repo": folders["base"], "state": "held"}]


def test_models_that_cannot_be_added_are_reported_and_the_others_are_added(folders, tmp_path, capsys):
    index = tmp_path / "bases.safetensors"
    (tmp_path / "empty").mkdir()
    assert main(["index", "build", str(tmp_path / "empty"), folders["base"], "--output", str(index)]) == 0
    out, err = capsys.readouterr()
    assert "not added" in err and "1 base models" in out
    before = index.read_bytes()
    assert main(["index", "build", str(tmp_path / "empty"), "--output", str(index)]) == 1
    assert index.read_bytes() == before


def test_a_missing_index_gives_one_line(folders, tmp_path, capsys):
    assert main(["family", folders["tuned"], "--index", str(tmp_path / "none")]) == 1
    err = capsys.readouterr().err
    assert err.startswith("mdir-hf: error: ") and err.count("\n") == 1


def test_an_index_of_a_collection_is_not_read_twice(folders, loopback_hub, tmp_path, capsys):
    for name, folder in folders.items():
        loopback_hub.add_repository(f"lab/{name}", folder)
    slug = loopback_hub.add_collection("me", "Bases", ["lab/base", "lab/other"])
    index = tmp_path / "bases.safetensors"
    command = ["index", "build", "--output", str(index), "--collection", slug]
    assert main(command) == 0
    before = index.read_bytes()
    out, err = capsys.readouterr()
    assert "2 base models" in out and err.count("added: ") == 2
    loopback_hub.requests.clear()
    assert main(command) == 0
    assert capsys.readouterr().err == "known: lab/base\nknown: lab/other\n"
    assert index.read_bytes() == before
    assert not loopback_hub.sent("cdn")
    loopback_hub.find("lab/base").add_revision("main", Path(folders["tuned"]))  # a new commit
    assert main(command) == 0
    assert capsys.readouterr().err == "added: lab/base\nknown: lab/other\n"


def test_an_index_without_models_is_refused(tmp_path, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["index", "build", "--output", str(tmp_path / "x")])
    assert "--collection" in capsys.readouterr().err
    (tmp_path / "list.txt").write_text("# nothing\n")
    assert main(["index", "build", "--output", str(tmp_path / "x"), "--from", str(tmp_path / "list.txt")]) == 1
    assert "name no base models" in capsys.readouterr().err


def test_a_restart_reads_again_and_replaces_the_index_once_it_is_whole(folders, tmp_path, capsys, monkeypatch):
    index = tmp_path / "bases.safetensors"
    command = ["index", "build", folders["base"], folders["other"], folders["tuned"], "--output", str(index)]
    assert main(command[:3] + command[-2:]) == 0
    before = index.read_bytes()
    put = BaseIndex.put

    def put_one(self, base):
        if len(self):
            raise KeyboardInterrupt
        put(self, base)

    with monkeypatch.context() as patched:
        patched.setattr(BaseIndex, "put", put_one)
        assert main([*command, "--restart"]) == 130
    assert index.read_bytes() == before
    staged = tmp_path / ".bases.safetensors.staged"
    assert [base.model.repo for base in BaseIndex.load(staged).bases] == [folders["base"]]
    capsys.readouterr()
    assert main([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["bases"] == 3
    assert len(BaseIndex.load(index)) == 3 and not staged.exists()
    assert main([*command[:3], *command[-2:], "--restart"]) == 0
    assert len(BaseIndex.load(index)) == 1


def test_a_restart_that_reads_nothing_leaves_the_index(folders, tmp_path, capsys):
    index = tmp_path / "bases.safetensors"
    assert main(["index", "build", folders["base"], "--output", str(index)]) == 0
    before = index.read_bytes()
    (tmp_path / "empty").mkdir()
    assert main(["index", "build", str(tmp_path / "empty"), "--output", str(index), "--restart"]) == 1
    assert index.read_bytes() == before
