"""Families that keep several weights in one tensor, transposed or in turns."""

from __future__ import annotations

from ..roles import FusedRows, Role
from ..rows import GATE_THEN_UP, NO, NO_OR_UNSAID, YES, YES_OR_UNSAID, LayerRow, fused_rows, whole_rows

_QKV = (Role.Q, Role.K, Role.V)
_CONV1D = frozenset({"gpt2", "openai-gpt"})
_FALCON = frozenset({"falcon", "RefinedWeb", "RefinedWebModel"})
_BIGCODE = frozenset({"gpt_bigcode"})
_PHI3 = frozenset({"phi3", "phi4_multimodal"})

# View (n_heads, 3, d_head, d_model); all of it; all queries, then one key and one value for all of them.
_PER_HEAD = fused_rows(_QKV, "heads", (1, 1, 1))
_CONTIGUOUS = fused_rows(_QKV, 1, ("heads", "kv_heads", "kv_heads"))
_ONE_KEY = fused_rows(_QKV, 1, ("heads", 1, 1))
_PER_GROUP = fused_rows(_QKV, "kv_heads", ("heads_per_kv_head", 1, 1))

ROWS: tuple[LayerRow, ...] = (
    # GPT-2: Conv1D, stored (d_in, d_out); q|k|v contiguous along d_out.
    LayerRow(r"attn\.c_attn\.weight", fused_rows(_QKV, 1, (1, 1, 1)), transposed=True, model_types=_CONV1D),
    *whole_rows({r"attn\.c_proj": Role.O, r"mlp\.c_fc": Role.UP, r"mlp\.c_proj": Role.DOWN}, _CONV1D, transposed=True),
    # GPT-BigCode took over the names, not Conv1D, and has two layouts.
    LayerRow(
        r"attn\.c_attn\.weight",
        _ONE_KEY,
        model_types=_BIGCODE,
        when=(("multi_query", YES_OR_UNSAID),),
        n_heads=("heads", 1),
    ),
    LayerRow(
        r"attn\.c_attn\.weight",
        _PER_HEAD,
        model_types=_BIGCODE,
        when=(("multi_query", NO),),
        n_heads=("heads", "heads"),
    ),
    *whole_rows({r"attn\.c_proj": Role.O, r"mlp\.c_fc": Role.UP, r"mlp\.c_proj": Role.DOWN}, _BIGCODE),
    # GPT-NeoX and BLOOM differ in names only.
    LayerRow(
        r"attention\.query_key_value\.weight",
        _PER_HEAD,
        model_types=frozenset({"gpt_neox", "gpt_neox_japanese"}),
    ),
    LayerRow(r"self_attention\.query_key_value\.weight", _PER_HEAD, model_types=frozenset({"bloom"})),
    LayerRow(r"self_attn\.query_key_value\.weight", _PER_HEAD, model_types=frozenset({"persimmon", "fuyu"})),
    # Falcon: 40B and later by groups; 7B one key for all heads; 1B as BLOOM.
    LayerRow(
        r"self_attention\.query_key_value\.weight",
        _PER_GROUP,
        model_types=_FALCON,
        when=(("new_decoder_architecture", YES),),
    ),
    LayerRow(
        r"self_attention\.query_key_value\.weight",
        _ONE_KEY,
        model_types=_FALCON,
        when=(("new_decoder_architecture", NO_OR_UNSAID), ("multi_query", YES_OR_UNSAID)),
        n_heads=("heads", 1),
    ),
    LayerRow(
        r"self_attention\.query_key_value\.weight",
        _PER_HEAD,
        model_types=_FALCON,
        when=(("new_decoder_architecture", NO_OR_UNSAID), ("multi_query", NO)),
        n_heads=("heads", "heads"),
    ),
    *whole_rows(
        {
            r"(?:self_attention|attention|self_attn)\.dense": Role.O,
            r"mlp\.dense_h_to_4h": Role.UP,
            r"mlp\.dense_4h_to_h": Role.DOWN,
        },
        {"gpt_neox", "gpt_neox_japanese", "bloom", "persimmon", "fuyu", *_FALCON},
    ),
    # CodeGen: four blocks, one for each core of the machine it was trained on, each q, v, k.
    LayerRow(
        r"attn\.qkv_proj\.weight",
        fused_rows((Role.Q, Role.V, Role.K), 4, (1, 1, 1)),
        model_types=frozenset({"codegen"}),
    ),
    # MPT: contiguous; its remote code knows groups as well.
    LayerRow(
        r"attn\.Wqkv\.weight",
        fused_rows(_QKV, 1, (1, 1, 1)),
        model_types=frozenset({"mpt"}),
        when=(("attn_config.attn_type", frozenset({"multihead_attention", None})),),
    ),
    *whole_rows({r"attn\.out_proj": Role.O, r"ffn\.up_proj": Role.UP, r"ffn\.down_proj": Role.DOWN}, {"mpt"}),
    # DBRX: contiguous, with groups.
    LayerRow(
        r"norm_attn_norm\.attn\.Wqkv\.weight",
        fused_rows(_QKV, 1, ("heads", *(2 * ("attn_config.kv_n_heads",)))),
        model_types=frozenset({"dbrx"}),
        n_heads=("heads", "attn_config.kv_n_heads"),
    ),
    *whole_rows({r"norm_attn_norm\.attn\.out_proj": Role.O}, {"dbrx"}),
    # JetMoE: keys and values for all experts. Queries and outputs are an expert's own, and no role has them.
    LayerRow(
        r"self_attention\.kv_proj\.weight", fused_rows((Role.K, Role.V), 1, (1, 1)), model_types=frozenset({"jetmoe"})
    ),
    # Phi-3: q|k|v and gate|up contiguous.
    LayerRow(r"self_attn\.qkv_proj\.weight", _CONTIGUOUS, model_types=_PHI3),
    LayerRow(
        r"mlp\.gate_up_proj\.weight",
        GATE_THEN_UP,
        model_types=_PHI3 | {"glm", "glm4", "glm4v_text", "glm_ocr_text", "hrm_text"},
    ),
    # OpenELM: as Phi-3, with heads of its own in every layer.
    LayerRow(r"attn\.qkv_proj\.weight", _CONTIGUOUS, model_types=frozenset({"openelm"})),
    LayerRow(r"ffn\.proj_1\.weight", GATE_THEN_UP, model_types=frozenset({"openelm"})),
    *whole_rows({r"attn\.out_proj": Role.O, r"ffn\.proj_2": Role.DOWN}, {"openelm"}),
    # HRM: an output gate in front of q, k and v.
    LayerRow(
        r"attn\.gqkv_proj\.weight",
        tuple((role, FusedRows(1, ("heads", "heads", "kv_heads", "kv_heads"), at + 1)) for at, role in enumerate(_QKV)),
        model_types=frozenset({"hrm_text"}),
    ),
    *whole_rows({r"attn\.o_proj": Role.O}, {"hrm_text"}),
    # Moshi: gate|up in a tensor that others call by the name of their only one.
    LayerRow(r"mlp\.fc1\.weight", GATE_THEN_UP, model_types=frozenset({"moshi", "moshi_depth"})),
    *whole_rows(
        {
            r"mlp\.fc2": Role.DOWN,
            **{rf"self_attn\.{role.value}_proj\.linear": role for role in (*_QKV, Role.O)},
        },
        {"moshi"},
    ),
)
