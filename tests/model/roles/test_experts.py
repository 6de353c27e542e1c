"""Experts by arithmetic: gate, up and down of every expert compute the same output as the expert in the model."""

from __future__ import annotations

import warnings

import pytest
import torch
import transformers
from transformers.activations import ACT2FN

from mdir_hf.errors import AnatomyError
from mdir_hf.model.files import MemorySource, open_checkpoint
from mdir_hf.model.roles import Role, WeightPart, read_config, read_experts, read_part, resolve_anatomy
from mdir_hf.model.roles.parts import part_shape
from tests.conformance_tensors import MemoryTree

# float32 sums of a few dozen products of order 1: rounding in a different order stays far below this.
CLOSE = {"rtol": 1e-4, "atol": 1e-6}

WIDTH, N_EXPERTS = 24, 3
SIZES = {
    "vocab_size": 40,
    "hidden_size": WIDTH,
    "intermediate_size": 36,
    "moe_intermediate_size": 20,
    "shared_expert_intermediate_size": 28,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 6,
    "num_experts": N_EXPERTS,
    "num_local_experts": N_EXPERTS,
    "n_routed_experts": N_EXPERTS,
    "num_experts_per_tok": 2,
    "n_shared_experts": 2,
    "initializer_range": 0.2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
DEEPSEEK = {
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 8,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 4,
    "v_head_dim": 6,
}
FAMILIES = {
    "mixtral": {},
    "phimoe": {},
    "qwen2_moe": {},
    "qwen3_moe": {},
    "qwen3_5_moe_text": {},
    "olmoe": {},
    "deepseek_v2": DEEPSEEK | {"q_lora_rank": None},
    "deepseek_v3": DEEPSEEK | {"q_lora_rank": 8},
    "glm4_moe": {"n_group": 1, "topk_group": 1, "first_k_dense_replace": 1},
    "ernie4_5_moe": {"moe_num_experts": N_EXPERTS, "moe_num_shared_experts": 2},
    "hunyuan_v1_moe": {},
    "granitemoe": {},
    "gpt_oss": {},
    "llama4_text": {},
}
ALWAYS_STACKED = {"granitemoe", "gpt_oss", "llama4_text"}
SHARED = {
    *("qwen2_moe", "qwen3_5_moe_text", "deepseek_v2", "deepseek_v3", "glm4_moe", "ernie4_5_moe", "hunyuan_v1_moe"),
    "llama4_text",
}


class Mixture:
    """A saved mixture of experts and our anatomy of it."""

    def __init__(self, family, folder, *, stacked):
        self.family, self.stacked = family, stacked or family in ALWAYS_STACKED
        torch.manual_seed(0)
        config = transformers.CONFIG_MAPPING[family](**(SIZES | FAMILIES[family]))
        config._experts_implementation = "eager"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about generation settings of a handmade config
            self.model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
            with torch.no_grad():
                for name, parameter in self.model.named_parameters():
                    if parameter.dim() == 3:
                        parameter.normal_(std=0.2)  # Llama-4 leaves half of them at zero
                    elif name.endswith("bias"):
                        parameter.zero_()
            self.model.save_pretrained(folder, save_original_format=not stacked)
        tree = MemoryTree.from_folder(folder)
        self.source = open_checkpoint(tree)
        self.anatomy = resolve_anatomy(
            read_config(tree.read("config.json")), self.source.names(), lambda name: self.source.spec(name).shape
        )
        self.act = ACT2FN[config.hidden_act]

    def blocks(self):
        """Every layer with experts: our anatomy of it, and the module."""
        for layer, decoder in zip(self.anatomy.layers, self.model.model.layers, strict=True):
            block = next(
                (m for m in decoder.modules() if hasattr(m, "experts") and isinstance(m.experts, torch.nn.Module)), None
            )
            if block is not None:
                yield layer, block

    @torch.no_grad()
    def output(self, experts, number, x):
        """The output of the module's own code for one token in one expert."""
        if self.family == "llama4_text":
            return experts(x.repeat(N_EXPERTS, 1))[number]
        return experts(x[None], torch.tensor([[number]]), torch.ones(1, 1))[0]

    def combine(self, weights, x):
        gate, up = weights[Role.GATE] @ x, weights[Role.UP] @ x
        if self.family == "gpt_oss":
            return weights[Role.DOWN] @ ((up + 1) * gate * torch.sigmoid(1.702 * gate))
        return weights[Role.DOWN] @ (self.act(gate) * up)


CASES = [
    (family, stacked) for family in FAMILIES for stacked in (False, True) if not (stacked and family in ALWAYS_STACKED)
]


@pytest.fixture(scope="module", params=CASES, ids=[f"{family}-{'stacked' if s else 'saved'}" for family, s in CASES])
def mixture(request, tmp_path_factory):
    family, stacked = request.param
    return Mixture(family, tmp_path_factory.mktemp("model"), stacked=stacked)


def test_gate_up_and_down_of_every_expert_make_its_output(mixture):
    x = torch.randn(WIDTH, generator=torch.Generator().manual_seed(1))
    n_checked = 0
    for layer, block in mixture.blocks():
        for number, weights in enumerate(read_experts(mixture.source, layer.experts)):
            torch.testing.assert_close(mixture.combine(weights, x), mixture.output(block.experts, number, x), **CLOSE)
            n_checked += 1
    assert n_checked >= N_EXPERTS


def test_gate_up_and_down_of_the_shared_expert_make_its_output(mixture):
    x = torch.randn(WIDTH, generator=torch.Generator().manual_seed(1))
    for layer, block in mixture.blocks():
        assert len(layer.shared_experts) == (mixture.family in SHARED)
        for weights in read_experts(mixture.source, layer.shared_experts):
            names = ("shared_expert", "shared_experts", "shared_mlp")
            shared = next(getattr(block, name) for name in names if hasattr(block, name))
            with torch.no_grad():
                torch.testing.assert_close(mixture.combine(weights, x), shared(x), **CLOSE)


def test_experts_are_stored_as_this_test_says(mixture):
    for layer, _ in mixture.blocks():
        assert all((part.expert is not None) == mixture.stacked for parts in layer.experts for part in parts.values())


def test_a_layer_with_experts_has_no_dense_mlp(mixture):
    dense = [not layer.experts for layer in mixture.anatomy.layers]
    assert dense == [Role.UP in layer.parts for layer in mixture.anatomy.layers]


def test_norms_that_start_at_zero_add_one(mixture):
    scale = mixture.model.model.norm.weight  # not trained: the norm of a new model preserves lengths
    assert mixture.anatomy.norms_add_one == bool((scale == 0).all())


# --- written without transformers


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
