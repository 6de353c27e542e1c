"""Compare the described rotations of q and k with the models' behaviour."""

import warnings

import pytest
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from mdir_hf.model.roles import Role, read_sizes
from tests.model.roles.forward_record import record_forward
from tests.model.roles.rotary_judgement import rotary_turns
from tests.model.roles.tiny_causal import build_module, save_and_open

TOKENS = (5, 9, 11, 3, 17, 23, 40, 7, 13)

# One of each kind: all rows, some rows, other pairs, layers without, by layer, none at all.
FEW = (
    *("llama", "phi", "gpt_neox", "gptj", "cohere2", "glm", "ernie4_5", "llama4_text", "smollm3", "exaone4", "flint"),
    *("mimo_v2_flash", "laguna", "gemma4_text", "minimax_m2", "falcon", "opt", "hunyuan_v1_dense", "persimmon"),
)
# These have no config of eight layers from a single number, or no forward pass on tokens alone.
NOT_HERE = {
    *("bailing_hybrid", "gemma3n", "gemma4_assistant", "gemma4_unified_assistant", "gpt_neo", "granitemoehybrid"),
    *("kimi_linear", "lfm2", "lfm2_moe", "lfm3", "musicgen", "musicgen_melody", "olmo_hybrid", "prophetnet"),
    *("qwen3_5_moe_text", "qwen3_5_text", "qwen3_next", "qwen4_exp_text", "reformer", "zamba", "zamba2"),
}
# The rotation of queries is none that the test knows.
OTHERWISE = {"gpt_neox_japanese"}

MORE = {
    "gemma3n_text": {"intermediate_size": [64] * 8},
    "hrm_text": {"H_cycles": 1, "L_cycles": 1, "L_bp_cycles": [1]},  # otherwise 64 passes
}
"""Further settings of a config."""


def check_turns(module, folder):
    """Check that every layer rotates q and k as the anatomy says; return the number of checks that were possible."""
    record = record_forward(module, tokens=TOKENS)
    ours = save_and_open(module, folder)
    seen = 0
    for layer in ours.anatomy.layers:
        layout = layer.rope or ours.anatomy.rope
        dim = ours.anatomy.rotary_dim if layer.rope is None else layer.rotary_dim
        for role in (Role.Q, Role.K):
            turns = rotary_turns(layer, ours.anatomy, ours.tensors, record, role)
            if turns is None:
                continue
            seen += 1
            if layout == "none":
                assert turns == {("none", 0)}
            else:
                # Without a stated number, all rows: as many as there are, or as change visibly over nine tokens.
                dims = {turned for name, turned in turns if name == layout}
                assert dim in dims if dim is not None else max(dims) > 1
                assert ("none", 0) not in turns
    return seen


def eight_layers(model_type):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return build_module(model_type, num_hidden_layers=8, **MORE.get(model_type, {}))
        except Exception:  # the config has its text model inside
            return build_module(model_type, text_config={"num_hidden_layers": 8})


@pytest.mark.parametrize("model_type", FEW)
def test_rows_are_rotated_as_described(model_type, tmp_path):
    assert check_turns(eight_layers(model_type), tmp_path) >= 4


OTHERS = sorted(set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES) - NOT_HERE - OTHERWISE - set(FEW))[::3]
"""Every third: neighbouring classes of one family share their code."""


@pytest.mark.slow
@pytest.mark.parametrize("model_type", OTHERS)
def test_rows_of_every_family_are_rotated_as_described(model_type, tmp_path):
    check_turns(eight_layers(model_type), tmp_path)


def rotations(**config):
    sizes = read_sizes({"hidden_size": 64, "num_attention_heads": 4} | config)
    return (sizes.rotation.layout, sizes.rotation.dim), {
        index: (own.layout, own.dim) for index, own in sizes.layer_rotations.items()
    }


@pytest.mark.parametrize(
    ("config", "whole", "layers"),
    [
        ({"model_type": "llama"}, ("half", None), {}),
        ({"model_type": "unknown"}, ("unknown", None), {}),
        ({"model_type": "phi", "partial_rotary_factor": 0.5}, ("half", 8), {}),
        ({"model_type": "phi", "rope_parameters": {"partial_rotary_factor": 0.5}}, ("half", 8), {}),
        ({"model_type": "phi", "partial_rotary_factor": 1.0}, ("half", None), {}),
        ({"model_type": "phi", "partial_rotary_factor": "most"}, ("half", None), {}),
        ({"model_type": "RefinedWeb", "alibi": False}, ("half", None), {}),
        ({"model_type": "mixformer-sequential", "rotary_dim": 4}, ("half", 4), {}),
        ({"model_type": "mpt", "attn_config": {"alibi": True}}, ("none", None), {}),
        ({"model_type": "phi3_v"}, ("half", None), {}),
        ({"model_type": "new", "position_embedding_type": "rope"}, ("half", None), {}),
        ({"model_type": "zamba"}, ("none", None), {}),
        ({"model_type": "zamba2", "use_mem_rope": True}, ("half", None), {}),
        ({"model_type": "gptj", "rotary_dim": 4}, ("interleaved", 4), {}),
        ({"model_type": "gptj", "rotary_dim": 16}, ("interleaved", None), {}),
        (
            {"model_type": "llama", "rope_parameters": {"rope_type": "proportional", "rotary_pct": 0.5}},
            ("half", None),
            {},
        ),
        ({"model_type": "smollm3", "no_rope_layers": [1, 0, 1]}, ("half", None), {1: ("none", None)}),
        ({"model_type": "smollm3", "no_rope_layers": "101"}, ("half", None), {}),
        (
            {"model_type": "cohere2", "layer_types": ["sliding_attention", "full_attention"]},
            ("interleaved", None),
            {1: ("none", None)},
        ),
        ({"model_type": "cohere2", "layer_types": [["sliding_attention"], 3]}, ("interleaved", None), {}),
        (
            {
                "model_type": "laguna",
                "head_dim": 16,
                "layer_types": ["full_attention", "sliding_attention"],
                "rope_parameters": {"full_attention": {"partial_rotary_factor": 0.25}, "sliding_attention": {}},
            },
            ("half", None),
            {0: ("half", 4)},
        ),
    ],
)
def test_rotations_declared_by_a_config(config, whole, layers):
    assert rotations(**config) == (whole, layers)
