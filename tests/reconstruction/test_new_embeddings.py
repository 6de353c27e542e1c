"""A hidden model with new embeddings: the layers determine its residual basis."""

import pytest
import torch

from tests.method.obfuscation import new_model, obfuscate
from tests.reconstruction.models import aligned, loaded, logits, saved

SIZES = {"num_key_value_heads": 8, "head_dim": 16, "num_hidden_layers": 4, "intermediate_size": 192}


@pytest.mark.parametrize("change", ["rotated", "permuted", "negated"])
def test_layers_determine_the_residual_basis_if_embeddings_do_not(change, tmp_path):
    base = new_model("llama", **SIZES)
    permutation = torch.eye(64, dtype=torch.float64)[torch.randperm(64, generator=torch.Generator().manual_seed(3))]
    rotation = {"rotated": None, "permuted": permutation, "negated": -permutation}[change]
    made, _ = obfuscate(base, residual_scale=1.0, rotation=rotation)
    with torch.no_grad():
        made.model.embed_tokens.weight.normal_(std=0.1, generator=torch.Generator().manual_seed(5))
        made.lm_head.weight.normal_(std=0.1, generator=torch.Generator().manual_seed(6))
    saved(base, tmp_path / "base")
    saved(made, tmp_path / "hidden")
    found, _ = aligned(tmp_path / "base", tmp_path / "hidden", tmp_path / "aligned")
    assert found.stream.outer.kind == {"rotated": "rotation", "permuted": "permutation"}.get(
        change, "signed_permutation"
    )
    back, mine = loaded(tmp_path / "aligned"), loaded(tmp_path / "base")
    for name, weight in mine.state_dict().items():
        if name.startswith("model.layers"):
            torch.testing.assert_close(back.state_dict()[name], weight, rtol=1e-5, atol=1e-8)
    torch.testing.assert_close(logits(back), logits(loaded(tmp_path / "hidden")), rtol=1e-5, atol=1e-5)
