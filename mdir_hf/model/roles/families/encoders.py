"""Masked language models, and decoder self-attention in encoder-decoder models.

Cross-attention has no role.
"""

from __future__ import annotations

from mdir_hf.model.roles.roles import Role
from mdir_hf.model.roles.rows import (
    ATTENTION,
    GATE_THEN_UP,
    GATED_MLP,
    MLP,
    NORMS,
    NUMBER,
    PER_HEAD,
    QKV,
    THIRDS,
    UP_THEN_GATE,
    LayerRow,
    named,
    rows,
)

# MobileBERT's attention and MLP read a bottleneck instead of the stream; Perceiver has rows of its own.
_BOTTLENECK = r"bottleneck\..+|attention\.self\.layernorm1\.weight"
# ConvBERT's output projection reads heads and convolutions side by side.
_CONVOLUTION = r"attention\.self\.conv_kernel_layer\.weight"
_SELF = r"attention\.self\..+"

_BERT: tuple[LayerRow, ...] = (
    *rows(
        named(r"attention\.self\.%s", "query key value", QKV)
        | named(r"attention\.self\.%s_proj", "query key value", QKV),
        unless_beside=_BOTTLENECK,
    ),
    *rows({r"attention\.output\.dense": Role.O}, beside=_SELF, unless_beside=rf"{_BOTTLENECK}|{_CONVOLUTION}"),
    *rows(named(r"%s\.dense", "intermediate output", MLP), beside=_SELF, unless_beside=_BOTTLENECK),
    # FNet has a Fourier transform instead of attention.
    *rows(named(r"%s\.dense", "intermediate output", MLP), {"fnet"}),
    # Jina's embeddings 3: a RoBERTa with fused q|k|v.
    *rows(
        {r"mixer\.Wqkv": THIRDS, r"mixer\.out_proj": Role.O, **named(r"mlp\.%s", "fc1 fc2", MLP)},
        {"jina_embeddings_v3"},
    ),
    # DeBERTa: for each head q, k and v.
    *rows({r"attention\.self\.in_proj": PER_HEAD}, {"deberta"}),
    # These norms come before attention and MLP; BERT's own norms come after the additions.
    *rows(named("%s", r"attention\.ln ln", NORMS), {"megatron-bert"}),
    *rows(named(r"%s\.LayerNorm", "attention intermediate", NORMS), {"roberta-prelayernorm"}),
    *rows(named("%s", r"attention\.self_attn_layer_norm LayerNorm", NORMS), {"xlm-roberta-xl"}),
    *rows(named("%s", r"attention\.LayerNorm LayerNorm", NORMS), {"esm"}),
    *rows(
        named(r"attention\.%s_lin", "q k v out", ATTENTION) | named(r"ffn\.lin%s", "1 2", MLP),
        {"distilbert"},
    ),
    *rows(
        named(r"attention\.attn\.%s", "q k v o", ATTENTION) | named(r"%s\.dense", "intermediate output", MLP),
        {"mpnet"},
    ),
    # Perceiver: layers of a stream of latents. Cross-attention reads the inputs into it.
    *rows(
        named(r"attention\.self\.%s", "query key value", QKV)
        | named(r"mlp\.dense%s", "1 2", MLP)
        | {
            r"attention\.output\.dense": Role.O,
            r"attention\.self\.layernorm1": Role.ATTENTION_NORM,
            "layernorm": Role.MLP_NORM,
        },
        {"perceiver"},
    ),
    # ALBERT: one layer, applied many times.
    *rows(
        named(r"albert_layers\.0\.attention\.%s", "query key value dense", ATTENTION)
        | named(r"albert_layers\.0\.%s", "ffn ffn_output", MLP),
        {"albert"},
    ),
)

_MODERN = {"modernbert", "modernbert-decoder"}

_WITH_GATES: tuple[LayerRow, ...] = (
    # ModernBERT: q|k|v, and the activated half before the other.
    *rows({r"attn\.Wqkv": THIRDS}, {"modernbert"}),
    *rows({r"mlp\.Wi": GATE_THEN_UP, r"attn\.Wo": Role.O, r"mlp\.Wo": Role.DOWN}, _MODERN),
    *rows(named("%s_norm", "attn mlp", NORMS), _MODERN),
    # GTE: q|k|v, and up|gate.
    *rows(
        {r"attention\.qkv_proj": THIRDS, r"attention\.o_proj": Role.O, r"mlp\.up_gate_proj": UP_THEN_GATE},
        {"gte"},
    ),
    # Nomic: files of its own code have fused q|k|v, and the gate has the higher number.
    *rows(
        {
            r"attn\.Wqkv": THIRDS,
            r"attn\.out_proj": Role.O,
            **named(r"mlp\.%s", "fc11 fc12 fc2", (Role.UP, Role.GATE, Role.DOWN)),
        },
        {"nomic_bert"},
    ),
)

_KOSMOS = {"kosmos_2_text_model", "kosmos_2_5_text_model"}
_FFN_FOLDER = {"seamless_m4t", "seamless_m4t_v2", "nllb-moe"} | _KOSMOS

_FAIRSEQ: tuple[LayerRow, ...] = (
    *rows(named("fc%s", "1 2", MLP), {"fsmt", "led", "m2m_100", "pegasus_x"}),
    *rows(named(r"ffn\.fc%s", "1 2", MLP), _FFN_FOLDER),
    *rows(named(rf"ffn\.experts\.expert_{NUMBER}\.fc%s", "1 2", MLP), {"nllb-moe"}, experts="numbered"),
    *rows({r"ffn\.router\.classifier": Role.ROUTER}, {"nllb-moe"}),
    *rows(
        named("%s_layer_norm", "self_attn (?:final|ffn|ff)", NORMS),
        {"m2m_100", "pegasus_x"} | _FFN_FOLDER,
    ),
)

_T5_ATTENTION = r"layer\.0\.(?:Local|TransientGlobal)?SelfAttention"
_BESIDE_T5 = rf"{_T5_ATTENTION}\..+"
_SWITCH = {"switch_transformers"}

_T5: tuple[LayerRow, ...] = (
    *rows(named(rf"{_T5_ATTENTION}\.%s", "q k v o", ATTENTION), rope="none"),
    *rows({r"layer\.0\.layer_norm": Role.ATTENTION_NORM}, beside=_BESIDE_T5),
    # The MLP is the third sublayer of a decoder and the second of an encoder.
    *rows({r"layer\.1\.layer_norm": Role.MLP_NORM}, beside=r"layer\.1\.(?:DenseReluDense|mlp)\..+"),
    *rows({r"layer\.2\.layer_norm": Role.MLP_NORM}, beside=r"layer\.2\.(?:DenseReluDense|mlp)\..+"),
    *rows(
        named(r"layer\.[12]\.DenseReluDense\.%s", "wi wi_0 wi_1 wo", (Role.UP, Role.GATE, Role.UP, Role.DOWN)),
        beside=_BESIDE_T5,
    ),
    *rows(named(rf"layer\.[12]\.mlp\.experts\.expert_{NUMBER}\.%s", "wi wo", MLP), _SWITCH, experts="numbered"),
    *rows(named(r"layer\.[12]\.mlp\.%s", r"wi wo router\.classifier", (*MLP, Role.ROUTER)), _SWITCH),
    *rows(
        {"pre_self_attn_layernorm": Role.ATTENTION_NORM}, {"t5gemma", "t5_gemma_module", "t5gemma2", "t5gemma2_decoder"}
    ),
)

# Pix2Struct: T5 with other names.
_PIX2STRUCT = rows(
    {
        **named(r"self_attention\.attention\.%s", "query key value output", ATTENTION),
        r"self_attention\.layer_norm": Role.ATTENTION_NORM,
        **named(r"mlp\.DenseReluDense\.%s", "wi_0 wi_1 wo", GATED_MLP),
        r"mlp\.layer_norm": Role.MLP_NORM,
    },
    {"pix2struct_text_model"},
)

ROWS: tuple[LayerRow, ...] = (*_BERT, *_WITH_GATES, *_FAIRSEQ, *_T5, *_PIX2STRUCT)
