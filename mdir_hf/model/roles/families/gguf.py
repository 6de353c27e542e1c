"""Tensor names in GGUF, which are the same for all families, and the changes that llama.cpp's converter makes.

Source: ``gguf.constants`` (names) and the ``conversion`` folder of llama.cpp (permuted, split, joined and transposed
weights).
"""

from __future__ import annotations

from mdir_hf.model.roles.families.state_space import LFM2_INPUT, mamba2
from mdir_hf.model.roles.roles import FusedRows, InterleavedRows, Role, StatedCount
from mdir_hf.model.roles.rows import (
    ATTENTION,
    CONTIGUOUS,
    GATE_THEN_UP,
    GATED_MLP,
    HEAD_NORMS,
    MLP,
    NORMS,
    NUMBER,
    OUT_NORMS,
    QKV,
    LayerRow,
    ProductRow,
    RoleLayouts,
    fused_rows,
    named,
    rows,
)

_PAIRED = {
    *("llama", "arcee", "smollm3", "granite", "granitemoe", "granitemoehybrid", "ministral3"),
    *("deepseek", "olmo", "internlm2", "baichuan", "xverse", "minicpm", "arctic", "bailing_moe", "llada"),
    "chameleon",
}
"""Families in which the converter reorders q and k so that rotary positions rotate neighbouring rows."""

_REORDERED: dict[str, RoleLayouts] = {
    "attn_q": ((Role.Q, InterleavedRows("heads")),),
    "attn_k": ((Role.K, InterleavedRows("kv_heads")),),
}
_NEMOTRON = {"nemotron_h"}
_FALCON = {"falcon"}

_RECURRENT = r"ssm_(?:a|conv1d(?:\.weight)?|conv1d_q\.weight)"
_UP = r"ffn_up(?:_exps)?\.weight"
_FFN_NORM = r"ffn_norm(?:\.weight)?"  # Falcon-H1's has no suffix
_OTHER_NORM_OF_MLP = rf"(?:{_FFN_NORM}|(?:post_attention_norm|post_ffw_norm|attn_norm_2)\.weight)"

_ALL_HEADS = ("heads", "heads")
_OF_QUERY = FusedRows("heads", ("qk_nope_head_dim", "qk_rope_head_dim"), 0)
_OF_KEY_VALUE = ("qk_nope_head_dim", "v_head_dim")
_LATENT = FusedRows(1, ("kv_lora_rank", "qk_rope_head_dim"), 0)

_LINEAR_QKV: tuple[StatedCount, ...] = (
    *(2 * ("linear_num_key_heads*linear_key_head_dim",)),
    "linear_num_value_heads*linear_value_head_dim",
)

_ATTENTION: tuple[LayerRow, ...] = (
    # One config for layers with different heads, so the rows of a head are unknown.
    *rows({"attn_[qk]": ()}, {"deci"}),
    # Latent attention; k and v are products.
    *rows({"attn_q": ((Role.Q, _OF_QUERY),)}, beside=r"attn_(?:kv|k)_b\.weight", rope="none", n_heads=_ALL_HEADS),
    *rows({"attn_kv_a_mqa": ((Role.KV_LATENT, _LATENT),)}),
    # An output gate follows each query head.
    *rows({"attn_q": ((Role.Q, FusedRows("heads", (1, 1), 0)),)}, {"qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"}),
    *rows(_REORDERED, _PAIRED),
    # Also reordered, although the family has no rotary positions.
    *rows(_REORDERED, _NEMOTRON, rope="none"),
    *rows(named("attn_%s", "q k v (?:output|o)", ATTENTION), {"t5"}, rope="none"),
    *rows(named("attn_%s", "q k v (?:output|o)", ATTENTION)),
    # Linear attention of Qwen3-Next and Qwen3.5. If value heads share a key head, their order differs from
    # transformers, in the same way for v, the gate and the input of the output projection.
    *rows(
        {"attn_qkv": fused_rows(QKV, 1, _LINEAR_QKV), "attn_gate": Role.MIXER_GATE},
        beside=_RECURRENT,
        rope="none",
        n_heads=(1, 1),
    ),
    *rows({"ssm_out": Role.O}, beside=r"attn_qkv\.weight", rope="none", n_heads=(1, 1)),
    # All fused layouts are converted to q, then k, then v.
    *rows({"attn_qkv": CONTIGUOUS}, unless_beside=_RECURRENT),
)

_MIXERS: tuple[LayerRow, ...] = (
    *rows({"ssm_in": fused_rows((Role.SSM_IN, Role.MIXER_GATE), 1, (1, 1))}, {"mamba", "jamba"}),
    *rows(
        {"ssm_in": mamba2("ssm_inner_size", "ssm_group_count*ssm_state_size", "ssm_time_step_rank")},
        {"mamba2", "granitemoehybrid", "falcon_h1", "nemotron_h"},
    ),
    *rows({"ssm_out": Role.SSM_OUT}, beside=r"ssm_in\.weight"),
    *rows({r"shortconv\.in_proj": LFM2_INPUT, r"shortconv\.out_proj": Role.SSM_OUT}),
    # RWKV.
    *rows(
        named("time_mix_%s", "receptance key value output gate", (*ATTENTION, Role.MIXER_GATE))
        | named("channel_mix_%s", "key value", MLP),
        rope="none",
    ),
    *rows({"attn_norm_2": Role.MLP_NORM}, beside=r"channel_mix_key\.weight"),
)

_MLP: tuple[LayerRow, ...] = (
    *rows({"ffn_up": GATE_THEN_UP}, {"phi3", "glm", "glm4", "modernbert"}, unless_beside=r"ffn_gate\.weight"),
    *rows(named("ffn_%s", "gate up down", GATED_MLP)),
    *rows(named(rf"ffn_%s\.{NUMBER}", "gate up down", GATED_MLP), experts="numbered"),
    *rows({**named("ffn_%s_exps", "gate up down", GATED_MLP), "ffn_gate_up_exps": GATE_THEN_UP}, experts="stacked"),
    *rows(named("ffn_%s_shexp", "gate up down", GATED_MLP), experts="shared"),
    *rows({"ffn_gate_inp": Role.ROUTER}),
)

_NORMS: tuple[LayerRow, ...] = (
    *rows({"attn_[qk]_norm": ()}, {"chameleon"}),
    *rows(named("attn_%s_norm", "q k", HEAD_NORMS)),
    *rows({"attn_norm": Role.MLP_NORM}, _NEMOTRON, beside=_UP),
    *rows({"attn_norm": Role.ATTENTION_NORM}, _NEMOTRON),
    # Falcon with two norms: the second one is before attention.
    *rows({"attn_norm": Role.MLP_NORM}, _FALCON, beside=r"attn_norm_2\.weight"),
    *rows({"attn_norm_2": Role.ATTENTION_NORM}, _FALCON),
    *rows({"attn_norm": Role.ATTENTION_NORM}, beside=_OTHER_NORM_OF_MLP),
    *rows({"attn_norm": Role.ATTENTION_NORM}, unless_beside=_UP),
    # Attention and MLP in parallel after one norm.
    *rows({"attn_norm": NORMS}),
    *rows({_FFN_NORM: Role.MLP_NORM}, ending=""),
    # Before the MLP if there is no other norm for it, otherwise after attention.
    *rows(
        {"post_attention_norm": Role.MLP_NORM},
        beside=r"attn_norm\.weight",
        unless_beside=rf"{_FFN_NORM}|post_ffw_norm\.weight",
    ),
    *rows(named("post_%s_norm", "attention ffw", OUT_NORMS)),
)

ROWS: tuple[LayerRow, ...] = (*_ATTENTION, *_MIXERS, *_MLP, *_NORMS)

_KV_A = (r"attn_kv_a_mqa\.weight", r"attn_kv_a_norm\.weight")

PRODUCT_ROWS: tuple[ProductRow, ...] = (
    ProductRow(
        Role.Q,
        r"attn_q_b\.weight",
        r"attn_q_a\.weight",
        r"attn_q_a_norm\.weight",
        left_layout=_OF_QUERY,
        rope="none",
        n_heads=_ALL_HEADS,
    ),
    *(
        ProductRow(
            role,
            r"attn_kv_b\.weight",
            *_KV_A,
            left_layout=FusedRows("heads", _OF_KEY_VALUE, at),
            right_layout=_LATENT,
            rope="none",
            n_heads=_ALL_HEADS,
        )
        for at, role in enumerate((Role.K, Role.V))
    ),
    # Split and stacked by head, transposed for k.
    *(
        ProductRow(
            role,
            rf"attn_{name}_b\.weight",
            *_KV_A,
            right_layout=_LATENT,
            left_per_head=True,
            left_transposed=role is Role.K,
            rope="none",
            n_heads=_ALL_HEADS,
        )
        for name, role in (("k", Role.K), ("v", Role.V))
    ),
)

NOT_WEIGHTS = (
    r"exp_probs_b|(?:attn_sinks|ffn_gate_inp_shexp|rope_freqs|ssm_(?:conv1d|norm|dt_norm|b_norm|c_norm)|shortconv\.conv"
    r"|time_mix_(?:lerp_\w+|first|decay|ln|w0|a0|v0|k_k|k_a|r_k)|channel_mix_lerp_\w+|layer_output_scale)\.weight"
    r"|ssm_[ad]"
)
"""Pattern for tensors in a layer that are not compared."""
