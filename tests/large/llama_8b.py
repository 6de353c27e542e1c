"""Checkpoints with the widths of Llama-3.1-8B and one layer; only its neurons take space on disk."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import torch

from tests.large.sparse import fill_shards, write_sparse_checkpoint

VOCABULARY, WIDTH, LAYERS, MLP, KV = 128_256, 4096, 32, 14_336, 1024
SHARD_LIMIT_BYTES = 5_000_000_000

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": WIDTH,
    "intermediate_size": MLP,
    "num_attention_heads": 32,
    "num_hidden_layers": LAYERS,
    "num_key_value_heads": 8,
    "tie_word_embeddings": False,
    "vocab_size": VOCABULARY,
}


def tensor_shapes(n_layers: int = LAYERS) -> dict[str, tuple[int, ...]]:
    """Names and shapes of all tensors (291 with all layers), in the order of the published shards."""
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (VOCABULARY, WIDTH)}
    for layer in range(n_layers):
        at = f"model.layers.{layer}."
        shapes |= {
            at + "input_layernorm.weight": (WIDTH,),
            at + "mlp.down_proj.weight": (WIDTH, MLP),
            at + "mlp.gate_proj.weight": (MLP, WIDTH),
            at + "mlp.up_proj.weight": (MLP, WIDTH),
            at + "post_attention_layernorm.weight": (WIDTH,),
            at + "self_attn.k_proj.weight": (KV, WIDTH),
            at + "self_attn.o_proj.weight": (WIDTH, WIDTH),
            at + "self_attn.q_proj.weight": (WIDTH, WIDTH),
            at + "self_attn.v_proj.weight": (KV, WIDTH),
        }
    return shapes | {"model.norm.weight": (WIDTH,), "lm_head.weight": (VOCABULARY, WIDTH)}


def write_checkpoint(folder: Path, neurons: Callable[[str], torch.Tensor], tokenizer: bytes) -> dict[str, str]:
    """Write a model with one layer, whose neurons and gains take 0.35 GB; every other tensor is a hole.

    Args:
        folder: Folder to create.
        neurons: Returns the rows of ``gate_proj`` or ``up_proj``, ``(MLP, WIDTH)``, and of ``down_proj``, ``(WIDTH,
            MLP)``.
        tokenizer: Content of tokenizer.json.

    Returns:
        An invented SHA-256 for each shard.
    """
    shapes = tensor_shapes(n_layers=1)
    shards = fill_shards({name: ("BF16", shape) for name, shape in shapes.items()}, SHARD_LIMIT_BYTES)
    repeated_rows = {
        f"model.layers.0.mlp.{name}.weight": partial(neurons, name) for name in ("gate_proj", "up_proj", "down_proj")
    }
    repeated_rows["model.layers.0.post_attention_layernorm.weight"] = partial(torch.ones, WIDTH)
    config = CONFIG | {"num_hidden_layers": 1}
    return write_sparse_checkpoint(folder, shards, config=config, tokenizer=tokenizer, repeated_rows=repeated_rows)


@cache
def base_neurons(name: str) -> torch.Tensor:
    """Rows of a matrix of the base's MLP, equal in every written layer."""
    shape = (WIDTH, MLP) if name == "down_proj" else (MLP, WIDTH)
    return 0.02 * torch.randn(shape, generator=torch.Generator().manual_seed(len(name)))


def moved_neurons(name: str) -> torch.Tensor:
    """The base's neurons with noise of a tenth of their size."""
    rows = base_neurons(name)
    return rows + 0.002 * torch.randn(rows.shape, generator=torch.Generator().manual_seed(7))


@cache
def tokenizer_of_real_size() -> bytes:
    """A byte-level BPE tokenizer.json of the published size: 128,000 tokens, 280,000 merges and 256 special tokens."""
    letters = "etaoinshrdlucmfwypvbgkqjxz"
    words = [f"Ġ{letters[i % 26]}{letters[i // 26 % 26]}{letters[i // 676 % 26]}{i:x}" for i in range(128_000)]
    merges = [f"{words[i % 128_000][:3]} {words[(7 * i) % 128_000][2:]}" for i in range(280_000)]
    special = [
        {"id": 128_000 + i, "content": f"<|reserved_special_token_{i}|>", "single_word": False, "lstrip": False,
         "rstrip": False, "normalized": False, "special": True}
        for i in range(256)
    ]  # fmt: skip
    return json.dumps(
        {
            "version": "1.0",
            "added_tokens": special,
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
            "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
            "model": {"type": "BPE", "vocab": {word: i for i, word in enumerate(words)}, "merges": merges},
        },
        ensure_ascii=False,
    ).encode()
