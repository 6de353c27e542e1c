"""Decoders: fused projections, architectures older than Llama, Llama-like models and compressed models.

Norms whose output is the stream itself (as in BART) have no role. Compressed models use the names that SVD-LLM,
ASVD, QuaRot, SpinQuant and SliceGPT write.
"""

from __future__ import annotations

from mdir_hf.model.roles.roles import FusedRows, Role
from mdir_hf.model.roles.rows import (
    ATTENTION,
    CONTIGUOUS,
    GATE_THEN_UP,
    GATED_MLP,
    HEAD_NORMS,
    MLP,
    NO,
    NO_OR_UNSAID,
    NORMS,
    OUT_NORMS,
    PER_GROUP,
    PER_HEAD,
    QKV,
    THIRDS,
    YES,
    YES_OR_UNSAID,
    LayerRow,
    ProductRow,
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

_FUSED: tuple[LayerRow, ...] = (
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


_FAIRSEQ = {
    *("opt", "bart", "bigbird_pegasus", "biogpt", "blenderbot", "blenderbot-small", "marian", "mbart", "mvp"),
    *("musicgen_decoder", "musicgen_melody_decoder", "pegasus", "plbart", "trocr", "whisper", "xglm"),
}

_CLASSIC: tuple[LayerRow, ...] = (
    *rows({r"self_attn\.out_proj": Role.O}),
    *rows({r"self_attn\.output_projection\.o_proj": Role.O}, {"neomme"}),
    *rows({"fc1": Role.UP, "fc2": Role.DOWN}, _FAIRSEQ),
    *rows(named(r"mlp\.%s", "fc1 fc2", MLP), {"phi", "nanochat"}),
    *rows({r"self_attn\.dense": Role.O}, {"phi"}),
    *rows(named(r"mlp\.%s", "c_fc c_proj", MLP), {"starcoder2", "gpt_neo"}),
    *rows(named(r"attn\.attention\.%s_proj", "q k v out", ATTENTION), {"gpt_neo"}),
    *rows(named(r"attn\.%s_proj", "q k v", QKV), {"gptj", "modernbert-decoder"}),
    *rows({r"attn\.out_proj": Role.O, **named(r"mlp\.%s", "fc_in fc_out", MLP)}, {"gptj", "codegen"}),
    *rows(named(r"multi_head_attention\.%s", "Wq Wk Wv dense", ATTENTION) | named(r"ffn\.%s", "0 2", MLP), {"ctrl"}),
    *rows(
        {
            **named(r"self_att\.self_attention\.%s", "project_q project_k project_v attention_out", ATTENTION),
            **named(r"ffn\.ffn\.%s", r"w_in\.w_0 w_in\.w_1 w_out", GATED_MLP),
        },
        {"cpmant"},
    ),
    *rows(
        named(r"self_attn\.%s_proj", "query key value", QKV) | named(r"feed_forward\.%s", "intermediate output", MLP),
        {"prophetnet"},
    ),
    # Reformer: one projection for queries and keys in layers that hash; keys are normalised.
    *rows({r"attention\.self_attention\.query_key": (Role.Q, Role.K)}, {"reformer"}),
    *rows(
        {
            **named(r"attention\.self_attention\.%s", "query key value", QKV),
            r"attention\.output\.dense": Role.O,
            **named(r"feed_forward\.%s\.dense", "dense output", MLP),
        },
        {"reformer"},
    ),
    # Inkling 2, whose files have their own names.
    *rows(named(r"attn\.%s", "wq_du wk_dv wv_dv wo_ud", ATTENTION), {"inkling2_text"}),
    # xLSTM: a linear attention with gates.
    *rows(
        {
            **named(r"mlstm_layer\.%s", "q k v out_proj", ATTENTION),
            r"mlstm_layer\.ogate_preact": Role.MIXER_GATE,
            **named(r"ffn\.proj_%s", "up_gate up down", GATED_MLP),
        },
        {"xlstm"},
    ),
    # XLM: each part of a layer has a numbered list of its own.
    *rows(
        named(r"attentions\|%s_lin", "q k v out", ATTENTION) | named(r"ffns\|lin%s", "1 2", MLP), {"xlm", "flaubert"}
    ),
    # XLNet: (d_model, heads, d_head), for the output as well.
    *rows(named(r"rel_attn\.%s", "q k v", QKV), {"xlnet"}, ending="", transposed=True, joined=True),
    *rows({r"rel_attn\.o": Role.O}, {"xlnet"}, ending="", joined=True),
    *rows(named(r"ff\.layer_%s", "1 2", MLP), {"xlnet"}),
)


_LLAMA: tuple[LayerRow, ...] = (
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


SHORTCUTS = r"(?:attn|mlp)_shortcut_Q"
"""Names of SliceGPT's matrices that rotate the stream from one layer's basis into the next layer's."""

_PROJECTIONS: dict[str, Role] = {
    **dict(zip((r"self_attn\.q", r"self_attn\.k", r"self_attn\.v", r"self_attn\.o"), ATTENTION, strict=True)),
    **dict(zip((r"mlp\.gate", r"mlp\.up", r"mlp\.down"), GATED_MLP, strict=True)),
}

_COMPRESSED: tuple[LayerRow, ...] = (
    # QuaRot and SpinQuant wrap a weight to quantise its input; the weight itself is unchanged.
    *rows(named(r"self_attn\.%s_proj\.module", "q k v o", ATTENTION)),
    *rows(named(r"mlp\.%s_proj\.module", "gate up down", GATED_MLP)),
    *rows({SHORTCUTS: ()}, ending=""),
)

PRODUCT_ROWS: tuple[ProductRow, ...] = tuple(
    ProductRow(role, rf"{name}{left}\.weight", rf"{name}{right}\.weight", None)
    for name, role in _PROJECTIONS.items()
    for left, right in (
        (r"_u_proj", r"_v_proj"),  # SVD-LLM: U, then V
        (r"_proj\.ALinear", r"_proj\.BLinear"),  # ASVD
    )
)


_FAIRSEQ_NORM_FIRST = {
    *("bigbird_pegasus", "biogpt", "blenderbot", "mbart", "musicgen_decoder", "musicgen_melody_decoder"),
    *("pegasus", "whisper", "xglm"),
}
_FAIRSEQ_NORMS = named("%s_layer_norm", "self_attn final", NORMS)

_NORMS: tuple[LayerRow, ...] = (
    *rows(named("ln_%s", "1 2", NORMS), {"gpt2", "gpt_bigcode", "gpt_neo"}),
    # Attention and MLP in parallel after one norm.
    *rows({"ln_1": NORMS}, {"gptj", "codegen"}),
    *rows({"input_layernorm": NORMS}, {"cohere", "cohere2", "cohere2_moe", "cohere_compass_text", "phi"}),
    *rows(
        {"input_layernorm": NORMS},
        {"falcon", "RefinedWeb", "RefinedWebModel", "stablelm"},
        unless_beside=r"(?:post_attention_layernorm|ln_mlp)\.weight",
    ),
    *rows(named("ln_%s", "attn mlp", NORMS), {"falcon", "RefinedWeb"}),
    *rows(_FAIRSEQ_NORMS, {"opt"}, when=(("do_layer_norm_before", YES_OR_UNSAID),)),
    *rows(_FAIRSEQ_NORMS, _FAIRSEQ_NORM_FIRST),
    *rows(named("norm_%s", "1 2", NORMS), {"mpt"}),
    *rows(named("layernorm%s", "1 2", NORMS), {"ctrl"}),
    *rows(named(r"%s", r"self_att\.layernorm_before_attention ffn\.layernorm_before_ffn", NORMS), {"cpmant"}),
    *rows(named(r"norm_attn_norm\.norm_%s", "1 2", NORMS), {"dbrx"}),
    *rows(named(r"%s\.layer_norm", "attention feed_forward", NORMS), {"reformer"}),
    *rows(named("%s_norm", "attn mlp", NORMS), {"inkling2_text", "modernbert-decoder"}),
    *rows(named("norm_%s", "mlstm ffn", NORMS), {"xlstm"}),
    *rows(named("%s_layernorm", "attention feedforward", NORMS), {"apertus"}),
    *rows(named("%s_norm", "attn ffn", NORMS) | named(r"attn\.%s_norm", "q k", HEAD_NORMS), {"openelm"}),
    # Names in most families.
    *rows(
        {
            r"self_attn\.(?:q_norm|q_layernorm|query_layernorm)": Role.Q_NORM,
            r"self_attn\.(?:k_norm|k_layernorm|key_layernorm)": Role.K_NORM,
            "input_layernorm": Role.ATTENTION_NORM,
            "pre_(?:feedforward|mlp|ff)_layernorm": Role.MLP_NORM,
        }
    ),
    # The norm with this name is before the MLP in Llama, but after attention in Gemma-2 and OLMo-2.
    *rows(
        {"post_attention_layernorm": Role.MLP_NORM},
        beside=r"input_layernorm\.weight",
        unless_beside=r"pre_(feedforward|mlp|ff)_layernorm\.weight",
    ),
    *rows(
        {"post_attention_layernorm": Role.ATTENTION_OUT_NORM},
        beside=r"(?:pre|post)_(?:feedforward|mlp|ff)_layernorm\.weight",
    ),
    *rows(named("post_%s_layernorm", "self_attn (?:feedforward|mlp|ff)", OUT_NORMS)),
)

ROWS: tuple[LayerRow, ...] = (*_FUSED, *_CLASSIC, *_LLAMA, *_COMPRESSED, *_NORMS)
