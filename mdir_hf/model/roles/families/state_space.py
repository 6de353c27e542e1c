"""State-space mixers, gated convolutions, and hybrids with them in some layers.

The input of such a mixer, its gate and its output projection have their own roles, so that layers of a hybrid are
compared with layers of their kind.
"""

from __future__ import annotations

from mdir_hf.model.roles.roles import Count, FusedRows, Role
from mdir_hf.model.roles.rows import (
    ATTENTION,
    GATE_THEN_UP,
    GATED_MLP,
    HEAD_NORMS,
    MLP,
    NORMS,
    NUMBER,
    QKV,
    LayerRow,
    Parts,
    ProductRow,
    fused_rows,
    named,
    rows,
)

_NEMOTRON = {"nemotron_h"}
_LFM2 = {"lfm2", "lfm2_moe", "lfm3"}
_GRIFFIN = {"recurrent_gemma"}
_FEEDING_FORWARD = {"jamba", "bamba", "falcon_h1"}
_ZAMBA = frozenset({"zamba", "zamba2"})
_SHARED = r"shared_(?:transf|transformer)"
_GRANITE = {"granitemoehybrid", "granitemoeshared", "granitemoe_swa"}
_GRANITE_EXPERTS = r"block_sparse_moe\..+"

_INPUT_AND_GATE = (Role.SSM_IN, Role.MIXER_GATE)


def mamba2(width: Count, state: Count, heads: Count) -> Parts:
    """Return the parts of Mamba-2: z|x|B|C|dt, with z and x as wide as the mixer, B and C a state for each group."""
    return fused_rows((Role.MIXER_GATE, Role.SSM_IN), 1, (width, width, state, state, heads))


# B|C|x, out(C * conv(B * x)).
LFM2_INPUT = ((Role.MIXER_GATE, FusedRows(1, (1, 1, 1), 1)), (Role.SSM_IN, FusedRows(1, (1, 1, 1), 2)))

_INPUTS: tuple[tuple[str, set[str], Parts], ...] = (
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
"""Folder, families, and the parts of the input projection."""

ROWS: tuple[LayerRow, ...] = (
    *(row for folder, families, parts in _INPUTS for row in rows({rf"{folder}\.in_proj": parts}, families)),
    *rows(
        {r"(?:mixer|(?:mamba_decoder\.)?mamba)\.out_proj": Role.SSM_OUT},
        beside=r"(?:mixer|(?:mamba_decoder\.)?mamba)\.A_log",
    ),
    *rows({"norm": Role.ATTENTION_NORM}, {"mamba", "falcon_mamba", "mamba2", "mamba2_ssm"}),
    # Zamba: layers share a transformer, stored in the first of them. It reads stream and embedding side by side. Its
    # attention passes its output to its MLP, whose output reaches the stream through a matrix of each layer.
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
