"""Experts that are stacked, incomplete or written by other programs.

test_coverage.py checks the experts of every class of transformers by value.
"""

import pytest
import torch

from mdir_hf.errors import AnatomyError
from mdir_hf.model.files import MemorySource
from mdir_hf.model.roles import Role, WeightPart, read_part, resolve_anatomy
from mdir_hf.model.roles.parts import part_shape


def names_of(rests):
    return ["model.embed_tokens.weight", *(f"model.layers.0.{rest}" for rest in rests)]


def anatomy_of(rests, **config):
    config = {"model_type": "mixtral", "hidden_size": 4, "num_hidden_layers": 1} | config
    return resolve_anatomy(config, names_of(rests), lambda name: (10, 4))


STACKS = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]


@pytest.mark.parametrize("shape", [(2, 4), (1, 2, 4)])
def test_a_stack_that_lacks_the_expert_is_refused(shape):
    with pytest.raises(AnatomyError, match=r"'stack' has shape .*; expected a stack of matrices, with more than 1"):
        read_part(MemorySource({"stack": torch.ones(shape)}), WeightPart("stack", expert=1))


def test_a_stack_of_another_number_of_experts_is_refused():
    anatomy = anatomy_of(STACKS, num_local_experts=2)
    with pytest.raises(AnatomyError, match=r"has shape \(3, 8, 4\); the config says 2 experts"):
        anatomy.check_shapes(anatomy.layers[0], lambda name: (3, 8, 4))


@pytest.mark.parametrize("count", [{}, {"num_local_experts": 0}, {"num_local_experts": 10**9}])
def test_a_stack_of_an_unknown_number_of_experts_stays_unplaced(count):
    anatomy = anatomy_of(STACKS, **count)
    assert anatomy.layers[0].experts == ()
    assert anatomy.unplaced == tuple(sorted(f"model.layers.0.{rest}" for rest in STACKS))


def test_an_expert_that_lacks_a_weight_is_reported():
    rests = [f"block_sparse_moe.experts.{e}.{w}.weight" for e in (0, 2) for w in ("w1", "w2", "w3")]
    layer = anatomy_of([*rests, "block_sparse_moe.experts.1.w3.weight"]).layers[0]
    assert len(layer.experts) == 3
    assert set(layer.experts[1]) == {Role.UP}
    assert {Role.GATE, Role.DOWN} <= set(layer.missing)
    assert Role.UP not in layer.missing


# --- separate experts, as quantisers and converters write them, in families whose own files stack them


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
