"""RWKV and linear attention: query (receptance), key, value and output have the roles of attention, without planes.

Most have a convolution of each channel followed by an activation, so no map within heads is free; their layers are
treated as having one head.
"""

from __future__ import annotations

from mdir_hf.model.roles.roles import Count, Role
from mdir_hf.model.roles.rows import ATTENTION, GATED_MLP, MLP, NORMS, PER_HEAD, QKV, LayerRow, fused_rows, named, rows

_GATED_ATTENTION = (*ATTENTION, Role.MIXER_GATE)

_QWEN3_5 = {"qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text", "qwen4_exp_text"}
_LIGHTNING = {"minimax", "minimax_text_01"}
_DELTA = r"(?:self_attn|attention)"
_BESIDE_DELTA = rf"{_DELTA}\.(?:forget_gate\.)?A_log"

_QKVZ: tuple[Count, ...] = (
    *(2 * ("linear_num_key_heads*linear_key_head_dim",)),
    *(2 * ("linear_num_value_heads*linear_value_head_dim",)),
)

_RWKV: tuple[LayerRow, ...] = (
    # BlinkDL's names (att, ffn), and transformers' (attention, feed_forward). The learnt mixing of neighbouring tokens
    # identifies RWKV.
    *rows(
        named(r"(?:att|attention)\.%s", "receptance key value output gate", _GATED_ATTENTION),
        beside=r"(?:att|attention)\.(?:time_mix_\w+|time_maa_\w+|x_r)",
        rope="none",
    ),
    *rows(
        named(r"(?:ffn|feed_forward)\.%s", "key value", MLP),
        beside=r"(?:ffn|feed_forward)\.(?:time_mix_\w+|time_maa_\w+|x_k)",
        rope="none",
    ),
    # flash-linear-attention; in version 6 the projections include the mixing.
    *rows(
        named(r"attn\.%s_proj(?:\.linear)?", "r k v", QKV)
        | {r"attn\.o_proj": Role.O, r"attn\.g_proj\.linear": Role.MIXER_GATE},
        beside=r"attn\.(?:x_r|x_bias)",
        rope="none",
    ),
    *rows(named(r"ffn\.%s", r"key\.linear value", MLP), beside=r"ffn\.key\.linear\.weight", rope="none"),
    *rows(
        named("%s", "(?:ln1|attn_norm) (?:ln2|ffn_norm)", NORMS),
        beside=r"(?:att|attn|attention)\.(?:time_m\w+|x_r|x_bias)",
    ),
)

_LINEAR_ATTENTION: tuple[LayerRow, ...] = (
    # Qwen3-Next: for each key head q|k|v|z, with v and z of the value heads that share it.
    *rows(
        {r"linear_attn\.in_proj_qkvz": fused_rows((*QKV, Role.MIXER_GATE), "linear_num_key_heads", _QKVZ)},
        {"qwen3_next"},
        rope="none",
        n_heads=(1, 1),
    ),
    *rows({r"linear_attn\.in_proj_qkv": fused_rows(QKV, 1, _QKVZ[:3])}, _QWEN3_5, rope="none", n_heads=(1, 1)),
    *rows(
        {r"linear_attn\.in_proj_z": Role.MIXER_GATE, r"linear_attn\.out_proj": Role.O},
        _QWEN3_5,
        rope="none",
        n_heads=(1, 1),
    ),
    *rows({r"linear_attn\.out_proj": Role.O}, {"qwen3_next"}, rope="none", n_heads=(1, 1)),
    *rows(
        named(r"linear_attn\.%s_proj", "q k v o g", _GATED_ATTENTION),
        beside=r"linear_attn\.A_log",
        rope="none",
        n_heads=(1, 1),
    ),
    # Kimi's delta attention, with the names of attention; also in Bailing's own files.
    *rows(
        named(rf"{_DELTA}\.%s", "q_proj k_proj v_proj (?:o_proj|dense)", ATTENTION),
        beside=_BESIDE_DELTA,
        rope="none",
        n_heads=(1, 1),
    ),
    *rows({rf"{_DELTA}\.g_proj": Role.MIXER_GATE}, {"bailing_hybrid"}, beside=_BESIDE_DELTA, rope="none"),
    *rows(named("%s_layer_norm", "attention feedforward", NORMS), beside=r"linear_attn\.A_log"),
    *rows(named(r"block_sparse_moe\.%s_proj", "gate up down", GATED_MLP), {"kimi_linear", "minimax_m3_vl_text"}),
    *rows(
        named(r"block_sparse_moe\.shared_experts\.%s_proj", "gate up down", GATED_MLP),
        {"kimi_linear", "minimax_m3_vl_text"},
        experts="shared",
    ),
    # MiniMax's lightning attention: view(n_heads, 3, d_head, d_model).
    *rows({r"self_attn\.qkv_proj": PER_HEAD}, _LIGHTNING, rope="none", n_heads=("heads", "heads")),
    *rows(
        {r"self_attn\.out_proj": Role.O, r"self_attn\.output_gate": Role.MIXER_GATE},
        _LIGHTNING,
        beside=r"self_attn\.output_gate\.weight",
        rope="none",
    ),
)

ROWS: tuple[LayerRow, ...] = (*_RWKV, *_LINEAR_ATTENTION)

SIGNS: tuple[tuple[str, str], ...] = (
    (r"blocks\.\d+\.att\.x_r", "rwkv7"),
    (r"blocks\.\d+\.att\.time_maa_x", "rwkv6"),
    (r"blocks\.\d+\.att\.ln_x\.weight", "rwkv5"),
    (r"blocks\.\d+\.att\.time_mix_r", "rwkv4"),
    (r"backbone\.layers\.\d+\.mixer\.x_proj\.weight", "mamba"),
    (r"backbone\.layers\.\d+\.mixer\.norm\.weight", "mamba2_ssm"),
    (r"0\.0\.linear\.weight", "medusa"),
)
"""Tensor names that identify a family without a config, as for RWKV's own files. The first match is used."""

CHANNELS_PER_HEAD = {"mamba2_ssm": 32}
"""Channels of the stream per head of a mixer, for families identified by names whose config does not state heads.
state-spaces' Mamba-2 is twice as wide as the stream and has heads of 64."""

HEADS_FROM_SHAPE: tuple[str, ...] = (
    r"(?:att|attention)\.(?:r_k|time_faaaa)",
    r"attn\.(?:r_k|bonus)",
)
"""Tensors of a layer with one row per head, in families whose configs state no heads, or wrong ones."""
