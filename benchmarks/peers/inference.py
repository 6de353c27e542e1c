"""Model loading and statements for peers that run models.

The published methods use TruthfulQA or WikiText. There is no network here, so the statements are sentences from the
docstrings shipped with Python (``mdir_hf.demo.training``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from benchmarks.peers.interface import CannotSayError
from benchmarks.peers.reads import Reads
from benchmarks.peers.weights import open_model
from mdir_hf.demo.training import read_corpus, seeded_single_thread

_LENGTH = range(40, 161)
CONFIG, GENERATION = "config.json", "generation_config.json"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
"""Files that transformers opens in a folder for a tokenizer like the zoo's, according to strace."""


@lru_cache(maxsize=1)
def statements() -> tuple[str, ...]:
    """Return several thousand different sentences of 40 to 160 characters, in a fixed order."""
    prose = " ".join(read_corpus(code_n_chars=1, prose_n_chars=600_000).prose.learnt)
    sentences = (" ".join(part.split()) for part in re.split(r"(?<=[.!?])\s|\n\s*\n", prose))
    return tuple(dict.fromkeys(s for s in sentences if len(s) in _LENGTH and s[0].isupper() and s[-1] in ".!?"))


def load_tokenizer(folder: Path, reads: Reads) -> Any:
    """Load a tokenizer with transformers, and count its files.

    Raises:
        CannotSayError: If transformers cannot load it.
    """
    from transformers import AutoTokenizer

    _count(folder, reads, CONFIG, *TOKENIZER_FILES)
    try:
        return AutoTokenizer.from_pretrained(folder)
    except (OSError, ValueError, KeyError) as exc:
        raise CannotSayError(f"transformers cannot load its tokenizer: {_short(exc)}") from exc


@contextmanager
def loaded(folder: Path, reads: Reads) -> Iterator[tuple[Any, Any]]:
    """Load a causal transformers model in float32, in evaluation mode, and its tokenizer; seeded, on one thread.

    Quantised weights are read by ``mdir_hf`` and loaded into a float32 model, because transformers runs few of their
    formats without the GPU kernels they were made for, and silently skips weights of others. For other models
    transformers takes every weight from memory-mapped files, so the files count in full.

    Raises:
        CannotSayError: If it cannot be loaded, or some of its weights are not found.
    """
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    with seeded_single_thread(0):
        tokenizer = load_tokenizer(folder, reads)
        try:
            config = AutoConfig.from_pretrained(folder)
            if getattr(config, "quantization_config", None) is None:
                model, told = AutoModelForCausalLM.from_pretrained(
                    folder, dtype=torch.float32, output_loading_info=True
                )
                missing = sorted(told["missing_keys"])
                _count(folder, reads, GENERATION, *(file.name for file in folder.glob("*.safetensors")))
            else:
                model, missing = _dequantised(folder, config, reads)
        except (OSError, ValueError, KeyError, ImportError, RuntimeError) as exc:
            raise CannotSayError(f"transformers cannot load it: {_short(exc)}") from exc
        if missing:
            raise CannotSayError(f"{len(missing)} weights are not found, the first {missing[0]}")
        yield model.eval(), tokenizer


def _dequantised(folder: Path, config: Any, reads: Reads) -> tuple[Any, list[str]]:
    """Return a float32 model with dequantised weights, and the names of weights not found."""
    from transformers import AutoModelForCausalLM

    source = open_model(folder, reads).tensors
    del config.quantization_config
    kind = type(AutoModelForCausalLM.from_config(config))
    weights = {name: source.read(name).float() for name in source.names()}
    model, told = kind.from_pretrained(
        None, config=config, state_dict=weights, dtype=torch.float32, output_loading_info=True
    )
    return model, sorted(told["missing_keys"])


def _count(folder: Path, reads: Reads, *names: str) -> None:
    for file in (folder / name for name in names):
        if file.is_file():
            reads.add(file)


def _short(exc: Exception) -> str:
    return f"{type(exc).__name__}: {' '.join(str(exc).split())[:160]}"


def encode(tokenizer: Any, texts: tuple[str, ...], *, n_tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ids, (len(texts), n_tokens) padded on the right with 0, and the number of real tokens per row."""
    rows = [tokenizer(text, add_special_tokens=False)["input_ids"][:n_tokens] for text in texts]
    ids = torch.zeros(len(rows), n_tokens, dtype=torch.int64)
    for row, token_ids in zip(ids, rows, strict=True):
        row[: len(token_ids)] = torch.tensor(token_ids)
    return ids, torch.tensor([len(token_ids) for token_ids in rows])
