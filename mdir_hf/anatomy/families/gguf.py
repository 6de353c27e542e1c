"""The names of GGUF, the same for all families, with what the converter of llama.cpp does to some of them.

Families are those of :mod:`mdir_hf.anatomy.gguf`. Source: ``gguf.constants`` (names) and the ``conversion`` folder of
llama.cpp (what is permuted, split, joined and transposed), each family that transformers has checked by value.
"""

from __future__ import annotations

from ..roles import WHOLE, Count, FusedRows, InterleavedRows, Layout, Role
from ..rows import GATE_THEN_UP, LayerRow, ProductRow

_QKV = (Role.Q, Role.K, Role.V)
_OF_ATTENTION = {"attn_q": Role.Q, "attn_k": Role.K, "attn_v": Role.V, "attn_(?:output|o)": Role.O}
_OF_MLP = (("gate", Role.GATE), ("up", Role.UP), ("down", Role.DOWN))

_PAIRED = frozenset(
    {
        *("llama", "arcee", "smollm3", "granite", "granitemoe", "granitemoehybrid", "ministral3"),
        *("deepseek", "olmo", "internlm2", "baichuan", "xverse", "minicpm", "arctic", "bailing_moe", "llada"),
        "chameleon",
    }
)
"""Families whose q and k the converter reorders for rotary positions of neighbouring rows."""

_GATED_QUERIES = frozenset({"qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"})
_FUSED_GATE = frozenset({"phi3", "glm", "glm4", "modernbert"})
_T5 = frozenset({"t5"})
_NEMOTRON = frozenset({"nemotron_h"})
_FALCON = frozenset({"falcon"})
_MAMBA = frozenset({"mamba", "jamba"})
_MAMBA2 = frozenset({"mamba2", "granitemoehybrid", "falcon_h1", "nemotron_h"})
_HEADS_BY_LAYER = frozenset({"deci"})
_NORMS_PAIRED = frozenset({"chameleon"})

_RECURRENT = r"ssm_(?:a|conv1d(?:\.weight)?|conv1d_q\.weight)"
_KV_B = r"attn_(?:kv|k)_b\.weight"
_FFN_NORM = r"ffn_norm(?:\.weight)?"  # Falcon-H1's has no ending
_OTHER_NORM_OF_MLP = rf"(?:{_FFN_NORM}|(?:post_attention_norm|post_ffw_norm|attn_norm_2)\.weight)"

_ALL_HEADS = ("heads", "heads")
_OF_QUERY = FusedRows("heads", ("qk_nope_head_dim", "qk_rope_head_dim"), 0)
_OF_KEY_VALUE = ("qk_nope_head_dim", "v_head_dim")
_LATENT = FusedRows(1, ("kv_lora_rank", "qk_rope_head_dim"), 0)

_LINEAR_QKV: tuple[Count, ...] = (
    *(2 * ("linear_num_key_heads*linear_key_head_dim",)),
    "linear_num_value_heads*linear_value_head_dim",
)
# z|x|B|C|dt, z and x as wide as the mixer, B and C a state for each group.
_OF_MAMBA2: tuple[Count, ...] = (
    *("ssm_inner_size", "ssm_inner_size"),
    *(2 * ("ssm_group_count*ssm_state_size",)),
    "ssm_time_step_rank",
)


def _fused(roles: tuple[Role, ...], groups: Count, shares: tuple[Count, ...]) -> tuple[tuple[Role, Layout], ...]:
    return tuple((role, FusedRows(groups, shares, at)) for at, role in enumerate(roles))


_ATTENTION: tuple[LayerRow, ...] = (
    # One config for layers of different heads: which rows belong to a head is not known.
    LayerRow(r"attn_[qk]\.weight", (), model_types=_HEADS_BY_LAYER),
    # Latent attention; k and v are products.
    LayerRow(r"attn_q\.weight", ((Role.Q, _OF_QUERY),), beside=_KV_B, rope="none", n_heads=_ALL_HEADS),
    LayerRow(r"attn_kv_a_mqa\.weight", ((Role.KV_LATENT, _LATENT),)),
    # An output gate beside each query head.
    LayerRow(r"attn_q\.weight", ((Role.Q, FusedRows("heads", (1, 1), 0)),), model_types=_GATED_QUERIES),
    LayerRow(r"attn_q\.weight", ((Role.Q, InterleavedRows("heads")),), model_types=_PAIRED),
    LayerRow(r"attn_k\.weight", ((Role.K, InterleavedRows("kv_heads")),), model_types=_PAIRED),
    # Reordered too, although positions do not enter it.
    LayerRow(r"attn_q\.weight", ((Role.Q, InterleavedRows("heads")),), model_types=_NEMOTRON, rope="none"),
    LayerRow(r"attn_k\.weight", ((Role.K, InterleavedRows("kv_heads")),), model_types=_NEMOTRON, rope="none"),
    *(LayerRow(rf"{name}\.weight", ((r, WHOLE),), model_types=_T5, rope="none") for name, r in _OF_ATTENTION.items()),
    *(LayerRow(rf"{name}\.weight", ((role, WHOLE),)) for name, role in _OF_ATTENTION.items()),
    # Linear attention of Qwen3-Next and Qwen3.5. Where value heads share a key head they lie in another order than in
    # transformers, those of v, of the gate and of what the output reads alike.
    LayerRow(r"attn_qkv\.weight", _fused(_QKV, 1, _LINEAR_QKV), beside=_RECURRENT, rope="none", n_heads=(1, 1)),
    LayerRow(r"attn_gate\.weight", ((Role.MIXER_GATE, WHOLE),), beside=_RECURRENT, rope="none", n_heads=(1, 1)),
    LayerRow(r"ssm_out\.weight", ((Role.O, WHOLE),), beside=r"attn_qkv\.weight", rope="none", n_heads=(1, 1)),
    # Whatever was fused, and however, is q, then k, then v.
    LayerRow(r"attn_qkv\.weight", _fused(_QKV, 1, ("heads", "kv_heads", "kv_heads")), unless_beside=_RECURRENT),
)

_MIXERS: tuple[LayerRow, ...] = (
    LayerRow(r"ssm_in\.weight", _fused((Role.SSM_IN, Role.MIXER_GATE), 1, (1, 1)), model_types=_MAMBA),
    LayerRow(r"ssm_in\.weight", _fused((Role.MIXER_GATE, Role.SSM_IN), 1, _OF_MAMBA2), model_types=_MAMBA2),
    LayerRow(r"ssm_out\.weight", ((Role.SSM_OUT, WHOLE),), beside=r"ssm_in\.weight"),
    # LFM2: B|C|x, out(C * conv(B * x)).
    LayerRow(
        r"shortconv\.in_proj\.weight",
        ((Role.MIXER_GATE, FusedRows(1, (1, 1, 1), 1)), (Role.SSM_IN, FusedRows(1, (1, 1, 1), 2))),
    ),
    LayerRow(r"shortconv\.out_proj\.weight", ((Role.SSM_OUT, WHOLE),)),
    # RWKV.
    *(
        LayerRow(rf"{name}\.weight", ((role, WHOLE),), rope="none")
        for name, role in (
            ("time_mix_receptance", Role.Q),
            ("time_mix_key", Role.K),
            ("time_mix_value", Role.V),
            ("time_mix_output", Role.O),
            ("time_mix_gate", Role.MIXER_GATE),
            ("channel_mix_key", Role.UP),
            ("channel_mix_value", Role.DOWN),
        )
    ),
    LayerRow(r"attn_norm_2\.weight", ((Role.MLP_NORM, WHOLE),), beside=r"channel_mix_key\.weight"),
)

_MLP: tuple[LayerRow, ...] = (
    LayerRow(r"ffn_up\.weight", GATE_THEN_UP, model_types=_FUSED_GATE, unless_beside=r"ffn_gate\.weight"),
    *(LayerRow(rf"ffn_{name}\.weight", ((role, WHOLE),)) for name, role in _OF_MLP),
    *(
        LayerRow(rf"ffn_{name}\.(?P<expert>\d{{1,4}})\.weight", ((role, WHOLE),), experts="numbered")
        for name, role in _OF_MLP
    ),
    *(LayerRow(rf"ffn_{name}_exps\.weight", ((role, WHOLE),), experts="stacked") for name, role in _OF_MLP),
    LayerRow(r"ffn_gate_up_exps\.weight", GATE_THEN_UP, experts="stacked"),
    *(LayerRow(rf"ffn_{name}_shexp\.weight", ((role, WHOLE),), experts="shared") for name, role in _OF_MLP),
    LayerRow(r"ffn_gate_inp\.weight", ((Role.ROUTER, WHOLE),)),
)

_NORMS: tuple[LayerRow, ...] = (
    LayerRow(r"attn_[qk]_norm\.weight", (), model_types=_NORMS_PAIRED),
    LayerRow(r"attn_q_norm\.weight", ((Role.Q_NORM, WHOLE),)),
    LayerRow(r"attn_k_norm\.weight", ((Role.K_NORM, WHOLE),)),
    LayerRow(
        r"attn_norm\.weight",
        ((Role.MLP_NORM, WHOLE),),
        model_types=_NEMOTRON,
        beside=r"ffn_up(?:_exps)?\.weight",
    ),
    LayerRow(r"attn_norm\.weight", ((Role.ATTENTION_NORM, WHOLE),), model_types=_NEMOTRON),
    # Falcon with two norms: the second one stands in front of attention.
    LayerRow(r"attn_norm\.weight", ((Role.MLP_NORM, WHOLE),), model_types=_FALCON, beside=r"attn_norm_2\.weight"),
    LayerRow(r"attn_norm_2\.weight", ((Role.ATTENTION_NORM, WHOLE),), model_types=_FALCON),
    LayerRow(r"attn_norm\.weight", ((Role.ATTENTION_NORM, WHOLE),), beside=_OTHER_NORM_OF_MLP),
    LayerRow(r"attn_norm\.weight", ((Role.ATTENTION_NORM, WHOLE),), unless_beside=r"ffn_up(?:_exps)?\.weight"),
    # Attention and MLP side by side behind one norm.
    LayerRow(r"attn_norm\.weight", ((Role.ATTENTION_NORM, WHOLE), (Role.MLP_NORM, WHOLE))),
    LayerRow(_FFN_NORM, ((Role.MLP_NORM, WHOLE),)),
    # In front of the MLP where no other norm is, behind attention otherwise.
    LayerRow(
        r"post_attention_norm\.weight",
        ((Role.MLP_NORM, WHOLE),),
        beside=r"attn_norm\.weight",
        unless_beside=rf"{_FFN_NORM}|post_ffw_norm\.weight",
    ),
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
    # Split and stacked by head, those of k transposed.
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
"""Names in a layer that a comparison does not need."""
