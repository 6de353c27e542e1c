"""Families with modelling code in their own repositories, and files in which publishers use their own tensor names."""

from __future__ import annotations

from mdir_hf.model.roles.roles import Role
from mdir_hf.model.roles.rows import (
    ATTENTION,
    CONTIGUOUS,
    GATE_AND_UP_IN_TURNS,
    GATE_THEN_UP,
    GATED_MLP,
    HEAD_NORMS,
    MLP,
    NO_OR_UNSAID,
    NORMS,
    NUMBER,
    OUT_NORMS,
    PER_GROUP,
    PER_HEAD,
    QKV,
    THIRDS,
    YES,
    LayerRow,
    ProductRow,
    fused_rows,
    named,
    rows,
)

_MOLMO = {"molmo", "molmo2", "molmo2_text", "hf_olmo", "olmo-original"}
_CHATGLM = {"chatglm"}
_TELECHAT = {"telechat", "telechat2"}
_STEP3 = frozenset({"step3", "step3_text"})
_STEPS = _STEP3 | {"step3p5", "step3p7", "step3p7_text"}
_GROK = {"grok-1"}
_ARCTIC = {"arctic"}

_LN = named("ln_%s", "1 2", NORMS)
_MLP_OF_META = named(r"feed_forward\.%s", "w1 w3 w2", GATED_MLP)
_NORMS_OF_META = named("%s_norm", "attention ffn", NORMS)
_BESIDE_META = r"attention\.wq\.weight"
_BESIDE_LATENT = r"attention\.wkv_b\.weight"

ROWS: tuple[LayerRow, ...] = (
    # ChatGLM2, 3 and GLM-4: q|k|v with groups, gate|up. ChatGLM-6B has the same model type, but BLOOM's layout.
    *rows({r"self_attention\.query_key_value": CONTIGUOUS}, _CHATGLM, when=(("multi_query_attention", YES),)),
    *rows(
        {r"self_attention\.query_key_value": PER_HEAD},
        _CHATGLM,
        when=(("multi_query_attention", NO_OR_UNSAID),),
        n_heads=("heads", "heads"),
    ),
    *rows({r"attention\.query_key_value": PER_HEAD}, _CHATGLM, n_heads=("heads", "heads")),
    *rows({r"(?:self_)?attention\.dense": Role.O, r"mlp\.dense_4h_to_h": Role.DOWN}, _CHATGLM),
    *rows({r"mlp\.dense_h_to_4h": GATE_THEN_UP}, _CHATGLM, beside=r"self_attention\.query_key_value\..+"),
    *rows({r"mlp\.dense_h_to_4h": Role.UP}, _CHATGLM, beside=r"attention\.query_key_value\..+"),
    # InternLM2: each group has its queries, then k, then v.
    *rows({r"attention\.wqkv": PER_GROUP, r"attention\.wo": Role.O, **_MLP_OF_META, **_NORMS_OF_META}, {"internlm2"}),
    # Llama's and Mistral's own files, whose names InternLM2 uses too; positions rotate neighbouring rows of a head.
    *rows(
        named(r"attention\.w%s", "q k v", QKV), beside=_BESIDE_META, unless_beside=_BESIDE_LATENT, rope="interleaved"
    ),
    *rows(
        {r"attention\.wo": Role.O, **_MLP_OF_META, **_NORMS_OF_META}, beside=_BESIDE_META, unless_beside=_BESIDE_LATENT
    ),
    *rows({r"self_attn\.W_pack": THIRDS}, {"baichuan"}),
    # QWen: the output of w2 is activated.
    *rows(
        {r"attn\.c_attn": THIRDS, r"attn\.c_proj": Role.O, **named(r"mlp\.%s", "w2 w1 c_proj", GATED_MLP), **_LN},
        {"qwen"},
    ),
    *rows(
        {
            **named(r"attn\.attention\.%s_proj", "q k v out", ATTENTION),
            **named(r"mlp\.%s", "c_fc_0 c_fc_1 c_proj", GATED_MLP),
            **_LN,
        },
        {"exaone"},
    ),
    # Phi-3-small: gate and up interleaved, in a tensor with the name that others use for up.
    *rows(
        {
            r"self_attn\.query_key_value": PER_GROUP,
            r"self_attn\.dense": Role.O,
            r"mlp\.up_proj": GATE_AND_UP_IN_TURNS,
        },
        {"phi3small"},
    ),
    # Phi-1 and 2 as first published: one norm before attention and MLP.
    *rows(
        {
            r"mixer\.Wqkv": CONTIGUOUS,
            r"mixer\.out_proj": Role.O,
            **named(r"mlp\.%s", "fc1 fc2", MLP),
            "ln": NORMS,
        },
        {"phi-msft", "mixformer-sequential"},
    ),
    # Huginn: positions rotate neighbouring rows of a head, as complex numbers.
    *rows({r"attn\.Wqkv": CONTIGUOUS}, {"huginn_raven"}, rope="interleaved"),
    *rows(
        {
            r"attn\.proj": Role.O,
            r"mlp\.fc": GATE_THEN_UP,
            r"mlp\.proj": Role.DOWN,
            **named("norm_%s", "1 3", NORMS),
        },
        {"huginn_raven"},
    ),
    *rows(named("ln%s", "1 2", NORMS), {"Yi", "yi"}),
    # TeleChat: for each key head k, then v.
    *rows(
        {
            r"self_attention\.key_value": fused_rows((Role.K, Role.V), "kv_heads", (1, 1)),
            **named(r"self_attention\.%s", "query dense", (Role.Q, Role.O)),
        },
        _TELECHAT,
    ),
    # Jais: GPT-2's Conv1D, (d_in, d_out), with a gate.
    *rows({r"attn\.c_attn": THIRDS}, {"jais"}, transposed=True, rope="none"),
    *rows({r"attn\.c_proj": Role.O, **named(r"mlp\.%s", "c_fc2 c_fc c_proj", GATED_MLP)}, {"jais"}, transposed=True),
    *rows(_LN, {"jais"}),
    *rows(
        {
            r"attention\.query_key_value": CONTIGUOUS,
            r"attention\.dense": Role.O,
            **named(r"attention\.%s_layernorm", "query key", HEAD_NORMS),
        },
        {"bailing_moe", "bailing_moe_v2", "bailing_moe_linear", "bailing"},
    ),
    *rows(
        {r"attn\.c_attn": fused_rows(QKV, 1, ("heads", "num_query_groups", "num_query_groups"))},
        {"codeshell"},
        n_heads=("heads", "num_query_groups"),
    ),
    *rows({r"attn\.c_proj": Role.O, **named(r"mlp\.%s", "c_fc c_proj", MLP), **_LN}, {"codeshell"}),
    # LLaDA, derived from OLMo's own code, with separate projections.
    *rows(
        {
            **named("%s", "q_proj k_proj v_proj attn_out", ATTENTION),
            **named("%s", "ff_proj up_proj ff_out", GATED_MLP),
            **named("%s_norm", "attn ff", NORMS),
        },
        {"llada"},
    ),
    # OLMo's own code and Molmo: q|k|v, and the activated half after the other.
    *rows(
        {
            r"(?:self_attn\.)?att_proj": CONTIGUOUS,
            r"(?:mlp\.)?ff_proj": fused_rows((Role.UP, Role.GATE), 1, (1, 1)),
            r"(?:self_attn\.)?attn_out": Role.O,
            r"(?:mlp\.)?ff_out": Role.DOWN,
            **named("%s_norm", "attn ff", NORMS),
            **named(r"(?:self_attn\.)?%s_norm", "q k", HEAD_NORMS),
        },
        _MOLMO,
    ),
    # Cosmos stores its text model with diffusion weights, under their names.
    *rows(
        named(r"self_attn\.to_%s", "q k v out", ATTENTION) | named(r"self_attn\.norm_%s", "q k", HEAD_NORMS),
        {"cosmos3_edge_text", "qwen3_vl_text"},
    ),
    # Step-3: all experts of a kind in one tensor, (experts, d_out, d_in).
    *rows(named(r"moe\.%s_proj", "gate up down", GATED_MLP), _STEPS, experts="stacked"),
    *rows(named(r"share_expert\.%s_proj", "gate up down", GATED_MLP), _STEPS, experts="shared"),
    *rows({r"moe\.gate": Role.ROUTER}, _STEPS),
    # Grok-1: the output of `linear` is activated; norms before and after attention and MLP.
    *rows(named(r"attn\.%s_proj", "q k v o", ATTENTION), _GROK),
    *rows(
        named(rf"moe_block\.experts\.{NUMBER}\.%s", "linear linear_v linear_1", GATED_MLP), _GROK, experts="numbered"
    ),
    *rows({r"moe_block\.gate": Role.ROUTER}, _GROK),
    *rows(
        named("pre_%s_norm", "attn moe", NORMS) | named("post_%s_norm", "attn moe", OUT_NORMS), _GROK, ending=r"\.scale"
    ),
    # Arctic: an MLP for every token, with its own norm, parallel to the experts; or one MLP without experts.
    *rows(named(r"residual_mlp\.%s", "w1 w3 w2", GATED_MLP), _ARCTIC, experts="shared"),
    *rows({"residual_layernorm": Role.SHARED_NORM}, _ARCTIC),
    *rows(named(r"block_sparse_moe\.mlp\.%s", "w1 w3 w2", GATED_MLP), _ARCTIC),
    # gte-v1.5: q|k|v, and the activated half after the other. Its norms come after the sums.
    *rows(
        {
            r"attention\.qkv_proj": THIRDS,
            r"attention\.o_proj": Role.O,
            r"mlp\.up_gate_proj": fused_rows((Role.UP, Role.GATE), 1, (1, 1)),
        },
        {"new"},
    ),
    # Mixtral in Mistral's own files.
    *rows(
        named(rf"feed_forward\.experts\.{NUMBER}\.%s", "w1 w3 w2", GATED_MLP), beside=_BESIDE_META, experts="numbered"
    ),
    *rows({r"feed_forward\.gate": Role.ROUTER}, beside=_BESIDE_META),
    # Step-3: the tensor that others call the query projection outputs a latent.
    *rows({r"self_attn\.q_proj": ()}, _STEP3, beside=r"self_attn\.wq\.weight"),
)

PRODUCT_ROWS: tuple[ProductRow, ...] = (
    ProductRow(
        Role.Q,
        r"self_attn\.wq\.weight",
        r"self_attn\.q_proj\.weight",
        r"self_attn\.inter_norm\.weight",
        model_types=_STEP3,
        n_heads=("heads", "num_attention_groups"),
    ),
)
