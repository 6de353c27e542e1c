"""Experts one by one, as quantisers and converters write them, in families whose own files stack them."""

import pytest

from mdir_hf.model.roles import Role, resolve_anatomy
from mdir_hf.model.roles.parts import part_shape

D, F, E = 8, 12, 3
THREE = {"gate_proj": (F, D), "up_proj": (F, D), "down_proj": (D, F)}
FUSED = {"gate_up_proj": (2 * F, D), "down_proj": (D, F)}


def numbered(pattern, shapes):
    return {pattern.format(e=e, name=name): shape for e in range(E) for name, shape in shapes.items()}


LAYOUTS = {
    "Llama 4": ("llama4_text", numbered("feed_forward.experts.{e}.{name}.weight", THREE)),
    "Gemma 4": ("gemma4_text", numbered("experts.{e}.{name}.weight", THREE)),
    "Gemma 4 in vLLM": ("gemma4_text", numbered("moe.experts.{e}.{name}.weight", THREE)),
    "gpt-oss in three": ("gpt_oss", numbered("mlp.experts.{e}.{name}.weight", THREE)),
    "gpt-oss in two": ("gpt_oss", numbered("mlp.experts.{e}.{name}.weight", FUSED)),
    "gpt-oss by kind": ("gpt_oss", numbered("mlp.experts.{name}s.{e}.weight", FUSED)),
    "GraniteMoe": ("granitemoe", numbered("block_sparse_moe.experts.{e}.{name}.weight", THREE)),
    "GraniteMoe in two": (
        "granitemoe",
        numbered("block_sparse_moe.experts.{e}.{name}.weight", {"input_linear": (2 * F, D), "output_linear": (D, F)}),
    ),
    "LLaMA-MoE": (
        "llama_moe",
        numbered("mlp.calculator.experts.weight_{name}.{e}", {"gate": (F, D), "up": (F, D), "down": (D, F)}),
    ),
    "MoE-LLaVA": ("llava_llama", numbered("mlp.deepspeed_moe.experts.deepspeed_experts.{e}.{name}.weight", THREE)),
    "Gemma 4, stacked": (
        "gemma4_text",
        {"experts.gate_up_proj": (E, 2 * F, D), "experts.down_proj": (E, D, F)},
    ),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_expert_has_gate_up_and_down(layout):
    family, experts = LAYOUTS[layout]
    config = {
        "model_type": family, "hidden_size": D, "num_attention_heads": 2, "num_local_experts": E, "vocab_size": 20,
        "num_hidden_layers": 2,
    }  # fmt: skip
    shapes = {"model.embed_tokens.weight": (20, D)}
    for i in range(2):
        shapes |= {f"model.layers.{i}.self_attn.{name}_proj.weight": (D, D) for name in "qkvo"}
        shapes |= {f"model.layers.{i}.{rest}": shape for rest, shape in experts.items()}
    anatomy = resolve_anatomy(config, shapes, shapes.__getitem__)
    assert anatomy.unplaced == ()
    for layer in anatomy.layers:
        assert len(layer.experts) == E
        for parts in layer.experts:
            made = {role: part_shape(part, shapes.__getitem__) for role, part in parts.items()}
            assert made == {Role.GATE: (F, D), Role.UP: (F, D), Role.DOWN: (D, F)}
