"""Our defaults for missing config fields match transformers', without importing transformers."""

from importlib.resources import files
from pathlib import Path

import pytest
import transformers

from docs.make_class_defaults import table, text
from mdir_hf.model.roles import HeadCounts, read_sizes, resolve_anatomy
from mdir_hf.model.roles.config import TABLE, with_class_defaults

PINS = Path(__file__).parents[3] / "constraints.txt"


@pytest.mark.slow
def test_the_table_matches_the_pinned_transformers():
    if f"transformers=={transformers.__version__}" not in PINS.read_text(encoding="utf-8").split():
        pytest.skip("another version of transformers than the pinned one is installed")
    stored = files("mdir_hf.model.roles").joinpath(TABLE).read_text(encoding="utf-8")
    assert stored == text(table()), "run: python docs/make_class_defaults.py"


# Published configs, reduced to the relevant fields.
PUBLISHED = {
    "gemma-3-4b": ("gemma3", "text_config", {"hidden_size": 2560, "model_type": "gemma3_text"}, (8, 4), 256),
    "gemma-3-12b": (
        "gemma3",
        "text_config",
        {"hidden_size": 3840, "num_attention_heads": 16, "num_key_value_heads": 8},
        (16, 8),
        256,
    ),
    "llava-1.5-7b": ("llava", "text_config", {"model_type": "llama", "vocab_size": 32064}, (32, 32), 128),
    "llava-1.6-mistral": (
        "llava_next",
        "text_config",
        {"model_type": "mistral", "num_key_value_heads": 8},
        (32, 8),
        128,
    ),
    "Qwen2-Audio-7B": ("qwen2_audio", "text_config", {"model_type": "qwen2", "vocab_size": 156032}, (32, 32), 128),
    "pixtral-12b": (
        "llava",
        "text_config",
        {"model_type": "mistral", "head_dim": 128, "hidden_size": 5120, "num_key_value_heads": 8},
        (32, 8),
        128,
    ),
    "Janus-Pro-7B": (
        "multi_modality",
        "language_config",
        {"model_type": "llama", "num_hidden_layers": 30, "vocab_size": 102400},
        (32, 32),
        128,
    ),
    "without a model_type": ("llava", "text_config", {"vocab_size": 32064}, (32, 32), 128),
}


@pytest.mark.parametrize("model", PUBLISHED)
def test_missing_heads_come_from_the_class(model):
    outer, key, inner, heads, head_dim = PUBLISHED[model]
    sizes = read_sizes({"model_type": outer, key: inner})
    assert sizes.heads == HeadCounts(*heads)
    assert sizes.width_of_head == head_dim


@pytest.mark.parametrize(
    "config",
    [
        {"num_key_value_heads": None},  # as many as heads, stated and not 8
        {"n_kv_heads": 2},  # the same under another name
        {"n_heads": 30},  # not divisible by 8
    ],
)
def test_declared_values_are_not_replaced_by_defaults(config):
    assert with_class_defaults(config, "mistral").get("num_key_value_heads") is None
    assert with_class_defaults({}, "mistral")["num_key_value_heads"] == 8


def resolved(config, width):
    names = ["model.embed_tokens.weight", "model.layers.0.self_attn.q_proj.weight"]
    return resolve_anatomy(config, names, lambda name: (40, width))


def test_defaults_of_another_width_are_ignored_and_reported():
    anatomy = resolved({"model_type": "llama"}, 48)
    assert (anatomy.n_heads, anatomy.hidden_size) == (None, 48)
    assert any("48, differs from transformers' default of 4096" in note for note in anatomy.notes)
    assert any("the number of attention heads is unknown" in note for note in anatomy.notes)
    fitting = resolved({"model_type": "llama"}, 4096)
    assert (fitting.n_heads, fitting.head_dim, fitting.notes) == (32, 128, ())
