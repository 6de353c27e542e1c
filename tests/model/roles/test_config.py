import pytest

from mdir_hf.errors import AnatomyError
from mdir_hf.model.roles import HeadCounts, Role, language_config, read_config, read_sizes, resolve_anatomy
from tests.model.roles.judgement import judge
from tests.model.roles.tiny_causal import build


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not JSON"),
        (b"<html>", "not JSON"),
        (b'{"hidden_size": 8', "not JSON"),
        (b"\xff\xfe{}", "not JSON"),
        (b"[]", "is a JSON list; expected an object"),
        (b'"llama"', "is a JSON str; expected an object"),
        (b"null", "is a JSON NoneType"),
        (b'{"a":' * 100_000, "nested too deeply"),
        (b'{"hidden_size": ' + b"9" * 5000 + b"}", "not JSON"),
    ],
)
def test_an_invalid_config_is_refused(data, message):
    with pytest.raises(AnatomyError, match=message) as caught:
        read_config(data, label="org/model@1:config.json")
    assert caught.value.subject == "org/model@1:config.json"


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "gemma3", "text_config": {"model_type": "inner"}},
        {"model_type": "internvl", "llm_config": {"model_type": "inner"}},
        {"model_type": "deepseek_vl", "language_config": {"model_type": "inner"}},
        {"model_type": "qwen2_5_omni", "thinker_config": {"text_config": {"model_type": "inner"}}},
        {"model_type": "inner"},
        {"model_type": "inner", "text_config": None},
        {"model_type": "inner", "text_config": {}},
    ],
)
def test_the_language_model_is_found_inside_a_larger_config(config):
    assert language_config(config)["model_type"] == "inner"


def test_fields_missing_in_the_inner_config_come_from_the_outer_one():
    sizes = read_sizes({"model_type": "outer", "tie_word_embeddings": True, "text_config": {"hidden_size": 8}})
    assert (sizes.architecture, sizes.hidden_size, sizes.ties_embeddings) == ("outer", 8, True)


@pytest.mark.parametrize(
    ("config", "attribute", "value"),
    [
        ({"n_embd": 8}, "hidden_size", 8),
        ({"d_model": 8}, "hidden_size", 8),
        ({"dim": 8, "hidden_dim": 32}, "hidden_size", 8),
        ({"word_embed_proj_dim": 4}, "embedding_size", 4),
        ({"n_layer": 3}, "n_layers", 3),
        ({"n_head": 2}, "n_heads", 2),
        ({"num_kv_heads": 1}, "n_kv_heads", 1),
        ({"kv_channels": 16}, "head_dim", 16),
        ({"padded_vocab_size": 99}, "vocabulary_size", 99),
        ({"hidden_size": None, "n_embd": 8}, "hidden_size", 8),
        ({"num_key_value_heads": [1, 2, 4]}, "n_kv_heads", None),
        ({}, "hidden_size", None),
    ],
)
def test_sizes_are_read_under_the_names_of_each_family(config, attribute, value):
    assert getattr(read_sizes(config), attribute) == value


@pytest.mark.parametrize("value", ["8", 8.0, 0, -1, True, {}])
def test_an_invalid_size_is_refused(value):
    with pytest.raises(AnatomyError, match=r"the config says hidden_size = .*; expected a positive integer"):
        read_sizes({"hidden_size": value})


def test_without_grouping_every_head_has_its_own_keys():
    assert read_sizes({"num_attention_heads": 4}).heads == HeadCounts(4, 4)
    assert read_sizes({"num_attention_heads": 4, "num_key_value_heads": 1}).heads == HeadCounts(4, 1)
    assert read_sizes({}).heads is None


# --- different heads in different layers: by lists, by blocks, by layer type, by configs of layers


LLAMA = {"model_type": "llama", "num_attention_heads": 8, "num_key_value_heads": 4}


def heads_of(config, n_layers=3):
    sizes = read_sizes(config)
    counts = [sizes.heads_of(index) for index in range(n_layers)]
    return [None if heads is None else (heads.n_heads, heads.n_kv_heads) for heads in counts]


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (LLAMA, [(8, 4), (8, 4), (8, 4)]),
        # DeciLM 7B
        (LLAMA | {"num_key_value_heads_per_layer": [4, 2, 1]}, [(8, 4), (8, 2), (8, 1)]),
        # Laguna
        (LLAMA | {"num_attention_heads_per_layer": [8, 4, 8]}, [(8, 4), (4, 4), (8, 4)]),
        # OpenELM
        (
            {"model_type": "openelm", "num_query_heads": [12, 16, 20], "num_kv_heads": [3, 4, 5]},
            [(12, 3), (16, 4), (20, 5)],
        ),
        # Nemotron-51B and other pruned models like DeciLM: blocks, some of them without attention
        (
            LLAMA
            | {
                "num_key_value_heads": None,
                "block_configs": [
                    {"attention": {"n_heads_in_group": 8}},
                    {"attention": {"n_heads_in_group": None, "no_op": True}},
                    {"attention": {"n_heads_in_group": 2}},
                ],
            },
            [(8, 1), (8, 8), (8, 4)],
        ),
        (
            LLAMA | {"swa_num_key_value_heads": 2, "swa_num_attention_heads": 4, "layer_types": ["sliding_attention"]},
            [(4, 2), (8, 4), (8, 4)],
        ),
        (LLAMA | {"layer_types": ["sliding_attention"]}, [(8, 4), (8, 4), (8, 4)]),
        (LLAMA | {"model_type": "mimo_v2_flash", "layer_types": ["sliding_attention"]}, [(8, 8), (8, 4), (8, 4)]),
        (LLAMA | {"per_layer_config": {"1": {"num_key_value_heads": 2, "head_dim": 4}}}, [(8, 4), (8, 2), (8, 4)]),
        (LLAMA | {"per_layer_config": {"1": {"head_dim": 4}}}, [(8, 4), (8, 4), (8, 4)]),
        ({"model_type": "x"}, [None, None, None]),
    ],
)
def test_heads_of_single_layers(config, expected):
    assert heads_of(config) == expected


@pytest.mark.parametrize(
    "more",
    [
        {"num_key_value_heads_per_layer": [0, -1, "4"]},
        {"per_layer_config": {"²": {"num_key_value_heads": 2}, "1": {"num_key_value_heads": "²"}}},
        {"per_layer_config": {"9" * 5000: {"num_key_value_heads": 2}, "1": {"num_key_value_heads": "9" * 5000}}},
        {"num_key_value_heads_per_layer": "442"},
        {"block_configs": [3, None, {"attention": []}]},
        {"block_configs": {"attention": {"n_heads_in_group": 8}}},
        {"per_layer_config": {"first": {"num_key_value_heads": 2}, "1": None, "2": {"num_key_value_heads": 1.5}}},
        {"per_layer_config": [1]},
        {"layer_types": "sliding_attention"},
    ],
)
def test_invalid_counts_are_ignored(more):
    assert heads_of(LLAMA | more) == [(8, 4), (8, 4), (8, 4)]


def test_a_fused_tensor_is_cut_by_the_heads_of_its_layer():
    config = {
        "model_type": "openelm",
        "model_dim": 6,
        "num_transformer_layers": 2,
        "head_dim": 2,
        "num_query_heads": [2, 4],
        "num_kv_heads": [1, 2],
    }
    names = [
        "transformer.token_embeddings.weight",
        *(f"transformer.layers.{index}.attn.qkv_proj.weight" for index in (0, 1)),
    ]
    anatomy = resolve_anatomy(config, names, lambda name: (10, 6))
    for layer, n_heads, n_kv_heads in zip(anatomy.layers, (2, 4), (1, 2), strict=True):
        n_rows = 2 * (n_heads + 2 * n_kv_heads)
        rows = [layer.parts[role].rows((n_rows, 6)).tolist() for role in (Role.Q, Role.K, Role.V)]
        assert [len(own) for own in rows] == [2 * n_heads, 2 * n_kv_heads, 2 * n_kv_heads]
        assert [*rows[0], *rows[1], *rows[2]] == list(range(n_rows))
        assert (layer.heads.n_heads, layer.heads.n_kv_heads) == (n_heads, n_kv_heads)


@pytest.mark.parametrize(
    ("model_type", "more", "expected"),
    [
        ("laguna", {"num_attention_heads_per_layer": [4, 2]}, [None, (2, 2)]),
        ("mimo_v2_flash", {}, [None, (4, 4)]),
        ("inkling2_text", {"swa_num_attention_heads": 8, "swa_num_key_value_heads": 4}, [(8, 4), (8, 4)]),
        ("gemma4_text", {"per_layer_config": {1: {"num_key_value_heads": 4, "head_dim": 16}}}, [None, (4, 4)]),
    ],
)
def test_heads_of_layers_are_those_that_attention_sees(tmp_path, model_type, more, expected):
    saved = build(model_type, tmp_path, **more)
    heads = [layer.heads for layer in saved.ours.anatomy.layers]
    assert [None if own is None else (own.n_heads, own.n_kv_heads) for own in heads] == expected
    found = judge(saved.ours.anatomy, saved.ours.tensors, saved.record)
    assert not [sentence for sentence in found.wrong if "heads" in sentence]
