"""Decoders from before Llama, with separate tensors, and one up projection without a gate."""

from __future__ import annotations

from mdir_hf.model.roles.roles import Role
from mdir_hf.model.roles.rows import ATTENTION, GATED_MLP, MLP, QKV, LayerRow, named, rows

_FAIRSEQ = {
    *("opt", "bart", "bigbird_pegasus", "biogpt", "blenderbot", "blenderbot-small", "marian", "mbart", "mvp"),
    *("musicgen_decoder", "musicgen_melody_decoder", "pegasus", "plbart", "trocr", "whisper", "xglm"),
}

ROWS: tuple[LayerRow, ...] = (
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
    # XLM: each part of a layer is in its own list.
    *rows(
        named(r"attentions\|%s_lin", "q k v out", ATTENTION) | named(r"ffns\|lin%s", "1 2", MLP), {"xlm", "flaubert"}
    ),
    # XLNet: (d_model, heads, d_head), for the output as well.
    *rows(named(r"rel_attn\.%s", "q k v", QKV), {"xlnet"}, ending="", transposed=True, joined=True),
    *rows({r"rel_attn\.o": Role.O}, {"xlnet"}, ending="", joined=True),
    *rows(named(r"ff\.layer_%s", "1 2", MLP), {"xlnet"}),
)
