"""Recurrent layers: RWKV, linear attention, state-space mixers, gated convolutions, and hybrids of these.

RWKV and linear attention use the roles of attention, but have no planes of rotation. Most apply an activation
to each channel, so heads cannot be transformed freely, and a layer is treated as one head.
"""

from __future__ import annotations

from mdir_hf.model.roles.roles import FusedRows, Role, StatedCount
from mdir_hf.model.roles.rows import (
    ATTENTION,
    GATE_THEN_UP,
    GATED_MLP,
    HEAD_NORMS,
    MLP,
    NORMS,
    NUMBER,
    PER_HEAD,
    QKV,
    LayerRow,
    ProductRow,
    RoleLayouts,
    fused_rows,
    named,
    rows,
)

_GATED_ATTENTION = (*ATTENTION, Role.MIXER_GATE)

_QWEN3_5 = {"qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text", "qwen4_exp_text"}
_LIGHTNING = {"minimax", "minimax_text_01"}
_DELTA = r"(?:self_attn|attention)"
_BESIDE_DELTA = rf"{_DELTA}\.(?:forget_gate\.)?A_log"

_QKVZ: tuple[StatedCount, ...] = (
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

_RECURRENT: tuple[LayerRow, ...] = (*_RWKV, *_LINEAR_ATTENTION)

SIGNS: tuple[tuple[str, str], ...] = (
    (r"blocks\.\d+\.att\.x_r", "rwkv7"),
    (r"blocks\.\d+\.att\.time_maa_x", "rwkv6"),
    (r"blocks\.\d+\.att\.ln_x\.weight", "rwkv5"),
    (r"blocks\.\d+\.att\.time_mix_r", "rwkv4"),
    (r"backbone\.layers\.\d+\.mixer\.x_proj\.weight", "mamba"),
    (r"backbone\.layers\.\d+\.mixer\.norm\.weight", "mamba2_ssm"),
    (r"0\.0\.linear\.weight", "medusa"),
)
"""Tensor names that identify a family if there is no config, as in RWKV's own files. The first match is used."""

CHANNELS_PER_HEAD = {"mamba2_ssm": 32}
"""Number of stream channels per mixer head, for families in :data:`SIGNS` whose config does not state heads."""

HEADS_FROM_SHAPE: tuple[str, ...] = (
    r"(?:att|attention)\.(?:r_k|time_faaaa)",
    r"attn\.(?:r_k|bonus)",
)
"""Tensors with one row per head, for families whose configs misstate the number of heads."""


_NEMOTRON = {"nemotron_h"}
_LFM2 = {"lfm2", "lfm2_moe", "lfm3"}
_GRIFFIN = {"recurrent_gemma"}
_FEEDING_FORWARD = {"jamba", "bamba", "falcon_h1"}
_ZAMBA = frozenset({"zamba", "zamba2"})
_SHARED = r"shared_(?:transf|transformer)"
_GRANITE = {"granitemoehybrid", "granitemoeshared", "granitemoe_swa"}
_GRANITE_EXPERTS = r"block_sparse_moe\..+"

_INPUT_AND_GATE = (Role.SSM_IN, Role.MIXER_GATE)


def mamba2(width: StatedCount, state: StatedCount, heads: StatedCount) -> RoleLayouts:
    """Return the parts of Mamba-2's input projection, z|x|B|C|dt."""
    return fused_rows((Role.MIXER_GATE, Role.SSM_IN), 1, (width, width, state, state, heads))


# B|C|x, out(C * conv(B * x)).
LFM2_INPUT = ((Role.MIXER_GATE, FusedRows(1, (1, 1, 1), 1)), (Role.SSM_IN, FusedRows(1, (1, 1, 1), 2)))

_INPUTS: tuple[tuple[str, set[str], RoleLayouts], ...] = (
    ("mixer", {"mamba", "falcon_mamba"}, fused_rows(_INPUT_AND_GATE, 1, (1, 1))),
    ("mamba", {"jamba"}, fused_rows(_INPUT_AND_GATE, 1, (1, 1))),
    (r"(?:mamba_decoder\.)?mamba", {"zamba"}, fused_rows(_INPUT_AND_GATE, "rows", (1, 1))),
    # state-spaces' own Mamba-2, whose config states only d_model: twice as wide, heads of 64, states of 128.
    ("mixer", {"mamba2_ssm"}, mamba2("128*d_model", 8192, "2*d_model")),
    ("mixer", {"mamba2"}, mamba2("num_heads*head_dim", "n_groups*state_size", "num_heads")),
    ("mixer", _NEMOTRON, mamba2("mamba_num_heads*mamba_head_dim", "n_groups*ssm_state_size", "mamba_num_heads")),
    (
        "mamba",
        {"bamba", "granitemoehybrid"},
        mamba2("mamba_expand*hidden_size", "mamba_n_groups*mamba_d_state", "mamba_n_heads"),
    ),
    ("mamba", {"falcon_h1"}, mamba2("mamba_d_ssm", "mamba_n_groups*mamba_d_state", "mamba_n_heads")),
    (
        r"(?:mamba_decoder\.)?mamba",
        {"zamba2"},
        mamba2("mamba_expand*hidden_size", "mamba_ngroups*mamba_d_state", "n_mamba_heads"),
    ),
)
"""Folder, families and parts of each input projection."""

_STATE_SPACE: tuple[LayerRow, ...] = (
    *(row for folder, families, parts in _INPUTS for row in rows({rf"{folder}\.in_proj": parts}, families)),
    *rows(
        {r"(?:mixer|(?:mamba_decoder\.)?mamba)\.out_proj": Role.SSM_OUT},
        beside=r"(?:mixer|(?:mamba_decoder\.)?mamba)\.A_log",
    ),
    *rows({"norm": Role.ATTENTION_NORM}, {"mamba", "falcon_mamba", "mamba2", "mamba2_ssm"}),
    # Zamba: layers share a transformer, stored in the first of them. It reads stream and embedding side by side. Its
    # attention passes its output to its MLP, whose output reaches the stream through a matrix in each layer.
    *rows({r"mamba_decoder\.input_layernorm": Role.MIXER_NORM}, _ZAMBA),
    *rows(
        named(rf"{_SHARED}\.self_attn\.%s_proj", "q k v", QKV) | {rf"{_SHARED}\.input_layernorm": Role.ATTENTION_NORM},
        _ZAMBA,
        first_half=True,
    ),
    *rows(
        {
            rf"{_SHARED}\.(?:self_attn\.o_proj|pre_ff_layernorm)": (),
            rf"{_SHARED}\.feed_forward\.(?:gate|up|gate_up|down)_proj": (),
            "linear": (),
        },
        _ZAMBA,
    ),
    # Griffin's recurrent block.
    *rows(named(r"temporal_block\.linear_%s", "x y out", (*_INPUT_AND_GATE, Role.SSM_OUT)), _GRIFFIN, rope="none"),
    *rows(
        {
            **named(r"temporal_block\.%s_proj", "q k v o", ATTENTION),
            **named(r"mlp_block\.%s_proj", "gate up down", GATED_MLP),
            **named("%s_pre_norm", "temporal channel", NORMS),
        },
        _GRIFFIN,
    ),
    *rows(
        {
            r"conv\.in_proj": LFM2_INPUT,
            r"conv\.out_proj": Role.SSM_OUT,
            r"self_attn\.out_proj": Role.O,
            **named(r"self_attn\.%s_layernorm", "q k", HEAD_NORMS),
            **named("%s_norm", "operator ffn", NORMS),
            **named(r"feed_forward\.%s", "w1 w3 w2", GATED_MLP),
        },
        _LFM2,
    ),
    *rows(named(rf"feed_forward\.experts\.{NUMBER}\.%s", "w1 w3 w2", GATED_MLP), _LFM2, experts="numbered"),
    *rows({r"feed_forward\.gate": Role.ROUTER}, _LFM2, beside=r"feed_forward\.experts\.\d+\..+"),
    # Jamba, Bamba and Falcon-H1: an MLP, or experts, in addition to each mixer.
    *rows(named(r"feed_forward\.%s_proj", "gate up down", GATED_MLP), _FEEDING_FORWARD),
    *rows(
        named(rf"feed_forward\.experts\.{NUMBER}\.%s_proj", "gate up down", GATED_MLP),
        _FEEDING_FORWARD,
        experts="numbered",
    ),
    # Granite: the shared MLP is an expert if there are others, otherwise the MLP of the layer.
    *rows({r"shared_mlp\.input_linear": GATE_THEN_UP}, _GRANITE, beside=_GRANITE_EXPERTS, experts="shared"),
    *rows({r"shared_mlp\.input_linear": GATE_THEN_UP}, _GRANITE),
    *rows({r"shared_mlp\.output_linear": Role.DOWN}, _GRANITE, beside=_GRANITE_EXPERTS, experts="shared"),
    *rows({r"shared_mlp\.output_linear": Role.DOWN}, _GRANITE),
    *rows(
        {r"block_sparse_moe\.input_linear": GATE_THEN_UP, r"block_sparse_moe\.output_linear": Role.DOWN},
        _GRANITE,
        experts="stacked",
    ),
    # Nemotron-H: one sublayer per layer (an MLP, attention or a state space), after one norm.
    *rows(named(r"mixer\.%s_proj", "q k v o up down", (*ATTENTION, *MLP)), _NEMOTRON, rope="none"),
    *rows(named(rf"mixer\.experts\.{NUMBER}\.%s_proj", "up down", MLP), _NEMOTRON, experts="numbered"),
    *rows(named(r"mixer\.shared_experts\.%s_proj", "up down", MLP), _NEMOTRON, experts="shared"),
    *rows({r"mixer\.gate": Role.ROUTER}, _NEMOTRON, beside=r"mixer\.experts\.\d+\..+"),
    *rows({"norm": Role.MLP_NORM}, _NEMOTRON, beside=r"mixer\.(?:experts\..+|up_proj\.weight)"),
    *rows({"norm": Role.ATTENTION_NORM}, _NEMOTRON),
)

PRODUCT_ROWS: tuple[ProductRow, ...] = (
    ProductRow(Role.DOWN, r"linear\.weight", rf"{_SHARED}\.feed_forward\.down_proj\.weight", None, model_types=_ZAMBA),
)

ROWS: tuple[LayerRow, ...] = (*_RECURRENT, *_STATE_SPACE)
