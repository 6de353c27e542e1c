"""Fused and unusual layouts by value, in the variants that a family's config allows.

test_coverage.py has the default config of every class.
"""

import pytest

from mdir_hf.model.roles import Role, resolve_anatomy
from tests.model.roles.judgement import judge
from tests.model.roles.tiny_causal import build

ATTENTION = {Role.Q, Role.K, Role.V, Role.O}
GATED, PLAIN = {Role.GATE, Role.UP, Role.DOWN}, {Role.UP, Role.DOWN}
BOTH_NORMS = {Role.ATTENTION_NORM, Role.MLP_NORM}
OF_HEADS = {Role.Q_NORM, Role.K_NORM}

NEW_FALCON = {"new_decoder_architecture": True, "num_kv_heads": 2}
VARIANTS = {
    "gpt_neox, parallel": ("gpt_neox", {"use_parallel_residual": True}, PLAIN | BOTH_NORMS),
    "gpt_neox, in turn": ("gpt_neox", {"use_parallel_residual": False}, PLAIN | BOTH_NORMS),
    "falcon 7b: one key": ("falcon", {"multi_query": True, "parallel_attn": True}, PLAIN | BOTH_NORMS),
    "falcon, one key, in turn": ("falcon", {"multi_query": True, "parallel_attn": False}, PLAIN | BOTH_NORMS),
    "falcon 1b: a key for each": (
        "falcon",
        {"multi_query": False, "num_kv_heads": 4, "alibi": True, "parallel_attn": False},
        PLAIN | BOTH_NORMS,
    ),
    "falcon 40b: groups, two norms": ("falcon", NEW_FALCON, PLAIN | BOTH_NORMS),
    "falcon 11b: groups, one norm": ("falcon", NEW_FALCON | {"num_ln_in_parallel_attn": 1}, PLAIN | BOTH_NORMS),
    "persimmon": ("persimmon", {"qk_layernorm": True}, PLAIN | BOTH_NORMS),
    "gpt_bigcode, one key": ("gpt_bigcode", {"multi_query": True}, PLAIN | BOTH_NORMS),
    "gpt_bigcode, a key for each": ("gpt_bigcode", {"multi_query": False}, PLAIN | BOTH_NORMS),
    "codegen": ("codegen", {"n_head": 8, "rotary_dim": 4}, PLAIN | BOTH_NORMS),
    "phi3, groups": ("phi3", {"num_key_value_heads": 1}, GATED | BOTH_NORMS),
    "glm4, groups": ("glm4", {"num_key_value_heads": 1}, GATED | BOTH_NORMS),
    "opt 350m: norms behind": ("opt", {"do_layer_norm_before": False}, PLAIN),
    "opt 350m: projected": ("opt", {"word_embed_proj_dim": 32, "do_layer_norm_before": False}, PLAIN),
    "stablelm, in turn": ("stablelm", {"use_parallel_residual": False}, GATED | BOTH_NORMS),
    "stablelm, parallel": ("stablelm", {"use_parallel_residual": True}, GATED | BOTH_NORMS),
    "phi": ("phi", {"num_key_value_heads": 2}, PLAIN | BOTH_NORMS),
    "cohere, norms of heads": ("cohere", {"use_qk_norm": True}, GATED | BOTH_NORMS),
    "llama4: every other layer dense": ("llama4_text", {"interleave_moe_layer_step": 2}, GATED | BOTH_NORMS),
    "qwen3_next: gated queries": ("qwen3_next", {"layer_types": ["full_attention"] * 2}, GATED | BOTH_NORMS | OF_HEADS),
    "gemma4: one head of its own": (
        "gemma4_text",
        {"per_layer_config": {1: {"head_dim": 64, "num_key_value_heads": 1}}},
        GATED | BOTH_NORMS,
    ),
}


@pytest.mark.parametrize(("model_type", "config", "expected"), VARIANTS.values(), ids=list(VARIANTS))
def test_every_weight_has_the_function_of_its_role(tmp_path, model_type, config, expected):
    saved = build(model_type, tmp_path, **config)
    anatomy = saved.ours.anatomy
    found = judge(anatomy, saved.ours.tensors, saved.record)
    assert (found.wrong, found.gaps) == ([], [])
    for layer, proved in zip(anatomy.layers, found.proved, strict=True):
        assert proved >= ATTENTION | (expected - OF_HEADS)
        assert layer.parts.keys() >= expected & OF_HEADS  # before the recorded projection: part of q and k there
        assert bool(BOTH_NORMS & layer.parts.keys()) == bool(BOTH_NORMS & expected)
        anatomy.check_shapes(layer, lambda name: saved.ours.tensors.spec(name).shape)
    assert found.n_attention == (len(anatomy.layers), len(anatomy.layers))


@pytest.mark.parametrize(
    ("config", "name"),
    [
        ({"model_type": "mpt", "attn_config": {"attn_type": "grouped_query_attention"}}, "attn.Wqkv.weight"),
        ({"model_type": "dbrx"}, "norm_attn_norm.attn.Wqkv.weight"),
        ({"model_type": "falcon", "num_attention_heads": None}, "self_attention.query_key_value.weight"),
    ],
)
def test_a_layout_that_the_config_leaves_open_is_not_guessed(config, name):
    stored = f"transformer.blocks.0.{name}"
    base = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    anatomy = resolve_anatomy(base | config, ["transformer.wte.weight", stored], lambda name: (30, 8))
    assert anatomy.unplaced == (stored,)
