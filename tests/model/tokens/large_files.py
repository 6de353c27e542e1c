"""Expensive tokenizer files: read one in a process with limited memory and time, and report the cost.

``python -m tests.model.tokens.large_files NAME`` writes the outcome and the growth of memory as a JSON object.
"""

from __future__ import annotations

import base64
import json
import resource
import sys
from collections.abc import Callable
from pathlib import Path

from mdir_hf.errors import VocabularyError
from mdir_hf.model.tokens import read_vocabulary

MB = 1 << 20


def piece(text: bytes) -> bytes:
    """A piece of a SentencePiece model that has only its text."""
    return b"\x0a" + bytes([len(text) + 2]) + b"\x0a" + bytes([len(text)]) + text


FILES: dict[str, tuple[str, Callable[[], bytes]]] = {
    "one literal of 16 MB": ("rwkv_vocab_v1.txt", lambda: b"1 '" + b"a" * (16 * MB - 30) + b"' 16777186"),
    "one literal in vocab.txt": ("vocab.txt", lambda: b"b'" + b"a" * (16 * MB - 30) + b"'"),
    "one merge of escapes": (
        "tokenizer.json",
        lambda: b'{"model":{"vocab":{"a":0},"merges":["' + b"\\\\" * (32 * MB - 60) + b'"]}}',
    ),
    "merges of escapes": (
        "tokenizer.json",
        lambda: b'{"model":{"vocab":{"a":0},"merges":[' + b'"\\\\\\\\",' * (9 * MB) + b'"a"]}}',
    ),
    "an emoji a line": ("vocab.txt", lambda: "\U0001f600\n".encode() * (64 * MB // 5)),
    "short lines": ("vocab.txt", lambda: b"ab\n" * (16 * MB // 3)),
    "nested containers": ("tokenizer.json", lambda: b"[" * (64 * MB)),
    "empty lists": ("tokenizer.json", lambda: b'{"a":[' + b"[]," * (21 * MB) + b"[]]}"),
    "empty objects": ("vocab.json", lambda: b'{"a":[' + b"{}," * (21 * MB) + b"{}]}"),
    "entries of a tekken": ("tekken.json", lambda: b'{"config":{},"vocab":[' + b"{}," * (20 * MB) + b"{}]}"),
    "keys": ("vocab.json", lambda: b"{" + b'"a":1,' * (4 * MB) + b'"a":1}'),
    "one long token": ("vocab.json", lambda: b'{"<reserved' + b"1" * (60 * MB) + b'x":1}'),
    "empty pieces": ("tokenizer.model", lambda: b"\x0a\x00" * (32 * MB)),
    "short pieces": ("tokenizer.model", lambda: piece(b"ab") * (8 * MB)),
    "skipped fields": ("tokenizer.model", lambda: piece(b"a") + b"\x10\x00" * (31 * MB)),
    "ranks": ("a.tiktoken", lambda: b"YQ== 0\n" * (9 * MB)),
    "one long rank": ("a.tiktoken", lambda: base64.b64encode(b"a" * (11 * MB)) + b" 0\n"),
}


def peak_bytes() -> int:
    """Peak memory of this process so far."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) << 10


def _main(name: str) -> None:
    file, make = FILES[name]
    data = make()
    # Creating the file also took memory, so the peak is reset.
    Path("/proc/self/clear_refs").write_text("5")
    before = peak_bytes()
    seconds = resource.getrusage(resource.RUSAGE_SELF).ru_utime
    resource.setrlimit(resource.RLIMIT_CPU, (int(seconds) + 60, int(seconds) + 60))
    try:
        outcome = f"{read_vocabulary([file], lambda _: data).n_tokens} tokens"
    except VocabularyError as exc:
        outcome = str(exc)
    sys.stdout.write(json.dumps({"outcome": outcome, "n_bytes": peak_bytes() - before}))


def gguf_metadata(n_tokens: int) -> dict[str, object]:
    """The vocabulary of a GGUF header that claims this many tokens."""
    return {"tokenizer.ggml.tokens": [b"a"] * n_tokens, "tokenizer.ggml.model": "gpt2"}


if __name__ == "__main__":
    _main(sys.argv[1])
