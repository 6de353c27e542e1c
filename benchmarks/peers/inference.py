"""What peers that run models need: a model of transformers and statements to run it on.

The published methods take TruthfulQA or WikiText. Here is no network, so that statements are sentences of the
docstrings and licences that come with Python (``mdir_hf.demo.text``): other words, the same use.
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
from mdir_hf.demo.text import read_corpus
from mdir_hf.demo.training import seeded_single_thread

_LENGTH = range(40, 161)


@lru_cache(maxsize=1)
def statements() -> tuple[str, ...]:
    """Some thousand different sentences of 40 to 160 characters, in a fixed order."""
    prose = " ".join(read_corpus(code_n_chars=1, prose_n_chars=600_000).prose)
    sentences = (" ".join(part.split()) for part in re.split(r"(?<=[.!?])\s|\n\s*\n", prose))
    return tuple(dict.fromkeys(s for s in sentences if len(s) in _LENGTH and s[0].isupper() and s[-1] in ".!?"))


def load_tokenizer(folder: Path) -> Any:
    """Load a tokenizer with transformers.

    Raises:
        CannotSayError: If transformers cannot.
    """
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(folder)
    except (OSError, ValueError, KeyError) as exc:
        raise CannotSayError(f"transformers cannot load its tokenizer: {_short(exc)}") from exc


@contextmanager
def loaded(folder: Path) -> Iterator[tuple[Any, Any]]:
    """A causal model of transformers in float32, in evaluation mode, and its tokenizer; seeded, on one thread.

    Raises:
        CannotSayError: If transformers cannot load it, or cannot run it because of how its weights are stored.
    """
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    with seeded_single_thread(0):
        tokenizer = load_tokenizer(folder)
        try:
            model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        except Exception as exc:  # of every kind, from every library that a stored format asks for
            raise CannotSayError(f"transformers cannot load it: {_short(exc)}") from exc
        try:
            yield model, tokenizer
        except Exception as exc:
            if isinstance(exc, CannotSayError) or getattr(model.config, "quantization_config", None) is None:
                raise
            raise CannotSayError(f"transformers cannot run it as it is stored: {_short(exc)}") from exc


def _short(exc: Exception) -> str:
    return f"{type(exc).__name__}: {' '.join(str(exc).split())[:160]}"


def encode(tokenizer: Any, texts: tuple[str, ...], *, n_tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids, (len(texts), n_tokens) padded on the right with 0, and how many of each row are not padding."""
    rows = [tokenizer(text, add_special_tokens=False)["input_ids"][:n_tokens] for text in texts]
    ids = torch.zeros(len(rows), n_tokens, dtype=torch.int64)
    for row, found in zip(ids, rows, strict=True):
        row[: len(found)] = torch.tensor(found)
    return ids, torch.tensor([len(found) for found in rows])
