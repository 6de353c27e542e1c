"""Models without a language model, and audio models, are compared by the stack that they have."""

import pytest
import torch

from mdir_hf import SettledBy, Verdict, compare

transformers = pytest.importorskip("transformers")

SIZES = {"hidden_size": 64, "intermediate_size": 256, "num_hidden_layers": 3, "num_attention_heads": 4}
IMAGES = {"image_size": 32, "patch_size": 8}
CONFIGS = {
    "vit": lambda: transformers.ViTConfig(**SIZES, **IMAGES),
    "siglip": lambda: transformers.SiglipVisionConfig(**SIZES, **IMAGES),
    "wav2vec2": lambda: transformers.Wav2Vec2Config(**SIZES, conv_dim=(32,) * 7),
}


@torch.no_grad()
def save(folder, config, seed, *, noise=0.0):
    torch.manual_seed(seed)
    model = transformers.AutoModel.from_config(config)
    for weight in model.parameters():
        if weight.ndim > 1:
            weight += noise * weight.std() * torch.randn_like(weight)
    model.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("family", CONFIGS)
def test_a_model_without_a_language_model_is_compared_by_its_tower(family, tmp_path):
    transformers.utils.logging.disable_progress_bar()
    config = CONFIGS[family]()
    reference = save(tmp_path / "reference", config, 0)
    relative = compare(reference, save(tmp_path / "relative", config, 0, noise=0.02), progress=False)
    assert (relative.verdict, relative.settled_by) == (Verdict.HOMOLOGOUS, SettledBy.NEAR)
    stranger = compare(reference, save(tmp_path / "stranger", config, 1), progress=False)
    assert stranger.verdict is Verdict.NO_EVIDENCE
