"""Budgets of the parsers: the most that each reads of a file before it gives up, whatever the file claims.

An uploader controls every file of a model, and memory and time grow with what a file claims. Each kind of file has
a budget here. It is about three times what the largest published models need, and is checked before anything is built.
What exceeds it ends in an error that says which number was too large.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Budget:
    """Most that a file of one kind may hold.

    Attributes:
        n_bytes: Bytes of the file, or of its header.
        n_items: What it lists: tokens, tensors, lines, opcodes; of JSON, see :func:`json_weight`.
    """

    n_bytes: int
    n_items: int

    def excess(self, *, n_bytes: int = 0, n_items: int = 0, of: str = "items") -> str | None:
        """Say what is too much, as the end of a sentence about the file; None where nothing is.

        Args:
            n_bytes: Bytes that there are.
            n_items: Items that there are.
            of: What the items are called.
        """
        if n_bytes > self.n_bytes:
            return f"has {n_bytes:,} bytes, and is read up to {self.n_bytes:,}"
        if n_items > self.n_items:
            return f"has {n_items:,} {of}, and is read up to {self.n_items:,}"
        return None


MAX_TOKENS = 1 << 20
"""Tokens of one vocabulary. The largest published ones have 0.9 million."""

MAX_TOKEN_N_BYTES = 1 << 14
"""Bytes of one token, as written. Published ones have some hundreds: long runs of spaces."""

TOKENIZER_JSON = Budget(64 << 20, 4 << 20)
TOKEN_LINES = Budget(16 << 20, MAX_TOKENS)
"""Vocabularies of one token a line, whatever its spelling."""
SENTENCEPIECE = Budget(64 << 20, 5 << 20)
"""Items are fields of the protobuf: four for a piece."""

SAFETENSORS_HEADER = Budget(100_000_000, 850_000)
"""The format allows as many bytes. A tensor takes about nine values, each up to 200 bytes when parsed. A 671B
mixture of experts in a single file would fit; published ones are cut into shards of some thousands."""
MAX_TENSORS = 420_000
"""Tensors of one checkpoint, in all its files. One of 1 T in four bits has 210,000."""
MAX_TENSORS_UNINDEXED = 140_000
"""The same where no index names them, so that every header is parsed. Published checkpoints in several files have one;
a 671B mixture of experts (91,000 tensors) would do without."""
MARKS_OF_A_TENSOR = 7
"""Of the marks that :func:`json_values` counts, the fewest that a tensor takes in a header."""
SHARD_INDEX = Budget(64 << 20, MAX_TENSORS + 1000)
"""Of items there is one for a tensor. The index of a 671B mixture of experts has 9 MB."""
CONFIG_JSON = Budget(8 << 20, 1 << 20)
ADAPTER_CONFIG = Budget(4 << 20, 1 << 20)
REPORT_JSON = Budget(16 << 20, 1 << 20)
"""Reports, and lines of a survey. The report of two models with 100 layers has less than 1 MB."""
INDEX_JSON = Budget(64 << 20, 4 << 20)
"""What an index says of its bases, about 150 each: enough for 25,000."""
HUB_ANSWER = Budget(64 << 20, 4 << 20)
"""Answers of the Hub's API. A file in a listing takes about twenty: enough for 200,000 files."""
PICKLE = Budget(64 << 20, 2_000_000)
"""Items are opcodes. A tensor takes about 40: this is enough for 50,000 in one file."""
ZIP_DIRECTORY = Budget(64 << 20, 200_000)
GGUF_HEADER = Budget(128 << 20, 1 << 16)
"""A vocabulary of 256,000 tokens with merges takes 10 to 20 MB. Items are tensors; experts are stored as one."""
GGUF_PAIRS = 1 << 16
GGUF_STRINGS = 1 << 21
"""Longest array of strings in a GGUF header: merges, of which there are twice as many as tokens."""


def json_values(text: bytes) -> int:
    """How many values a JSON text can have at most: its commas and opening brackets, wherever they stand."""
    return sum(text.count(mark) for mark in (b",", b"[", b"{"))


def json_weight(text: bytes) -> int:
    """How much a JSON text can become at most, in units of about 80 bytes: a member of an object counts three times."""
    return json_values(text) + 2 * text.count(b":")


class _Collector:
    """How many parsers run, of all threads, and whether the collector was on before the first of them."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.n_inside = 0
        self.was_on = False


_collector = _Collector()


@contextmanager
def collector_paused() -> Iterator[None]:
    """Let Python's collector of cycles rest while a parser builds many objects that hold no cycles.

    While such objects pile up, the collector walks all of them, and all of torch's, again and again: it took two
    thirds of the time of a header of 200,000 tensors. For the whole process, until the last parser is out; for what
    takes seconds at most, and asks no network.
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
