"""Every tensor of a model's files is in exactly one part, and the sizes add up."""

import json
import math
from collections import Counter

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from mdir_hf.comparison.inspection import inspect_model, lines_of
from mdir_hf.model.files.memory import MemorySource
from mdir_hf.model.hub import open_repository
from mdir_hf.model.inventory import PartKind, may_have_other_stacks, take_inventory
from mdir_hf.model.inventory.take import auxiliary_label
from mdir_hf.model.opened import Model
from mdir_hf.model.roles import resolve_anatomy
from mdir_hf.model.sources import StoredTensor
from tests.model.roles.published_models import MODELS
from tests.specimens import gaussian, write_model

N, V = 16, 300


def held(folder):
    """Names and sizes according to the files themselves."""
    sizes = {}
    for path in folder.glob("*.safetensors"):
        with safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118 - not a dictionary
                tensor = file.get_tensor(name)
                sizes[name] = tensor.numel() * tensor.element_size()
    return sizes


def check_is_complete(folder):
    inventory = Model(open_repository(str(folder))).inventory
    sizes = held(folder)
    listed = Counter(name for part in inventory.parts for name in part.tensors)
    assert listed == Counter(list(sizes))
    assert inventory.n_bytes == sum(sizes.values()) <= inventory.n_bytes_of_files
    for part in inventory.parts:
        assert part.n_bytes == sum(sizes[name] for name in part.tensors)
    assert len({part.name for part in inventory.parts}) == len(inventory.parts)
    return inventory


def attention(prefix, n=N, layers=2):
    shapes = {f"{name}_proj.weight": (n, n) for name in ("q", "k", "v", "o")}
    return {f"{prefix}.{i}.self_attn.{name}": torch.randn(*s) for i in range(layers) for name, s in shapes.items()}


@pytest.mark.parametrize("model", MODELS)
def test_every_tensor_of_a_published_model_is_in_one_part(model):
    published = MODELS[model]
    shapes = published.shapes()
    anatomy = resolve_anatomy(published.config, shapes, shapes.__getitem__)
    contents = [StoredTensor(name, name, 2 * math.prod(shape), shape) for name, shape in shapes.items()]
    inventory = take_inventory(contents, anatomy, n_bytes_of_files=0)
    assert Counter(name for part in inventory.parts for name in part.tensors) == Counter(list(shapes))
    assert inventory.n_bytes == sum(2 * math.prod(shape) for shape in shapes.values())
    language = inventory.part("language model")
    assert [int(name) for name in language.layers] == [layer.index for layer in anatomy.layers]
    in_layers = {name for layer in anatomy.layers for _, part in layer.all_parts() for name in part.tensors}
    unplaced = {name for part in inventory.parts if part.kind is PartKind.UNPLACED for name in part.tensors}
    assert not unplaced & in_layers
    others = [part for part in inventory.parts if part.kind in (PartKind.STACK, PartKind.CONNECTOR)]
    assert may_have_other_stacks(shapes, anatomy) or others == [language]


def test_a_model_of_one_stack_is_recognised_by_its_names(tmp_path, monkeypatch):
    layers = attention("model.layers") | {f"model.layers.{at}.self_attn.q_proj.bias": torch.ones(N) for at in range(2)}
    tower = attention("vision_tower.layers")
    plain, seeing = (
        Model(open_repository(str(write_model(tmp_path / name, gaussian(V, N, 0), further=further))))
        for name, further in (("plain", layers), ("seeing", layers | tower))
    )
    assert [stack.name for stack in seeing.other_stacks] == ["vision tower"]
    monkeypatch.setattr(Model, "known_inventory", None)  # not needed
    assert plain.other_stacks == ()


def test_stacks_tables_and_connectors_have_parts_of_their_own(tmp_path):
    further = {
        **attention("model.layers"),
        **attention("vpm.encoder.layers", layers=3),
        "vpm.embeddings.patch_embedding.weight": torch.randn(N, 3, 4, 4),
        "vpm.embeddings.position_embedding.weight": torch.randn(20, N),
        **attention("talker.model.layers"),
        "talker.codec_head.weight": torch.randn(30, N),
        **attention("audio_tower.layers"),
        **{f"model.mtp.layers.0.{name}": torch.randn(N, N) for name in ("eh_proj.weight", "o.weight")},
        "resampler.query": torch.randn(8, N),
        "resampler.attn.in_proj_weight": torch.randn(3 * N, N),
        "mlp1.0.weight": torch.randn(N),
        "mlp1.1.weight": torch.randn(N, N),
        "multi_modal_projector.linear_1.weight": torch.randn(N, N),
        "transformer.wpe.weight": torch.randn(64, N),
        "model.norm.weight": torch.ones(N),
        "an.odd.matrix": torch.randn(5, 7),
    }
    inventory = check_is_complete(write_model(tmp_path / "x", gaussian(V, N, 0), further=further))
    found = {part.name: (part.kind, part.n_tensors, len(part.layers)) for part in inventory.parts}
    assert found == {
        "language model": (PartKind.STACK, 8, 2),
        "vision tower": (PartKind.STACK, 14, 3),
        "talker": (PartKind.STACK, 9, 2),
        "audio tower": (PartKind.STACK, 8, 2),
        "multi-token prediction": (PartKind.STACK, 2, 1),
        "embedding": (PartKind.TABLE, 1, 0),
        "positions": (PartKind.TABLE, 1, 0),
        "connector": (PartKind.CONNECTOR, 4, 0),
        "norms, biases and buffers of the language model": (PartKind.VECTORS, 1, 0),
        "norms, biases and buffers of the connector": (PartKind.VECTORS, 1, 0),
        "unplaced: no known role outside of the layers": (PartKind.UNPLACED, 1, 0),
    }


def test_layers_past_the_last_are_a_part_of_their_own(tmp_path):
    config = {"model_type": "llama", "hidden_size": N, "vocab_size": V, "num_hidden_layers": 2}
    config |= {"num_nextn_predict_layers": 1}
    folder = write_model(tmp_path / "x", gaussian(V, N, 0), further=attention("model.layers", layers=4), config=config)
    inventory = check_is_complete(folder)
    assert inventory.part("language model").layers == ("0", "1")
    assert inventory.part("multi-token prediction").layers == ("2",)
    assert inventory.part("layers beyond the config").layers == ("3",)


def test_scales_are_storage_of_the_weights_that_need_them(tmp_path):
    folder = tmp_path / "x"
    folder.mkdir()
    tensors = {"model.embed_tokens.weight": gaussian(V, N, 0)}
    for name, tensor in attention("model.layers").items():
        tensors[name] = tensor.to(torch.float8_e4m3fn)
        tensors[f"{name}_scale_inv"] = torch.ones(1, 1)
        tensors[name.replace("weight", "input_scale")] = torch.ones(1)
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "hidden_size": N, "vocab_size": V}))
    inventory = check_is_complete(folder)
    assert inventory.part("language model").n_tensors == 8
    storage = inventory.part("storage of the language model")
    assert (storage.kind, storage.n_tensors, storage.owner) == (PartKind.STORAGE, 16, "language model")


def test_a_trained_copy_counts_and_the_other_is_reported(tmp_path):
    folder = write_model(tmp_path / "x", gaussian(V, N, 0), further=attention("model.layers"))
    tensors = {f"base_model.model.{name}": tensor for name, tensor in load(folder).items()}
    trained = tensors.pop("base_model.model.model.embed_tokens.weight")
    tensors["base_model.model.model.embed_tokens.modules_to_save.default.weight"] = trained
    tensors["base_model.model.model.embed_tokens.original_module.weight"] = trained + 1
    save_file(tensors, folder / "model.safetensors")
    inventory = check_is_complete(folder)
    assert inventory.part("embedding").tensors == (
        "base_model.model.model.embed_tokens.modules_to_save.default.weight",
    )
    assert inventory.part("unplaced: a trained copy beside it counts").n_tensors == 1


def test_a_tied_head_that_shares_storage_counts_once(tmp_path):
    folder = write_model(tmp_path / "x", gaussian(V, N, 0), further=attention("model.layers"))
    state = {name: tensor.clone() for name, tensor in load(folder).items()}
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    (folder / "model.safetensors").unlink()
    torch.save(state, folder / "pytorch_model.bin")
    inventory = Model(open_repository(str(folder))).inventory
    n_bytes = {name: tensor.numel() * tensor.element_size() for name, tensor in state.items()}
    assert inventory.n_bytes == sum(n_bytes.values()) - n_bytes["lm_head.weight"]
    assert inventory.part("embedding").n_bytes == n_bytes["model.embed_tokens.weight"]
    in_memory = {stored.name: stored.n_bytes for stored in MemorySource(state).contents()}
    assert in_memory == n_bytes | {"lm_head.weight": 0}


def test_names_of_unread_headers_are_listed_without_a_size(tmp_path):
    folder = sharded(tmp_path / "x")
    model = Model(open_repository(str(folder)))
    before = model.known_inventory()
    assert before.n_tensors == 10 and before.n_bytes is None
    assert model.inventory.n_bytes == sum(held(folder).values())


def test_text_and_json_of_inspect_hold_the_inventory(tmp_path):
    folder = write_model(tmp_path / "x", gaussian(V, N, 0), further=attention("model.layers"))
    found = inspect_model(folder)
    assert sum(part.tensors for part in found.inventory) == found.tensors
    (body,) = [part for part in json.loads(found.to_json())["inventory"] if part["part"] == "language model"]
    assert body == {
        "part": "language model", "kind": "stack", "owner": None, "layers": ["0", "1"], "tensors": 8,
        "bytes": 8 * 2 * N * N, "decided_by": "names", "reason": None,
        "is_loaded": True,
    }  # fmt: skip
    text = "\n".join(lines_of(found))
    assert "language model, 2 layers: 8 tensors, 4.1 kB" in text and "embedding: 1 tensor, 9.6 kB" in text


# --- files created for these tests


def load(folder):
    from safetensors.torch import load_file

    return load_file(folder / "model.safetensors")


def sharded(folder):
    write_model(folder, gaussian(V, N, 0), further=attention("model.layers"), unembedding=gaussian(V, N, 1))
    tensors = load(folder)
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    shards = {"model-00001-of-00002.safetensors": names[:6], "model-00002-of-00002.safetensors": names[6:]}
    for file, listed in shards.items():
        save_file({name: tensors[name] for name in listed}, folder / file)
    weight_map = {name: file for file, listed in shards.items() for name in listed}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return folder


# --- matrices that no test reads are listed by purpose


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("encoder_attn.k_proj.weight", "cross-attention"),
        ("layer.1.EncDecAttention.q.weight", "cross-attention"),
        ("linear_attn.conv1d.weight", "convolutions"),
        ("mixer.A_log", "parameters of recurrences"),
        ("linear_attn.in_proj_ba.weight", "parameters of recurrences"),
        ("self_attn.g_proj.weight", "gates of attention"),
        ("self_attn.indexer.wk.weight", "indexers"),
        ("layer.0.SelfAttention.relative_attention_bias.weight", "position biases"),
        ("self_attn.1.o_proj.weight", "second attention"),
        ("mlps.1.up_proj.weight", "second MLP"),
        ("attn_hyper_connection.input_mix_weight_up.weight", "mixing of streams"),
        ("self_attn.q_proj.weight", None),
        ("mlp.gate_proj.weight", None),
        ("mlp.experts.3.up_proj.weight", None),
    ],
)
def test_the_name_of_a_matrix_gives_its_purpose(name, label):
    assert auxiliary_label(name) == label
