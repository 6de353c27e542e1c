"""``mdir-hf align``, and the reconstruction that ``compare --output`` saves."""

import copy
import json
import os
import shutil

import pytest
import torch
from transformers import AutoModelForCausalLM

from mdir_hf.cli.align import _text
from mdir_hf.cli.main import main
from mdir_hf.demo.transformations import permute_channels
from mdir_hf.reconstruction.shards import ShardWriter
from mdir_hf.reconstruction.storage import load_reconstruction
from mdir_hf.writing import HIDDEN
from tests.method.obfuscation import new_model
from tests.reconstruction.models import largest_difference, saved


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """A model, and a copy with reordered channels."""
    folder = tmp_path_factory.mktemp("pair")
    base = new_model("llama", dtype=torch.float32)
    made = copy.deepcopy(base)
    permute_channels(made, torch.randperm(64, generator=torch.Generator().manual_seed(2)))
    return saved(base, folder / "base"), saved(made, folder / "permuted")


def test_align_prints_a_summary_and_writes_the_model(pair, tmp_path, capsys):
    assert main(["align", *map(str, pair), "--output", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr().out
    assert "residual channels are reordered; relative residual" in printed
    assert "3 of 3 layers have a partner, each in its place" in printed
    assert "  smallest 1.000000, median 1.000000, of 30 tensors\nthe 10 smallest:\n  1.000000  " in printed
    assert printed.endswith("\nall: align.json\n")
    assert len(printed.splitlines()) < 25
    kept = json.loads((tmp_path / "out" / "align.json").read_text())
    assert set(kept["explained"].values()) == {1.0} and len(kept["explained"]) == 30
    assert largest_difference(tmp_path / "out", pair[0]) == 0.0
    assert load_reconstruction(tmp_path / "out").stream.outer.kind == "permutation"


def test_the_ten_smallest_are_in_the_order_of_layers():
    explained = {f"layers.{number}.up": 0.5 + number / 100 for number in range(20)}
    explained |= {"layers.19.up": 0.1, "layers.3.new": None, "a": 0.99, "bias.1": None, "bias.2": None, "bias.3": None}
    content = {"reference": "A", "candidate": "B", "description": ["same"], "notes": ["note"], "explained": explained}
    lines = _text(content, "align.json").splitlines()
    assert "  smallest 0.100000, median 0.590000, of 21 tensors" in lines
    assert "  4 without a counterpart, not compared: layers.3.new, bias.1, bias.2 and 1 more" in lines
    worst = [line.split()[1] for line in lines[lines.index("the 10 smallest:") + 1 : -1]]
    assert worst == [f"layers.{number}.up" for number in (*range(9), 19)]


def test_align_prints_one_json_object(pair, tmp_path, capsys):
    assert main(["align", *map(str, pair), "--output", str(tmp_path / "out"), "--json", "--quiet"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["stream"]["kind"] == "permutation"
    assert printed["layers"] == [[0, 0], [1, 1], [2, 2]]
    assert printed["explained"]["model.layers.1.mlp.up_proj.weight"] == 1.0


def test_strangers_give_one_line_and_status_1(pair, tmp_path, capsys):
    other = saved(new_model("llama", 5, dtype=torch.float32), tmp_path / "other")
    assert main(["align", str(pair[0]), str(other), "--output", str(tmp_path / "out")]) == 1
    assert "only homologous models have a transformation" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_folder_with_files_is_refused_before_anything_is_compared(pair, capsys):
    assert main(["align", *map(str, pair), "--output", str(pair[0])]) == 1
    assert "is not empty; name a folder that does not exist" in capsys.readouterr().err


@pytest.fixture(scope="module")
def shards(pair, tmp_path_factory):
    """The pair, with the second model in several files."""
    folder = tmp_path_factory.mktemp("shards")
    model = AutoModelForCausalLM.from_pretrained(pair[1], dtype="auto")
    model.save_pretrained(folder, max_shard_size="200KB")
    assert len(list(folder.glob("*.safetensors"))) > 2
    return pair[0], folder


class Killed(BaseException):
    """Stands for a kill."""


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != HIDDEN}


def test_a_killed_run_continues_from_the_last_whole_file(shards, tmp_path, capsys, monkeypatch):
    command = ["align", *map(str, shards), "--quiet", "--output"]
    assert main([*command, str(tmp_path / "whole")]) == 0
    expected, printed = files(tmp_path / "whole"), capsys.readouterr().out
    written = []

    def write(self, name, tensor, real=ShardWriter.write):
        if len(written) == 12:
            raise Killed
        written.append(name)
        real(self, name, tensor)

    monkeypatch.setattr(ShardWriter, "write", write)
    with pytest.raises(Killed):
        main([*command, str(tmp_path / "out")])
    assert files(tmp_path / "out") == {}
    first, written[:] = set(written), [None] * 13  # the second run is not killed
    assert main([*command, str(tmp_path / "out")]) == 0
    again = first & set(written)
    assert 0 < len(again) < len(first)  # only the tensors of the file in which the first run was killed
    content = json.loads(expected["align.json"])
    assert json.loads((tmp_path / "out" / "align.json").read_text()) == content | {"output": str(tmp_path / "out")}
    assert {name: data for name, data in files(tmp_path / "out").items() if name != "align.json"} == {
        name: data for name, data in expected.items() if name != "align.json"
    }
    assert capsys.readouterr().out == printed


def test_a_finished_model_is_recognised(pair, tmp_path, capsys, monkeypatch):
    command = ["align", *map(str, pair), "--output", str(tmp_path / "out")]
    assert main(command) == 0
    printed = capsys.readouterr().out
    monkeypatch.setattr(ShardWriter, "write", None)
    monkeypatch.setattr("mdir_hf.reconstruction.reconstruct.compare_models", None)
    assert main(command) == 0
    again = capsys.readouterr()
    assert again.out == printed
    assert "it is complete; --restart writes it again" in again.err
    monkeypatch.undo()
    assert main([*command, "--restart", "--json", "--quiet"]) == 0
    assert json.loads(capsys.readouterr().out)["output"] == str(tmp_path / "out")


def test_a_model_that_changed_is_not_called_complete(pair, tmp_path, capsys):
    changed = tmp_path / "changed"
    shutil.copytree(pair[1], changed)
    command = ["align", str(pair[0]), str(changed), "--output", str(tmp_path / "out"), "--quiet"]
    assert main(command) == 0
    os.utime(changed / "model.safetensors", (1, 1))
    assert main(command) == 1
    assert "it holds the output of other models, options or versions; name another" in capsys.readouterr().err


def test_compare_saves_the_reconstruction_beside_the_report(pair, tmp_path, capsys):
    assert main(["compare", *map(str, pair), "--output", str(tmp_path)]) == 0
    assert "saved the reconstruction as" in capsys.readouterr().err
    assert len(load_reconstruction(tmp_path).layers) == 3


def test_compare_without_a_reconstruction_if_it_is_not_wanted(pair, tmp_path):
    assert main(["compare", *map(str, pair), "--output", str(tmp_path), "--no-reconstruction", "--quiet"]) == 0
    assert not list(tmp_path.glob("reconstruction*"))
