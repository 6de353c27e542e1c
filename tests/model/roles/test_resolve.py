"""Assign roles by names alone; only the shapes of embedding and unembedding are read."""

import json
import re

import pytest
import torch
from safetensors.torch import save_file

from mdir_hf.comparison.inspection import inspect_model
from mdir_hf.errors import AnatomyError
from mdir_hf.model.roles import Role, read_part, resolve_anatomy
from mdir_hf.model.roles.parts import part_shape
from tests.model.roles.judgement import judge
from tests.model.roles.test_wrappers import CONFIG, PARTS
from tests.model.roles.tiny_causal import build

LAYER = [
    *(f"self_attn.{name}_proj.weight" for name in "qkvo"),
    *(f"mlp.{name}_proj.weight" for name in ("gate", "up", "down")),
]
LLAMA = {"model_type": "llama", "hidden_size": 8, "vocab_size": 30, "num_attention_heads": 2}


def llama_names(prefix="model.", n_layers=2, head="lm_head.weight"):
    layers = [f"{prefix}layers.{number}.{rest}" for number in range(n_layers) for rest in LAYER]
    return [f"{prefix}embed_tokens.weight", f"{prefix}norm.weight", *layers, *([head] if head else [])]


def resolve(names, config=LLAMA, shape=(30, 8), **shapes):
    return resolve_anatomy(config, names, lambda name: shapes.get(name.replace(".", "_"), shape))


def test_only_the_shapes_of_embedding_and_unembedding_are_read():
    asked = []

    def shape_of(name):
        asked.append(name)
        return (30, 8)

    resolve_anatomy(LLAMA, llama_names(), shape_of)
    assert asked == ["model.embed_tokens.weight", "lm_head.weight"]


@pytest.mark.parametrize(
    "prefix", ["model.", "", "language_model.model.", "model.language_model.", "base.model.model."]
)
def test_the_prefix_is_free(prefix):
    anatomy = resolve(llama_names(prefix))
    assert anatomy.embedding.tensor == f"{prefix}embed_tokens.weight"
    assert anatomy.layers[1].parts[Role.Q].tensor == f"{prefix}layers.1.self_attn.q_proj.weight"
    assert anatomy.final_norm.tensor == f"{prefix}norm.weight"


@pytest.mark.parametrize("config", [None, {}])
def test_without_a_config_names_and_shapes_decide(config):
    anatomy = resolve(llama_names(), config=config)
    assert (anatomy.architecture, anatomy.hidden_size, anatomy.vocabulary_size) == ("unknown", 8, None)
    assert (anatomy.n_layers, anatomy.layers[0].missing) == (2, ())
    assert anatomy.notes[0] == "there is no config; names and shapes decided"
    assert "the number of attention heads is unknown" in anatomy.notes[1]


@pytest.mark.parametrize(
    ("head", "ties", "tied", "has_unembedding"),
    [
        ("lm_head.weight", False, False, True),
        ("lm_head.weight", None, False, True),
        ("lm_head.weight", True, False, True),
        (None, True, True, False),
        (None, None, True, False),
        (None, False, False, False),
    ],
)
def test_a_stored_head_overrides_the_config(head, ties, tied, has_unembedding):
    anatomy = resolve(llama_names(head=head), config=LLAMA | ({} if ties is None else {"tie_word_embeddings": ties}))
    assert (anatomy.tied, anatomy.unembedding is not None) == (tied, has_unembedding)


def test_a_head_stored_though_tied_is_noted():
    anatomy = resolve(llama_names(), config=LLAMA | {"tie_word_embeddings": True})
    assert any("independent test only if the two differ" in note for note in anatomy.notes)


def test_the_stack_nearest_to_the_embedding_is_the_language_model():
    encoder = [f"model.encoder.layers.{number}.{rest}" for number in range(24) for rest in LAYER]
    anatomy = resolve([*encoder, *llama_names("model.decoder.")])
    assert anatomy.layers[0].parts[Role.V].tensor == "model.decoder.layers.0.self_attn.v_proj.weight"


def test_layers_of_multi_token_prediction_are_left_out():
    names = [*llama_names(n_layers=3), "model.layers.2.embed_tokens.weight", "model.layers.2.shared_head.head.weight"]
    anatomy = resolve(names, config=LLAMA | {"num_hidden_layers": 2})
    assert anatomy.embedding.tensor == "model.embed_tokens.weight"
    assert anatomy.unembedding.tensor == "lm_head.weight"
    assert [layer.index for layer in anatomy.layers] == [0, 1]
    assert any("1 layer(s) from number 2 are beyond the 2 of the config" in note for note in anatomy.notes)


def test_missing_layers_are_noted():
    anatomy = resolve(llama_names(), config=LLAMA | {"num_hidden_layers": 5})
    assert "the config says 5 layers, but 2 are present, without 2, 3 and 4" in anatomy.notes


def test_a_gap_in_the_numbers_of_layers_is_noted():
    names = [name for name in llama_names(n_layers=4) if ".layers.1." not in name]
    anatomy = resolve(names, config=LLAMA | {"num_hidden_layers": 4})
    assert [layer.index for layer in anatomy.layers] == [0, 2, 3]
    assert "the config says 4 layers, but 3 are present, without 1" in anatomy.notes


def test_layers_that_are_numbered_with_gaps_are_all_read():
    names = [re.sub(r"(?<=layers\.)([12])", r"\g<1>0", name) for name in llama_names(n_layers=3)]
    anatomy = resolve(names, config=LLAMA | {"num_hidden_layers": 3})
    assert [layer.index for layer in anatomy.layers] == [0, 10, 20]
    assert "layers are numbered with gaps: 0, 10 and 20, of 3 by the config" in anatomy.notes


def test_unknown_names_are_unplaced_and_missing_biases_are_ignored():
    more = ["mlp.experts.0.w1.weight", "self_attn.q_proj.bias", "self_attn.rotary_emb.inv_freq"]
    anatomy = resolve([*llama_names(), *(f"model.layers.0.{rest}" for rest in more)])
    assert anatomy.unplaced == ("model.layers.0.mlp.experts.0.w1.weight",)


@pytest.mark.parametrize(
    ("model_type", "name"),
    [
        ("unknown", "attn.c_attn.weight"),  # q|k|v or by groups; Conv1D or a linear layer
        ("bloom", "attention.query_key_value.weight"),
        ("unknown", "attention.query_key_value.weight"),
        ("unknown", "mlp.c_fc.weight"),  # Conv1D or a linear layer
        ("codegen", "self_attn.qkv_proj.weight"),
    ],
)
def test_a_name_that_means_different_things_is_not_guessed(model_type, name):
    anatomy = resolve([*llama_names(), f"model.layers.0.{name}"], config=LLAMA | {"model_type": model_type})
    assert anatomy.unplaced == (f"model.layers.0.{name}",)


@pytest.mark.parametrize("shape", [(30,), (2, 15, 8), ()])
def test_an_embedding_that_is_not_a_matrix_is_refused(shape):
    with pytest.raises(AnatomyError, match=r"embedding 'model.embed_tokens.weight' has shape .*; expected \(tokens,"):
        resolve(llama_names(), shape=shape)


@pytest.mark.parametrize("shape", [(0, 8), (30, 0)])
def test_an_empty_embedding_leaves_the_layers(shape):
    anatomy = resolve(llama_names(), shape=shape, lm_head_weight=(30, 8))
    assert anatomy.embedding is None and anatomy.unembedding is not None and anatomy.layers
    assert f"the embedding 'model.embed_tokens.weight' is empty, shape {shape}, and is not compared" in anatomy.notes


def test_an_empty_unembedding_leaves_the_embedding():
    anatomy = resolve(llama_names(), lm_head_weight=(0, 8))
    assert anatomy.unembedding is None and anatomy.embedding is not None and not anatomy.tied
    assert any("the unembedding (lm_head) 'lm_head.weight' is empty" in note for note in anatomy.notes)


def test_an_embedding_of_another_width_than_the_config_is_refused():
    with pytest.raises(AnatomyError, match=r"has shape \(30, 9\); the config expects width 8"):
        resolve(llama_names(), shape=(30, 9))


def test_an_unembedding_that_is_not_a_matrix_is_refused():
    with pytest.raises(AnatomyError, match=r"unembedding \(lm_head\) 'lm_head.weight' has shape \(30,\)"):
        resolve(llama_names(), lm_head_weight=(30,))


def test_an_embedding_with_other_rows_than_the_config_is_noted():
    assert "the config says 30 tokens, but the embedding has 32 rows" in resolve(llama_names(), shape=(32, 8)).notes


@pytest.mark.parametrize(
    ("role", "shape", "message"),
    [
        ("q_proj", (8, 9), r"q_proj.weight' \(role q, stored shape \(8, 9\)\) has input side 9; expected .* 8"),
        ("v_proj", (8, 9), "role v.* input side 9"),
        ("o_proj", (9, 8), "role o.* output side 9"),
        ("up_proj", (20, 7), "role up.* input side 7"),
        ("down_proj", (20, 8), "role down.* output side 20"),
        ("k_proj", (8,), r"role k\) has shape \(8,\); expected a matrix"),
    ],
)
def test_a_weight_of_another_width_is_refused(role, shape, message):
    anatomy = resolve(llama_names())
    with pytest.raises(AnatomyError, match=message):
        anatomy.check_shapes(anatomy.layers[0], lambda name: shape if role in name else (8, 8))


def test_a_norm_that_is_a_matrix_is_refused():
    names = [*llama_names(), "model.layers.0.input_layernorm.weight"]
    anatomy = resolve(names)
    with pytest.raises(AnatomyError, match=r"attention_norm\) has shape \(8, 8\); expected a vector"):
        anatomy.check_shapes(anatomy.layers[0], lambda name: (8, 8))


def test_layers_that_are_spread_over_folders_are_put_together():
    rests = ("attentions.{}.q_lin.weight", "ffns.{}.lin1.weight", "layer_norm1.{}.weight", "layer_norm1.{}.bias")
    names = [f"transformer.{rest.format(index)}" for index in (0, 1) for rest in rests]
    config = {"model_type": "xlm", "emb_dim": 8, "n_layers": 2, "n_heads": 2}
    anatomy = resolve_anatomy(config, ["transformer.embeddings.weight", *names], lambda name: (30, 8))
    assert [layer.parts[Role.Q].tensor for layer in anatomy.layers] == [
        "transformer.attentions.0.q_lin.weight",
        "transformer.attentions.1.q_lin.weight",
    ]
    assert anatomy.layers[1].parts[Role.UP].tensor == "transformer.ffns.1.lin1.weight"
    assert anatomy.unplaced == ("transformer.layer_norm1.0.weight", "transformer.layer_norm1.1.weight")


def test_the_head_of_distilbert_is_its_projector():
    names = [name for name in llama_names() if name != "lm_head.weight"]
    assert resolve([*names, "vocab_projector.weight"]).unembedding.tensor == "vocab_projector.weight"


# --- looped models: prelude, core and coda form one sequence of layers with names


STACKS = ("prelude", "core_block", "coda")
NAMES = tuple(f"{stack}.{i}" for stack in STACKS for i in range(2))


def looped(prefix, parts):
    layers = {f"{prefix}{name}.{rest}": shape for name in NAMES for rest, shape in parts.items()}
    return {"model.embed_tokens.weight": (20, 8), "lm_head.weight": (20, 8), **layers}


@pytest.mark.parametrize("n_layers", [6, 2, 32])
def test_three_stacks_are_one_sequence(n_layers):
    shapes = looped("model.", PARTS)
    anatomy = resolve_anatomy(CONFIG | {"num_hidden_layers": n_layers}, shapes, shapes.__getitem__)
    assert [layer.name for layer in anatomy.layers] == list(NAMES)
    assert [layer.index for layer in anatomy.layers] == list(range(6))
    assert not any("layers" in note for note in anatomy.notes) and anatomy.unplaced == ()
    assert anatomy.layers[3].parts[Role.V].tensor == "model.core_block.1.self_attn.v_proj.weight"
    assert anatomy.prefixes == tuple(f"model.{stack}" for stack in STACKS)


def test_inspect_names_the_layers_by_their_stack(tmp_path):
    tensors = {name: torch.randn(*shape) for name, shape in looped("model.", PARTS).items()}
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    found = inspect_model(tmp_path)
    assert found.layer_groups[0].names == NAMES
    assert f"layers {', '.join(NAMES)}: q k v o" in " ".join(str(found).split())


def test_huginn_is_known_by_its_names():
    parts = {
        "attn.Wqkv.weight": (24, 8), "attn.proj.weight": (8, 8), "mlp.fc.weight": (24, 8), "mlp.proj.weight": (8, 12),
        **{f"norm_{i}.weight": (8,) for i in range(1, 5)},
    }  # fmt: skip
    shapes = looped("transformer.", parts)
    anatomy = resolve_anatomy(CONFIG | {"model_type": "huginn_raven"}, shapes, shapes.__getitem__)
    assert len(anatomy.layers) == 6
    for layer in anatomy.layers:
        assert layer.missing == ()
        made = {role: part_shape(part, shapes.__getitem__) for role, part in layer.parts.items() if not role.is_norm}
        assert made == {
            **dict.fromkeys((Role.Q, Role.K, Role.V, Role.O), (8, 8)),
            **dict.fromkeys((Role.GATE, Role.UP), (12, 8)),
            Role.DOWN: (8, 12),
        }


def test_a_single_stack_of_such_a_name_is_not_looped():
    shapes = {"embed.weight": (20, 8), **{f"core_block.{i}.{rest}": s for i in range(2) for rest, s in PARTS.items()}}
    anatomy = resolve_anatomy(CONFIG, shapes, shapes.__getitem__)
    assert [layer.name for layer in anatomy.layers] == ["0", "1"]


# --- sizes, heads and the last norm by value; test_coverage.py has the roles of every class


FAMILIES = ("llama", "qwen3", "gemma2", "phi3", "glm4", "olmo", "gpt2", "openai-gpt", "gpt_neox")


@pytest.mark.parametrize("model_type", FAMILIES)
def test_a_family_is_placed_wholly(model_type, tmp_path):
    saved = build(model_type, tmp_path)
    anatomy, tensors, module = saved.ours.anatomy, saved.ours.tensors, saved.module
    found = judge(anatomy, tensors, saved.record)
    assert (found.wrong, found.gaps) == ([], [])
    assert all(layer.missing == () for layer in anatomy.layers)
    for layer in anatomy.layers:
        anatomy.check_shapes(layer, lambda name: tensors.spec(name).shape)
    assert all("norm" in name or "ln_" in name for name in anatomy.unplaced)

    embedding, head = module.get_input_embeddings().weight, module.get_output_embeddings().weight
    assert torch.equal(read_part(tensors, anatomy.embedding), embedding)
    assert anatomy.tied == (head is embedding)
    assert anatomy.tied or torch.equal(read_part(tensors, anatomy.unembedding), head)
    config = module.config
    sizes = (anatomy.architecture, anatomy.hidden_size, anatomy.vocabulary_size, anatomy.n_layers, anatomy.n_heads)
    heads = config.num_attention_heads
    assert sizes == (model_type, *embedding.shape[::-1], config.num_hidden_layers, heads)
    assert anatomy.n_kv_heads == getattr(config, "num_key_value_heads", heads)
    assert anatomy.head_dim == (getattr(config, "head_dim", None) or config.hidden_size // heads)

    # In OpenAI's first GPT the norms follow the sums, so none of them can be folded; OLMo's norms have no scale.
    placed = [] if anatomy.final_norm is None else [read_part(tensors, anatomy.final_norm).double()]
    feeding = [] if model_type == "openai-gpt" else norms_in_front_of(head.detach().double(), saved.record)
    assert len(placed) == len(feeding)
    assert all(torch.equal(scale, norm.scale.double()) for scale, norm in zip(placed, feeding, strict=True))


def norms_in_front_of(head, record):
    """Norms whose output the head maps to logits."""
    logits = record.left[len(head)]
    made = [call for call in record.norms if len(call.made) == head.shape[1]]
    # float32 sums of a few dozen products of order 1: rounding in a different order stays far below this.
    return [call for call in made if any(torch.allclose(head @ call.made, y, rtol=1e-4, atol=1e-5) for y in logits)]


@pytest.mark.parametrize("names", [[], ["model.layers.0.input_layernorm.weight"], ["vision_tower.conv.weight"]])
def test_without_an_embedding_a_head_or_layers_there_is_no_language_model(names):
    with pytest.raises(AnatomyError, match="no tensor is named like an input embedding"):
        resolve_anatomy({"model_type": "llama"}, names, lambda name: (1, 1))
