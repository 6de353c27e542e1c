"""Small synthetic models for tests of the Space, on a Hub on this machine."""

from __future__ import annotations

from pathlib import Path

import torch

from mdir_hf.lineage.index.building import extend_index
from tests.loopback.hub import FullHub
from tests.specimens import gaussian, mlp_tensors, write_model

V, N = 1500, 96
BASE, RELATED, STRANGER = "owner/base", "owner/related", "owner/stranger"
GATED, PRIVATE, DECLARED = "owner/gated", "owner/private", "owner/declared"
LARGE, LARGER = "owner/large", "owner/larger"
"""Strangers of 6 MB each, large enough to interrupt a read."""
MEDIUM, MEDIUM_STRANGER = "owner/medium", "owner/medium-stranger"
"""Strangers whose comparison takes some tenths of a second of a core, so that fifty of them fill a queue."""


LAYERED, LAYERED_STRANGER = "owner/layered", "owner/layered-stranger"
"""Strangers whose layers are compared after their embeddings."""


DEEP, DEEP_MOVED = "owner/deep", "owner/deep-moved"
"""A model with layers, and a copy with permuted residual channels, heads and neurons."""


FILES = "owner/files"
"""Several models in one repository, without a main one."""


def write_layered(folder: Path, seed: int) -> Path:
    """Write a model of eight layers of attention."""
    layers = {
        f"model.layers.{k}.self_attn.{name}_proj.weight": gaussian(N, N, 1000 * seed + 10 * k + j)
        for k in range(8)
        for j, name in enumerate("qkvo")
    }
    config = {"model_type": "llama", "hidden_size": N, "vocab_size": V, "num_attention_heads": 4}
    return write_model(folder, gaussian(V, N, seed), config=config, further=layers)


def deep_orders() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the orders of channels, heads and neurons of DEEP_MOVED; entry i is an index in DEEP."""
    generator = torch.Generator().manual_seed(6)
    channels, heads, neurons = (torch.randperm(n, generator=generator) for n in (N, 4, 4 * N))
    return channels, heads, neurons


def write_deep(folder: Path, *, is_moved: bool = False) -> Path:
    """Write a model of four layers with attention and an MLP."""
    channels, heads, neurons = deep_orders()
    rows = (heads[:, None] * (N // 4) + torch.arange(N // 4)).flatten()
    embedding = gaussian(V, N, 40)
    further = {}
    for layer in range(4):
        attention = {
            f"model.layers.{layer}.self_attn.{name}_proj.weight": gaussian(N, N, 4000 + 10 * layer + at)
            for at, name in enumerate("qkvo")
        }
        further |= attention | mlp_tensors(N, 4 * N, 5000 + 10 * layer, layer=layer)
    if is_moved:
        embedding = embedding[:, channels]
        for name, weight in further.items():
            inner = neurons if ".mlp." in name else rows
            is_output = "o_proj" in name or "down_proj" in name
            further[name] = weight[channels][:, inner] if is_output else weight[inner][:, channels]
    config = {"model_type": "llama", "hidden_size": N, "vocab_size": V, "num_attention_heads": 4}
    return write_model(folder, embedding, config=config | {"tie_word_embeddings": True}, further=further)


def write_models(folder: Path) -> Path:
    """Write a base, a noised copy of it, a stranger and the other models that :func:`add_models` serves."""
    base = gaussian(V, N, 0)
    for seed, name in enumerate(("related", "stranger", "gated", "private", "declared"), start=1):
        noise = gaussian(V, N, seed)
        write_model(folder / name, noise if name == "stranger" else base + 0.3 * noise)
    write_model(folder / "base", base)
    write_model(folder / "large", gaussian(6000, 512, 6))
    write_model(folder / "larger", gaussian(6000, 512, 7))
    write_model(folder / "medium", gaussian(3000, 256, 8))
    write_model(folder / "medium-stranger", gaussian(3000, 256, 9))
    for seed, name in enumerate(("layered", "layered-stranger"), start=20):
        write_layered(folder / name, seed)
    write_deep(folder / "deep")
    write_deep(folder / "deep-moved", is_moved=True)
    (folder / "files").mkdir()
    for name in ("one-Q8_0.gguf", "two-Q8_0.gguf"):
        (folder / "files" / name).write_bytes(b"GGUF")  # only the names matter
    card = f"---\nbase_model: {BASE}\nbase_model_relation: finetune\n---\n# A model\n"
    (folder / "declared" / "README.md").write_text(card)
    return folder


def add_models(hub: FullHub, folder: Path) -> None:
    """Serve the models of :func:`write_models`; one is gated and one private."""
    for model in sorted(folder.iterdir()):
        name = f"owner/{model.name}"
        hub.add_repository(name, model, gated=name == GATED, private=name == PRIVATE)


def index_of(names: list[str], path: Path) -> str:
    """Write an index of models of the Hub that ``HF_ENDPOINT`` names; return its path."""
    outcomes = []
    extend_index(names, path, on_model=lambda outcome: outcomes.append(outcome.kind))
    assert outcomes == ["added"] * len(names)
    return str(path)
