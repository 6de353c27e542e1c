"""PyTorch checkpoints end to end: on the loopback Hub and in folders, named as users name them."""

from __future__ import annotations

import json

import pytest
import torch

from mdir_hf import HomologyChecker
from mdir_hf.model.files import open_checkpoint
from mdir_hf.model.hub import open_repository
from tests.model.hub.fixtures import hf_home, loopback_hub
from tests.specimens import gaussian, write_model

__all__ = ["hf_home", "loopback_hub"]

V, N = 2000, 96
EMBEDDING = "model.embed_tokens.weight"


def llama_7b_names():
    """Every tensor of a Llama of 32 layers, each of 32 KiB."""
    parts = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "self_attn.rotary_emb"]
    parts += ["mlp.gate_proj", "mlp.up_proj", "mlp.down_proj", "input_layernorm", "post_attention_layernorm"]
    return {
        f"model.layers.{n}.{part}.weight": torch.zeros(128, 128, dtype=torch.float16)
        for n in range(32)
        for part in parts
    }


@pytest.fixture
def base(tmp_path):
    return write_model(tmp_path / "base", gaussian(V, N, 0))


def pickled_copy(tmp_path, base, name, *, embedding, further=None, n_shards=None, file="pytorch_model.bin"):
    """A folder with the base's config and tokenizer, and pickled weights."""
    folder = tmp_path / name
    folder.mkdir()
    for kept in ("config.json", "tokenizer.json"):
        (folder / kept).write_bytes((base / kept).read_bytes())
    tensors = {EMBEDDING: embedding, **(further or {})}
    if n_shards is None:
        torch.save(tensors, folder / file)
        return folder
    names = sorted(tensors)
    paths = [f"pytorch_model-{n + 1:05}-of-{n_shards:05}.bin" for n in range(n_shards)]
    weight_map = {name: paths[at * n_shards // len(names)] for at, name in enumerate(names)}
    for path in paths:
        torch.save({name: tensors[name] for name in names if weight_map[name] == path}, folder / path)
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return folder


def relative():
    return (gaussian(V, N, 0) + 0.1 * gaussian(V, N, 1)).half()


def test_a_shard_costs_two_ranges_before_its_weights(loopback_hub, tmp_path, base):
    folder = pickled_copy(tmp_path, base, "bin", embedding=relative(), further=llama_7b_names(), n_shards=2)
    loopback_hub.add_repository("some/bin", folder)
    repository = open_repository("some/bin")
    source = open_checkpoint(repository)
    in_first = [name for name in source.names() if source.spec(name).path.startswith("pytorch_model-00001")]
    assert EMBEDDING in in_first and len(in_first) > 150
    ranges = [request.range for request in loopback_hub.sent("cdn") if "00001-of-00002.bin" in request.path]
    assert len(ranges) == 2
    assert (
        sum(int(stop) - int(start) for start, stop in (r.removeprefix("bytes=").split("-") for r in ranges)) < 120_000
    )


def test_a_relative_in_shards_is_found_by_a_part_of_its_bytes(loopback_hub, tmp_path, base):
    folder = pickled_copy(tmp_path, base, "bin", embedding=relative(), further=llama_7b_names(), n_shards=2)
    loopback_hub.add_repository("some/base", base)
    loopback_hub.add_repository("some/bin", folder)
    report = HomologyChecker.from_pretrained("some/base").compare("some/bin")
    assert (report.verdict.value, report.settled_by) == ("homologous", "screen")
    assert not any("00002-of-00002" in file for file in report.io.files)
    touched = sum(request.bytes_sent for request in loopback_hub.sent("cdn") if "/some/bin/" in request.path)
    assert touched < 0.05 * report.io.bytes_of_weights


def test_the_same_weights_in_both_formats_give_the_same_numbers(tmp_path, base, hf_home):
    embedding = relative()
    pickled = pickled_copy(tmp_path, base, "bin", embedding=embedding)
    plain = write_model(tmp_path / "plain", embedding, dtype=torch.float16)
    checker = HomologyChecker.from_pretrained(base)
    one, other = checker.compare(pickled), checker.compare(plain)
    assert one.log10_p == other.log10_p
    assert one.embedding == other.embedding


def test_a_stranger_in_a_pickle_is_silent(tmp_path, base, hf_home):
    stranger = pickled_copy(tmp_path, base, "bin", embedding=gaussian(V, N, 5))
    assert HomologyChecker.from_pretrained(base).compare(stranger).verdict.value == "no_evidence"


@pytest.mark.parametrize("file", ["RWKV-x060-World-1B6.pth", "consolidated.00.pth", "model.pt"])
def test_one_file_of_any_name_is_a_model(loopback_hub, tmp_path, base, file):
    folder = pickled_copy(tmp_path, base, "bin", embedding=relative(), file=file)
    loopback_hub.add_repository("some/bin", folder)
    checker = HomologyChecker.from_pretrained(base)
    for name in ("some/bin", f"{loopback_hub.endpoint}/some/bin/blob/main/{file}", folder, folder / file):
        assert checker.compare(name).verdict.value == "homologous"


def test_of_several_files_the_one_named_counts(loopback_hub, tmp_path, base):
    folder = pickled_copy(tmp_path, base, "bin", embedding=relative(), file="one.pth")
    torch.save({EMBEDDING: gaussian(V, N, 8)}, folder / "other.pth")
    loopback_hub.add_repository("some/bin", folder)
    checker = HomologyChecker.from_pretrained(base)
    for name in (f"{loopback_hub.endpoint}/some/bin/blob/main/one.pth", "some/bin/one.pth", "hf://some/bin/one.pth"):
        assert checker.compare(name).verdict.value == "homologous"
    assert checker.compare(folder / "other.pth").verdict.value == "no_evidence"


def test_a_head_that_is_stored_as_the_embedding_is_no_second_witness(tmp_path, base, hf_home):
    """Nothing in the config ties them; the file holds one storage for both."""
    folders = []
    for number, n_copies in enumerate((1, 2)):
        embedding = gaussian(V, N, 20 + number)
        head = embedding if n_copies == 1 else gaussian(V, N, 30)
        folder = pickled_copy(tmp_path, base, f"m{number}", embedding=embedding, further={"lm_head.weight": head})
        config = {"model_type": "llama", "hidden_size": N, "vocab_size": V, "tie_word_embeddings": False}
        (folder / "config.json").write_text(json.dumps(config))
        folders.append(folder)
    tied, untied = folders
    checker = HomologyChecker.from_pretrained(tied)
    copy = pickled_copy(tmp_path, base, "copy", embedding=(e := gaussian(V, N, 40)), further={"lm_head.weight": e})
    (copy / "config.json").write_text((tied / "config.json").read_text())
    assert checker.compare(copy, level="embedding").unembedding is None
    assert checker.compare(untied, level="embedding").unembedding is not None


def test_weights_as_transformers_and_trainers_save_them(tmp_path, base, hf_home):
    """A module's own state dict: parameters, buffers, and tied weights once."""

    class Small(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = torch.nn.Module()
            self.model.embed_tokens = torch.nn.Embedding(V, N)
            self.model.embed_tokens.weight.data.copy_(relative().float())
            self.lm_head = torch.nn.Linear(N, V, bias=False)
            self.lm_head.weight = self.model.embed_tokens.weight
            self.register_buffer("inv_freq", torch.ones(4))

    checker = HomologyChecker.from_pretrained(base)
    module = Small()
    optimizer = torch.optim.AdamW(module.parameters()).state_dict()
    whole = {"state_dict": module.state_dict(), "optimizer": optimizer, "epoch": 1}
    for number, saved in enumerate([module.state_dict(), torch.nn.DataParallel(module).state_dict(), whole]):
        folder = pickled_copy(tmp_path, base, f"m{number}", embedding=torch.zeros(1))
        torch.save(saved, folder / "pytorch_model.bin")
        assert checker.compare(folder).verdict.value == "homologous"
