"""Llama's names, which most families use; rows of families that use them differently come first."""

from __future__ import annotations

from mdir_hf.model.roles.roles import FusedRows, Role
from mdir_hf.model.roles.rows import ATTENTION, GATED_MLP, QKV, LayerRow, named, rows

ROWS: tuple[LayerRow, ...] = (
    # In Qwen3-Next and Qwen3.5 an output gate follows each query head.
    *rows(
        {r"self_attn\.q_proj": ((Role.Q, FusedRows("heads", (1, 1), 0)),)},
        {"qwen3_next", "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text"},
    ),
    # EAGLE-3 reads the embedding of a token and the previous state side by side.
    *rows(named(r"self_attn\.%s_proj", "q k v", QKV), beside=r"hidden_norm\.weight", first_half=True),
    *rows({r"mlp\.linear_gate": Role.GATE}, {"hy_v4"}),
    # Llama, and all families with the same names.
    *rows(named(r"self_attn\.%s_proj", "q k v o", ATTENTION)),
    *rows(named(r"(?:mlp|feed_forward)\.%s_proj", "gate up down", GATED_MLP)),
)
