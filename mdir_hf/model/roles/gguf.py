"""Convert a GGUF header to the keys of a ``config.json``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import cast

GGUF_MARK = "norms_add_one"
"""A key in all configs converted from GGUF, but in no ``config.json``."""

MODEL_TYPES: dict[str, str] = {
    "bailingmoe": "bailing_moe",
    "bailingmoe2": "bailing_moe_v2",
    "chatglm": "glm",
    "command-r": "cohere",
    "deepseek2": "deepseek_v2",
    "deepseek2-ocr": "deepseek_v2",
    "gemma3": "gemma3_text",
    "gemma3n": "gemma3n_text",
    "gemma4": "gemma4_text",
    "gemma-embedding": "gemma3_text",
    "glm-dsa": "glm_moe_dsa",
    "glm4moe": "glm4_moe",
    "gptneox": "gpt_neox",
    "granitehybrid": "granitemoehybrid",
    "hunyuan-dense": "hunyuan_v1_dense",
    "hunyuan-moe": "hunyuan_v1_moe",
    "lfm2moe": "lfm2_moe",
    "llama-embed": "llama",
    "llama4": "llama4_text",
    "mistral3": "ministral3",
    "modern-bert": "modernbert",
    "nemotron_h_moe": "nemotron_h",
    "phi2": "phi",
    "qwen2moe": "qwen2_moe",
    "qwen2vl": "qwen2_vl",
    "qwen35": "qwen3_5_text",
    "qwen35moe": "qwen3_5_moe_text",
    "qwen3moe": "qwen3_moe",
    "qwen3next": "qwen3_next",
    "qwen3vl": "qwen3_vl_text",
    "qwen3vlmoe": "qwen3_vl_moe_text",
    "starcoder": "gpt_bigcode",
    "t5encoder": "t5",
}
"""``model_type`` in transformers, keyed by GGUF architecture, if the names differ by more than hyphens."""

_SIZES = {
    "embedding_length": "hidden_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "vocab_size": "vocab_size",
    "expert_count": "num_experts",
    "attention.kv_lora_rank": "kv_lora_rank",
    "ssm.inner_size": "ssm_inner_size",
    "ssm.state_size": "ssm_state_size",
    "ssm.group_count": "ssm_group_count",
    "ssm.time_step_rank": "ssm_time_step_rank",
}

_SIGMOID = 2
_UNROTATED_EVERY_FOURTH = frozenset({"llama4_text", "smollm3", "cohere2"})
"""Families in which every fourth layer has no positions, although the header does not say so."""

MOST_LAYERS = 100_000
"""Maximum length of lists with an entry for each layer."""


def gguf_config(metadata: Mapping[str, object]) -> dict[str, object]:
    """Convert the sizes in a GGUF header to the keys of a ``config.json``.

    Sizes that differ between layers are omitted. Norms in GGUF never multiply by ``1 + g``.
    """
    architecture = metadata.get("general.architecture")
    if not isinstance(architecture, str):
        return {GGUF_MARK: False}
    own_metadata = {
        key.removeprefix(architecture + "."): value
        for key, value in metadata.items()
        if key.startswith(architecture + ".")
    }
    config: dict[str, object] = {
        "model_type": MODEL_TYPES.get(architecture, architecture.replace("-", "_")),
        GGUF_MARK: False,
    }
    if architecture == "deepseek2" and own_metadata.get("expert_gating_func") == _SIGMOID:
        config["model_type"] = "deepseek_v3"
    for key, name in _SIZES.items():
        size = _one_size(own_metadata.get(key))
        if size is not None:
            config[name] = size
    n_layers = _one_size(own_metadata.get("decoder_block_count")) or _one_size(own_metadata.get("block_count"))
    if n_layers is not None:
        # This number includes the layers for multi-token prediction, which come last.
        n_predicted = _one_size(own_metadata.get("nextn_predict_layers")) or 0
        config["num_hidden_layers"] = max(1, n_layers - n_predicted)
        config["num_nextn_predict_layers"] = n_predicted
    tokens = metadata.get("tokenizer.ggml.tokens")
    if "vocab_size" not in config and hasattr(tokens, "__len__"):
        config["vocab_size"] = len(tokens)
    _add_heads(config, own_metadata)
    _add_rotations(config, own_metadata)
    return {key: value for key, value in config.items() if value is not None}


def _add_heads(config: dict[str, object], own_metadata: Mapping[str, object]) -> None:
    n_heads, width = config.get("num_attention_heads"), config.get("hidden_size")
    head_dim = config.get("head_dim")
    if head_dim is None and isinstance(n_heads, int) and isinstance(width, int) and width % n_heads == 0:
        head_dim = width // n_heads
    rotary_dim = _one_size(own_metadata.get("rope.dimension_count"))
    if "kv_lora_rank" in config:
        key_dim = _one_size(own_metadata.get("attention.key_length_mla")) or head_dim
        value_dim = _one_size(
            own_metadata.get("attention.value_length_mla") or own_metadata.get("attention.value_length")
        )
        config["head_dim"] = key_dim
        if isinstance(key_dim, int) and rotary_dim is not None and key_dim > rotary_dim:
            config["qk_rope_head_dim"], config["qk_nope_head_dim"] = rotary_dim, key_dim - rotary_dim
        if value_dim is None and isinstance(n_heads, int) and isinstance(width, int):
            value_dim = width // n_heads
        config["v_head_dim"] = value_dim
        config.pop("num_key_value_heads", None)  # 1, for the latent itself
    elif rotary_dim is not None:
        config["rotary_dim"] = rotary_dim
    if config["model_type"] == "mamba2" and n_heads is None:
        config["num_attention_heads"] = config.get("ssm_time_step_rank")  # a state-space mixer has its own heads
    n_value_heads, inner = config.get("ssm_time_step_rank"), config.get("ssm_inner_size")
    if isinstance(n_value_heads, int) and isinstance(inner, int) and inner % n_value_heads == 0:
        config["linear_num_key_heads"] = config.get("ssm_group_count")
        config["linear_key_head_dim"] = config.get("ssm_state_size")
        config["linear_num_value_heads"], config["linear_value_head_dim"] = n_value_heads, inner // n_value_heads


def _add_rotations(config: dict[str, object], own_metadata: Mapping[str, object]) -> None:
    n_layers, model_type = config.get("num_hidden_layers"), config["model_type"]
    if own_metadata.get("rope.scaling.finetuned") is True and model_type == "granitemoehybrid":
        config["position_embedding_type"] = "rope"
    if model_type in _UNROTATED_EVERY_FOURTH and isinstance(n_layers, int):
        config["no_rope_layers"] = [int((layer + 1) % 4 != 0) for layer in range(min(n_layers, MOST_LAYERS))]
    pattern = own_metadata.get("attention.sliding_window_pattern")
    if hasattr(pattern, "__iter__") and not isinstance(pattern, str | bytes):
        has_window = list(cast("Iterable[object]", pattern))
        config["layer_types"] = ["sliding_attention" if window else "full_attention" for window in has_window]


def _one_size(value: object) -> int | None:
    if isinstance(value, str | bytes | bool) or value is None:
        return None
    try:
        sizes = (
            {int(size) for size in cast("Iterable[int]", value)} if hasattr(value, "__iter__") else {cast("int", value)}
        )
    except (TypeError, ValueError, OverflowError):
        return None
    positive = {size for size in sizes if type(size) is int and size > 0}
    return positive.pop() if len(positive) == 1 else None
