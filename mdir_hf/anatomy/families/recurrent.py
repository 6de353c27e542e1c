"""RWKV and linear attention: query (receptance), key, value and output play the roles of attention, without planes.

Most have a convolution of each channel with an activation behind it, so that no map inside heads is free: their layers
count as of one head.
"""

from __future__ import annotations

from ..roles import WHOLE, Count, FusedRows, Role
from ..rows import LayerRow, rows_in_folder

_ATTENTION = (Role.Q, Role.K, Role.V, Role.O)


_QWEN3_NEXT = frozenset({"qwen3_next"})
_QWEN3_5 = frozenset({"qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text", "qwen4_exp_text"})
_LIGHTNING = frozenset({"minimax", "minimax_text_01"})
_DELTA = r"(?:self_attn|attention)"

_QKVZ: tuple[Count, ...] = (
    *(2 * ("linear_num_key_heads*linear_key_head_dim",)),
    *(2 * ("linear_num_value_heads*linear_value_head_dim",)),
)

_RWKV: tuple[LayerRow, ...] = (
    # BlinkDL's names (att, ffn) and those of transformers (attention, feed_forward); the learnt mixing of neighbouring
    # tokens says that it is RWKV.
    *rows_in_folder(
        {"receptance": Role.Q, "key": Role.K, "value": Role.V, "output": Role.O, "gate": Role.MIXER_GATE},
        folder=r"(?:att|attention)",
        beside=r"(?:att|attention)\.(?:time_mix_\w+|time_maa_\w+|x_r)",
    ),
    *rows_in_folder(
        {"key": Role.UP, "value": Role.DOWN},
        folder=r"(?:ffn|feed_forward)",
        beside=r"(?:ffn|feed_forward)\.(?:time_mix_\w+|time_maa_\w+|x_k)",
    ),
    # flash-linear-attention; of version 6 the projections carry their mixing along.
    *rows_in_folder(
        {
            r"r_proj(?:\.linear)?": Role.Q,
            r"k_proj(?:\.linear)?": Role.K,
            r"v_proj(?:\.linear)?": Role.V,
            r"o_proj": Role.O,
            r"g_proj\.linear": Role.MIXER_GATE,
        },
        folder="attn",
        beside=r"attn\.(?:x_r|x_bias)",
    ),
    *rows_in_folder({r"key\.linear": Role.UP, "value": Role.DOWN}, folder="ffn", beside=r"ffn\.key\.linear\.weight"),
    *(
        LayerRow(rf"{name}\.weight", ((role, WHOLE),), beside=r"(?:att|attn|attention)\.(?:time_m\w+|x_r|x_bias)")
        for name, role in (
            (r"(?:ln1|attn_norm)", Role.ATTENTION_NORM),
            (r"(?:ln2|ffn_norm)", Role.MLP_NORM),
        )
    ),
)

_LINEAR_ATTENTION: tuple[LayerRow, ...] = (
    # Qwen3-Next: for each key head q|k|v|z, v and z of the value heads that share it.
    LayerRow(
        r"linear_attn\.in_proj_qkvz\.weight",
        tuple(
            (role, FusedRows("linear_num_key_heads", _QKVZ, at))
            for at, role in enumerate((Role.Q, Role.K, Role.V, Role.MIXER_GATE))
        ),
        model_types=_QWEN3_NEXT,
        rope="none",
        n_heads=(1, 1),
    ),
    LayerRow(
        r"linear_attn\.in_proj_qkv\.weight",
        tuple((role, FusedRows(1, _QKVZ[:3], at)) for at, role in enumerate((Role.Q, Role.K, Role.V))),
        model_types=_QWEN3_5,
        rope="none",
        n_heads=(1, 1),
    ),
    *rows_in_folder(
        {"in_proj_z": Role.MIXER_GATE, "out_proj": Role.O}, folder="linear_attn", model_types=_QWEN3_5, n_heads=(1, 1)
    ),
    *rows_in_folder({"out_proj": Role.O}, folder="linear_attn", model_types=_QWEN3_NEXT, n_heads=(1, 1)),
    *rows_in_folder(
        {"q_proj": Role.Q, "k_proj": Role.K, "v_proj": Role.V, "o_proj": Role.O, "g_proj": Role.MIXER_GATE},
        folder="linear_attn",
        beside=r"linear_attn\.A_log",
        n_heads=(1, 1),
    ),
    # Kimi's delta attention, in the place and with the names of attention; Bailing's own files call it so.
    *rows_in_folder(
        {"q_proj": Role.Q, "k_proj": Role.K, "v_proj": Role.V, "(?:o_proj|dense)": Role.O},
        folder=_DELTA,
        beside=rf"{_DELTA}\.(?:forget_gate\.)?A_log",
        n_heads=(1, 1),
    ),
    *rows_in_folder(
        {"g_proj": Role.MIXER_GATE},
        folder=_DELTA,
        beside=rf"{_DELTA}\.(?:forget_gate\.)?A_log",
        model_types=frozenset({"bailing_hybrid"}),
    ),
    *(
        LayerRow(rf"{name}\.weight", ((role, WHOLE),), beside=r"linear_attn\.A_log")
        for name, role in (
            ("attention_layer_norm", Role.ATTENTION_NORM),
            ("feedforward_layer_norm", Role.MLP_NORM),
        )
    ),
    *(
        LayerRow(
            rf"block_sparse_moe\.{folder}{name}_proj\.weight",
            ((role, WHOLE),),
            model_types=frozenset({"kimi_linear", "minimax_m3_vl_text"}),
            experts="shared" if folder else None,
        )
        for folder in ("", r"shared_experts\.")
        for name, role in (("gate", Role.GATE), ("up", Role.UP), ("down", Role.DOWN))
    ),
    # MiniMax's lightning attention: view(n_heads, 3, d_head, d_model).
    LayerRow(
        r"self_attn\.qkv_proj\.weight",
        tuple((role, FusedRows("heads", (1, 1, 1), at)) for at, role in enumerate(_ATTENTION[:3])),
        model_types=_LIGHTNING,
        rope="none",
        n_heads=("heads", "heads"),
    ),
    *rows_in_folder(
        {"out_proj": Role.O, "output_gate": Role.MIXER_GATE},
        folder="self_attn",
        model_types=_LIGHTNING,
        beside=r"self_attn\.output_gate\.weight",
    ),
)

ROWS: tuple[LayerRow, ...] = (*_RWKV, *_LINEAR_ATTENTION)

SIGNS: tuple[tuple[str, str], ...] = (
    (r"blocks\.\d+\.att\.x_r", "rwkv7"),
    (r"blocks\.\d+\.att\.time_maa_x", "rwkv6"),
    (r"blocks\.\d+\.att\.ln_x\.weight", "rwkv5"),
    (r"blocks\.\d+\.att\.time_mix_r", "rwkv4"),
)
"""Tensor names by which a family is told where there is no config, as with RWKV's own files; the first counts."""

HEADS_FROM_SHAPE: tuple[str, ...] = (
    r"(?:att|attention)\.(?:r_k|time_faaaa)",
    r"attn\.(?:r_k|bonus)",
)
"""Tensors of a layer with one row for each head, in families whose configs say something else or nothing."""
