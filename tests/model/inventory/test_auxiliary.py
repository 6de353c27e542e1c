"""Matrices that no test reads are listed by their purpose."""

import pytest

from mdir_hf.model.inventory.take import auxiliary_label


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("encoder_attn.k_proj.weight", "cross-attention"),
        ("layer.1.EncDecAttention.q.weight", "cross-attention"),
        ("linear_attn.conv1d.weight", "convolutions"),
        ("mixer.A_log", "parameters of recurrences"),
        ("linear_attn.in_proj_ba.weight", "parameters of recurrences"),
        ("self_attn.g_proj.weight", "gates of attention"),
        ("self_attn.indexer.wk.weight", "indexers"),
        ("layer.0.SelfAttention.relative_attention_bias.weight", "position biases"),
        ("self_attn.1.o_proj.weight", "second attention"),
        ("mlps.1.up_proj.weight", "second MLP"),
        ("attn_hyper_connection.input_mix_weight_up.weight", "mixing of streams"),
        ("self_attn.q_proj.weight", None),
        ("mlp.gate_proj.weight", None),
        ("mlp.experts.3.up_proj.weight", None),
    ],
)
def test_the_name_of_a_matrix_gives_its_purpose(name, label):
    assert auxiliary_label(name) == label
