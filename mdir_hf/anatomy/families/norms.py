"""Norms: in front of attention and MLP, on queries and keys.

Only a norm that stands between the residual stream and what reads it is placed. Those behind attention or MLP, and
those whose output is the stream itself (BART and other models that normalise last), scale nothing that is read.
"""

from __future__ import annotations

from ..roles import WHOLE, Role
from ..rows import YES_OR_UNSAID, LayerRow, whole_rows

_BOTH = (Role.ATTENTION_NORM, Role.MLP_NORM)

# Attention and MLP side by side behind one norm.
_ONE_NORM = frozenset({"cohere", "cohere2", "cohere2_moe", "cohere_compass_text", "phi", "stablelm"})
_FAIRSEQ_NORM_FIRST = frozenset(
    {
        *("bigbird_pegasus", "biogpt", "blenderbot", "mbart", "musicgen_decoder", "musicgen_melody_decoder"),
        *("pegasus", "whisper", "xglm"),
    }
)
_FAIRSEQ_NORMS = {"self_attn_layer_norm": Role.ATTENTION_NORM, "final_layer_norm": Role.MLP_NORM}
_ONLY_NORM_OF_FALCON = r"(?:post_attention_layernorm|ln_mlp)\.weight"

ROWS: tuple[LayerRow, ...] = (
    *whole_rows({"ln_1": Role.ATTENTION_NORM, "ln_2": Role.MLP_NORM}, {"gpt2", "gpt_bigcode", "gpt_neo"}),
    *whole_rows({"ln_1": _BOTH}, {"gptj", "codegen"}),
    *whole_rows({"input_layernorm": _BOTH}, _ONE_NORM - {"stablelm"}),
    LayerRow(
        r"input_layernorm\.weight",
        tuple((role, WHOLE) for role in _BOTH),
        model_types=frozenset({"falcon", "RefinedWeb", "RefinedWebModel", "stablelm"}),
        unless_beside=_ONLY_NORM_OF_FALCON,
    ),
    *whole_rows({"ln_attn": Role.ATTENTION_NORM, "ln_mlp": Role.MLP_NORM}, {"falcon", "RefinedWeb"}),
    *whole_rows(_FAIRSEQ_NORMS, {"opt"}, when=(("do_layer_norm_before", YES_OR_UNSAID),)),
    *whole_rows(_FAIRSEQ_NORMS, _FAIRSEQ_NORM_FIRST),
    *whole_rows({"norm_1": Role.ATTENTION_NORM, "norm_2": Role.MLP_NORM}, {"mpt"}),
    *whole_rows({"layernorm1": Role.ATTENTION_NORM, "layernorm2": Role.MLP_NORM}, {"ctrl"}),
    *whole_rows(
        {
            r"self_att\.layernorm_before_attention": Role.ATTENTION_NORM,
            r"ffn\.layernorm_before_ffn": Role.MLP_NORM,
        },
        {"cpmant"},
    ),
    *whole_rows({r"norm_attn_norm\.norm_1": Role.ATTENTION_NORM, r"norm_attn_norm\.norm_2": Role.MLP_NORM}, {"dbrx"}),
    *whole_rows(
        {r"attention\.layer_norm": Role.ATTENTION_NORM, r"feed_forward\.layer_norm": Role.MLP_NORM}, {"reformer"}
    ),
    *whole_rows({"attn_norm": Role.ATTENTION_NORM, "mlp_norm": Role.MLP_NORM}, {"inkling2_text", "modernbert-decoder"}),
    *whole_rows({"norm_mlstm": Role.ATTENTION_NORM, "norm_ffn": Role.MLP_NORM}, {"xlstm"}),
    *whole_rows({"attention_layernorm": Role.ATTENTION_NORM, "feedforward_layernorm": Role.MLP_NORM}, {"apertus"}),
    *whole_rows(
        {
            "attn_norm": Role.ATTENTION_NORM,
            "ffn_norm": Role.MLP_NORM,
            r"attn\.q_norm": Role.Q_NORM,
            r"attn\.k_norm": Role.K_NORM,
        },
        {"openelm"},
    ),
    # What most families call them.
    *whole_rows(
        {
            r"self_attn\.(?:q_norm|q_layernorm|query_layernorm)": Role.Q_NORM,
            r"self_attn\.(?:k_norm|k_layernorm|key_layernorm)": Role.K_NORM,
            "input_layernorm": Role.ATTENTION_NORM,
            "pre_(?:feedforward|mlp|ff)_layernorm": Role.MLP_NORM,
        }
    ),
    # The norm of this name stands in front of the MLP in Llama, and behind attention in Gemma-2 and OLMo-2.
    LayerRow(
        r"post_attention_layernorm\.weight",
        ((Role.MLP_NORM, WHOLE),),
        beside=r"input_layernorm\.weight",
        unless_beside=r"pre_(feedforward|mlp|ff)_layernorm\.weight",
    ),
)
