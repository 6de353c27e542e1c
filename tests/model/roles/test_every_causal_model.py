"""Every causal model of transformers, at its real size without memory for its weights.

Embedding and unembedding are the ones that the module names; the shapes of the other placed weights fit an attention
and an MLP. (benchmarks/coverage.py checks every role by value, at a tiny size.)
"""

import warnings

import pytest
import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from mdir_hf.errors import AnatomyError
from mdir_hf.model.roles import HeadCounts, Role, resolve_anatomy
from mdir_hf.model.roles.parts import part_shape
from mdir_hf.model.roles.tables import AWAY_FROM_THE_STREAM

# Fields without which the default config of a class cannot be built.
COMPLETED = {
    "hunyuan_v1_dense": {"head_dim": 128},
    "hunyuan_v1_moe": {"head_dim": 128},
    "ministral": {"head_dim": 128},
    "nemotron": {"num_key_value_heads": 8},
    "reformer": {"is_decoder": True},
}

# Default configs of transformers 5.23 that cannot be built; a real config.json has the missing fields.
CANNOT_BE_BUILT = {
    "cohere_compass_text",
    "dbrx",
    "dots1",
    "gemma3n",
    "gemma4_assistant",
    "gemma4_unified_assistant",
    "lfm2_moe",
    "musicgen",
    "musicgen_melody",
    "qwen4_exp",
    "qwen4_exp_text",
}


ATTENTION = (Role.Q, Role.K, Role.V, Role.O)
OF_A_MIX = {Role.V, Role.KV_LATENT, Role.SSM_IN}
WITHOUT_ATTENTION = {"zaya"}  # a convolution is between its projections and attention
WITHOUT_MLP = {"falcon_mamba", "mamba", "mamba2", "zamba", "zamba2"}  # Zamba's MLP does not read the stream


def on_meta(model_type):
    """The module without memory for its weights, with two layers if its config allows it."""
    more = COMPLETED.get(model_type, {})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for config_of in (
            lambda: CONFIG_MAPPING[model_type](**more, num_hidden_layers=2),
            lambda: CONFIG_MAPPING[model_type](**more),
        ):
            try:
                with torch.device("meta"):
                    return AutoModelForCausalLM.from_config(config_of())
            except Exception as exc:  # any error of a class with two layers
                failure = exc
    raise failure


@pytest.mark.slow
@pytest.mark.parametrize("model_type", sorted(set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES) - CANNOT_BE_BUILT))
def test_embedding_and_unembedding_match_the_module(model_type):
    model = on_meta(model_type)
    parameters = dict(model.named_parameters(remove_duplicate=False))
    shapes = {name: tuple(parameter.shape) for name, parameter in parameters.items()}

    anatomy = resolve_anatomy(model.config.to_dict(), shapes, shapes.__getitem__)

    assert parameters[anatomy.embedding.tensor] is model.get_input_embeddings().weight
    assert anatomy.unembedding is not None
    assert parameters[anatomy.unembedding.tensor] is model.get_output_embeddings().weight
    for layer in anatomy.layers:
        anatomy.check_shapes(layer, shapes.__getitem__)
        check_attention(anatomy, layer, shapes.__getitem__)
        for mlp in (layer.parts, *layer.experts, *layer.shared_experts):
            check_mlp(mlp, shapes.__getitem__, inside=AWAY_FROM_THE_STREAM.get(model_type, frozenset()))
    placed = {role for layer in anatomy.layers for role, _ in layer.all_parts()}
    assert bool(placed & OF_A_MIX) != (model_type in WITHOUT_ATTENTION)
    assert (Role.UP in placed) != (model_type in WITHOUT_MLP)


def check_attention(anatomy, layer, shape_of):
    """Check that heads divide the rows, queries and keys are equally wide, and o reads the values of all heads."""
    heads = layer.heads or (anatomy.n_heads and HeadCounts(anatomy.n_heads, anatomy.n_kv_heads))
    shapes = {role: part_shape(layer.parts[role], shape_of) for role in ATTENTION if role in layer.parts}
    if heads is None or Role.MIXER_GATE in layer.parts or shapes.keys() != set(ATTENTION):
        return  # RWKV and linear attention have a different kind of head
    (q_rows, _), (k_rows, _), (v_rows, _), (_, o_columns) = (shapes[role] for role in ATTENTION)
    assert q_rows % heads.n_heads == k_rows % heads.n_kv_heads == v_rows % heads.n_kv_heads == 0
    assert q_rows // heads.n_heads == k_rows // heads.n_kv_heads
    assert o_columns // heads.n_heads == v_rows // heads.n_kv_heads


def check_mlp(parts, shape_of, inside=frozenset()):
    """Check that gate and up have as many neurons as down reads."""
    shapes = {role: part_shape(parts[role], shape_of) for role in (Role.GATE, Role.UP, Role.DOWN) if role in parts}
    neurons = {shape[0] if role is not Role.DOWN else shape[1] for role, shape in shapes.items()}
    assert len(neurons) <= 1
    assert not shapes or {Role.UP, Role.DOWN} - inside <= shapes.keys()


def test_few_classes_are_left_out():
    assert len(CANNOT_BE_BUILT) <= 11
    assert len(set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES) - CANNOT_BE_BUILT) >= 168


@pytest.mark.parametrize("names", [[], ["model.layers.0.input_layernorm.weight"], ["vision_tower.conv.weight"]])
def test_without_an_embedding_a_head_or_layers_there_is_no_language_model(names):
    with pytest.raises(AnatomyError, match="no tensor is named like an input embedding"):
        resolve_anatomy({"model_type": "llama"}, names, lambda name: (1, 1))
