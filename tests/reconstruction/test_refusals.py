"""A model that cannot be aligned exactly is refused with the reason, before anything is written."""

import shutil
from types import SimpleNamespace

import pytest
from safetensors.torch import load_file, save_file

from mdir_hf import Settings, align, compare, reconstruct
from mdir_hf.errors import ByteBudgetError, InputError, ReconstructionError
from mdir_hf.reconstruction.reconstruct import fit_reconstruction
from mdir_hf.reconstruction.write import write_model
from tests.method.obfuscation import new_model, obfuscate
from tests.reconstruction.models import opened, saved


@pytest.fixture
def pair(tmp_path):
    base = new_model("llama")
    saved(base, tmp_path / "base")
    saved(obfuscate(base, residual_scale=1.0)[0], tmp_path / "hidden")
    return tmp_path


def written(folder, output="out"):
    base, hidden = opened(folder / "base"), opened(folder / "hidden")
    return write_model(hidden, fit_reconstruction(base, hidden), folder / output)


def test_strangers_are_not_aligned(tmp_path):
    for seed in (0, 1):
        saved(new_model("llama", seed), tmp_path / str(seed))
    with pytest.raises(ReconstructionError, match="only homologous models"):
        align(str(tmp_path / "0"), str(tmp_path / "1"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_folder_with_files_is_left_alone(pair):
    with pytest.raises(InputError, match="is not empty"):
        written(pair, "base")


def test_a_disk_that_is_too_small_is_named(pair, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=1000))
    with pytest.raises(InputError, match=r"takes .* GB, and 0\.00 GB are free"):
        written(pair)
    assert not (pair / "out").exists()


def test_a_tensor_without_a_known_place_stops_it(pair):
    path = pair / "hidden" / "model.safetensors"
    weights = load_file(path)
    weights["model.layers.0.self_attn.sinks"] = weights["model.norm.weight"][:8].clone()
    save_file(weights, path)
    with pytest.raises(ReconstructionError, match=r"sinks' \(8,\) has no place that is known"):
        written(pair)


def test_a_scaled_stream_needs_an_epsilon_in_the_config(tmp_path):
    base = new_model("llama")
    saved(base, tmp_path / "base")
    saved(obfuscate(base)[0], tmp_path / "hidden")
    config = tmp_path / "hidden" / "config.json"
    config.write_text(config.read_text().replace("rms_norm_eps", "other"))
    with pytest.raises(ReconstructionError, match=r"scaled by 3, and config\.json names no epsilon"):
        written(tmp_path)


def test_a_model_other_than_the_candidate_is_refused(pair):
    base, hidden = opened(pair / "base"), opened(pair / "hidden")
    found = fit_reconstruction(base, hidden)
    saved(new_model("llama", num_hidden_layers=2), pair / "other")
    with pytest.raises(ReconstructionError, match=r"has 2 layers, and the reconstruction is of a model of 3"):
        write_model(opened(pair / "other"), found, pair / "out")


def test_a_cap_on_bytes_also_holds_for_the_reconstruction(pair):
    report = compare(str(pair / "base"), str(pair / "hidden"), level="layers", progress=False)
    with pytest.raises(ByteBudgetError):
        reconstruct(str(pair / "base"), str(pair / "hidden"), report=report, settings=Settings(max_bytes=200_000))
