"""Norms before and after attention and MLP, and on queries and keys.

A norm before attention or MLP reads the residual stream; one after it scales the result before it is added to the
stream. Norms whose output is the stream itself (BART and other models that normalise last) have no role.
"""

from __future__ import annotations

from mdir_hf.model.roles.roles import Role
from mdir_hf.model.roles.rows import HEAD_NORMS, NORMS, OUT_NORMS, YES_OR_UNSAID, LayerRow, named, rows

_FAIRSEQ_NORM_FIRST = {
    *("bigbird_pegasus", "biogpt", "blenderbot", "mbart", "musicgen_decoder", "musicgen_melody_decoder"),
    *("pegasus", "whisper", "xglm"),
}
_FAIRSEQ_NORMS = named("%s_layer_norm", "self_attn final", NORMS)

ROWS: tuple[LayerRow, ...] = (
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
