import pytest

from mdir_hf.model.files.adapters.names import BaseNames, sort_names

LLAMA = ["model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"] + [
    f"model.layers.{n}.self_attn.{p}_proj.{kind}" for n in range(12) for p in "qkvo" for kind in ("weight", "bias")
]
VISION = [f"vision_tower.encoder.layers.{n}.self_attn.{p}_proj.weight" for n in range(12) for p in "qkv"]


@pytest.mark.parametrize(
    ("names", "asked", "found"),
    [
        (LLAMA, "model.layers.3.self_attn.q_proj.weight", "model.layers.3.self_attn.q_proj.weight"),
        (LLAMA, "base.model.layers.11.self_attn.q_proj.weight", "model.layers.11.self_attn.q_proj.weight"),
        (LLAMA, "language_model.layers.1.self_attn.q_proj.weight", "model.layers.1.self_attn.q_proj.weight"),
        (LLAMA, "model.model.embed_tokens.weight", "model.embed_tokens.weight"),
        (LLAMA, "embed_tokens.weight", "model.embed_tokens.weight"),
        (LLAMA, "model.layers.12.self_attn.q_proj.weight", None),
        (LLAMA, "model.blocks.3.self_attn.q_proj.weight", None),
        (LLAMA, "model.layers.3.self_attn.qkv_proj.weight", None),
        (LLAMA, "model.layers.3.cross.q_proj.weight", None),
        (LLAMA, "weight", None),
        (["h.0.attn.c_attn.weight"], "transformer.h.0.attn.c_attn.weight", "h.0.attn.c_attn.weight"),
        (["h.0.attn.c_attn.weight", "x.h.0.attn.c_attn.weight"], "t.h.0.attn.c_attn.weight", "h.0.attn.c_attn.weight"),
        (["a.head.weight", "b.head.weight"], "c.head.weight", None),
        (
            [f"language_model.{name}" for name in LLAMA] + VISION,
            "model.language_model.layers.3.self_attn.q_proj.weight",
            "language_model.model.layers.3.self_attn.q_proj.weight",
        ),
        (
            [f"language_model.{name}" for name in LLAMA] + VISION,
            "model.layers.3.self_attn.q_proj.weight",
            "language_model.model.layers.3.self_attn.q_proj.weight",
        ),
    ],
)
def test_a_name_of_the_model_is_found_in_its_files(names, asked, found):
    assert BaseNames(names).find(asked) == found


def test_an_ambiguous_name_is_not_resolved():
    names = ["text.layers.0.q.weight", "vision.layers.0.q.weight"]
    assert BaseNames(names).find("model.layers.0.q.weight") is None
    assert BaseNames(names).find("model.text.layers.0.q.weight") == "text.layers.0.q.weight"


def test_names_of_every_age_are_sorted_alike():
    module = "base_model.model.model.layers.0.mlp.up_proj"
    for names in (
        [f"{module}.lora_A.weight", f"{module}.lora_B.weight", f"{module}.lora_magnitude_vector"],
        [
            f"{module}.lora_A.default.weight",
            f"{module}.lora_B.default.weight",
            f"{module}.lora_magnitude_vector.default",
        ],
        [f"{module}.lora_A", f"{module}.lora_B", f"{module}.lora_magnitude_vector.weight"],
    ):
        found = sort_names(names, label="x")
        (change,) = found.modules.values()
        assert list(found.modules) == ["model.layers.0.mlp.up_proj"]
        assert [change.a, change.b, change.magnitude] == names
        assert not found.replaced


@pytest.mark.parametrize(
    "name",
    [
        "base_model.model.lm_head.weight",
        "base_model.model.lm_head.modules_to_save.default.weight",
        "base_model.model.lm_head.modules_to_save.weight",
        "base_model.model.lm_head.base_layer.weight",
        "lm_head.weight",
    ],
)
def test_tensors_saved_whole_go_by_the_name_of_the_module(name):
    assert sort_names([name], label="x").replaced == {"lm_head.weight": name}


def test_the_trained_one_of_several_copies_counts():
    copies = ["lm_head.original_module.weight", "lm_head.base_layer.weight", "lm_head.modules_to_save.weight"]
    assert sort_names(copies, label="x").replaced == {"lm_head.weight": copies[2]}
    assert sort_names([*copies, "lm_head.weight"], label="x").replaced == {"lm_head.weight": "lm_head.weight"}
