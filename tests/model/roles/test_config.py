import pytest

from mdir_hf.errors import AnatomyError
from mdir_hf.model.roles import HeadCounts, language_config, read_config, read_sizes


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
def test_a_size_that_is_no_size_is_refused(value):
    with pytest.raises(AnatomyError, match=r"the config says hidden_size = .*; expected a positive integer"):
        read_sizes({"hidden_size": value})


def test_without_grouping_every_head_has_its_own_keys():
    assert read_sizes({"num_attention_heads": 4}).heads == HeadCounts(4, 4)
    assert read_sizes({"num_attention_heads": 4, "num_key_value_heads": 1}).heads == HeadCounts(4, 1)
    assert read_sizes({}).heads is None
