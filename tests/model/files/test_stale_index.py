"""If an index contradicts the headers of its shards, the headers count, and a note says so."""

import json

import pytest
import torch
from safetensors.torch import save_file

from mdir_hf.errors import CorruptCheckpointError
from mdir_hf.model.files import open_checkpoint
from mdir_hf.model.files.index import contradicts_sizes, place_by_headers
from mdir_hf.model.hub import open_repository
from mdir_hf.model.opened import Model
from tests.conformance_tensors import MemoryTree

N, V = 16, 300
FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
CONFIG = {
    "model_type": "llama", "hidden_size": N, "vocab_size": V, "num_hidden_layers": 2, "tie_word_embeddings": False,
}  # fmt: skip


def weights():
    draw = torch.Generator().manual_seed(0)
    shapes = {"model.embed_tokens.weight": (V, N), "lm_head.weight": (V, N)}
    for i in range(2):
        shapes |= {f"model.layers.{i}.self_attn.{name}_proj.weight": (N, N) for name in "qkvo"}
    return {name: torch.randn(*shape, generator=draw) for name, shape in shapes.items()}


def write(folder, tensors=None, *, index, total_size=None, config=None, split=5):
    """Two shards with an index; ``index`` changes the correct one."""
    folder.mkdir()
    tensors = weights() if tensors is None else tensors
    names = sorted(tensors)
    held = {FIRST: names[:split], SECOND: names[split:]}
    for file, listed in held.items():
        save_file({name: tensors[name] for name in listed}, folder / file)
    weight_map = index({name: file for file, listed in held.items() for name in listed})
    metadata = {} if total_size is None else {"total_size": total_size}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": metadata, "weight_map": weight_map}))
    (folder / "config.json").write_text(json.dumps(CONFIG | (config or {})))
    return folder


def opened(folder):
    return Model(open_repository(str(folder)))


def notes_of(model):
    return [note for note in model.tensors.description.notes if "out of date" in note]


def test_an_index_that_is_right_gets_no_note_and_costs_no_header(tmp_path):
    tree = MemoryTree.from_folder(write(tmp_path / "x", index=dict))
    source = open_checkpoint(tree)
    source.spec("lm_head.weight")
    assert not source.description.notes and list(tree.opened) == [FIRST]


@pytest.mark.parametrize("total_size", [None, 1])
def test_a_layer_and_a_head_that_the_index_leaves_out_are_found(total_size, tmp_path):
    def cut(weight_map):
        return {name: file for name, file in weight_map.items() if "layers.1." not in name and "lm_head" not in name}

    model = opened(write(tmp_path / "x", index=cut, total_size=total_size))
    assert model.anatomy.n_layers == 2 and model.anatomy.unembedding is not None
    (note,) = notes_of(model)
    assert "the shards hold 5 tensors (such as 'lm_head.weight') that it does not list" in note


def test_tensors_that_moved_to_another_shard_are_read(tmp_path):
    def swapped(weight_map):
        return {name: SECOND if file == FIRST else FIRST for name, file in weight_map.items()}

    model = opened(write(tmp_path / "x", index=swapped))
    tensors = weights()
    assert all(torch.equal(model.tensors.read(name), tensor) for name, tensor in tensors.items())
    assert "10 tensors (such as 'lm_head.weight') in a different shard than it says" in notes_of(model)[0]


def test_scales_that_the_index_of_the_source_leaves_out_are_used(tmp_path):
    tensors, expected = {}, weights()
    for name, tensor in expected.items():
        tensors[name] = tensor
        if "_proj" in name:
            scale = tensor.abs().amax() / 448
            tensors |= {name: (tensor / scale).to(torch.float8_e4m3fn), f"{name}_scale_inv": scale.reshape(1, 1)}

    def of_the_source(weight_map):
        return {name: file for name, file in weight_map.items() if "scale" not in name}

    folder = write(
        tmp_path / "x", tensors, index=of_the_source, total_size=4 * sum(t.numel() for t in expected.values())
    )
    model = opened(folder)
    name = "model.layers.1.self_attn.v_proj.weight"
    # FP8 has three fraction bits.
    torch.testing.assert_close(model.tensors.read(name), expected[name], rtol=0.07, atol=0.01)
    assert not any("without any scale" in note for note in model.tensors.description.notes)
    assert notes_of(model)


def test_a_tensor_that_no_shard_holds_is_reported(tmp_path):
    def more(weight_map):
        return weight_map | {"model.layers.0.self_attn.extra": FIRST}

    model = opened(write(tmp_path / "x", index=more))
    assert "model.layers.0.self_attn.extra" not in model.tensors.names()
    assert "'model.layers.0.self_attn.extra' that it lists but no shard holds" in notes_of(model)[0]


def test_a_shard_that_is_missing_is_still_an_error(tmp_path):
    folder = write(tmp_path / "x", index=dict)
    (folder / SECOND).unlink()
    source = open_checkpoint(MemoryTree.from_folder(folder))
    source.read_all_headers()
    with pytest.raises(CorruptCheckpointError, match="no such file"):
        source.read("model.layers.1.self_attn.v_proj.weight")


def test_a_file_beside_shards_is_read_and_reported(tmp_path):
    folder = write(tmp_path / "x", index=dict)
    save_file(weights(), folder / "model.safetensors")
    (note,) = opened(folder).tensors.description.notes
    assert note.startswith("there are two sets of weights") and "model.safetensors was read" in note


def test_shards_are_read_if_the_file_beside_them_is_unreadable(tmp_path):
    folder = write(tmp_path / "x", index=dict)
    codes = {"model.embed_tokens.weight": torch.zeros(V, 2, dtype=torch.int32).view(torch.uint32)}
    codes |= {f"model.embed_tokens.{name}": torch.ones(V, 1) for name in ("scales", "biases")}
    save_file(codes, folder / "model.safetensors")
    model = opened(folder)
    assert model.anatomy.n_layers == 2
    assert "the shards were read, because tensor" in model.tensors.description.notes[0]


def test_the_shard_that_the_index_names_wins_if_several_hold_a_tensor():
    places, disagreement = place_by_headers({"a": "2", "b": "2"}, {"1": ["a", "b"], "2": ["a"]})
    assert places == {"a": "2", "b": "1"}
    assert (disagreement.moved, disagreement.unlisted, disagreement.absent) == (("b",), (), ())


@pytest.mark.parametrize(
    ("total", "files", "doubtful"),
    [(None, 1, False), (0, 1, False), (10**9, 10**9 + 9000, False), (10**9, 9 * 10**8, True), (10**8, 10**9, True)],
)
def test_sizes_contradict_an_index_only_beyond_headers(total, files, doubtful):
    assert contradicts_sizes(total, files, n_tensors=100, n_shards=2) is doubtful
