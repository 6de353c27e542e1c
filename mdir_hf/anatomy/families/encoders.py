"""Masked language models, and encoder-decoders by the self-attention of their decoder.

Of a model with both, the decoder is the language model: its stack is the one whose layers are placed, and attention to
the encoder has no role. An encoder that is stored alone is placed as a masked language model is.
"""

from __future__ import annotations

from ..roles import WHOLE, Role
from ..rows import GATE_THEN_UP, LayerRow, fused_rows, whole_rows

_QKV = (Role.Q, Role.K, Role.V)

# BERT as MobileBERT has it, whose attention and MLP read a bottleneck instead of the stream, and as Perceiver has it.
_BOTTLENECK = r"bottleneck\..+|attention\.self\.layernorm1\.weight"
# ConvBERT's output projection reads heads and convolutions side by side.
_CONVOLUTION = r"attention\.self\.conv_kernel_layer\.weight"

_BERT: tuple[LayerRow, ...] = (
    *(
        LayerRow(rf"attention\.self\.{name}\.weight", ((role, WHOLE),), unless_beside=_BOTTLENECK)
        for name, role in (
            *(("query", Role.Q), ("key", Role.K), ("value", Role.V)),
            *(("query_proj", Role.Q), ("key_proj", Role.K), ("value_proj", Role.V)),
        )
    ),
    LayerRow(
        r"attention\.output\.dense\.weight",
        ((Role.O, WHOLE),),
        beside=r"attention\.self\..+",
        unless_beside=rf"{_BOTTLENECK}|{_CONVOLUTION}",
    ),
    *(
        LayerRow(rf"{name}\.dense\.weight", ((role, WHOLE),), beside=r"attention\.self\..+", unless_beside=_BOTTLENECK)
        for name, role in (("intermediate", Role.UP), ("output", Role.DOWN))
    ),
    # DeBERTa: for each head q, k and v.
    LayerRow(
        r"attention\.self\.in_proj\.weight",
        fused_rows(_QKV, "heads", (1, 1, 1)),
        model_types=frozenset({"deberta"}),
    ),
    # Norms that stand in front; BERT's own stand behind the sums.
    *whole_rows({r"attention\.ln": Role.ATTENTION_NORM, "ln": Role.MLP_NORM}, {"megatron-bert"}),
    *whole_rows(
        {r"attention\.LayerNorm": Role.ATTENTION_NORM, r"intermediate\.LayerNorm": Role.MLP_NORM},
        {"roberta-prelayernorm"},
    ),
    *whole_rows(
        {r"attention\.self_attn_layer_norm": Role.ATTENTION_NORM, "LayerNorm": Role.MLP_NORM}, {"xlm-roberta-xl"}
    ),
    *whole_rows({r"attention\.LayerNorm": Role.ATTENTION_NORM, "LayerNorm": Role.MLP_NORM}, {"esm"}),
    *whole_rows(
        {
            **{rf"attention\.{name}_lin": role for name, role in zip("qkv", _QKV, strict=True)},
            r"attention\.out_lin": Role.O,
            r"ffn\.lin1": Role.UP,
            r"ffn\.lin2": Role.DOWN,
        },
        {"distilbert"},
    ),
    *whole_rows(
        {rf"attention\.attn\.{role.value}": role for role in (*_QKV, Role.O)}
        | {r"intermediate\.dense": Role.UP, r"output\.dense": Role.DOWN},
        {"mpnet"},
    ),
    # ALBERT: one layer, passed many times.
    *whole_rows(
        {
            r"albert_layers\.0\.attention\.query": Role.Q,
            r"albert_layers\.0\.attention\.key": Role.K,
            r"albert_layers\.0\.attention\.value": Role.V,
            r"albert_layers\.0\.attention\.dense": Role.O,
            r"albert_layers\.0\.ffn": Role.UP,
            r"albert_layers\.0\.ffn_output": Role.DOWN,
        },
        {"albert"},
    ),
)

_WITH_GATES: tuple[LayerRow, ...] = (
    # ModernBERT: q|k|v, and what is activated before what it multiplies.
    LayerRow(r"attn\.Wqkv\.weight", fused_rows(_QKV, 1, (1, 1, 1)), model_types=frozenset({"modernbert"})),
    LayerRow(r"mlp\.Wi\.weight", GATE_THEN_UP, model_types=frozenset({"modernbert", "modernbert-decoder"})),
    *whole_rows(
        {r"attn\.Wo": Role.O, r"mlp\.Wo": Role.DOWN, "attn_norm": Role.ATTENTION_NORM, "mlp_norm": Role.MLP_NORM},
        {"modernbert", "modernbert-decoder"},
    ),
    # Nomic: files of its own code have q|k|v in one, and the gate under the higher number.
    LayerRow(r"attn\.Wqkv\.weight", fused_rows(_QKV, 1, (1, 1, 1)), model_types=frozenset({"nomic_bert"})),
    *whole_rows(
        {r"attn\.out_proj": Role.O, r"mlp\.fc11": Role.UP, r"mlp\.fc12": Role.GATE, r"mlp\.fc2": Role.DOWN},
        {"nomic_bert"},
    ),
)

_KOSMOS = frozenset({"kosmos_2_text_model", "kosmos_2_5_text_model"})
_NORM_FIRST = frozenset({"m2m_100", "pegasus_x", "seamless_m4t", "seamless_m4t_v2", "nllb-moe"}) | _KOSMOS

_FAIRSEQ: tuple[LayerRow, ...] = (
    *whole_rows({"fc1": Role.UP, "fc2": Role.DOWN}, {"fsmt", "led", "m2m_100", "pegasus_x"}),
    *whole_rows(
        {r"ffn\.fc1": Role.UP, r"ffn\.fc2": Role.DOWN},
        {"seamless_m4t", "seamless_m4t_v2", "nllb-moe", "kosmos_2_text_model", "kosmos_2_5_text_model"},
    ),
    *(
        LayerRow(
            rf"ffn\.experts\.expert_(?P<expert>\d{{1,4}})\.{name}\.weight",
            ((role, WHOLE),),
            model_types=frozenset({"nllb-moe"}),
            experts="numbered",
        )
        for name, role in (("fc1", Role.UP), ("fc2", Role.DOWN))
    ),
    *whole_rows({r"ffn\.router\.classifier": Role.ROUTER}, {"nllb-moe"}),
    *whole_rows(
        {"self_attn_layer_norm": Role.ATTENTION_NORM, "(?:final|ffn|ff)_layer_norm": Role.MLP_NORM}, _NORM_FIRST
    ),
)

_T5_ATTENTION = r"layer\.0\.(?:Local|TransientGlobal)?SelfAttention"

_T5: tuple[LayerRow, ...] = (
    *(LayerRow(rf"{_T5_ATTENTION}\.{role.value}\.weight", ((role, WHOLE),), rope="none") for role in (*_QKV, Role.O)),
    LayerRow(r"layer\.0\.layer_norm\.weight", ((Role.ATTENTION_NORM, WHOLE),), beside=rf"{_T5_ATTENTION}\..+"),
    # The MLP is the third sublayer of a decoder and the second of an encoder.
    *(
        LayerRow(
            rf"layer\.{at}\.layer_norm\.weight",
            ((Role.MLP_NORM, WHOLE),),
            beside=rf"layer\.{at}\.(?:DenseReluDense|mlp)\..+",
        )
        for at in (1, 2)
    ),
    *(
        LayerRow(rf"layer\.[12]\.DenseReluDense\.{name}\.weight", ((role, WHOLE),), beside=rf"{_T5_ATTENTION}\..+")
        for name, role in (("wi", Role.UP), ("wi_0", Role.GATE), ("wi_1", Role.UP), ("wo", Role.DOWN))
    ),
    *(
        LayerRow(
            rf"layer\.[12]\.mlp\.experts\.expert_(?P<expert>\d{{1,4}})\.{name}\.weight",
            ((role, WHOLE),),
            model_types=frozenset({"switch_transformers"}),
            experts="numbered",
        )
        for name, role in (("wi", Role.UP), ("wo", Role.DOWN))
    ),
    *whole_rows(
        {
            r"layer\.[12]\.mlp\.wi": Role.UP,
            r"layer\.[12]\.mlp\.wo": Role.DOWN,
            r"layer\.[12]\.mlp\.router\.classifier": Role.ROUTER,
        },
        {"switch_transformers"},
    ),
    *whole_rows(
        {"pre_self_attn_layernorm": Role.ATTENTION_NORM}, {"t5gemma", "t5_gemma_module", "t5gemma2", "t5gemma2_decoder"}
    ),
)

# Pix2Struct: T5 by other names.
_PIX2STRUCT = whole_rows(
    {
        r"self_attention\.attention\.query": Role.Q,
        r"self_attention\.attention\.key": Role.K,
        r"self_attention\.attention\.value": Role.V,
        r"self_attention\.attention\.output": Role.O,
        r"self_attention\.layer_norm": Role.ATTENTION_NORM,
        r"mlp\.DenseReluDense\.wi_0": Role.GATE,
        r"mlp\.DenseReluDense\.wi_1": Role.UP,
        r"mlp\.DenseReluDense\.wo": Role.DOWN,
        r"mlp\.layer_norm": Role.MLP_NORM,
    },
    {"pix2struct_text_model"},
)

ROWS: tuple[LayerRow, ...] = (*_BERT, *_WITH_GATES, *_FAIRSEQ, *_T5, *_PIX2STRUCT)
