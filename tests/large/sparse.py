"""Safetensors checkpoints of any size, with sparse files that contain data only for chosen tensors."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch

from mdir_hf.model.files.decode import DTYPES

TensorShape = tuple[str, tuple[int, ...]]
"""Dtype, with the format's name, and shape."""


def n_bytes_of(tensor: TensorShape) -> int:
    """Stored size of a tensor."""
    dtype, shape = tensor
    return DTYPES[dtype].n_bits * torch.Size(shape).numel() // 8


def fill_shards(tensors: Mapping[str, TensorShape], limit_n_bytes: int) -> list[dict[str, TensorShape]]:
    """Put tensors into shards in order; start a new shard if the next tensor would exceed the limit."""
    shards: list[dict[str, TensorShape]] = [{}]
    n_bytes = 0
    for name, tensor in tensors.items():
        size = n_bytes_of(tensor)
        if shards[-1] and n_bytes + size > limit_n_bytes:
            shards.append({})
            n_bytes = 0
        shards[-1][name] = tensor
        n_bytes += size
    return shards


def write_sparse_checkpoint(
    folder: Path,
    shards: Sequence[Mapping[str, TensorShape]],
    *,
    config: Mapping[str, object],
    tokenizer: bytes,
    repeated_rows: Mapping[str, Callable[[], torch.Tensor]],
) -> dict[str, str]:
    """Write the shards, their index, the config and the tokenizer.

    Args:
        folder: Folder to create.
        shards: Tensors of each shard, in order.
        config: Content of config.json.
        tokenizer: Content of tokenizer.json.
        repeated_rows: For a BF16 matrix, rows that it repeats from its first to its last, or values of a vector; every
            other tensor is a hole.

    Returns:
        An invented SHA-256 for each shard and folder, which avoids reading gigabytes of holes to compute one.
    """
    folder.mkdir(parents=True)
    weight_map, digests = {}, {}
    for number, shard in enumerate(shards, start=1):
        path = f"model-{number:05}-of-{len(shards):05}.safetensors"
        _write_shard(folder / path, shard, repeated_rows)
        weight_map |= dict.fromkeys(shard, path)
        digests[path] = f"{abs(hash((str(folder), path))):064x}"
    total = sum(n_bytes_of(tensor) for shard in shards for tensor in shard.values())
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    (folder / "tokenizer.json").write_bytes(tokenizer)
    return digests


def _write_shard(
    path: Path, shard: Mapping[str, TensorShape], repeated_rows: Mapping[str, Callable[[], torch.Tensor]]
) -> None:
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    at = 0
    starts = {}
    for name, (dtype, shape) in shard.items():
        starts[name], stop = at, at + n_bytes_of((dtype, shape))
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, stop]}
        at = stop
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        data_start = 8 + len(text)
        file.truncate(data_start + at)
        for name in starts.keys() & repeated_rows.keys():
            n_rows, *rest = shard[name][1]
            width = math.prod(rest)
            rows = repeated_rows[name]().to(torch.bfloat16)
            block = rows.view(torch.uint8).numpy().tobytes()
            for first in range(0, n_rows, len(rows)):
                n_now = min(len(rows), n_rows - first)
                os.pwrite(file.fileno(), block[: n_now * width * 2], data_start + starts[name] + first * width * 2)
