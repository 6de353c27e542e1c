"""``mdir-hf inspect`` shows how a comparison reads a model, without reading its weights."""

import json
import warnings

import pytest
import torch
import transformers

from mdir_hf.cli import main
from mdir_hf.comparison.inspection import inspect_model
from mdir_hf.model.files.safetensors import HEADER_GUESS_N_BYTES
from tests.specimens import gaussian, tokens, write_model

V, N = 1200, 64


@pytest.fixture
def llama(tmp_path):
    config = transformers.LlamaConfig(
        vocab_size=V, hidden_size=N, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16,
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        transformers.LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(tmp_path / "llama")
    return tmp_path / "llama"


def test_a_llama_is_described_with_the_bytes_that_its_files_hold(llama):
    found = inspect_model(llama)
    assert (found.model.architecture, found.model.hidden_size, found.model.layers) == ("llama", N, 3)
    assert (found.heads, found.head_dim, found.rope, found.tied) == ((4, 2), 16, "half", False)
    assert (found.embedding.shape, found.embedding.dtype, found.embedding.n_bytes) == ((V, N), "BF16", 2 * V * N)
    (group,) = found.layer_groups
    assert group.layers == (0, 1, 2)
    assert group.roles == ("q", "k", "v", "o", "gate", "up", "down", "attention_norm", "mlp_norm")
    assert (group.experts, group.missing, found.unplaced) == (0, (), ())
    assert {"near", "number", "every", "keys", "noise"} <= set(found.reads.steps)
    # Gate and up of two layers, and of three.
    assert found.reads.steps["near"] < found.reads.steps["number"] <= 2 * 3 * 2 * 2 * 96 * N
    # q and o, k and v, gate, up and down, two norms
    assert found.reads.body == 3 * 2 * (2 * N * N + 2 * 32 * N + 3 * 96 * N + 2 * N)
    assert found.vocabulary is None
    assert any("paired by their number" in note for note in found.notes)


def test_it_reads_a_small_part_of_the_weights(llama):
    found = inspect_model(llama)
    # The config and the first read of the file, which guesses the length of its header.
    assert found.io.bytes_read < 1000 + HEADER_GUESS_N_BYTES < found.bytes_of_weights / 2


def test_tokenizer_files_that_contradict_each_other_are_noted(tmp_path):
    folder = write_model(tmp_path / "model", gaussian(300, 16, 0))
    assert inspect_model(folder).notes == ()
    (folder / "vocab.json").write_text(json.dumps({word: 299 - row for row, word in enumerate(tokens(300))}))
    (said,) = inspect_model(folder).notes
    assert said.startswith(
        "its tokenizer files contradict each other: tokenizer.json and vocab.json give different rows"
    )


def test_text_and_json_say_the_same(llama, capsys):
    assert main(["inspect", str(llama)]) == 0
    text = capsys.readouterr().out
    assert main(["inspect", str(llama), "--json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert body["schema"] == "mdir-hf/inspection/1"
    assert body["model"]["architecture"] == "llama"
    assert body["layer_groups"][0]["layers"] == [0, 1, 2]
    for words in ("llama, 3 layers, width 64", "layers 0-2", "1200 x 64 BF16", "q k v o gate up down"):
        assert words in text


def test_weights_without_a_role_are_named(tmp_path):
    extra = {"model.layers.0.self_attn.sinks_of_another_world": torch.ones(4)}
    folder = write_model(tmp_path / "model", gaussian(V, N, 0), further=extra)
    found = inspect_model(folder)
    assert found.unplaced == tuple(extra)
    assert "sinks_of_another_world" in str(found)


def test_a_tensor_that_contradicts_its_name_is_noted(llama):
    config = json.loads((llama / "config.json").read_text())
    (llama / "config.json").write_text(json.dumps(config | {"hidden_size": N, "num_hidden_layers": 3}))
    from safetensors.torch import load_file, save_file

    tensors = load_file(llama / "model.safetensors")
    for i in (1, 2):
        tensors[f"model.layers.{i}.self_attn.v_proj.weight"] = torch.zeros(32, N + 1, dtype=torch.bfloat16)
    save_file(tensors, llama / "model.safetensors")
    assert any("layer 1" in note and f"({32}, {N + 1})" in note for note in inspect_model(llama).notes)
    assert not any("layer 1" in note for note in inspect_model(llama, all_headers=False).notes)
    # One note, not one for each affected layer.
    notes = [note for note in inspect_model(llama).notes if "layer" in note]
    assert len(notes) == 2 and notes[1].startswith("1 more layer has tensors that are not read")


def test_over_http_only_headers_are_fetched(llama, loopback_hub):
    loopback_hub.add_repository("a/llama", llama)
    found = inspect_model("a/llama")
    assert found.model.commit is not None
    assert found.io.requests <= 8
    weights = [r for r in loopback_hub.requests if r.method == "GET" and r.path.endswith(".safetensors") and r.range]
    assert all(int(r.range.removeprefix("bytes=").split("-")[0]) == 0 for r in weights)


def test_an_invalid_model_gives_one_line(tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    assert main(["inspect", str(tmp_path / "empty")]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("mdir-hf: error: ") and err.count("\n") == 1
