"""Masked language models and encoder-decoders: check roles by value, against one forward pass."""

import warnings

import pytest
import torch
from transformers import (
    MODEL_FOR_MASKED_LM_MAPPING,
    MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING,
)

from mdir_hf.model.roles import Role, read_part
from tests.model.roles.forward_record import record_forward
from tests.model.roles.judgement import judge
from tests.model.roles.tiny_causal import build_module, save_and_open

ATTENTION = {Role.Q, Role.K, Role.V, Role.O}
MLP = {Role.UP, Role.DOWN}
GATED = {Role.GATE, Role.UP, Role.DOWN}

# Roles that must be confirmed in every layer that has them.
MASKED = {
    **dict.fromkeys(
        (
            *("bert", "roberta", "xlm-roberta", "xlm-roberta-xl", "camembert", "electra", "ernie", "data2vec-text"),
            *("megatron-bert", "rembert", "roberta-prelayernorm", "roc_bert", "layoutlm", "xmod", "distilbert"),
            *("albert", "mpnet", "deberta", "deberta-v2", "perceiver"),
        ),
        ATTENTION | MLP,
    ),
    **dict.fromkeys(("modernbert", "nomic_bert", "eurobert", "gte"), ATTENTION | GATED),
    "jina_embeddings_v3": ATTENTION | MLP,
    "fnet": MLP,
}
SEQ_TO_SEQ = {
    **dict.fromkeys(("t5", "longt5", "bart", "mbart", "marian", "pegasus", "m2m_100", "fsmt", "led"), ATTENTION | MLP),
    **dict.fromkeys(("pegasus_x", "bigbird_pegasus", "blenderbot", "plbart", "mvp", "prophetnet"), ATTENTION | MLP),
    **dict.fromkeys(("mt5", "umt5", "t5gemma"), ATTENTION | GATED),
    "switch_transformers": ATTENTION,
    "nllb-moe": ATTENTION,
}
SMALL_PARTS = {
    # The token is padded to a whole block of local attention.
    "pegasus_x": {"block_size": 4},
    "led": {"attention_window": 4},
    "perceiver": {
        **{"d_latents": 64, "num_latents": 4, "num_blocks": 1, "num_self_attends_per_block": 2},
        **{"num_self_attention_heads": 4, "num_cross_attention_heads": 4, "qk_channels": 32, "v_channels": 64},
        **{"d_model": 48, "max_position_embeddings": 8},
    },
}


def saved(model_type, mapping, folder, **inputs):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = build_module(model_type, mapping=mapping, **SMALL_PARTS.get(model_type, {}))
        record = record_forward(module, **inputs)
    return module, save_and_open(module, folder), record


def few(names, quick):
    """All models in slow runs, otherwise the models whose layers differ most."""
    return [name if name in quick else pytest.param(name, marks=pytest.mark.slow) for name in names]


@pytest.mark.parametrize(
    "model_type", few(MASKED, ("bert", "distilbert", "albert", "deberta-v2", "modernbert", "perceiver"))
)
def test_masked_models_by_value(model_type, tmp_path):
    module, ours, record = saved(model_type, MODEL_FOR_MASKED_LM_MAPPING, tmp_path)
    found = judge(ours.anatomy, ours.tensors, record)
    assert found.wrong == []
    for proved in found.proved:
        assert proved >= MASKED[model_type]
    # Perceiver calls its latents inputs.
    inputs = (
        module.perceiver.input_preprocessor.embeddings if model_type == "perceiver" else module.get_input_embeddings()
    )
    assert torch.equal(read_part(ours.tensors, ours.anatomy.embedding), inputs.weight)


@pytest.mark.parametrize("model_type", few(SEQ_TO_SEQ, ("t5", "bart", "fsmt", "mt5", "switch_transformers")))
def test_the_decoder_of_encoder_decoders_by_value(model_type, tmp_path):
    module, ours, record = saved(
        model_type, MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING, tmp_path, decoder_input_ids=torch.tensor([[7]])
    )
    found = judge(ours.anatomy, ours.tensors, record)
    assert found.wrong == []
    assert len(ours.anatomy.layers) == 2
    for proved in found.proved:
        assert proved >= SEQ_TO_SEQ[model_type]
    assert all("decoder" in part.tensor for layer in ours.anatomy.layers for _, part in layer.all_parts())
    assert not any(
        "cross" in part.tensor or "encoder_attn" in part.tensor
        for layer in ours.anatomy.layers
        for _, part in layer.all_parts()
    )
    decoder = module.get_decoder()
    embedding = getattr(decoder, "embed_tokens", None) or decoder.get_input_embeddings()
    assert torch.equal(read_part(ours.tensors, ours.anatomy.embedding), embedding.weight)
