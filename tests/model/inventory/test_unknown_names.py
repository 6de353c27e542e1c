"""Unknown names: the class of transformers gives the roles, otherwise shapes and repetition do."""

import json
import random
import re

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING

from mdir_hf import Verdict, compare
from mdir_hf.comparison.agreed_roles import with_agreed_roles
from mdir_hf.errors import AnatomyError, UnsupportedFormatError
from mdir_hf.model.hub import open_repository
from mdir_hf.model.inventory.by_class import harmless, names_by_class
from mdir_hf.model.inventory.by_shape import resolve_by_shape
from mdir_hf.model.opened import Model
from mdir_hf.model.roles import Role
from mdir_hf.report import Outcome
from tests.comparison.relatives import SIZES, changed, write
from tests.method.obfuscation import new_model
from tests.model.roles.tiny_causal import build_module, save_and_open

ATTENTION = {Role.Q, Role.K, Role.V, Role.O}
MLP = {Role.GATE, Role.UP, Role.DOWN}


def opened(folder):
    return Model(open_repository(str(folder)))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("model_type", ["inkling_mm_model", "mistral_large4"])
def test_a_class_of_transformers_tells_the_roles_of_its_files(model_type, tmp_path):
    module = build_module(model_type, mapping=MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING)
    anatomy = save_and_open(module, tmp_path / "x").anatomy
    assert anatomy.decided_by == "class"
    stored = load_file(tmp_path / "x" / "model.safetensors")
    assert torch.equal(stored[anatomy.embedding.tensor], module.get_input_embeddings().weight)
    assert torch.equal(stored[anatomy.unembedding.tensor], module.get_output_embeddings().weight)
    inside = dict(module.named_parameters())
    for layer in anatomy.layers:
        assert layer.parts.keys() >= ATTENTION
        mlps = layer.experts or (layer.parts,)
        assert all(parts.keys() >= MLP for parts in mlps)
        for role in (Role.Q, Role.O):
            name = next(n for n in inside if f"language_model.layers.{layer.index}.self_attn.{role.value}_proj" in n)
            assert torch.equal(stored[layer.parts[role].tensor], inside[name])


@pytest.mark.filterwarnings("ignore")
def test_experts_that_files_cut_have_the_order_of_the_stack(tmp_path):
    module = build_module("mistral_large4", mapping=MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING)
    anatomy = save_and_open(module, tmp_path / "x").anatomy
    stored = load_file(tmp_path / "x" / "model.safetensors")
    layer = next(layer for layer in anatomy.layers if layer.experts)
    name = next(n for n, _ in module.named_parameters() if f"layers.{layer.index}.mlp.experts.gate_up_proj" in n)
    stack = dict(module.named_parameters())[name]
    for expert, parts in enumerate(layer.experts):
        gate, up = stack[expert].chunk(2)
        assert torch.equal(stored[parts[Role.GATE].tensor], gate) and torch.equal(stored[parts[Role.UP].tensor], up)


def test_a_class_that_is_unknown_or_too_large_is_not_built():
    names = ["a.weight"]
    assert names_by_class({"model_type": "of_tomorrow", "num_hidden_layers": 2}, names) is None
    assert names_by_class({"model_type": "llama", "num_hidden_layers": 10**6}, names) is None
    assert names_by_class({"model_type": "llama", "num_hidden_layers": 2, "rope_parameters": 3}, names) is None


HOSTILE = {
    "a backbone": {"use_pretrained_backbone": True},
    "weights inside": {"vision_config": {"backbone": "resnet50"}},
    "a million layers": {"vision_config": {"depth": 1_000_000}},
    "many stages": {"audio_config": {"depths": [3, 10_000]}},
    "a long list": {"layer_types": ["full_attention"] * 5000},
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_config_that_loads_weights_or_builds_too_much_is_refused(kind):
    assert harmless({"model_type": "llama", **HOSTILE[kind]}) is None


def test_entries_that_choose_code_are_left_out_at_every_depth():
    code = {
        "attn_implementation": "someone/kernel", "_attn_implementation": "someone/kernel", "use_kernels": True,
        "auto_map": {"AutoModel": "someone/code--modeling.Model"}, "experts_implementation": "x", "_name_or_path": "x",
    }  # fmt: skip
    config = {"model_type": "llama", "kernel_size": 3, **code, "text_config": {"hidden_size": 8, **code}}
    assert harmless(config) == {"model_type": "llama", "kernel_size": 3, "text_config": {"hidden_size": 8}}


def test_no_kernel_of_a_config_is_fetched(monkeypatch):
    monkeypatch.setattr(
        "transformers.modeling_utils.PreTrainedModel._check_and_adjust_attn_implementation",
        lambda self, wanted, *_, **__: wanted if wanted == "eager" else pytest.fail(f"asked for {wanted}"),
    )
    config = {
        "model_type": "llama", "num_hidden_layers": 1, "hidden_size": 8, "intermediate_size": 8, "vocab_size": 20,
        "num_attention_heads": 2, "num_key_value_heads": 2, "attn_implementation": "someone/kernel",
    }  # fmt: skip
    assert "model.embed_tokens.weight" in names_by_class(config, {"model.embed_tokens.weight"})


def at_random(seed):
    """Replace each word of a name by another; the numbers of layers stay."""
    draw, words = random.Random(seed), {}

    def word(match):
        return words.setdefault(match[0], "".join(draw.choices("abcdefghij", k=6)))

    return lambda name: re.sub(r"[a-z_]+", word, name)


def rename(seed):
    new_name = at_random(seed)

    def change(tensors):
        for name in list(tensors):
            tensors[new_name(name)] = tensors.pop(name)

    return change


def without_family(folder):
    config = json.loads((folder / "config.json").read_text())
    del config["architectures"]
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "of_tomorrow"}))
    return folder


@pytest.mark.parametrize("seed", range(2))
def test_tensors_renamed_at_random_are_placed_by_shape(seed, tmp_path):
    model = new_model(seed=0, **(SIZES | {"tie_word_embeddings": True}))
    base = write(tmp_path / "base", model)
    renamed = without_family(changed(write(tmp_path / "renamed", model), rename(seed)))
    anatomy, name = opened(renamed).anatomy, at_random(seed)
    for known in load_file(base / "model.safetensors"):
        name(known)  # draw the words in the same order
    assert anatomy.decided_by == "shapes" and anatomy.n_layers == 4
    stored, plain = (load_file(folder / "model.safetensors") for folder in (renamed, base))
    assert torch.equal(stored[anatomy.embedding.tensor], plain["model.embed_tokens.weight"])
    own = {role.value: f"mlp.{role.value}_proj" for role in MLP} | {"q": "self_attn.q_proj", "o": "self_attn.o_proj"}
    _, agreed = with_agreed_roles(opened(base), opened(renamed)).models
    for layer in agreed.anatomy.layers:
        for role in (*MLP, Role.Q, Role.O):
            expected = plain[f"model.layers.{layer.index}.{own[role.value]}.weight"]
            assert torch.equal(stored[layer.parts[role].tensor], expected)
    if seed == 0:
        report = compare(base, renamed, level="layers", progress=False)
        assert report.verdict is Verdict.HOMOLOGOUS
        counts = report.projections.counts()
        assert counts[Outcome.KEPT] == sum(counts.values())


def test_a_renamed_stranger_stays_one(tmp_path):
    base = write(tmp_path / "base", new_model(seed=0, **SIZES))
    stranger = without_family(changed(write(tmp_path / "x", new_model(seed=9, **SIZES)), rename(0)))
    assert compare(base, stranger, progress=False).verdict is not Verdict.HOMOLOGOUS


def test_an_embedding_and_a_head_of_one_shape_are_a_guess(tmp_path):
    folder = without_family(changed(write(tmp_path / "x", new_model(seed=0, **SIZES)), rename(0)))
    model = opened(folder)
    assert any("is the embedding is a guess" in note for note in model.anatomy.notes)
    decided = {part.name: part.decided_by for part in model.inventory.parts}
    assert decided["language model"] == decided["embedding"] == "shapes"


def test_names_without_a_shape_that_fits_are_refused(tmp_path):
    folder = tmp_path / "x"
    folder.mkdir()
    save_file({"a": torch.ones(3, 4), "b": torch.ones(5)}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"model_type": "of_tomorrow", "vocab_size": 50, "hidden_size": 4}))
    with pytest.raises(AnatomyError, match="input embedding"):
        opened(folder)
    assert resolve_by_shape({}, [], {}.__getitem__) is None


def test_known_names_do_not_build_a_class(tmp_path, monkeypatch):
    monkeypatch.setattr("mdir_hf.model.inventory.headers.names_by_class", lambda *_: pytest.fail("was built"))
    assert opened(write(tmp_path / "x", new_model(seed=0, **SIZES))).anatomy.decided_by == "names"


def test_the_slice_of_one_rank_is_not_taken_for_a_model(tmp_path):
    def cut(tensors):
        tensors.update({name: tensor[: len(tensor) // 2].clone() for name, tensor in tensors.items()})

    folder = changed(write(tmp_path / "x", new_model(seed=0, **SIZES)), cut)
    with pytest.raises(UnsupportedFormatError, match="one rank's slice of 2"):
        opened(folder)
