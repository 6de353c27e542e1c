"""A closer look at related models: rows of every layer, and unreadable layers."""

from __future__ import annotations

import torch

from mdir_hf.lineage.trees.aligning import look_closer
from mdir_hf.model.hub import open_repository
from mdir_hf.model.opened import Model
from tests.specimens import gaussian, write_model

V, N, D = 400, 64, 96


def layers(*seeds: int, noise: float = 0.0) -> dict[str, torch.Tensor]:
    """Return layers drawn from these seeds."""
    made = {}
    for at, seed in enumerate(seeds):
        for offset, (name, rows) in enumerate({"self_attn.v_proj": N, "mlp.up_proj": D, "mlp.gate_proj": D}.items()):
            weight = gaussian(rows, N, 100 + 10 * seed + offset)
            made[f"model.layers.{at}.{name}.weight"] = weight + noise * gaussian(rows, N, 1000 + 10 * at + offset)
    return made


CONFIG = {"model_type": "llama", "hidden_size": N, "num_attention_heads": 4, "intermediate_size": D}


def opened(folder, embedding, *seeds, noise=0.0, **options) -> Model:
    config = {**CONFIG, "vocab_size": len(embedding), "num_hidden_layers": len(seeds), "tie_word_embeddings": True}
    write_model(folder, embedding, further=layers(*seeds, noise=noise), config=config, **options)
    return Model(open_repository(folder))


def test_unreadable_layers_are_named_and_the_rest_is_there(tmp_path):
    models = {name: opened(tmp_path / name, gaussian(V, N, 0), 1, 2) for name in ("whole", "cut")}
    weights = tmp_path / "cut" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[: -3 * N * D])
    found = look_closer(models)
    assert set(found.layers) == {"whole"}
    assert len(found.notes) == 1 and "cut" in found.notes[0]
