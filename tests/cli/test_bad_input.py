"""Faults of models and servers: each gives a one-line error and leaves no half-written file."""

from __future__ import annotations

import json
import struct

import pytest
import torch

from mdir_hf.cli import main
from tests.loopback.faults import Fault
from tests.specimens import gaussian, mlp_tensors, write_model

V, N = 1200, 64


@pytest.fixture
def base(tmp_path):
    return write_model(tmp_path / "base", gaussian(V, N, 0))


@pytest.fixture
def twin(tmp_path):
    return write_model(tmp_path / "twin", gaussian(V, N, 0) + 0.1 * gaussian(V, N, 1))


@pytest.fixture
def served(loopback_hub, base, twin, waits):
    """A Hub with ``some/base`` and ``some/twin``; waiting takes no time."""
    loopback_hub.add_repository("some/base", base)
    loopback_hub.add_repository("some/twin", twin)
    return loopback_hub


def refused(capsys, *arguments: str) -> str:
    """Run a comparison that fails; return its one-line error."""
    assert main(["compare", *arguments, "--quiet"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1 and err.startswith("mdir-hf: error: ")
    return err


def rewrite(folder, change):
    """Change the header of a folder's weight file and keep the bytes after it."""
    path = folder / "model.safetensors"
    content = path.read_bytes()
    (n_bytes,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + n_bytes])
    change(header)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + content[8 + n_bytes :])


@pytest.mark.parametrize("n_bytes", [0, 4, 40, 5000])
def test_a_truncated_file(base, twin, n_bytes, capsys):
    path = twin / "model.safetensors"
    path.write_bytes(path.read_bytes()[:n_bytes])
    assert "model.safetensors" in refused(capsys, str(base), str(twin))


def test_a_server_that_ignores_ranges(served, capsys):
    served.faults.append(Fault("ignore_range", origin="cdn", times=None))
    said = refused(capsys, "some/base", "some/twin")
    assert "range" in said and "model.safetensors" in said


@pytest.mark.parametrize("content", ["{", "[1, 2]", '"llama"', "[" * 100_000, '{"hidden_size": -1}'])
def test_invalid_configs(base, twin, content, capsys):
    (twin / "config.json").write_text(content)
    assert "config" in refused(capsys, str(base), str(twin))


@pytest.fixture
def strangers_with_a_layer(tmp_path):
    """Two strangers of one layer each, the second with values of another width."""
    config = {"model_type": "llama", "hidden_size": N, "vocab_size": V, "num_attention_heads": 4}
    value = "model.layers.0.self_attn.v_proj.weight"
    return (
        write_model(tmp_path / "one", gaussian(V, N, 2), config=config, further={value: gaussian(N, N, 3)}),
        write_model(tmp_path / "other", gaussian(V, N, 4), config=config, further={value: gaussian(N, N + 1, 5)}),
    )


def test_a_layer_of_another_shape(strangers_with_a_layer, capsys):
    one, other = map(str, strangers_with_a_layer)
    for level in ("auto", "layers"):
        assert main(["compare", one, other, "--level", level, "--json", "--quiet"]) == 0
        report = json.loads(capsys.readouterr().out)
        assert report["layers"] is None
        assert (report["verdict"], report["reason"]) == ("inconclusive", "weights_unreadable")


@pytest.mark.parametrize("role", ["self_attn.v_proj", "mlp.up_proj", "input_layernorm"])
def test_weights_with_overflowing_products_are_named(tmp_path, role, capsys):
    config = {"model_type": "llama", "hidden_size": N, "vocab_size": V, "num_attention_heads": 4}
    roles = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.up_proj")
    further = {f"model.layers.0.{name}.weight": gaussian(N, N, 3) for name in roles}
    further |= {f"model.layers.0.{name}_layernorm.weight": torch.ones(N) for name in ("input", "post_attention")}
    name = f"model.layers.0.{role}.weight"
    huge = further[name] * 1e37
    one = write_model(tmp_path / "one", gaussian(V, N, 2), config=config, further=further)
    other = write_model(tmp_path / "other", gaussian(V, N, 4), config=config, further=further | {name: huge})
    assert main(["compare", str(one), str(other), "--level", "layers", "--json", "--quiet"]) == 0
    caveats = json.loads(capsys.readouterr().out)["caveats"]
    said = [caveat for caveat in caveats if name in caveat]
    assert said and all("expected at most 1e+16" in caveat and str(other) in caveat for caveat in said)
    assert main(["compare", str(one), str(other), "--json", "--quiet"]) == 0
    report = capsys.readouterr().out
    assert "NaN" not in report and "Infinity" not in report


@pytest.mark.parametrize("level", ["auto", "layers"])
def test_zero_weights_are_inconclusive(base, tmp_path, level, capsys):
    config = {"model_type": "llama", "hidden_size": N, "vocab_size": V, "num_attention_heads": 4}
    further = {f"model.layers.{k}.self_attn.{name}_proj.weight": gaussian(N, N, k) for k in range(3) for name in "qkvo"}
    one = write_model(tmp_path / "one", gaussian(V, N, 2), config=config, further=further)
    zeros = {name: torch.zeros_like(weight) for name, weight in further.items()}
    other = write_model(tmp_path / "other", torch.zeros(V, N), config=config, further=zeros)
    assert main(["compare", str(one), str(other), "--level", level, "--json", "--quiet"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["verdict"], report["reason"]) == ("inconclusive", "weights_unreadable")
    assert not (report["layers"] or {}).get("matches")


def test_weights_scaled_and_scaled_back_are_found(tmp_path, capsys):
    config = {"model_type": "llama", "hidden_size": N, "vocab_size": V, "num_attention_heads": 4}
    further = {
        f"model.layers.{k}.self_attn.{name}_proj.weight": gaussian(N, N, 10 * k + at)
        for k in range(4)
        for at, name in enumerate("qkvo")
    }
    for k in range(4):
        further |= mlp_tensors(N, 256, 1000 + 10 * k, layer=k)
    # The function of the model is unchanged, so this evasion is free.
    sizes = {"v": 1e15, "o": 1e-15}
    scaled = {name: weight * sizes.get(name.rsplit(".", 2)[1][0], 1.0) for name, weight in further.items()}
    one = write_model(tmp_path / "one", gaussian(V, N, 2), config=config, further=further)
    other = write_model(tmp_path / "other", gaussian(V, N, 4), config=config, further=scaled)
    assert main(["compare", str(one), str(other), "--level", "layers", "--json", "--quiet"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["verdict"] == "homologous"
    assert len(report["layers"]["matches"]) == 4


def test_an_error_gives_one_short_line_for_any_file_name(base, twin, capsys):
    rewrite(
        twin,
        lambda h: h.update({"x" * 100_000 + "\x1b[31m\u202e": {"dtype": "F32", "shape": [1], "data_offsets": [0, 2]}}),
    )
    said = refused(capsys, str(base), str(twin))
    assert len(said) < 2100 and said[:-1].isprintable()
    assert "model.safetensors" in said and "takes 4" in said


def test_running_out_of_memory_gives_one_line(base, twin, capsys, monkeypatch):
    def run_out(*arguments, **options):
        raise MemoryError

    monkeypatch.setattr("mdir_hf.comparison.api.compare_models", run_out)
    assert "memory" in refused(capsys, str(base), str(twin))


def test_errors_leave_no_half_written_files(served, hf_home, tmp_path, capsys):
    served.faults.append(Fault("drop", origin="cdn", method="GET", after_bytes=500, times=None))
    refused(capsys, "some/base", "some/twin", "--output", str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()
    served.faults.clear()
    # The caches hold only complete files, so the next run succeeds.
    assert main(["compare", "some/base", "some/twin", "--output", str(tmp_path / "out"), "--quiet"]) == 0
    capsys.readouterr()
    assert (tmp_path / "out" / "report.json").exists()
