"""Decoders from before Llama, each weight in a tensor of its own: one up projection and no gate."""

from __future__ import annotations

from ..roles import WHOLE, Role
from ..rows import LayerRow, whole_rows

_FAIRSEQ = frozenset(
    {
        *("opt", "bart", "bigbird_pegasus", "biogpt", "blenderbot", "blenderbot-small", "marian", "mbart", "mvp"),
        *("musicgen_decoder", "musicgen_melody_decoder", "pegasus", "plbart", "trocr", "whisper", "xglm"),
    }
)

ROWS: tuple[LayerRow, ...] = (
    *whole_rows({r"self_attn\.out_proj": Role.O}),
    *whole_rows({"fc1": Role.UP, "fc2": Role.DOWN}, _FAIRSEQ),
    *whole_rows({r"mlp\.fc1": Role.UP, r"mlp\.fc2": Role.DOWN}, {"phi", "nanochat"}),
    *whole_rows({r"self_attn\.dense": Role.O}, {"phi"}),
    *whole_rows({r"mlp\.c_fc": Role.UP, r"mlp\.c_proj": Role.DOWN}, {"starcoder2", "gpt_neo"}),
    *whole_rows(
        {
            r"attn\.attention\.q_proj": Role.Q,
            r"attn\.attention\.k_proj": Role.K,
            r"attn\.attention\.v_proj": Role.V,
            r"attn\.attention\.out_proj": Role.O,
        },
        {"gpt_neo"},
    ),
    *whole_rows(
        {r"attn\.q_proj": Role.Q, r"attn\.k_proj": Role.K, r"attn\.v_proj": Role.V}, {"gptj", "modernbert-decoder"}
    ),
    *whole_rows({r"attn\.out_proj": Role.O, r"mlp\.fc_in": Role.UP, r"mlp\.fc_out": Role.DOWN}, {"gptj", "codegen"}),
    *whole_rows(
        {
            r"multi_head_attention\.Wq": Role.Q,
            r"multi_head_attention\.Wk": Role.K,
            r"multi_head_attention\.Wv": Role.V,
            r"multi_head_attention\.dense": Role.O,
            r"ffn\.0": Role.UP,
            r"ffn\.2": Role.DOWN,
        },
        {"ctrl"},
    ),
    *whole_rows(
        {
            r"self_att\.self_attention\.project_q": Role.Q,
            r"self_att\.self_attention\.project_k": Role.K,
            r"self_att\.self_attention\.project_v": Role.V,
            r"self_att\.self_attention\.attention_out": Role.O,
            r"ffn\.ffn\.w_in\.w_0": Role.GATE,
            r"ffn\.ffn\.w_in\.w_1": Role.UP,
            r"ffn\.ffn\.w_out": Role.DOWN,
        },
        {"cpmant"},
    ),
    *whole_rows(
        {
            r"self_attn\.query_proj": Role.Q,
            r"self_attn\.key_proj": Role.K,
            r"self_attn\.value_proj": Role.V,
            r"feed_forward\.intermediate": Role.UP,
            r"feed_forward\.output": Role.DOWN,
        },
        {"prophetnet"},
    ),
    # Reformer: one projection for queries and keys where it hashes; keys are brought to one length.
    LayerRow(
        r"attention\.self_attention\.query_key\.weight",
        ((Role.Q, WHOLE), (Role.K, WHOLE)),
        model_types=frozenset({"reformer"}),
    ),
    *whole_rows(
        {
            r"attention\.self_attention\.query": Role.Q,
            r"attention\.self_attention\.key": Role.K,
            r"attention\.self_attention\.value": Role.V,
            r"attention\.output\.dense": Role.O,
            r"feed_forward\.dense\.dense": Role.UP,
            r"feed_forward\.output\.dense": Role.DOWN,
        },
        {"reformer"},
    ),
    # Inkling 2, whose files have names of their own.
    *whole_rows(
        {r"attn\.wq_du": Role.Q, r"attn\.wk_dv": Role.K, r"attn\.wv_dv": Role.V, r"attn\.wo_ud": Role.O},
        {"inkling2_text"},
    ),
    # xLSTM: a linear attention with gates.
    *whole_rows(
        {
            **{rf"mlstm_layer\.{role.value}": role for role in (Role.Q, Role.K, Role.V)},
            r"mlstm_layer\.out_proj": Role.O,
            r"mlstm_layer\.ogate_preact": Role.MIXER_GATE,
            r"ffn\.proj_up_gate": Role.GATE,
            r"ffn\.proj_up": Role.UP,
            r"ffn\.proj_down": Role.DOWN,
        },
        {"xlstm"},
    ),
    # XLM: each part of a layer in a list of its own.
    *whole_rows(
        {
            r"attentions\|q_lin": Role.Q,
            r"attentions\|k_lin": Role.K,
            r"attentions\|v_lin": Role.V,
            r"attentions\|out_lin": Role.O,
            r"ffns\|lin1": Role.UP,
            r"ffns\|lin2": Role.DOWN,
        },
        {"xlm", "flaubert"},
    ),
    # XLNet: (d_model, heads, d_head), for the output as well.
    *(
        LayerRow(
            rf"rel_attn\.{role.value}",
            ((role, WHOLE),),
            transposed=role is not Role.O,
            model_types=frozenset({"xlnet"}),
            joined=True,
        )
        for role in (Role.Q, Role.K, Role.V, Role.O)
    ),
    *whole_rows({r"ff\.layer_1": Role.UP, r"ff\.layer_2": Role.DOWN}, {"xlnet"}),
)
