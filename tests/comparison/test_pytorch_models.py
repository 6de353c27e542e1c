"""PyTorch checkpoints end to end: on the loopback Hub and in folders, under the names that users give."""

import json

import pytest
import torch

from mdir_hf import HomologyChecker
from tests.specimens import gaussian, mlp_of_rows, mlp_tensors, write_model

V, N = 2000, 96
EMBEDDING = "model.embed_tokens.weight"


def deep_llama(*, noise=0.0):
    """Layers of a Llama of 32 layers, each of 200 KiB."""
    layers = {}
    for n in range(32):
        layers |= mlp_tensors(N, 200, 100 * n, layer=n)
        layers |= {f"model.layers.{n}.self_attn.{role}_proj.weight": gaussian(N, N, 100 * n + 50) for role in "qkvo"}
    return {
        name: (weight + noise * gaussian(*weight.shape, 9000 + at)).half()
        for at, (name, weight) in enumerate(layers.items())
    }


@pytest.fixture
def base(tmp_path):
    return write_model(tmp_path / "base", gaussian(V, N, 0))


def pickled_copy(tmp_path, base, name, *, embedding, further=None, n_shards=None, file="pytorch_model.bin"):
    """A folder with the base's config and tokenizer and with pickled weights."""
    folder = tmp_path / name
    folder.mkdir()
    for kept in ("config.json", "tokenizer.json"):
        (folder / kept).write_bytes((base / kept).read_bytes())
    tensors = {EMBEDDING: embedding, **(mlp_of_rows(embedding) if further is None else further)}
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


def test_a_relative_in_shards_is_found_by_a_part_of_its_bytes(loopback_hub, tmp_path, base):
    deep = write_model(tmp_path / "deep", gaussian(V, N, 0), further=deep_llama())
    folder = pickled_copy(tmp_path, base, "bin", embedding=relative(), further=deep_llama(noise=0.1), n_shards=2)
    loopback_hub.add_repository("some/base", deep)
    loopback_hub.add_repository("some/bin", folder)
    report = HomologyChecker.from_pretrained("some/base").compare("some/bin")
    assert (report.verdict.value, report.settled_by) == ("homologous", "near")
    touched = sum(request.bytes_sent for request in loopback_hub.sent("cdn") if "/some/bin/" in request.path)
    assert touched < 0.05 * report.io.bytes_of_weights


@pytest.mark.parametrize("file", ["RWKV-x060-World-1B6.pth", "consolidated.00.pth", "model.pt"])
def test_one_file_of_any_name_is_a_model(loopback_hub, tmp_path, base, file):
    folder = pickled_copy(tmp_path, base, "bin", embedding=relative(), file=file)
    loopback_hub.add_repository("some/bin", folder)
    checker = HomologyChecker.from_pretrained(base)
    for name in ("some/bin", f"{loopback_hub.endpoint}/some/bin/blob/main/{file}", folder, folder / file):
        assert checker.compare(name).verdict.value == "homologous"


def test_the_named_one_of_several_files_counts(loopback_hub, tmp_path, base):
    folder = pickled_copy(tmp_path, base, "bin", embedding=relative(), file="one.pth")
    stranger = gaussian(V, N, 8)
    torch.save({EMBEDDING: stranger, **mlp_of_rows(stranger)}, folder / "other.pth")
    loopback_hub.add_repository("some/bin", folder)
    checker = HomologyChecker.from_pretrained(base)
    for name in (f"{loopback_hub.endpoint}/some/bin/blob/main/one.pth", "some/bin/one.pth", "hf://some/bin/one.pth"):
        assert checker.compare(name).verdict.value == "homologous"
    assert checker.compare(folder / "other.pth").verdict.value == "no_evidence"


def test_weights_as_transformers_and_trainers_save_them(tmp_path, base, hf_home):
    """A module's own state dict: parameters, buffers, and tied weights only once."""

    class Small(torch.nn.Module):
        """A module that consists of an embedding and an MLP, with the names of a causal model."""

        def __init__(self):
            super().__init__()
            self.model = torch.nn.Module()
            self.model.embed_tokens = torch.nn.Embedding(V, N)
            self.model.embed_tokens.weight.data.copy_(relative().float())
            mlp = mlp_of_rows(relative().float())
            layer = torch.nn.Module()
            layer.mlp = torch.nn.Module()
            for name, weight in mlp.items():
                projection = torch.nn.Linear(*weight.T.shape, bias=False)
                projection.weight.data.copy_(weight)
                setattr(layer.mlp, name.split(".")[-2], projection)
            self.model.layers = torch.nn.ModuleList([layer])
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
