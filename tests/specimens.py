"""Small untrained model folders, for tests of everything above the file formats."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file


def tokens(n_tokens: int, *, first: int = 0) -> list[str]:
    """Distinct plain words."""
    return [f"w{number}" for number in range(first, first + n_tokens)]


def tokenizer_json(words: Sequence[str]) -> dict[str, object]:
    """A tokenizer.json of whole words."""
    return {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": {w: i for i, w in enumerate(words)}, "unk_token": words[0]},
    }


def sentencepiece_bytes(pieces: Sequence[tuple[str, int]]) -> bytes:
    """Serialise a SentencePiece model of (piece, type) by hand; type 0 leaves the field out."""

    def number(value: int) -> bytes:
        low, rest = value & 0x7F, value >> 7
        return bytes([low | 0x80]) + number(rest) if rest else bytes([low])

    model = b""
    for piece, kind in pieces:
        text = piece.encode()
        message = b"\x0a" + number(len(text)) + text + b"\x15\0\0\0\0"  # field 1: the piece, field 2: a score of 0
        if kind:
            message += b"\x18" + number(kind)
        model += b"\x0a" + number(len(message)) + message
    return model + b"\x12\x03\x18\x80\x01"  # a trainer_spec, which readers skip


def mlp_tensors(width: int, n_neurons: int, seed: int, *, layer: int = 0) -> dict[str, torch.Tensor]:
    """The MLP of one Llama layer, under its names."""
    shapes = {"gate_proj": (n_neurons, width), "up_proj": (n_neurons, width), "down_proj": (width, n_neurons)}
    return {
        f"model.layers.{layer}.mlp.{name}.weight": gaussian(*shape, seed + at)
        for at, (name, shape) in enumerate(shapes.items())
    }


def mlp_of_rows(rows: torch.Tensor) -> dict[str, torch.Tensor]:
    """The MLP of one Llama layer whose neurons are rows of an embedding, or nothing if there are fewer than 80 rows."""
    n_neurons = min(200, len(rows) // 2)
    if n_neurons < 40:
        return {}
    gate, up = rows[:n_neurons], rows[n_neurons : 2 * n_neurons]
    matrices = {"gate": gate, "up": up, "down": gate.T}
    return {f"model.layers.0.mlp.{name}_proj.weight": matrix for name, matrix in matrices.items()}


def write_model(
    folder: Path,
    embedding: torch.Tensor,
    *,
    unembedding: torch.Tensor | None = None,
    words: Sequence[str] | None = None,
    config: dict[str, object] | None = None,
    dtype: torch.dtype = torch.bfloat16,
    further: dict[str, torch.Tensor] | None = None,
    has_layer: bool = True,
) -> Path:
    """Write a folder as ``save_pretrained`` would, with the weights given.

    Args:
        folder: Folder to create.
        embedding: ``(V, n)``.
        unembedding: ``(V, n)``, None for a tied model.
        words: The vocabulary, row by row; by default one word for each row. An empty list writes no tokenizer.
        config: Replaces the default config.
        dtype: Dtype of the stored weights.
        further: Further tensors.
        has_layer: Whether to add a layer with an MLP, unless ``further`` has layers. Its neurons are rows of the
            embedding, so a changed copy of the embedding has changed copies of the neurons.
    """
    folder.mkdir(parents=True)
    further = further or {}
    if has_layer and not any(".layers." in name for name in further):
        further = further | mlp_of_rows(embedding)
    tensors = {"model.embed_tokens.weight": embedding, **further}
    if unembedding is not None:
        tensors["lm_head.weight"] = unembedding
    save_file({name: t.to(dtype).contiguous().clone() for name, t in tensors.items()}, folder / "model.safetensors")
    words = tokens(len(embedding)) if words is None else words
    if words:
        (folder / "tokenizer.json").write_text(json.dumps(tokenizer_json(words)))
    default = {
        "model_type": "llama",
        "hidden_size": embedding.shape[1],
        "vocab_size": len(embedding),
        "tie_word_embeddings": unembedding is None,
    }
    (folder / "config.json").write_text(json.dumps(default if config is None else config))
    return folder


def gaussian(n_rows: int, width: int, seed: int) -> torch.Tensor:
    """Rows of an untrained embedding, ``(n_rows, width)``."""
    return 0.02 * torch.randn(n_rows, width, generator=torch.Generator().manual_seed(seed))


def save_pretrained(folder: Path, model: Any, *, words: Sequence[str] | None = None, **options: object) -> Path:
    """Save a model of transformers in float32, and a tokenizer of whole words.

    Args:
        folder: Folder to create.
        model: The model, which stays as it is.
        words: The vocabulary, row by row; by default one word for each row. An empty list writes no tokenizer.
        options: Options of ``save_pretrained``.
    """
    from transformers.utils import logging

    logging.disable_progress_bar()
    copy.deepcopy(model).float().save_pretrained(folder, **options)
    words = tokens(model.config.vocab_size) if words is None else words
    if words:
        (folder / "tokenizer.json").write_text(json.dumps(tokenizer_json(words)))
    return folder
