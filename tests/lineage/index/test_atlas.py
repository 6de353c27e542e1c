"""The atlas: its list, interrupted builds, missing models, publishing and searches."""

import os
from pathlib import Path

import pytest
import yaml

from mdir_hf.cli import main
from mdir_hf.errors import InputError
from mdir_hf.lineage.index.atlas import (
    INDEX,
    PLACE_VARIABLE,
    SHIPPED,
    build_atlas,
    open_index,
    summary_of,
)
from mdir_hf.lineage.index.base_index import BaseIndex
from mdir_hf.lineage.index.building import extend_index
from mdir_hf.lineage.index.table import AtlasBase, read_list, read_table
from tests.loopback.commits import OLD_UPLOAD
from tests.specimens import gaussian, write_model


@pytest.fixture
def hub(loopback_hub, tmp_path):
    """Two bases, a gated base, one without weights, and an empty data set."""
    for at, name in enumerate(("one", "two", "gated")):
        folder = write_model(tmp_path / name, gaussian(1500, 96, at))
        loopback_hub.add_repository(f"lab/{name}", folder, gated=name == "gated")
    write_model(tmp_path / "tuned", gaussian(1500, 96, 0) + 0.2 * gaussian(1500, 96, 9))
    for name in ("empty", "data"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "README.md").write_text("# Nothing\n")
    loopback_hub.add_repository("lab/empty", tmp_path / "empty")
    loopback_hub.add_repository("lab/atlas", tmp_path / "data", kind="dataset")
    return loopback_hub


@pytest.fixture
def listed(tmp_path):
    path = tmp_path / "bases.toml"
    bases = "".join(f'"lab/{name}" = "1M"\n' for name in ("one", "gated", "gone", "empty", "two"))
    path.write_text(f'["Lab"]\nyear = 2024\nlicence = "mit"\n["Lab".bases]\n{bases}')
    return path


def test_a_list_with_a_repository_twice_is_refused(listed):
    listed.write_text(listed.read_text().replace("lab/two", "Lab/ONE"))
    with pytest.raises(InputError, match="lists lab/one twice"):
        read_list(listed)


@pytest.mark.parametrize("text", ["[", "[x]\nyear = 'soon'", '[x]\nyear = 1\nlicence = "a"\nbases = 3'])
def test_an_invalid_list_gives_one_line(text, tmp_path, capsys):
    (tmp_path / "x.toml").write_text(text)
    assert main(["index", "atlas", str(tmp_path / "x.toml"), "--output", str(tmp_path / "atlas")]) == 1
    err = capsys.readouterr().err
    assert "not a list of base models" in err and err.count("\n") == 1


def test_a_build_lists_what_is_gated_and_gone(hub, listed, tmp_path):
    table = build_atlas(read_list(listed), tmp_path / "atlas")
    states = {base.repo: base.state for base in table}
    assert states == {
        "lab/one": "held", "lab/gated": "gated", "lab/gone": "missing", "lab/empty": "failed", "lab/two": "held",
    }  # fmt: skip
    assert read_table(tmp_path / "atlas") == table
    one = table[0]
    assert (one.family, one.parameters, one.year, one.width, one.layers) == ("Lab", "1M", 2024, 96, 1)
    assert one.commit in hub.find("lab/one").commits
    assert "2 of 5 base models are in the atlas" in summary_of(table) and "gated: 1: lab/gated" in summary_of(table)
    card = (tmp_path / "atlas" / "README.md").read_text()
    assert yaml.safe_load(card.split("---")[1])["configs"][0]["data_files"] == "bases.jsonl"


def test_a_build_that_is_stopped_goes_on(hub, listed, tmp_path):
    folder = tmp_path / "atlas"

    def stop(outcome):
        if outcome.name == "lab/gated":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_atlas(read_list(listed), folder, on_model=stop)
    states = [base.state for base in read_table(folder)]
    assert states == ["held", "gated", "not tried", "not tried", "not tried"]
    hub.requests.clear()
    table = build_atlas(read_list(listed), folder)
    assert [base.state for base in table].count("held") == 2
    assert not any("lab/one" in request.path for request in hub.sent("cdn")), "it was already read"
    hub.requests.clear()
    build_atlas([AtlasBase("lab/one"), AtlasBase("lab/two")], folder)
    assert not hub.sent("cdn")
    assert len(read_table(folder)) == 5, "the other entries of the table stay"
    assert read_table(folder)[0].licence == "mit"


@pytest.mark.parametrize("add", [build_atlas, None], ids=["atlas", "index"])
def test_two_processes_do_not_lose_the_bases_of_each_other(hub, tmp_path, add):
    """Without a lock, the one that saved last replaced the index of the other."""
    refused = []

    def extend(name, on_model):
        if add is None:
            extend_index([name], tmp_path / INDEX, on_model=on_model)
        else:
            add([AtlasBase(name)], tmp_path, on_model=on_model)

    def start_another(outcome):
        with pytest.raises(InputError, match=rf"process {os.getpid()} on .* is writing there; wait until it ends"):
            extend("lab/two", lambda outcome: None)
        refused.append(outcome.name)

    extend("lab/one", start_another)
    assert refused == ["lab/one"]
    extend("lab/two", lambda outcome: None)
    assert [base.model.repo for base in BaseIndex.load(tmp_path / INDEX).bases] == ["lab/one", "lab/two"]


@OLD_UPLOAD
def test_an_atlas_is_published_and_searched_from_there(hub, listed, tmp_path, monkeypatch, capsys, without_xet):
    monkeypatch.setenv("HF_TOKEN", hub.outsider_token)
    folder = str(tmp_path / "atlas")
    assert main(["index", "atlas", str(listed), "--output", folder]) == 0
    assert main(["index", "atlas", "lab/one", "lab/two", "--output", folder, "--dataset", "lab/atlas"]) == 0
    out, err = capsys.readouterr()
    assert out.endswith("/datasets/lab/atlas/discussions/1\n") and "known: lab/one\n" in err
    hub.merge("datasets/lab/atlas", 1)
    assert hub.content("datasets/lab/atlas", INDEX, "main") == (Path(folder) / INDEX).read_bytes()
    monkeypatch.setenv(PLACE_VARIABLE, f"{hub.endpoint}/datasets/lab/atlas/resolve/main/{INDEX}")
    assert main(["family", str(tmp_path / "tuned"), "--quiet"]) == 0
    out, _ = capsys.readouterr()
    assert "among 2 base models" in out or "among 2 bases" in out
    assert "lab/one" in out
    hub.requests.clear()
    assert open_index()[1] == "" and not hub.sent("cdn"), "it is cached, and checked against the newest commit"


def test_without_an_atlas_the_bases_of_the_package_are_searched(hub, monkeypatch):
    index, note = open_index()
    assert len(index) == len(BaseIndex.load(SHIPPED)) == 4 and "come with the package" in note
    monkeypatch.setenv(PLACE_VARIABLE, f"{hub.endpoint}/datasets/lab/none/resolve/main/{INDEX}")
    index, note = open_index()
    assert len(index) == 4 and "lab/none" in note
