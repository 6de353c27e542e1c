"""A tiny config for every causal model of transformers: a table of sizes, and settings for single families."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import transformers
from transformers import CONFIG_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING

WIDTH, N_LAYERS, N_HEADS, N_KV_HEADS, HEAD_DIM, N_NEURONS, N_EXPERTS = 64, 2, 4, 2, 32, 96, 4
VOCABULARY = 2048
"""Enough rows for a verdict at 1e-10 with this width."""

_SAME: tuple[tuple[int, tuple[str, ...]], ...] = (
    (
        WIDTH,
        (
            "hidden_size",
            "d_model",
            "n_embd",
            "emb_dim",
            "word_embed_proj_dim",
            "lru_width",
            "hidden_size_global",
        ),
    ),
    (
        N_LAYERS,
        (
            *("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers", "encoder_layers"),
            *("num_decoder_layers", "num_encoder_layers"),
        ),
    ),
    (
        N_HEADS,
        (
            *("num_attention_heads", "n_head", "n_heads", "num_heads", "decoder_attention_heads", "index_n_heads"),
            *(
                "encoder_attention_heads",
                "attention_heads",
                "num_decoder_attention_heads",
                "num_encoder_attention_heads",
            ),
            *("swa_num_attention_heads", "linear_num_heads", "linear_num_value_heads"),
        ),
    ),
    (
        N_KV_HEADS,
        ("num_key_value_heads", "num_kv_heads", "swa_num_key_value_heads", "linear_num_key_heads", "kv_n_heads"),
    ),
    (HEAD_DIM, ("head_dim", "swa_head_dim", "kv_channels", "attention_head_dim", "index_head_dim", "linear_head_dim")),
    (
        N_NEURONS,
        (
            *(
                "intermediate_size",
                "ffn_dim",
                "decoder_ffn_dim",
                "encoder_ffn_dim",
                "n_inner",
                "ffn_hidden_size",
                "d_ff",
            ),
            *(
                "dim_ff",
                "dff",
                "mlp_dim",
                "d_inner",
                "feed_forward_size",
                "intermediate_size_mlp",
                "dense_intermediate_size",
            ),
        ),
    ),
    (72, ("moe_intermediate_size", "expert_ffn_hidden_size")),
    (80, ("shared_expert_intermediate_size", "shared_intermediate_size", "moe_shared_expert_intermediate_size")),
    # The router chooses every expert, so that each appears in a forward pass.
    (
        N_EXPERTS,
        (
            *("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts", "num_experts_per_tok"),
            *("num_experts_per_token", "moe_top_k", "moe_topk", "moe_k", "top_k_experts"),
        ),
    ),
    (2, ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts", "conv_kernel", "eos_token_id")),
    (1, ("n_group", "topk_group", "num_expert_group", "bos_token_id", "first_k_dense_replace", "num_dense_layers")),
    (0, ("pad_token_id", "num_nextn_predict_layers")),
    (VOCABULARY, ("vocab_size", "vocab_size_per_layer_input", "decoder_vocab_size")),
    (8, ("kv_lora_rank", "q_lora_rank", "qk_rope_head_dim", "gated_norm_rank")),
    (16, ("qk_nope_head_dim", "v_head_dim", "linear_key_head_dim", "linear_value_head_dim")),
    (64, ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "sliding_window", "window_size")),
)
SIZES: dict[str, object] = {key: size for size, keys in _SAME for key in keys} | {"initializer_range": 0.1}

_HYBRID = {"layer_types": ["linear_attention", "full_attention"]}
_LATENT = {"num_key_value_heads": N_HEADS, "head_dim": ...}
"""Latent attention: a head is as wide as its two halves, and the config derives what ``head_dim`` means."""
_HYBRID_TEXT = {"text_config": _HYBRID}
_NO_PER_LAYER_INPUT = {"hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0}
_OF_ASSISTANT = {"num_hidden_layers": N_LAYERS, "num_kv_shared_layers": 0}

MORE: dict[str, dict[str, object]] = {
    **dict.fromkeys(
        (
            *("axk1", "axk2", "deepseek_v2", "deepseek_v3", "deepseek_v32", "glm4_moe_lite", "glm_moe_dsa"),
            *("longcat_flash", "minicpm3", "youtu", "hy_v4", "dots3_note_text"),
        ),
        _LATENT,
    ),
    **dict.fromkeys(("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "olmo_hybrid", "granitemoehybrid"), _HYBRID),
    **dict.fromkeys(("qwen3_5", "qwen3_5_moe"), _HYBRID_TEXT),
    "bailing_hybrid": _LATENT | _HYBRID | {"linear_head_dim": 16},
    "kimi_linear": _LATENT | _HYBRID,
    "bamba": {"attn_layer_indices": [1], "mamba_n_heads": 4, "mamba_d_head": 32},
    "blt": {
        "encoder_hash_byte_group_vocab": 50,
        **{part: {"head_dim": ...} for part in ("patcher_config", "encoder_config", "decoder_config", "global_config")},
    },
    "codegen": {"rotary_dim": 16},
    "cohere_compass_text": {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 1e4}}},
    "dbrx": {"attn_config": {"kv_n_heads": N_KV_HEADS, "rope_theta": 1e4, "clip_qkv": 8}},
    "dots3_note": {
        "text_config": _LATENT | {"per_layer_config": {}},
        "vision_config": {"mlp_layer_types": ["dense", "dense"], "adapter_in_dim": WIDTH, "adapter_out_dim": WIDTH},
        "audio_config": {"adapter_out_dim": WIDTH, "adapter_input_size": WIDTH},
    },
    "falcon_h1": {"mamba_d_ssm": 128, "mamba_n_heads": 4, "mamba_d_head": 32, "mamba_n_groups": 2, "mamba_d_state": 16},
    "gemma3n": {"text_config": {"num_kv_shared_layers": 0, "intermediate_size": [N_NEURONS] * N_LAYERS}},
    "gemma3n_text": {"num_kv_shared_layers": 0, "intermediate_size": [N_NEURONS] * N_LAYERS},
    "gemma4_assistant": {"text_config": _NO_PER_LAYER_INPUT | _OF_ASSISTANT, "backbone_hidden_size": WIDTH},
    "gemma4_unified_assistant": {
        "text_config": {
            "num_hidden_layers": 4,
            "num_kv_shared_layers": 2,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
        },
        "backbone_hidden_size": WIDTH,
    },
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "gptj": {"rotary_dim": 16},
    "moshi": {"ffn_dim": 2 * N_NEURONS},  # gate and up share this number; the test of neurons needs 64 of them
    "helium": {"head_dim": WIDTH // N_HEADS},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "jetmoe": {"num_attention_heads": N_KV_HEADS * N_EXPERTS},
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "lfm3": {"layer_types": ["conv", "full_attention"]},
    "longcat_flash": _LATENT | {"head_dim": 8, "zero_expert_num": 2, "moe_topk": N_EXPERTS + 2},
    "mamba2": {"num_heads": 4, "head_dim": 32, "expand": 2, "n_groups": 1, "state_size": 16},
    "nemotron_h": {"mamba_num_heads": 4, "mamba_head_dim": 32, "n_groups": 2, "ssm_state_size": 16},
    "reformer": {"is_decoder": True, "axial_pos_shape": [8, 8], "axial_pos_embds_dim": [16, 48]},
    "rembert": {"input_embedding_size": 48, "output_embedding_size": 96},
    "recurrent_gemma": {"intermediate_size": 192, "block_types": ["recurrent", "attention"]},
    "xmod": {"default_language": "en_XX"},
    "zamba": {"num_hidden_layers": 3, "layers_block_type": ["linear_attention", "hybrid", "hybrid"]},
    "zamba2": {"layers_block_type": ["linear_attention", "hybrid"]},
    "zaya": {"num_experts_per_tok": 1},
}
"""Further settings of a family; ``...`` resets a size to its default."""


WITHOUT_DEFAULTS = {"gemma4_assistant": "gemma4_text"}
"""Families whose default config fails its own checks, with the type of the text config inside."""


def tiny_config(
    model_type: str, *, mapping: Mapping[Any, Any] = MODEL_FOR_CAUSAL_LM_MAPPING, **more: object
) -> transformers.PreTrainedConfig:
    """The config of a family, with every size that it names made small."""
    family = CONFIG_MAPPING[model_type]
    inner = WITHOUT_DEFAULTS.get(model_type)
    if inner is None:
        chosen = _shrunk(family(), SIZES)
    else:
        chosen = {"text_config": _shrunk(CONFIG_MAPPING[inner](), SIZES) | {"model_type": inner}}
    config = family(**_merged(_merged(chosen, MORE.get(model_type, {})), more))
    own = mapping[family].config_class
    # In some families the decoder is a separate model, whose config is inside the full config.
    return config if isinstance(config, own) else config.get_text_config(decoder=True)


def _shrunk(config: transformers.PreTrainedConfig, sizes: dict[str, object]) -> dict[str, object]:
    chosen: dict[str, object] = {}
    for key, value in config.to_dict().items():
        inner = config.__dict__.get(key)
        if isinstance(inner, transformers.PreTrainedConfig):
            chosen[key] = _shrunk(inner, sizes) | {"model_type": inner.model_type}
        elif key in sizes and not isinstance(value, list):
            chosen[key] = sizes[key]
    return chosen


def _merged(first: dict[str, object], second: dict[str, object]) -> dict[str, object]:
    both = dict(first)
    for key, value in second.items():
        old = both.get(key)
        both[key] = _merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
        if value is ...:
            del both[key]
    return both
