"""Saving and loading a reconstruction."""

import json

import pytest
import torch
from safetensors.torch import load_file

from mdir_hf.errors import ReconstructionError
from mdir_hf.reconstruction.storage import ARRAYS, INDEX, load_reconstruction, save_reconstruction
from mdir_hf.reconstruction.write import write_model
from tests.method.obfuscation import new_model, obfuscate
from tests.reconstruction.models import aligned, largest_difference, opened, saved


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """A hidden model, and the folder with its saved reconstruction."""
    folder = tmp_path_factory.mktemp("kept")
    base = new_model("llama")
    made, _ = obfuscate(base, residual_scale=1.0)
    saved(base, folder / "base")
    saved(made, folder / "hidden")
    found, _ = aligned(folder / "base", folder / "hidden", folder / "aligned")
    save_reconstruction(found, folder / "files", full_rotation=True)
    return folder, found


def test_the_files_have_the_schema_and_arrays_of_maps(kept):
    folder, _ = kept
    index = json.loads((folder / "files" / INDEX).read_text())
    arrays = load_file(folder / "files" / ARRAYS)
    assert index["schema"] == "mdir-hf/reconstruction/1"
    assert {"stream.rotation", "layers.0.heads.kv", "layers.2.keys", "layers.1.scales"} <= arrays.keys()


def test_a_saved_reconstruction_aligns_the_model(kept, tmp_path):
    folder, _ = kept
    found = load_reconstruction(str(folder / "files"))
    write_model(opened(folder / "hidden"), found, tmp_path / "aligned")
    assert largest_difference(tmp_path / "aligned", folder / "base") < 1e-5  # maps of heads are stored in float32


def test_a_rotation_in_float32_is_orthogonal_when_read_back(kept, tmp_path):
    _, found = kept
    save_reconstruction(found, tmp_path)
    matrix = load_reconstruction(tmp_path).stream.outer.matrix
    assert load_file(tmp_path / ARRAYS)["stream.rotation"].dtype is torch.float32
    torch.testing.assert_close(matrix @ matrix.T, torch.eye(64, dtype=torch.float64), rtol=0, atol=1e-12)


def test_a_large_rotation_is_left_out_by_default(kept, tmp_path, monkeypatch):
    _, found = kept
    monkeypatch.setattr("mdir_hf.reconstruction.storage.LARGE_ROTATION_BYTES", 1000)
    save_reconstruction(found, tmp_path)
    assert "stream.rotation" not in load_file(tmp_path / ARRAYS)
    with pytest.raises(ReconstructionError, match="without its rotation"):
        load_reconstruction(tmp_path)


@pytest.mark.parametrize("content", ["{}", "[1]", "not JSON", '{"schema": "mdir-hf/reconstruction/1"}'])
def test_other_files_are_refused_in_one_line(content, tmp_path):
    (tmp_path / INDEX).write_text(content)
    (tmp_path / ARRAYS).write_bytes(b"")
    with pytest.raises(ReconstructionError, match="reconstruction"):
        load_reconstruction(tmp_path)


def test_a_reconstruction_prints_as_a_few_lines(kept):
    _, found = kept
    assert repr(found) == f"<Reconstruction {found.reference} -> {found.candidate}: 3 of 3 layers>"
    assert str(found).splitlines()[0].startswith("the residual stream is rotated; relative residual ")
    assert len(str(found)) < 1000
