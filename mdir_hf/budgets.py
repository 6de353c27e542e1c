"""Limits on how much the parsers read from each kind of file.

Each limit is about three times what the largest published models need. It is checked before any objects are created.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Budget:
    """The maximum size of one kind of file.

    Attributes:
        n_bytes: Maximum number of bytes in the file or its header.
        n_items: Maximum number of tokens, tensors, lines or opcodes; for JSON, see :func:`json_weight`.
    """

    n_bytes: int
    n_items: int

    def excess(self, *, n_bytes: int = 0, n_items: int = 0, of: str = "items") -> str | None:
        """Describe how a file exceeds the budget, worded to complete a sentence; return None if it does not."""
        if n_bytes > self.n_bytes:
            return f"has {n_bytes:,} bytes; the limit is {self.n_bytes:,}"
        if n_items > self.n_items:
            return f"has {n_items:,} {of}; the limit is {self.n_items:,}"
        return None


MAX_TOKENS = 1 << 20
"""Maximum number of tokens in a vocabulary. The largest published vocabularies have 0.9 million."""

MAX_TOKEN_N_BYTES = 1 << 14
"""Maximum stored size of a token, in bytes. The longest published tokens, runs of spaces, take a few hundred."""

TOKENIZER_JSON = Budget(64 << 20, 4 << 20)
TOKEN_LINES = Budget(16 << 20, MAX_TOKENS)
"""Vocabularies with one token per line."""
SENTENCEPIECE = Budget(64 << 20, 5 << 20)
"""Items are protobuf fields, four per piece."""

SAFETENSORS_HEADER = Budget(100_000_000, 850_000)
"""The format limits the bytes. Items are values: about nine per tensor, each up to 200 bytes when parsed, so a 671B
mixture of experts fits in one file."""
MAX_TENSORS = 420_000
"""Maximum number of tensors in a checkpoint. A 1T model in 4 bits has 210,000."""
MAX_TENSORS_UNINDEXED = 140_000
"""Maximum number of tensors in a checkpoint without an index, for which every header is parsed. A 671B mixture of
experts has 91,000."""
MARKS_OF_A_TENSOR = 7
"""Minimum number of values that a tensor takes in a header, as counted by :func:`json_values`."""
SHARD_INDEX = Budget(64 << 20, MAX_TENSORS + 1000)
"""Items are tensors. The index of a 671B mixture of experts takes 9 MB."""
CONFIG_JSON = Budget(8 << 20, 1 << 20)
ADAPTER_CONFIG = Budget(4 << 20, 1 << 20)
REPORT_JSON = Budget(16 << 20, 1 << 20)
"""For a report, or one line of a survey. A report on two models with 100 layers takes less than 1 MB."""
INDEX_JSON = Budget(64 << 20, 4 << 20)
"""The metadata of an index takes about 150 items per base, so this is enough for 25,000 bases."""
HUB_ANSWER = Budget(64 << 20, 4 << 20)
"""Responses from the Hub's API. A listed file takes about twenty items, so this is enough for 200,000 files."""
PICKLE = Budget(64 << 20, 2_000_000)
"""Items are opcodes. A tensor takes about 40, so this is enough for 50,000 tensors in one file."""
ZIP_DIRECTORY = Budget(64 << 20, 200_000)
GGUF_HEADER = Budget(128 << 20, 1 << 16)
"""A vocabulary of 256,000 tokens with merges takes 10 to 20 MB. Items are tensors; a layer's experts are stacked in one
tensor per role."""
GGUF_PAIRS = 1 << 16
GGUF_STRINGS = 1 << 21
"""Maximum length of a string array in a GGUF header. The longest array contains the merges, about two per token."""
ONNX = Budget((2 << 30) - 1, 1 << 20)
"""protobuf limits the bytes. Items are nodes and initialisers of the outermost graph; a large model has some 50,000."""


def json_values(text: bytes) -> int:
    """Return an upper bound on the number of values in a JSON text, by counting commas and opening brackets."""
    return sum(text.count(mark) for mark in (b",", b"[", b"{"))


def json_weight(text: bytes) -> int:
    """Return an upper bound on the parsed size of a JSON text, in units of about 80 bytes."""
    return json_values(text) + 2 * text.count(b":")


class _Collector:
    """How many :func:`collector_paused` blocks are running, and whether garbage collection was enabled before."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.n_inside = 0
        self.was_on = False


_collector = _Collector()


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pause garbage collection while a parser builds many objects without cycles.

    Garbage collection took two thirds of the time to parse a header of 200,000 tensors. The pause affects the whole
    process, so keep the block short and free of network access.
    """
    with _collector.lock:
        if _collector.n_inside == 0:
            _collector.was_on = gc.isenabled()
            gc.disable()
        _collector.n_inside += 1
    try:
        yield
    finally:
        with _collector.lock:
            _collector.n_inside -= 1
            if _collector.n_inside == 0 and _collector.was_on:
                gc.enable()
