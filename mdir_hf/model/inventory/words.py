"""Words in names that identify a stack of layers, a table or a connector."""

from __future__ import annotations

import re

STACK_WORDS: tuple[tuple[str, str], ...] = (
    ("multi-token prediction", r"mtp|mtp_layers|nextn|predict_layers"),
    ("draft model", r"draft|draft_model|eagle\w*|medusa\w*|midlayer"),
    ("talker", r"talker"),
    ("speech decoder", r"token2wav|code2wav|codec_model|codec|vocoder|depth_decoder|dit"),
    ("video tower", r"video\w*"),
    ("audio tower", r"audio\w*|speech\w*|whisper\w*|wav\w*|apm|sound\w*|conformer"),
    ("vision tower", r"vision\w*|visual\w*|image\w*|vpm|vit|clip\w*|siglip\w*|v|mm_vision\w*|sam_model"),
    ("cross-attention layers", r"cross_attn\w*"),
)
"""Name of a stack, and the pattern of a component of its prefix."""

CONNECTOR_WORDS = (
    r"\w*projector\w*|\w*connector\w*|\w*resampler\w*|\w*merger\w*|\w*aligner\w*|\w*abstractor\w*|perceiver\w*|q_?former"
    r"|mlp1|embed_vision|embed_audio|multi_modal\w*|mm_\w*proj\w*|\w+_to_\w+_proj\w*|modality_\w+|\w*_adapter"
    r"|proj_in_\w+|mm"
)
"""Components that identify a connector; they take precedence over all other words."""

TABLE_WORDS: tuple[tuple[str, str], ...] = (
    ("positions", r"wpe|position_embeddings?|embed_positions|positional_embedding|pos_embed\w*|position_embd"),
    (
        "per-layer embeddings",
        r"embed_tokens_per_layer|per_layer_token_embd|per_layer_model_projection|per_layer_model_proj|"
        r"per_layer_projection",
    ),
    ("token types", r"token_type_embeddings|token_types|segment_embeddings"),
    ("head for classes", r"score|classifier|classification_head|v_head|value_head|reward_head"),
)
"""Name of a table outside the layers, and the pattern of a component of its name."""

AUXILIARY_WORDS: tuple[tuple[str, str], ...] = (
    (
        "cross-attention",
        r"encoder_attn|crossattention|cross_attn|cross_attention|EncDecAttention|encoder_decoder_attention",
    ),
    (
        "second attention",
        r"(query|key|value)_global|(e2e|e2w|w2e)_query|self_attn\.1|.*v_proj_(current|delayed)",
    ),
    ("second MLP", r"mlps\.\d+"),
    (
        "convolutions",
        r"\w*conv_?1d|\w*sconv|conv\.conv|conv_qk_\w+|self\.conv|conv_kernel_layer|conv_out_layer|key_conv_attn_layer",
    ),
    (
        "parameters of recurrences",
        r"A_log|D|dt_proj|dt_proj_weight|dt_proj_bias|x_proj|x_proj_weight|in_proj_(a|b|ba)|linear_attn\.(a|b)_proj"
        r"|rg_lru|attention\.[bfg]_proj|self_attn\.(b|f_a|f_b|g_a|g_b)_proj|[fi]gate_preact|(query|key|diagonal)_decay|receptance",
    ),
    ("gates of attention", r"(self_attn|output_projection)\.g(ate)?_proj|gate_attn|linear_gate|attn_sink_proj"),
    ("indexers", r"indexer|attn\.compressor"),
    ("experts of attention", r"self_attention\.experts"),
    ("factors of the output of attention", r"attn\.wo_[ab]"),
    (
        "position biases",
        r"relative_attention_bias|relative_pos_embeddings|rel_attn|rel_logits_proj|wr_du|r_kernel|r_[rsw]_bias|seg_embed|self_attn\.r_proj",
    ),
    ("adapters", r"adapter|adapter_modules|adapters"),
    ("mixing of streams", r"\w*hyper_connection\w*|altup|laurel|hc_\w+"),
    ("routers", r"router|gate\.down_proj|router_mlp|tid2eid"),
    ("per-layer inputs", r"per_layer_(input_gate|projection)"),
    ("conditioning of norms", r"ada_rms_norm"),
    ("integer copies", r"weight_integer"),
)
"""Purpose of matrices in a layer that no test reads, and the components of their names that tell it."""

IS_CONNECTOR = re.compile(CONNECTOR_WORDS)
_STACKS = tuple((label, re.compile(words)) for label, words in STACK_WORDS)
_AUXILIARY = tuple((label, re.compile(rf"(?:.*\.)?(?:{words})(?:\..*)?")) for label, words in AUXILIARY_WORDS)
_TABLES = tuple((label, re.compile(words)) for label, words in TABLE_WORDS)
_VECTORS = (
    *("bias", "norm", "layernorm", "inv_freq", "scale", "gamma", "beta", "running_mean", "running_var"),
    *("num_batches_tracked", "A_log", "D", "dt_bias", "position_ids", "sinks", "layer_scalar"),
)


def connector_in(components: list[str]) -> int | None:
    """Return the index of the component that identifies a connector, or None."""
    return next((at for at, word in enumerate(components) if IS_CONNECTOR.fullmatch(word.lower())), None)


def stack_label(components: list[str]) -> tuple[str, int] | None:
    """Return the label of a stack and the index of the component that identifies it, or None."""
    for at, word in enumerate(components):
        for label, pattern in _STACKS:
            if pattern.fullmatch(word.lower()):
                return label, at
    return None


def auxiliary_label(rest: str) -> str | None:
    """Return the purpose of a matrix without a role by its name inside its layer, or None."""
    return next((label for label, pattern in _AUXILIARY if pattern.fullmatch(rest)), None)


def table_label(components: list[str]) -> str | None:
    """Return the label of a table, or None."""
    for word in components:
        for label, pattern in _TABLES:
            if pattern.fullmatch(word):
                return label
    return None


def is_named_like_a_vector(name: str) -> bool:
    """Return whether a name usually belongs to a norm, a bias or a buffer; for tensors of unknown shape."""
    last = name.removesuffix(".weight").rpartition(".")[2]
    is_norm = last.startswith("ln_") or "_ln_" in last
    return is_norm or last in _VECTORS or last.endswith(tuple(f"_{word}" for word in _VECTORS))
