"""Every image-text-to-text class of transformers: the language model by value, and no role for any other tensor.

Saved as users save it (with old or new names), and run on one text token.
"""

import re
import warnings

import pytest
import torch
from transformers import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES

from mdir_hf.model.roles import Role, read_part
from tests.model.roles.forward_record import record_forward
from tests.model.roles.judgement import judge
from tests.model.roles.tiny_causal import build_module, save_and_open

ATTENTION = {Role.Q, Role.K, Role.V, Role.O}
MLP = {Role.UP, Role.DOWN}


def rope(section, **more):
    rope_parameters = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": section, **more}
    return {"text_config": {"rope_parameters": rope_parameters}}


_KOSMOS = {"embed_dim": 64, "ffn_dim": 96, "layers": 2, "attention_heads": 4}

# Settings that a class needs besides small sizes.
MORE = {
    **dict.fromkeys(("qwen2_5_vl", "qwen2_5_omni_thinker", "glm4v", "glm46v", "glm_ocr"), rope([4, 2, 2])),
    **dict.fromkeys(("cosmos3_edge", "paddleocr_vl"), rope([8, 4, 4])),
    "glm4v_moe": rope([2, 1, 1]),
    "qwen2_vl": {**rope([4, 2, 2]), "vision_config": {"depth": 2, "embed_dim": 64}},
    "kosmos-2": {"text_config": _KOSMOS},
    "kosmos-2.5": {"text_config": _KOSMOS},
    "chameleon": {"vocabulary_map": {"<image>": 3}},
    "emu3": {
        "vocabulary_map": {"<image>": 3, "<|extra_200|>": 4, "<|visual token 000000|>": 5},
        "vq_config": {"base_channels": 32},
    },
    "granite_docling": {"vision_config": {"out_hidden_size": 64}},
    "inkling2": {"vision_config": {"text_hidden_size": 64}},
    "molmo2": {"adapter_config": {"vision_feature_layer": [1, 0]}},
    "mistral4": {"head_dim": 8},
    "kimi_k25": {"text_config": {"head_dim": 8}},
}
# Classes that cannot be built tiny here, because of checks in their configs or a missing package.
NOT_BUILT = {
    *("cohere_compass", "deepseek_ocr2", "ernie4_5_vl_moe", "glm5_next", "glmga"),
    *("granite4_vision", "muse_spark", "nemotron_h_omni", "pp_chart2table", "shieldgemma2"),
    *("fast_vlm", "gemma3n", "perception_lm"),
}
# Classes whose forward pass needs more than tokens: only names and shapes are checked.
NOT_RUN = {
    *("blip", "blip-2", "idefics", "instructblip", "instructblipvideo", "kosmos-2", "pi0", "pix2struct", "t5gemma2"),
    *("udop", "vision-encoder-decoder", "hunyuan_vl"),
}
# Weights that are not placed or not confirmed, with the reason.
WITHOUT_ATTENTION = {
    "inkling_mm_model",  # files with the names of other code
    "inkling2",
    "mistral_large4",  # queries with their own temperature
}
LINEAR = {"minicpm_ocr", "minicpmv4_6", "minicpmv4_7", "qwen3_5", "qwen3_5_moe", "qwen4_exp"}
"""Linear attention in some layers, which is not recorded; see test_linear_attention.py."""
WITHOUT_MLP = {
    *("mistral_large4", "lfm3_vl"),
    "diffusion_gemma",
    "mistral4",
}
SHIFTED = {"paligemma"}
"""Positions start at 1, where q and k are rotated."""

KEYS_ARE_VALUES = {"diffusion_gemma"}
"""Keys are the values in layers with global attention."""

EXTENDED = {"molmo2"}
"""The embedding is stored in two tensors; ours is the first."""

NO_LANGUAGE_MODEL = {"pp_formulanet"}
OF_OTHERS = re.compile(
    r"vision|visual|image|vit\.|audio|projector|connector|merger|resampler|qformer|protein|encoder_attn"
)


def names():
    return sorted(set(MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES) - NOT_BUILT - NO_LANGUAGE_MODEL)


# One of each kind: named as in its files, in two tensors, with experts.
FEW = ("llava", "molmo2", "qwen3_vl_moe")


@pytest.mark.parametrize(
    "model_type", [name if name in FEW else pytest.param(name, marks=pytest.mark.slow) for name in names()]
)
def test_the_language_model_inside(model_type, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = build_module(model_type, mapping=MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING, **MORE.get(model_type, {}))
        record = None if model_type in NOT_RUN else record_forward(module)
    ours = save_and_open(module, tmp_path)
    anatomy = ours.anatomy

    embedding = read_part(ours.tensors, anatomy.embedding)
    expected = module.get_input_embeddings().weight
    assert torch.equal(embedding, expected[: len(embedding)])
    assert len(embedding) == len(expected) or model_type in EXTENDED
    head = module.get_output_embeddings()
    if head is not None and anatomy.unembedding is not None:
        assert torch.equal(read_part(ours.tensors, anatomy.unembedding), head.weight)

    placed = {tensor for layer in anatomy.layers for _, part in layer.all_parts() for tensor in part.tensors}
    assert not [name for name in placed if OF_OTHERS.search(name)]
    for layer in anatomy.layers:
        anatomy.check_shapes(layer, lambda name: ours.tensors.spec(name).shape)
        if model_type not in WITHOUT_ATTENTION:
            assert {Role.K if model_type in KEYS_ARE_VALUES else Role.V, Role.SSM_IN} & layer.parts.keys()
    if record is None:
        return
    found = judge(anatomy, ours.tensors, record)
    if model_type not in LINEAR | SHIFTED | WITHOUT_ATTENTION:
        assert found.wrong == []
    for layer, proved in zip(anatomy.layers, found.proved, strict=True):
        of_softmax = layer.parts.keys() & ATTENTION if Role.MIXER_GATE not in layer.parts else set()
        if model_type not in SHIFTED | WITHOUT_ATTENTION:
            assert proved >= of_softmax
        if model_type not in WITHOUT_MLP | WITHOUT_ATTENTION:
            assert proved >= MLP


def test_few_classes_are_left_out():
    assert len(NOT_BUILT) <= 15
    assert len(names()) >= 80
