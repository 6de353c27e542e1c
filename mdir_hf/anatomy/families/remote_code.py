"""Families whose modelling code lies in their repositories, and files in the names of their makers.

Layouts are those of the published modelling files; each is checked in the tests against their arithmetic. Families that
took over Llama's names (InternLM, Orion, XVERSE, Aquila, Skywork, MiMo, SOLAR, Pangu, HunYuan) need no row. Not placed,
because no source could be had to hold them against: Grok-1, the stacked experts of Step-3, the dense MLP that Arctic
keeps beside its experts, Phi-1 and Phi-1.5 as a ``Sequential`` with the embedding for its first layer.
"""

from __future__ import annotations

from ..roles import WHOLE, FusedRows, Role
from ..rows import GATE_THEN_UP, NO_OR_UNSAID, YES, LayerRow, ProductRow, fused_rows, whole_rows

_QKV = (Role.Q, Role.K, Role.V)
_CONTIGUOUS = fused_rows(_QKV, 1, ("heads", "kv_heads", "kv_heads"))
_THIRDS = fused_rows(_QKV, 1, (1, 1, 1))
_PER_HEAD = fused_rows(_QKV, "heads", (1, 1, 1))
_PER_GROUP = fused_rows(_QKV, "kv_heads", ("heads_per_kv_head", 1, 1))
_UP_THEN_GATE = ((Role.UP, FusedRows(1, (1, 1), 0)), (Role.GATE, FusedRows(1, (1, 1), 1)))
_GATE_AND_UP_IN_TURNS = ((Role.GATE, FusedRows("rows", (1, 1), 0)), (Role.UP, FusedRows("rows", (1, 1), 1)))

_DIFFUSERS = frozenset({"cosmos3_edge_text", "qwen3_vl_text"})
_MOLMO = frozenset({"molmo", "molmo2", "molmo2_text", "hf_olmo", "olmo-original"})
_CHATGLM = frozenset({"chatglm"})
_PHI3_SMALL = frozenset({"phi3small"})
_BAILING = frozenset({"bailing_moe", "bailing_moe_v2", "bailing_moe_linear", "bailing"})
_TELECHAT = frozenset({"telechat", "telechat2"})
_JAIS = frozenset({"jais"})
_STEP3 = frozenset({"step3", "step3_text"})

ROWS: tuple[LayerRow, ...] = (
    # ChatGLM2, 3 and GLM-4: q|k|v with groups, gate|up. ChatGLM-6B, of the same model type, has other names: as BLOOM.
    LayerRow(
        r"self_attention\.query_key_value\.weight",
        _CONTIGUOUS,
        model_types=_CHATGLM,
        when=(("multi_query_attention", YES),),
    ),
    LayerRow(
        r"self_attention\.query_key_value\.weight",
        _PER_HEAD,
        model_types=_CHATGLM,
        when=(("multi_query_attention", NO_OR_UNSAID),),
        n_heads=("heads", "heads"),
    ),
    LayerRow(r"attention\.query_key_value\.weight", _PER_HEAD, model_types=_CHATGLM, n_heads=("heads", "heads")),
    *whole_rows({r"(?:self_)?attention\.dense": Role.O, r"mlp\.dense_4h_to_h": Role.DOWN}, _CHATGLM),
    LayerRow(
        r"mlp\.dense_h_to_4h\.weight", GATE_THEN_UP, model_types=_CHATGLM, beside=r"self_attention\.query_key_value\..+"
    ),
    LayerRow(
        r"mlp\.dense_h_to_4h\.weight",
        ((Role.UP, WHOLE),),
        model_types=_CHATGLM,
        beside=r"attention\.query_key_value\..+",
    ),
    # InternLM2: for each group its queries, then k, then v.
    LayerRow(r"attention\.wqkv\.weight", _PER_GROUP, model_types=frozenset({"internlm2"})),
    # Llama's and Mistral's own files, InternLM2: neighbouring rows of a head turn together in the former.
    *whole_rows(
        {
            r"attention\.wo": Role.O,
            r"feed_forward\.w1": Role.GATE,
            r"feed_forward\.w3": Role.UP,
            r"feed_forward\.w2": Role.DOWN,
            "attention_norm": Role.ATTENTION_NORM,
            "ffn_norm": Role.MLP_NORM,
        },
        {"internlm2"},
    ),
    *(
        LayerRow(
            rf"{name}\.weight",
            ((role, WHOLE),),
            beside=r"attention\.wq\.weight",
            unless_beside=r"attention\.wkv_b\.weight",
            rope="interleaved" if role in _QKV else None,
        )
        for name, role in (
            *((rf"attention\.w{role.value}", role) for role in (*_QKV, Role.O)),
            (r"feed_forward\.w1", Role.GATE),
            (r"feed_forward\.w3", Role.UP),
            (r"feed_forward\.w2", Role.DOWN),
            ("attention_norm", Role.ATTENTION_NORM),
            ("ffn_norm", Role.MLP_NORM),
        )
    ),
    LayerRow(r"self_attn\.W_pack\.weight", _THIRDS, model_types=frozenset({"baichuan"})),
    # QWen: what w2 makes is activated.
    LayerRow(r"attn\.c_attn\.weight", _THIRDS, model_types=frozenset({"qwen"})),
    *whole_rows(
        {
            r"attn\.c_proj": Role.O,
            r"mlp\.w1": Role.UP,
            r"mlp\.w2": Role.GATE,
            r"mlp\.c_proj": Role.DOWN,
            "ln_1": Role.ATTENTION_NORM,
            "ln_2": Role.MLP_NORM,
        },
        {"qwen"},
    ),
    *whole_rows(
        {
            **{rf"attn\.attention\.{role.value}_proj": role for role in _QKV},
            r"attn\.attention\.out_proj": Role.O,
            r"mlp\.c_fc_0": Role.GATE,
            r"mlp\.c_fc_1": Role.UP,
            r"mlp\.c_proj": Role.DOWN,
            "ln_1": Role.ATTENTION_NORM,
            "ln_2": Role.MLP_NORM,
        },
        {"exaone"},
    ),
    # Phi-3-small: gate and up in turns, in a tensor of the name that others give to up.
    LayerRow(r"self_attn\.query_key_value\.weight", _PER_GROUP, model_types=_PHI3_SMALL),
    *whole_rows({r"self_attn\.dense": Role.O}, _PHI3_SMALL),
    LayerRow(r"mlp\.up_proj\.weight", _GATE_AND_UP_IN_TURNS, model_types=_PHI3_SMALL),
    # Phi-1 and 2 as first published: one norm in front of attention and MLP.
    LayerRow(r"mixer\.Wqkv\.weight", _CONTIGUOUS, model_types=frozenset({"phi-msft"})),
    *whole_rows(
        {
            r"mixer\.out_proj": Role.O,
            r"mlp\.fc1": Role.UP,
            r"mlp\.fc2": Role.DOWN,
            "ln": (Role.ATTENTION_NORM, Role.MLP_NORM),
        },
        {"phi-msft"},
    ),
    *whole_rows({"ln1": Role.ATTENTION_NORM, "ln2": Role.MLP_NORM}, {"Yi", "yi"}),
    # TeleChat: for each key head k, then v.
    LayerRow(
        r"self_attention\.key_value\.weight", fused_rows((Role.K, Role.V), "kv_heads", (1, 1)), model_types=_TELECHAT
    ),
    *whole_rows({r"self_attention\.query": Role.Q, r"self_attention\.dense": Role.O}, _TELECHAT),
    # Jais: GPT-2's Conv1D, (d_in, d_out), with a gate.
    LayerRow(r"attn\.c_attn\.weight", _THIRDS, transposed=True, model_types=_JAIS, rope="none"),
    *whole_rows(
        {r"attn\.c_proj": Role.O, r"mlp\.c_fc": Role.UP, r"mlp\.c_fc2": Role.GATE, r"mlp\.c_proj": Role.DOWN},
        _JAIS,
        transposed=True,
    ),
    *whole_rows({"ln_1": Role.ATTENTION_NORM, "ln_2": Role.MLP_NORM}, _JAIS),
    LayerRow(r"attention\.query_key_value\.weight", _CONTIGUOUS, model_types=_BAILING),
    *whole_rows(
        {
            r"attention\.dense": Role.O,
            r"attention\.query_layernorm": Role.Q_NORM,
            r"attention\.key_layernorm": Role.K_NORM,
        },
        _BAILING,
    ),
    LayerRow(
        r"attn\.c_attn\.weight",
        fused_rows(_QKV, 1, ("heads", "num_query_groups", "num_query_groups")),
        model_types=frozenset({"codeshell"}),
        n_heads=("heads", "num_query_groups"),
    ),
    *whole_rows(
        {
            r"attn\.c_proj": Role.O,
            r"mlp\.c_fc": Role.UP,
            r"mlp\.c_proj": Role.DOWN,
            "ln_1": Role.ATTENTION_NORM,
            "ln_2": Role.MLP_NORM,
        },
        {"codeshell"},
    ),
    # LLaDA, from OLMo's own code, with the projections apart.
    *whole_rows(
        {
            **{f"{role.value}_proj": role for role in _QKV},
            "attn_out": Role.O,
            "ff_proj": Role.GATE,
            "up_proj": Role.UP,
            "ff_out": Role.DOWN,
            "attn_norm": Role.ATTENTION_NORM,
            "ff_norm": Role.MLP_NORM,
        },
        {"llada"},
    ),
    # OLMo's own code and Molmo: q|k|v, and what multiplies before what is activated.
    LayerRow(r"(?:self_attn\.)?att_proj\.weight", _CONTIGUOUS, model_types=_MOLMO),
    LayerRow(r"(?:mlp\.)?ff_proj\.weight", _UP_THEN_GATE, model_types=_MOLMO),
    *whole_rows(
        {
            r"(?:self_attn\.)?attn_out": Role.O,
            r"(?:mlp\.)?ff_out": Role.DOWN,
            "attn_norm": Role.ATTENTION_NORM,
            "ff_norm": Role.MLP_NORM,
            r"(?:self_attn\.)?q_norm": Role.Q_NORM,
            r"(?:self_attn\.)?k_norm": Role.K_NORM,
        },
        _MOLMO,
    ),
    # Cosmos keeps its text model among diffusion weights, in their names.
    *whole_rows(
        {
            r"self_attn\.to_q": Role.Q,
            r"self_attn\.to_k": Role.K,
            r"self_attn\.to_v": Role.V,
            r"self_attn\.to_out": Role.O,
            r"self_attn\.norm_q": Role.Q_NORM,
            r"self_attn\.norm_k": Role.K_NORM,
        },
        _DIFFUSERS,
    ),
    # Step-3: what others call the query projection makes a latent.
    LayerRow(r"self_attn\.q_proj\.weight", (), model_types=_STEP3, beside=r"self_attn\.wq\.weight"),
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
