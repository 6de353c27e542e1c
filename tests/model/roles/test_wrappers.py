"""Names with wrappers: the weights equal those without the wrapper."""

import re

import pytest

from mdir_hf.model.roles import Role, resolve_anatomy
from mdir_hf.model.roles.wrappers import without_wrappers

CONFIG = {
    "model_type": "llama", "hidden_size": 8, "num_attention_heads": 2, "vocab_size": 20, "num_hidden_layers": 2,
}  # fmt: skip
PARTS = {
    **{f"self_attn.{name}_proj.weight": (8, 8) for name in "qkvo"},
    **{f"mlp.{name}_proj.weight": (12, 8) for name in ("gate", "up")},
    "mlp.down_proj.weight": (8, 12),
    "input_layernorm.weight": (8,),
    "post_attention_layernorm.weight": (8,),
}
SHAPES = {
    "model.embed_tokens.weight": (20, 8), "lm_head.weight": (20, 8), "model.norm.weight": (8,),
    **{f"model.layers.{i}.{rest}": shape for i in range(2) for rest, shape in PARTS.items()},
}  # fmt: skip

WRITERS = {
    "compiled": lambda name: f"_orig_mod.{name}",
    "layers compiled": lambda name: re.sub(r"layers\.(\d)\.", r"layers.\1._orig_mod.", name),
    "FSDP": lambda name: (
        "_fsdp_wrapped_module."
        + re.sub(r"layers\.(\d)\.", r"layers.\1._fsdp_wrapped_module._checkpoint_wrapped_module.", name)
    ),
    "checkpointed MLP": lambda name: name.replace(".mlp.", ".mlp._checkpoint_wrapped_module."),
    "sentence-transformers": lambda name: f"0.auto_model.{name}",
    "DDP": lambda name: f"module.{name}",
    "PEFT": lambda name: "base_model.model." + re.sub("(q_proj|v_proj).weight", r"\1.base_layer.weight", name),
    "PEFT's original": lambda name: name.replace("embed_tokens.weight", "embed_tokens.original_module.weight"),
    "PEFT's copy": lambda name: name.replace("lm_head.weight", "lm_head.modules_to_save.default.weight"),
}


@pytest.mark.parametrize("writer", WRITERS)
def test_wrapped_names_have_the_roles_of_plain_ones(writer):
    stored = {WRITERS[writer](name): shape for name, shape in SHAPES.items()}
    anatomy, plain = (resolve_anatomy(CONFIG, names, names.__getitem__) for names in (stored, SHAPES))
    assert anatomy.unplaced == () and anatomy.notes == plain.notes
    for mine, other in zip(anatomy.layers, plain.layers, strict=True):
        assert mine.parts.keys() == other.parts.keys() and mine.missing == ()
        for role, part in mine.parts.items():
            assert part.tensor == WRITERS[writer](other.parts[role].tensor)
    assert anatomy.embedding.tensor == WRITERS[writer]("model.embed_tokens.weight")
    assert anatomy.unembedding.tensor == WRITERS[writer]("lm_head.weight")
    assert anatomy.final_norm.tensor == WRITERS[writer]("model.norm.weight")


def test_the_trained_copy_counts():
    names = ["embed.original_module.weight", "embed.modules_to_save.default.weight", "norm.weight"]
    assert without_wrappers(names) == {
        "embed.weight": "embed.modules_to_save.default.weight",
        "norm.weight": "norm.weight",
    }


def test_joined_numbers_count_from_zero_below_each_prefix():
    names = ["tower.layers.0.up", "text.layer1.up", "text.layer2.up", "text.h0.layers.4.up", "lm/layer_0.up"]
    assert list(without_wrappers(names)) == [
        *("tower.layers.0.up", "text.layer.0.up", "text.layer.1.up", "text.h0.layers.4.up", "lm/layer_0.up")
    ]
    assert without_wrappers(["enc/layer_1/up", "enc/layer_2/up", "dec/layer_0/up", "dec/layer_1/up"]) == {
        "enc.layer.0.up": "enc/layer_1/up",
        "enc.layer.1.up": "enc/layer_2/up",
        "dec.layer.0.up": "dec/layer_0/up",
        "dec.layer.1.up": "dec/layer_1/up",
    }


def test_names_that_would_collide_keep_their_wrappers():
    names = ["module.a.weight", "a.weight"]
    assert without_wrappers(names) == {name: name for name in names}


def test_factors_beside_a_weight_are_reported_and_left_out():
    stored = {WRITERS["PEFT"](name): shape for name, shape in SHAPES.items()}
    factor = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.default.weight"
    anatomy = resolve_anatomy(CONFIG, [*stored, factor], {**stored, factor: (4, 8)}.__getitem__)
    assert any("adapters are stored beside the weights" in note for note in anatomy.notes)
    assert Role.Q in anatomy.layers[0].parts and anatomy.unplaced == ()
