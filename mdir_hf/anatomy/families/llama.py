"""Llama's names, which most families took over; rows of families that mean something else by them come first."""

from __future__ import annotations

from ..roles import WHOLE, FusedRows, Role
from ..rows import LayerRow

ROWS: tuple[LayerRow, ...] = (
    # Qwen3-Next and Qwen3.5 put an output gate beside each query head.
    LayerRow(
        r"self_attn\.q_proj\.weight",
        ((Role.Q, FusedRows("heads", (1, 1), 0)),),
        model_types=frozenset({"qwen3_next", "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text"}),
    ),
    LayerRow(r"mlp\.linear_gate\.weight", ((Role.GATE, WHOLE),), model_types=frozenset({"hy_v4"})),
    # Llama and everything that took over its names.
    LayerRow(r"self_attn\.q_proj\.weight", ((Role.Q, WHOLE),)),
    LayerRow(r"self_attn\.k_proj\.weight", ((Role.K, WHOLE),)),
    LayerRow(r"self_attn\.v_proj\.weight", ((Role.V, WHOLE),)),
    LayerRow(r"self_attn\.o_proj\.weight", ((Role.O, WHOLE),)),
    LayerRow(r"(?:mlp|feed_forward)\.gate_proj\.weight", ((Role.GATE, WHOLE),)),
    LayerRow(r"(?:mlp|feed_forward)\.up_proj\.weight", ((Role.UP, WHOLE),)),
    LayerRow(r"(?:mlp|feed_forward)\.down_proj\.weight", ((Role.DOWN, WHOLE),)),
)
