"""Checkpoints with the shape, headers and file sizes of Llama-3.1-8B; only the embedding has bytes on the disk."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import torch

VOCABULARY, WIDTH, LAYERS, MLP, KV = 128_256, 4096, 32, 14_336, 1024
N_SHARDS = 4
SHARD_LIMIT_BYTES = 5_000_000_000
UNIQUE_ROWS = 8192  # the embedding repeats these: writing it takes a second, not a minute

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


def tensor_shapes() -> dict[str, tuple[int, ...]]:
    """Names and shapes of all 291 tensors, in the order of the published shards."""
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (VOCABULARY, WIDTH)}
    for layer in range(LAYERS):
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


def write_checkpoint(folder: Path, rows: Callable[[], torch.Tensor], tokenizer: bytes) -> dict[str, str]:
    """Write the sparse shards, the index, the config and the tokenizer.

    Args:
        folder: Made.
        rows: Gives ``(UNIQUE_ROWS, WIDTH)``, which the embedding repeats.
        tokenizer: Content of tokenizer.json.

    Returns:
        A made-up SHA-256 by shard, different for every folder, so that nobody reads 16 GB of holes to compute one.
    """
    folder.mkdir(parents=True)
    shards: list[dict[str, tuple[int, ...]]] = [{}]
    n_bytes = 0
    for name, shape in tensor_shapes().items():
        size = 2 * torch.Size(shape).numel()
        if n_bytes + size > SHARD_LIMIT_BYTES:
            shards.append({})
            n_bytes = 0
        shards[-1][name] = shape
        n_bytes += size
    assert len(shards) == N_SHARDS
    weight_map, digests = {}, {}
    for number, shard in enumerate(shards, start=1):
        path = f"model-{number:05}-of-{N_SHARDS:05}.safetensors"
        _write_shard(folder / path, shard, rows)
        weight_map |= dict.fromkeys(shard, path)
        digests[path] = f"{abs(hash((str(folder), path))):064x}"
    total = sum(2 * torch.Size(shape).numel() for shape in tensor_shapes().values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))
    (folder / "config.json").write_text(json.dumps(CONFIG, indent=2))
    (folder / "tokenizer.json").write_bytes(tokenizer)
    return digests


def _write_shard(path: Path, shard: dict[str, tuple[int, ...]], rows: Callable[[], torch.Tensor]) -> None:
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, shape in shard.items():
        size = 2 * torch.Size(shape).numel()
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        start = 8 + len(text)
        file.truncate(start + at)
        if "model.embed_tokens.weight" in shard:
            block = rows().to(torch.bfloat16).view(torch.uint8).numpy().tobytes()
            row_n_bytes = 2 * WIDTH
            for first in range(0, VOCABULARY, UNIQUE_ROWS):
                n_rows = min(UNIQUE_ROWS, VOCABULARY - first)
                os.pwrite(file.fileno(), block[: n_rows * row_n_bytes], start + first * row_n_bytes)


def tokenizer_of_real_size() -> bytes:
    """A byte-level BPE tokenizer.json of 128,000 tokens, 280,000 merges and 256 special tokens: 9 MB, as published."""
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


def base_rows() -> torch.Tensor:
    """Rows of the base."""
    return 0.01 * torch.randn(UNIQUE_ROWS, WIDTH, generator=torch.Generator().manual_seed(0))


def fine_tuned_rows() -> torch.Tensor:
    """The base's rows, moved by a tenth of their size."""
    return base_rows() + 0.001 * torch.randn(UNIQUE_ROWS, WIDTH, generator=torch.Generator().manual_seed(1))


def resaved_rows() -> torch.Tensor:
    """The base's rows."""
    return base_rows()
