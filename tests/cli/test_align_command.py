"""``mdir-hf align``, and the reconstruction that ``compare --output`` saves."""

import copy
import json

import pytest
import torch

from mdir_hf.cli.main import main
from mdir_hf.demo.transformations import permute_channels
from mdir_hf.reconstruction.storage import load_reconstruction
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


def test_align_prints_each_tensor_and_writes_the_model(pair, tmp_path, capsys):
    assert main(["align", *map(str, pair), "--output", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr().out
    assert "residual channels are reordered; relative residual" in printed
    assert "3 of 3 layers have a partner, each in its place" in printed
    lines = [
        line.split() for line in printed.splitlines() if line.startswith("  model.") or line.startswith("  lm_head")
    ]
    assert len(lines) == 30
    assert {share for _, share in lines} == {"1.000000"}
    assert largest_difference(tmp_path / "out", pair[0]) == 0.0
    assert load_reconstruction(tmp_path / "out").stream.outer.kind == "permutation"


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


def test_a_folder_with_files_is_refused_before_anything_is_read(pair, capsys):
    assert main(["align", *map(str, pair), "--output", str(pair[0])]) == 1
    assert "is not empty; name a folder that does not exist" in capsys.readouterr().err


def test_compare_saves_the_reconstruction_beside_the_report(pair, tmp_path, capsys):
    assert main(["compare", *map(str, pair), "--output", str(tmp_path)]) == 0
    assert "saved the reconstruction as" in capsys.readouterr().err
    assert len(load_reconstruction(tmp_path).layers) == 3


def test_compare_without_a_reconstruction_if_it_is_not_wanted(pair, tmp_path):
    assert main(["compare", *map(str, pair), "--output", str(tmp_path), "--no-reconstruction", "--quiet"]) == 0
    assert not list(tmp_path.glob("reconstruction*"))
