"""Build the base models as on the Hub: read from GGUF by transformers, in BF16, able to generate text."""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from benchmarks.folders import build_once
from benchmarks.real.onnx_weights import write_bert
from benchmarks.real.sources import SOURCES, Source, cache_root, unpacked

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

PROMPT, ANSWER = "The capital of France is Paris. The capital of Italy is", "Rome"

SAME_MATRIX = 0.15
"""Largest relative distance of two quantisations of one matrix. Measured: 0.04 and 0.07, and 1.4 for strangers."""


def base_folder(name: str) -> Path:
    """Return the folder of a base, a key of ``SOURCES``; fetched, unpacked and built if missing.

    Raises:
        UnavailableError: If its packages are not available.
        ValueError: If they have unexpected contents, or the model does not generate text.
    """
    source = SOURCES[name]
    if not source.in_parts and not source.is_onnx:  # a Hub folder, unchanged
        return unpacked(source)
    folder = cache_root() / "models" / name / "base"
    return build_once(folder, partial(_convert if source.is_onnx else _dequantise, source))


def load(folder: Path) -> PreTrainedModel:
    """Load a model in float32 for editing."""
    from transformers import AutoModelForCausalLM

    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model.eval()


def save(model: PreTrainedModel, tokenizer_of: Path, folder: Path) -> None:
    """Write a model as BF16 safetensors with its config, and the tokenizer files of another folder."""
    write_weights(model, folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        if (tokenizer_of / name).exists():
            shutil.copy(tokenizer_of / name, folder / name)


def write_weights(model: PreTrainedModel, folder: Path) -> None:
    """Write ``model.safetensors`` in BF16 and ``config.json``, without a tied head or outdated quantisation settings.

    The files are written directly, because transformers refuses to save models read from GGUF.
    """
    from safetensors.torch import save_file

    config = model.config.to_dict() | {"architectures": [type(model).__name__], "dtype": "bfloat16"}
    for gone in ("quantization_config", "_name_or_path"):
        config.pop(gone, None)
    state = {name: weight.detach() for name, weight in model.state_dict().items()}
    if config.get("tie_word_embeddings"):
        state.pop("lm_head.weight", None)
    folder.mkdir(parents=True)
    weights = {name: weight.to(torch.bfloat16).contiguous() for name, weight in state.items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")


@torch.no_grad()
def continued(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, text: str, *, n_tokens: int = 4) -> str:
    """Continue a text greedily."""
    ids = tokenizer(text, return_tensors="pt").input_ids
    made = model.generate(ids, max_new_tokens=n_tokens, do_sample=False, attention_mask=torch.ones_like(ids))
    return str(tokenizer.decode(made[0, ids.shape[1] :], skip_special_tokens=True))


@torch.no_grad()
def tied_again(model: PreTrainedModel) -> PreTrainedModel:
    """Return the model with one matrix for embedding and head if GGUF stores two quantisations of it: the finer one."""
    embedding, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    if not model.config.tie_word_embeddings and float((embedding - head).norm() / head.norm()) < SAME_MATRIX:
        embedding.copy_(head)
        model.config.tie_word_embeddings = True
    return model


def _convert(source: Source, folder: Path) -> None:
    """Convert a BERT from its ONNX file; a model without a tokenizer gets MiniLM's, which has the same words."""
    packed = unpacked(source)
    folder.mkdir()
    write_bert(packed / source.file, folder)
    words = packed if (packed / "vocab.txt").exists() else unpacked(SOURCES["minilm-a"])
    for name in ("vocab.txt", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(words / name, folder / name)


def _dequantise(source: Source, folder: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    gguf = unpacked(source)
    read = AutoModelForCausalLM.from_pretrained(gguf, gguf_file="model.gguf", dtype=torch.float32)
    write_weights(tied_again(read), folder)
    AutoTokenizer.from_pretrained(gguf, gguf_file="model.gguf").save_pretrained(folder)
    # Test the written model, because a weight under a wrong name would be initialised at random.
    continuation = continued(load(folder), AutoTokenizer.from_pretrained(folder), PROMPT)
    if ANSWER not in continuation:
        raise ValueError(
            f"{source.title} generates no text: it continues {PROMPT!r} by {continuation!r}, expected {ANSWER!r}"
        )
