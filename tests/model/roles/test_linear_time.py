"""Arbitrary names and configs cost time in proportion to their size, or raise an error; calls are counted."""

import re
import sys
from collections import defaultdict

import pytest

from mdir_hf.errors import AnatomyError
from mdir_hf.model.roles import Role, layer_names, read_sizes, resolve_anatomy, tables
from mdir_hf.model.roles.families import LAYER_ROWS, PRODUCT_ROWS
from mdir_hf.model.roles.layer_names import EXPERTS, is_endless, rows_of, spelled, split_at_layer

LLAMA = {"model_type": "llama", "hidden_size": 8, "num_attention_heads": 4}
EMBEDDING = "model.embed_tokens.weight"


def resolve(names, config=LLAMA):
    return resolve_anatomy(config, [EMBEDDING, *names], lambda name: (40, 8))


def n_calls(function, *arguments):
    """Number of function calls, including Python's own."""
    count = 0
    layer_names._patterns_of.cache_clear()
    layer_names.expert_of.cache_clear()

    def seen(frame, event, argument):
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(seen)
    try:
        function(*arguments)
    finally:
        sys.setprofile(None)
    return count


MANY_NAMES = {
    "layers": lambda n: [f"model.layers.{i}.mlp.up_proj.weight" for i in range(n)],
    "unknown layers": lambda n: [f"model.layers.{i}.odd_{i}.weight" for i in range(n)],
    "stacks": lambda n: [f"model.s{i}.0.mlp.up_proj.weight" for i in range(n)],
    "unknown tensors of one layer": lambda n: [f"model.layers.0.odd_{i}.weight" for i in range(n)],
    "tensors that others ask to be beside": lambda n: [f"model.layers.0.attention.self.{i}x" for i in range(n)],
    "tensors outside of layers": lambda n: [f"model.odd_{i}.weight" for i in range(n)],
    "experts": lambda n: [f"model.layers.0.mlp.experts.{i}.gate_proj.weight" for i in range(n)],
    "experts of many layers": lambda n: [f"model.layers.{i}.mlp.experts.7.gate_proj.weight" for i in range(n)],
}


@pytest.mark.parametrize("kind", MANY_NAMES)
def test_the_work_grows_as_the_number_of_names(kind):
    names = MANY_NAMES[kind]
    resolve(names(3))  # build the tables
    assert n_calls(resolve, names(1600)) < 5 * n_calls(resolve, names(400))


@pytest.mark.parametrize("key", ["layer_types", "no_rope_layers", "num_kv_heads", "block_configs"])
def test_a_configs_list_is_read_up_to_the_layers_of_models(key, monkeypatch):
    monkeypatch.setattr(tables, "MOST_LAYERS", 50)
    entry = {"layer_types": "sliding_attention", "no_rope_layers": 0, "num_kv_heads": 2, "block_configs": {}}[key]
    sizes = LLAMA | {"model_type": "mimo_v2_flash", "swa_num_attention_heads": 4, "swa_num_key_value_heads": 1}
    long, longer = (sizes | {key: [entry] * n} for n in (1000, 4000))
    assert n_calls(read_sizes, longer) < 2 * n_calls(read_sizes, long)


@pytest.mark.parametrize(
    ("names", "config", "said"),
    [
        (
            [f"model.layers.{i}.mlp.experts.9999.gate_proj.weight" for i in range(2000)],
            LLAMA | {"model_type": "qwen3_moe"},
            "110000 experts, according to names and config",
        ),
        (
            [f"model.layers.{i}.mlp.experts.{which}_proj" for i in range(2000) for which in ("gate_up", "down")],
            LLAMA | {"model_type": "qwen3_moe", "num_experts": 10_000},
            "more than 100000 in all layers are treated as an error",
        ),
        (
            [f"model.layers.{i}.mlp.up_proj.weight" for i in range(10_001)],
            LLAMA,
            "more than 10000 layers under 'model.layers'",
        ),
    ],
)
def test_more_than_any_model_has_is_refused_naming_the_limit(names, config, said):
    with pytest.raises(AnatomyError, match=re.escape(said)):
        resolve(names, config)


def test_only_the_largest_of_many_stacks_are_read(monkeypatch):
    monkeypatch.setattr(tables, "MOST_STACKS", 3)
    small = [f"s{i}.0.mlp.up_proj.weight" for i in range(50)]
    large = [f"t.0.odd_{i}.weight" for i in range(4)]
    own = [f"own.0.self_attn.{which}_proj.weight" for which in "qkv"]
    names = resolve_anatomy(LLAMA, ["embed_tokens.weight", *small, *large, *own], lambda name: (8, 8)).layers
    assert {part.tensor for part in names[0].parts.values()} == {*own}


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("model.layers.3.mlp.up_proj.weight", ("model.layers", 3, "mlp.up_proj.weight")),
        ("3.weight", ("", 3, "weight")),
        ("h.0.attn.7.weight", ("h", 0, "attn.7.weight")),
        ("h.1000000.attn.7.weight", ("h.1000000.attn", 7, "weight")),  # too long for a layer's number
        ("h.07.attn.weight", None),  # ambiguous with 7
        ("h.\u0663.attn.weight", None),
        ("h.3", None),
        ("h.3.", None),
        (".3.weight", None),
        ("", None),
        ("3.", None),
        (".3.5.weight", (".3", 5, "weight")),
        ("a..3.weight", ("a.", 3, "weight")),
        ("0.7.weight", ("", 0, "7.weight")),
        ("a.-3.\n.4.\n", ("a.-3.\n", 4, "\n")),
    ],
)
def test_a_name_is_split_at_its_first_number(name, found):
    assert split_at_layer(name) == found


@pytest.mark.parametrize("name", ["1" * 7 + ".", "a.", "07.", "."])
def test_a_long_name_without_a_layer_is_read_once(name):
    short, long = name * 500, name * 2000
    assert split_at_layer(long) is None
    assert n_calls(split_at_layer, long) < 5 * n_calls(split_at_layer, short)


PATTERNS = {
    pattern
    for found in (
        *((row.pattern, row.beside, row.unless_beside) for row in LAYER_ROWS),
        *((row.left, row.right, row.gain) for row in PRODUCT_ROWS),
    )
    for pattern in found
    if pattern is not None
}


def test_a_pattern_matches_the_names_that_it_spells():
    names_of = {pattern: spelled(pattern) for pattern in PATTERNS if not is_endless(pattern)}
    beside = defaultdict(set)
    for name in (name for names in names_of.values() for name in names):
        beside[name.rpartition(".")[0]].add(name)
    for pattern, names in names_of.items():
        assert names and all(re.fullmatch(pattern, name) for name in names), pattern
        # No match is missed: a name with one word changed to another pattern's word is spelled if it matches.
        others = {other for one in names for other in beside[one.rpartition(".")[0]]}
        assert {name for name in others if re.fullmatch(pattern, name)} <= names, pattern


def test_patterns_hold_only_the_numbers_of_experts():
    names = {name for pattern in PATTERNS if not is_endless(pattern) for name in spelled(pattern)}
    assert {word for name in names for word in name.split(".") if word.isdigit()} == set(EXPERTS)


def test_the_number_of_an_expert_does_not_change_what_it_is():
    few, many = (
        resolve([f"model.layers.0.mlp.experts.{i}.gate_proj.weight" for i in range(n)], {}).layers[0].experts
        for n in (2, 60)
    )
    assert [part[Role.GATE].tensor.split(".")[5] for part in many] == [str(i) for i in range(60)]
    assert few == many[:2]
    assert not rows_of("mlp.experts.12345.gate_proj.weight")
