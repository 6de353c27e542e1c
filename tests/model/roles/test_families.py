"""Roles by value and by arithmetic: each weight that we read does in the model what we say it does."""

import pytest
import torch
from transformers.activations import ACT2FN

from mdir_hf.model.roles import Role, read_part
from tests.model.roles.tiny_models import FAMILIES, TinyModel, build

# float32, sums of a few dozen products of order 1: rounding in another order stays far below this.
CLOSE = {"rtol": 1e-4, "atol": 1e-6}

NORMED_QK = {"qwen3", "qwen3_5_text", "gemma3_text", "olmo2"}  # q and k pass a norm before attention sees them
ATTENTION = (Role.Q, Role.K, Role.V, Role.O)
MLP_WITHOUT_GATE = {"gpt2", "openai-gpt", "gpt_neox"}


@pytest.fixture(scope="module", params=FAMILIES)
def tiny(request, tmp_path_factory) -> TinyModel:
    return build(request.param, tmp_path_factory.mktemp("model"))


def layers(tiny):
    return zip(tiny.anatomy.layers, tiny.layers, strict=True)


def test_architecture_and_sizes_are_those_of_the_config(tiny):
    anatomy = tiny.anatomy
    assert anatomy.architecture == tiny.family
    assert (anatomy.hidden_size, anatomy.embedding_size) == (24, 24)
    assert (anatomy.vocabulary_size, anatomy.n_layers, anatomy.n_heads) == (40, 2, 4)
    assert anatomy.n_kv_heads == tiny.config.get("num_key_value_heads", 4)
    assert anatomy.head_dim == tiny.config.get("head_dim", 6)


def test_the_embedding_is_the_modules_own(tiny):
    assert torch.equal(read_part(tiny.source, tiny.anatomy.embedding), tiny.model.get_input_embeddings().weight)


def test_the_unembedding_is_the_modules_own_or_tied(tiny):
    head = tiny.model.get_output_embeddings().weight
    if tiny.anatomy.tied:
        assert tiny.anatomy.unembedding is None
        assert head is tiny.model.get_input_embeddings().weight
    else:
        assert torch.equal(read_part(tiny.source, tiny.anatomy.unembedding), head)


def test_nothing_is_missing_or_misshapen(tiny):
    for layer in tiny.anatomy.layers:
        assert layer.missing == ()
        assert (Role.GATE in layer.parts) == (tiny.family not in MLP_WITHOUT_GATE)
        tiny.anatomy.check_shapes(layer, lambda name: tiny.source.spec(name).shape)


def test_nothing_but_norms_stays_unplaced(tiny):
    assert all("norm" in name or "ln_" in name for name in tiny.anatomy.unplaced)


@pytest.mark.parametrize("role", [Role.Q, Role.K, Role.V])
def test_queries_keys_and_values_are_what_attention_was_given(tiny, role):
    for layer, record in layers(tiny):
        got = read_part(tiny.source, layer.parts[role]) @ record.attention_input
        seen = getattr(record, role.value)
        if role is not Role.V and tiny.family in NORMED_QK:
            assert_same_but_for_norm(tiny, layer, role, got, seen)
        else:
            torch.testing.assert_close(got, seen, **CLOSE)


def assert_same_but_for_norm(tiny, layer, role, before, after):
    (name,) = [n for n, _ in tiny.model.named_parameters() if f".{layer.index}." in n and f"{role.value}_norm" in n]
    assert layer.parts[Role(f"{role.value}_norm")].tensor == name
    # Apart from its scale (Gemma's and Qwen3.5's is 1 + weight), the norm divides each head, or all, by one number.
    scale = tiny.parameter(name) + (1 if tiny.family in ("gemma3_text", "qwen3_5_text") else 0)
    heads = (-1, tiny.anatomy.head_dim)
    ratio = after.reshape(heads) / (before.reshape(heads) * scale.reshape(heads))
    torch.testing.assert_close(ratio, ratio[:, :1].expand_as(ratio), rtol=1e-3, atol=0)


def test_the_output_projection_makes_the_output_of_attention(tiny):
    for layer, record in layers(tiny):
        heads = record.heads
        if tiny.family == "qwen3_5_text":  # an output gate, beside each query head, multiplies what attention returns
            fused = tiny.parameter(layer.parts[Role.Q].tensor).reshape(4, 2, 8, 24)
            heads = heads * torch.sigmoid(fused[:, 1].reshape(-1, 24) @ record.attention_input)
        got = read_part(tiny.source, layer.parts[Role.O]) @ heads
        torch.testing.assert_close(got, record.attention_output, **CLOSE)


def test_gate_up_and_down_make_the_output_of_the_mlp(tiny):
    names = ("hidden_activation", "hidden_act", "activation_function", "afn")
    act = ACT2FN[next(tiny.config[name] for name in names if tiny.config.get(name))]
    for layer, record in layers(tiny):
        up = read_part(tiny.source, layer.parts[Role.UP]) @ record.mlp_input
        if Role.GATE in layer.parts:
            inner = act(read_part(tiny.source, layer.parts[Role.GATE]) @ record.mlp_input) * up
        else:
            inner = act(up)
        torch.testing.assert_close(read_part(tiny.source, layer.parts[Role.DOWN]) @ inner, record.mlp_output, **CLOSE)


@pytest.mark.parametrize(("role", "side"), [(Role.ATTENTION_NORM, "attention_input"), (Role.MLP_NORM, "mlp_input")])
def test_a_norm_is_the_one_whose_output_is_read(tiny, role, side):
    for layer, record in layers(tiny):
        feeding = [name for name, _, output in record.norms if torch.equal(output, getattr(record, side))]
        placed = layer.parts.get(role)
        if tiny.family == "openai-gpt":  # its norms stand behind the sums; none of them can be folded
            assert placed is None
        else:
            assert ([placed.tensor] if placed else []) == feeding


def test_the_final_norm_is_the_one_in_front_of_the_head(tiny):
    feeding = [name for name, _, output in tiny.final_norm if torch.equal(output, tiny.head_input)]
    placed = tiny.anatomy.final_norm
    assert ([placed.tensor] if placed else []) == feeding
