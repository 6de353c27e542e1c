"""The check of roles by value must detect every wrong role."""

from dataclasses import replace

import pytest

from mdir_hf.model.roles import FusedRows, Role, WeightPart
from tests.model.roles.judgement import judge
from tests.model.roles.tiny_causal import build


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    made = {}

    def of(model_type):
        if model_type not in made:
            made[model_type] = build(model_type, tmp_path_factory.mktemp("model"))
        return made[model_type]

    return of


def judged(saved, *, in_layer=None, in_anatomy=None):
    """Judge a model whose first layer or anatomy is changed."""
    anatomy = saved.ours.anatomy
    if in_layer is not None:
        anatomy = replace(anatomy, layers=(in_layer(anatomy.layers[0]), *anatomy.layers[1:]))
    return judge(replace(anatomy, **(in_anatomy or {})), saved.ours.tensors, saved.record)


def exchanged(first, second):
    return lambda layer: replace(layer, parts={**layer.parts, first: layer.parts[second], second: layer.parts[first]})


def relaid(role, layout):
    return lambda layer: replace(layer, parts={**layer.parts, role: replace(layer.parts[role], layout=layout)})


@pytest.mark.parametrize("model_type", ["llama", "gpt_neox"])
@pytest.mark.parametrize(
    ("first", "second"),
    [(Role.Q, Role.K), (Role.K, Role.V), (Role.Q, Role.V), (Role.ATTENTION_NORM, Role.MLP_NORM)],
)
def test_roles_that_are_exchanged_are_wrong(saved, model_type, first, second):
    assert judged(saved(model_type), in_layer=exchanged(first, second)).wrong


def test_gate_and_up_that_are_exchanged_are_wrong(saved):
    assert judged(saved("llama"), in_layer=exchanged(Role.GATE, Role.UP)).wrong


def test_norms_of_q_and_k_that_are_exchanged_are_wrong(saved):
    assert judged(saved("qwen3"), in_layer=exchanged(Role.Q_NORM, Role.K_NORM)).wrong


@pytest.mark.parametrize("role", [Role.Q, Role.K, Role.V])
def test_a_part_of_another_layout_is_wrong(saved, role):
    at = ("q", "k", "v").index(role.value)
    assert judged(saved("gpt_neox"), in_layer=relaid(role, FusedRows(1, (1, 1, 1), at))).wrong


@pytest.mark.parametrize("role", [Role.O, Role.DOWN])
def test_an_output_side_of_another_layer_is_wrong(saved, role):
    model = saved("llama")
    other = model.ours.anatomy.layers[1].parts[role]
    assert judged(model, in_layer=lambda layer: replace(layer, parts={**layer.parts, role: other})).wrong


def test_experts_with_exchanged_gate_and_up_are_wrong(saved):
    def swapped(layer):
        experts = tuple({**parts, Role.GATE: parts[Role.UP], Role.UP: parts[Role.GATE]} for parts in layer.experts)
        return replace(layer, experts=experts)

    assert len(judged(saved("mixtral"), in_layer=swapped).wrong) == 4


def test_a_latent_that_is_no_factor_of_v_is_wrong(saved):
    model = saved("deepseek_v3")
    factor = model.ours.anatomy.layers[0].parts[Role.V].left

    def relabelled(layer):
        return replace(layer, parts={**layer.parts, Role.KV_LATENT: factor})

    assert any("kv_latent" in sentence for sentence in judged(model, in_layer=relabelled).wrong)


def test_latent_queries_with_their_rotated_rows_are_wrong(saved):
    def with_all_rows(layer):
        query = layer.parts[Role.Q]
        return replace(layer, parts={**layer.parts, Role.Q: replace(query, left=WeightPart(query.left.tensor))})

    model = saved("deepseek_v3")
    assert any("other rows than k" in sentence for sentence in judged(model, in_layer=with_all_rows).wrong)


def test_layers_in_another_order_are_wrong(saved):
    model = saved("llama")
    layers = tuple(reversed(model.ours.anatomy.layers))
    assert judged(model, in_anatomy={"layers": layers}).wrong == ["attentions of the layers come in the order [1, 0]"]


def test_norms_that_add_one_are_distinguished_from_others(saved):
    assert judged(saved("llama"), in_anatomy={"norms_add_one": True}).wrong
    assert judged(saved("gemma2"), in_anatomy={"norms_add_one": False}).wrong


@pytest.mark.parametrize("heads", [{"n_heads": 2}, {"n_kv_heads": 4}])
def test_another_number_of_heads_is_wrong(saved, heads):
    assert judged(saved("llama"), in_anatomy=heads).wrong


def test_unplaced_weights_are_a_gap(saved):
    def without(*roles):
        return lambda layer: replace(layer, parts={r: p for r, p in layer.parts.items() if r not in roles})

    model = saved("llama")
    assert judged(model, in_layer=without(Role.UP)).gaps == ["layer 0: of the MLP only gate, down"]
    assert judged(model, in_layer=without(Role.MLP_NORM)).gaps == [
        "layer 0: the norm in front is not placed as mlp_norm"
    ]
    assert judged(model, in_layer=without(Role.Q, Role.K, Role.V)).n_attention == (2, 1)


def test_a_transposed_weight_is_wrong(saved):
    def turned(layer):
        part = layer.parts[Role.O]
        return replace(layer, parts={**layer.parts, Role.O: WeightPart(part.tensor)})

    assert judged(saved("gpt2"), in_layer=turned).wrong
