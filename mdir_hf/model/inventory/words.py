"""Words in names that tell the purpose of a stack of layers, a table or a connector, as data."""

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
"""Name of a stack, and which component of its prefix tells it."""

CONNECTOR_WORDS = (
    r"\w*projector\w*|\w*connector\w*|\w*resampler\w*|\w*merger\w*|\w*aligner\w*|\w*abstractor\w*|perceiver\w*|q_?former"
    r"|mlp1|embed_vision|embed_audio|multi_modal\w*|mm_\w*proj\w*|\w+_to_\w+_proj\w*|modality_\w+|\w*_adapter"
    r"|proj_in_\w+|mm"
)
"""Components of a name that tell a connector; they count before all other words."""

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
"""Name of a table outside of layers, and which component of its name tells it."""

IS_CONNECTOR = re.compile(CONNECTOR_WORDS)
_STACKS = tuple((label, re.compile(words)) for label, words in STACK_WORDS)
_TABLES = tuple((label, re.compile(words)) for label, words in TABLE_WORDS)
_VECTORS = (
    *("bias", "norm", "layernorm", "inv_freq", "scale", "gamma", "beta", "running_mean", "running_var"),
    *("num_batches_tracked", "A_log", "D", "dt_bias", "position_ids", "sinks", "layer_scalar"),
)


def connector_in(components: list[str]) -> int | None:
    """Return the place of the component that tells a connector, None if none does."""
    return next((at for at, word in enumerate(components) if IS_CONNECTOR.fullmatch(word.lower())), None)


def stack_label(components: list[str]) -> tuple[str, int] | None:
    """Return the label of a stack by a component of its prefix, and the place of that component."""
    for at, word in enumerate(components):
        for label, pattern in _STACKS:
            if pattern.fullmatch(word.lower()):
                return label, at
    return None


def table_label(components: list[str]) -> str | None:
    """Return the label of a table by a component of its name, None if no component tells it."""
    for word in components:
        for label, pattern in _TABLES:
            if pattern.fullmatch(word):
                return label
    return None


def is_named_like_a_vector(name: str) -> bool:
    """Whether a name usually belongs to a norm, a bias or a buffer; for tensors whose shape is not known."""
    last = name.removesuffix(".weight").rpartition(".")[2]
    is_norm = last.startswith("ln_") or "_ln_" in last
    return is_norm or last in _VECTORS or last.endswith(tuple(f"_{word}" for word in _VECTORS))
