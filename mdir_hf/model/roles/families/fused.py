"""Families that store several weights in one tensor, transposed or interleaved."""

from __future__ import annotations

from mdir_hf.model.roles.roles import Role
from mdir_hf.model.roles.rows import (
    ATTENTION,
    CONTIGUOUS,
    GATE_THEN_UP,
    MLP,
    NO,
    NO_OR_UNSAID,
    PER_GROUP,
    PER_HEAD,
    QKV,
    THIRDS,
    YES,
    YES_OR_UNSAID,
    LayerRow,
    fused_rows,
    named,
    rows,
)

_CONV1D = {"gpt2", "openai-gpt"}
_FALCON = {"falcon", "RefinedWeb", "RefinedWebModel"}
_PHI3 = {"phi3", "phi4_multimodal"}

# All queries, then one key and one value shared by all heads.
_ONE_KEY = fused_rows(QKV, 1, ("heads", 1, 1))
_GPT2 = {r"attn\.c_proj": Role.O, **named(r"mlp\.%s", "c_fc c_proj", MLP)}
_OLD_FALCON = ("new_decoder_architecture", NO_OR_UNSAID)

ROWS: tuple[LayerRow, ...] = (
    # GPT-2: Conv1D, stored (d_in, d_out); q|k|v contiguous along d_out.
    *rows({r"attn\.c_attn": THIRDS, **_GPT2}, _CONV1D, transposed=True),
    # GPT-BigCode uses the same names, but no Conv1D, and has two layouts.
    *rows({r"attn\.c_attn": _ONE_KEY}, {"gpt_bigcode"}, when=(("multi_query", YES_OR_UNSAID),), n_heads=("heads", 1)),
    *rows({r"attn\.c_attn": PER_HEAD}, {"gpt_bigcode"}, when=(("multi_query", NO),), n_heads=("heads", "heads")),
    *rows(_GPT2, {"gpt_bigcode"}),
    # GPT-NeoX and BLOOM differ only in names: view (n_heads, 3, d_head, d_model).
    *rows({r"attention\.query_key_value": PER_HEAD}, {"gpt_neox", "gpt_neox_japanese"}),
    *rows({r"self_attention\.query_key_value": PER_HEAD}, {"bloom"}),
    *rows({r"self_attn\.query_key_value": PER_HEAD}, {"persimmon", "fuyu"}),
    # Falcon: by groups from 40B on; one key for all heads in 7B; like BLOOM in 1B.
    *rows({r"self_attention\.query_key_value": PER_GROUP}, _FALCON, when=(("new_decoder_architecture", YES),)),
    *rows({r"self_attention\.query_key_value": PER_GROUP}, _FALCON, needs_number="n_head_kv"),  # 40B as first published
    *rows(
        {r"self_attention\.query_key_value": _ONE_KEY},
        _FALCON,
        when=(_OLD_FALCON, ("multi_query", YES_OR_UNSAID)),
        n_heads=("heads", 1),
    ),
    *rows(
        {r"self_attention\.query_key_value": PER_HEAD},
        _FALCON,
        when=(_OLD_FALCON, ("multi_query", NO)),
        n_heads=("heads", "heads"),
    ),
    *rows(
        {
            r"(?:self_attention|attention|self_attn)\.dense": Role.O,
            **named(r"mlp\.dense_%s", "h_to_4h 4h_to_h", MLP),
        },
        {"gpt_neox", "gpt_neox_japanese", "bloom", "persimmon", "fuyu", *_FALCON},
    ),
    # CodeGen: four blocks, one for each core of the machine it was trained on, each in the order q, v, k.
    *rows({r"attn\.qkv_proj": fused_rows((Role.Q, Role.V, Role.K), 4, (1, 1, 1))}, {"codegen"}),
    # MPT: contiguous; its remote code also supports groups.
    *rows(
        {r"attn\.Wqkv": THIRDS}, {"mpt"}, when=(("attn_config.attn_type", frozenset({"multihead_attention", None})),)
    ),
    *rows(
        {r"attn\.Wqkv": fused_rows(QKV, 1, ("heads", *(2 * ("attn_config.kv_n_heads",))))},
        {"mpt"},
        when=(("attn_config.attn_type", frozenset({"grouped_query_attention"})),),
        n_heads=("heads", "attn_config.kv_n_heads"),
    ),
    *rows(
        {r"attn\.Wqkv": _ONE_KEY},
        {"mpt"},
        when=(("attn_config.attn_type", frozenset({"multiquery_attention"})),),
        n_heads=("heads", 1),
    ),
    *rows({r"attn\.out_proj": Role.O, **named(r"ffn\.%s_proj", "up down", MLP)}, {"mpt"}),
    # DBRX: contiguous, with groups.
    *rows(
        {r"norm_attn_norm\.attn\.Wqkv": fused_rows(QKV, 1, ("heads", *(2 * ("attn_config.kv_n_heads",))))},
        {"dbrx"},
        n_heads=("heads", "attn_config.kv_n_heads"),
    ),
    *rows({r"norm_attn_norm\.attn\.out_proj": Role.O}, {"dbrx"}),
    # JetMoE: keys and values are shared by all experts. Queries and outputs belong to an expert, and get no role.
    *rows({r"self_attention\.kv_proj": fused_rows((Role.K, Role.V), 1, (1, 1))}, {"jetmoe"}),
    # Phi-3: q|k|v and gate|up contiguous.
    *rows({r"self_attn\.qkv_proj": CONTIGUOUS}, _PHI3),
    *rows({r"mlp\.gate_up_proj": GATE_THEN_UP}, _PHI3 | {"glm", "glm4", "glm4v_text", "glm_ocr_text", "hrm_text"}),
    # OpenELM: like Phi-3, with different heads in every layer.
    *rows(
        {
            r"attn\.qkv_proj": CONTIGUOUS,
            r"ffn\.proj_1": GATE_THEN_UP,
            r"attn\.out_proj": Role.O,
            r"ffn\.proj_2": Role.DOWN,
        },
        {"openelm"},
    ),
    # HRM: an output gate before q, k and v.
    *rows(
        {
            r"attn\.gqkv_proj": fused_rows((Role.MIXER_GATE, *QKV), 1, ("heads", "heads", "kv_heads", "kv_heads"))[1:],
            r"attn\.o_proj": Role.O,
        },
        {"hrm_text"},
    ),
    # Moshi: gate|up in a tensor with the name that others use for up.
    *rows({r"mlp\.fc1": GATE_THEN_UP}, {"moshi", "moshi_depth"}),
    *rows({r"mlp\.fc2": Role.DOWN, **named(r"self_attn\.%s_proj\.linear", "q k v o", ATTENTION)}, {"moshi"}),
)
