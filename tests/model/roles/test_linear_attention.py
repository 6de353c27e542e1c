"""Linear attention by value: gate and output match the module's own, and MiniMax its arithmetic.

test_coverage.py checks the queries, keys and values of the other classes.
"""

import warnings

import pytest
import torch
import transformers
from transformers.activations import ACT2FN

from mdir_hf.model.files import open_checkpoint
from mdir_hf.model.roles import Role, read_config, read_part, resolve_anatomy
from tests.conformance_tensors import MemoryTree

# float32 sums of a few dozen products of order 1: rounding in a different order stays far below this.
CLOSE = {"rtol": 1e-4, "atol": 1e-6}

WIDTH = 24
SIZES = {
    "vocab_size": 40,
    "hidden_size": WIDTH,
    "intermediate_size": 36,
    "moe_intermediate_size": 20,
    "shared_expert_intermediate_size": 20,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 6,
    "num_experts": 3,
    "n_routed_experts": 3,
    "num_local_experts": 3,
    "num_experts_per_tok": 2,
    "num_experts_per_token": 2,
    "num_expert_group": 1,
    "n_group": 1,
    "topk_group": 1,
    "layer_types": ["linear_attention", "full_attention"],
    "initializer_range": 0.2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GROUPED = {  # two value heads share a key head
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 5,
    "linear_value_head_dim": 7,
}
LATENT = {"kv_lora_rank": 8, "q_lora_rank": None, "qk_rope_head_dim": 4, "qk_nope_head_dim": 6, "v_head_dim": 5}
FAMILIES = {
    "qwen3_next": GROUPED,
    "qwen3_5_text": GROUPED,
    "qwen3_5_moe_text": GROUPED,
    "olmo_hybrid": GROUPED | {"num_key_value_heads": 4},
    "kimi_linear": LATENT | {"num_key_value_heads": 4, "linear_num_heads": 3, "linear_head_dim": 5},
    "bailing_hybrid": LATENT | {"num_key_value_heads": 4, "head_dim": 5},
    "minimax": {},
}
WITHOUT_GATE = {"kimi_linear"}  # its gate is a product of two narrow matrices, which has no role


class Recurrent:
    """A saved model, our anatomy of it, and the inputs and outputs of the first layer's modules."""

    def __init__(self, family, folder):
        torch.manual_seed(0)
        keys = transformers.CONFIG_MAPPING[family]().to_dict()
        chosen = {key: value for key, value in SIZES.items() if key in keys} | FAMILIES[family]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about generation settings of a handmade config
            config = transformers.CONFIG_MAPPING[family](**chosen)
            self.model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
            self.model.save_pretrained(folder)
        self.family = family
        tree = MemoryTree.from_folder(folder)
        self.source = open_checkpoint(tree)
        self.anatomy = resolve_anatomy(read_config(tree.read("config.json")), self.source.names(), self.shape_of)
        self.layer = self.anatomy.layers[0]
        decoder = self.model.model.layers[0]
        self.module = decoder.linear_attn if hasattr(decoder, "linear_attn") else decoder.self_attn
        self.gates, self.products = [], []
        self._record()

    def shape_of(self, name):
        return self.source.spec(name).shape

    def _record(self):
        def store(module, args, kwargs, output):
            self.x = (args[0] if args else kwargs["hidden_states"]).reshape(-1)
            self.output = (output if isinstance(output, torch.Tensor) else output[0]).reshape(-1)

        self.module.register_forward_hook(store, with_kwargs=True)
        for child in self.module.children():
            if isinstance(child, torch.nn.Linear):
                child.register_forward_hook(lambda m, args, out: self.products.append((m.weight, args[0], out)))
            elif "norm" in type(child).__name__.lower():
                child.register_forward_pre_hook(lambda _, args: self.gates.append(args[1:]))
        with torch.no_grad():
            self.model(torch.tensor([[5]]))

    def read(self, role):
        return read_part(self.source, self.layer.parts[role])


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return {}


@pytest.fixture(params=FAMILIES)
def recurrent(request, made, tmp_path_factory):
    if request.param not in made:
        made[request.param] = Recurrent(request.param, tmp_path_factory.mktemp("model"))
    return made[request.param]


with_delta_rule = pytest.mark.parametrize("recurrent", sorted(set(FAMILIES) - {"minimax"}), indirect=True)


@with_delta_rule
def test_the_gate_is_what_the_norm_behind_the_recurrence_is_given(recurrent):
    if recurrent.family in WITHOUT_GATE:
        assert Role.MIXER_GATE not in recurrent.layer.parts
        return
    ((gate,),) = recurrent.gates
    torch.testing.assert_close(recurrent.read(Role.MIXER_GATE) @ recurrent.x, gate.reshape(-1), **CLOSE)


def test_the_output_projection_makes_the_output(recurrent):
    weight = recurrent.read(Role.O)
    (given,) = [x for w, x, _ in recurrent.products if w.shape == weight.shape and torch.equal(w, weight)]
    torch.testing.assert_close(weight @ given.reshape(-1), recurrent.output, **CLOSE)


@pytest.mark.parametrize("recurrent", ["minimax"], indirect=True)
def test_lightning_attention_of_one_token_is_its_arithmetic(recurrent):
    x, module = recurrent.x, recurrent.module
    act = ACT2FN[recurrent.model.config.hidden_act]
    q, k, v = (act(recurrent.read(role) @ x).reshape(4, 6) for role in (Role.Q, Role.K, Role.V))
    attended = ((q * k).sum(dim=1, keepdim=True) * v).reshape(1, 1, -1)
    with torch.no_grad():
        gated = torch.sigmoid(recurrent.read(Role.MIXER_GATE) @ x) * module.norm(attended).reshape(-1)
    torch.testing.assert_close(recurrent.read(Role.O) @ gated, recurrent.output, **CLOSE)


def test_both_kinds_of_layer_have_values_and_shapes_fit(recurrent):
    for layer in recurrent.anatomy.layers:
        recurrent.anatomy.check_shapes(layer, recurrent.shape_of)
        assert not set(layer.missing) & {Role.Q, Role.K, Role.V, Role.O}
    assert recurrent.layer.rope == "none"
    assert recurrent.anatomy.layers[1].rope == ("none" if "kv_lora_rank" in FAMILIES[recurrent.family] else None)
