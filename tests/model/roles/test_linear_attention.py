"""Linear attention by value: gate and output match the module's own, and MiniMax its arithmetic.

test_coverage.py checks the queries, keys and values of the other classes.
"""

import warnings

import pytest
import torch
from transformers.activations import ACT2FN

from mdir_hf.model.roles import Role, read_part
from tests.model.roles.tiny_causal import build_module, save_and_open

# float32 sums of a few dozen products of order 1: rounding in a different order stays far below this.
CLOSE = {"rtol": 1e-4, "atol": 1e-5}

LINEAR_FIRST = {"layer_types": ["linear_attention", "full_attention"]}
LATENT = ("kimi_linear", "bailing_hybrid")
FAMILIES = ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "olmo_hybrid", *LATENT, "minimax")
WITHOUT_GATE = ("kimi_linear",)  # its gate is a product of two narrow matrices, which has no role


class Recurrent:
    """A saved model, our anatomy of it, and the inputs and outputs of the first layer's modules."""

    def __init__(self, family, folder):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about missing kernels
            self.model = build_module(family, **(LINEAR_FIRST if family == "minimax" else {}))
        self.family, self.ours = family, save_and_open(self.model, folder)
        self.layer = self.ours.anatomy.layers[0]
        decoder = self.model.model.layers[0]
        self.module = decoder.linear_attn if hasattr(decoder, "linear_attn") else decoder.self_attn
        self.gates, self.products = [], []
        self._record()

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
        return read_part(self.ours.tensors, self.layer.parts[role])


@pytest.fixture(scope="module")
def recurrent(request, tmp_path_factory):
    return Recurrent(request.param, tmp_path_factory.mktemp("model"))


def of_families(*families):
    return pytest.mark.parametrize("recurrent", families, indirect=True, scope="module")


@of_families(*sorted(set(FAMILIES) - {"minimax"}))
def test_the_gate_is_what_the_norm_behind_the_recurrence_is_given(recurrent):
    if recurrent.family in WITHOUT_GATE:
        assert Role.MIXER_GATE not in recurrent.layer.parts
        return
    ((gate,),) = recurrent.gates
    torch.testing.assert_close(recurrent.read(Role.MIXER_GATE) @ recurrent.x, gate.reshape(-1), **CLOSE)


@of_families(*FAMILIES)
def test_the_output_projection_makes_the_output(recurrent):
    weight = recurrent.read(Role.O)
    (given,) = [x for w, x, _ in recurrent.products if w.shape == weight.shape and torch.equal(w, weight)]
    torch.testing.assert_close(weight @ given.reshape(-1), recurrent.output, **CLOSE)


@of_families("minimax")
def test_lightning_attention_of_one_token_is_its_arithmetic(recurrent):
    x, module = recurrent.x, recurrent.module
    act = ACT2FN[recurrent.model.config.hidden_act]
    n_heads = recurrent.model.config.num_attention_heads
    q, k, v = (act(recurrent.read(role) @ x).reshape(n_heads, -1) for role in (Role.Q, Role.K, Role.V))
    attended = ((q * k).sum(dim=1, keepdim=True) * v).reshape(1, 1, -1)
    with torch.no_grad():
        gated = torch.sigmoid(recurrent.read(Role.MIXER_GATE) @ x) * module.norm(attended).reshape(-1)
    torch.testing.assert_close(recurrent.read(Role.O) @ gated, recurrent.output, **CLOSE)


@of_families(*FAMILIES)
def test_both_kinds_of_layer_have_values_and_shapes_fit(recurrent):
    first, second = recurrent.ours.anatomy.layers
    for layer in (first, second):
        recurrent.ours.anatomy.check_shapes(layer, lambda name: recurrent.ours.tensors.spec(name).shape)
        assert not set(layer.missing) & {Role.Q, Role.K, Role.V, Role.O}
    assert (first.rope, second.rope) == ("none", "none" if recurrent.family in LATENT else None)
