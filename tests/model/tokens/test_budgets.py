"""The cost of a tokenizer file is limited, whatever it claims: about two seconds and 512 MB, then one of our errors."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mdir_hf.budgets import MAX_TOKEN_N_BYTES, MAX_TOKENS, Budget, collector_paused
from mdir_hf.errors import VocabularyError
from mdir_hf.model.tokens import gguf_vocabulary
from tests.model.tokens.large_files import FILES, gguf_metadata

MOST_BYTES = 512 << 20
EXPECTED = {
    "one merge of escapes": "1 tokens",  # files that are not vocabularies are skipped
    "merges of escapes": "1 tokens",
    "one literal of 16 MB": "expected a token of at most 16,384 bytes as written on line 1",
    "one literal in vocab.txt": "the limit for a token is 16,384",
    "one long rank": "expected a token of at most 16,384 bytes as written on line 1",
    "short lines": "has 5,592,405 lines; the limit is 1,048,576",
    "an emoji a line": "the limit is 16,777,216",
    "nested containers": "has 67,108,864 values; the limit is 4,194,304",
    "one long token": "the limit for a token is 16,384",
    "empty pieces": "it lists more than 1,048,576 tokens",
    "short pieces": "it lists more than 1,048,576 tokens",
    "skipped fields": "there are more than 5,242,880 fields",
}
QUICK = ("one merge of escapes", "one long rank")


@pytest.mark.skipif(sys.platform != "linux", reason="peaks are read from /proc")
@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in FILES]
)
def test_a_file_that_claims_too_much_takes_little_memory(name: str):
    root = Path(__file__).parents[3]
    command = [sys.executable, "-m", "tests.model.tokens.large_files", name]
    # The process ends itself after a minute of processor time, thirty times the cost of any file.
    ran = subprocess.run(
        command, capture_output=True, check=True, cwd=root, env={**os.environ, "PYTHONPATH": str(root)}
    )
    found = json.loads(ran.stdout)
    assert EXPECTED.get(name, "the limit is") in found["outcome"]
    assert found["n_bytes"] < MOST_BYTES


def test_a_gguf_header_of_too_many_tokens_is_refused_unread():
    with pytest.raises(VocabularyError, match=f"m.gguf: it lists {MAX_TOKENS + 1:,} tokens; the limit is"):
        gguf_vocabulary(gguf_metadata(MAX_TOKENS + 1), file="m.gguf")


@pytest.mark.parametrize("n_bytes", [MAX_TOKEN_N_BYTES, MAX_TOKEN_N_BYTES + 1])
def test_a_token_is_read_up_to_its_budget_and_not_beyond(read, sentencepiece_file, n_bytes: int):
    files = {
        "vocab.json": {"a" * n_bytes: 0},
        "vocab.txt": b"a" * n_bytes + b"\n",
        "tokenizer.model": sentencepiece_file([("a" * (n_bytes - 14), 1)]),
    }
    for name, data in files.items():
        if n_bytes <= MAX_TOKEN_N_BYTES:
            assert read({name: data}).n_tokens == 1
        elif name != "tokenizer.model":
            with pytest.raises(VocabularyError, match="16,384"):
                read({name: data})


def test_a_budget_says_which_number_was_too_large():
    budget = Budget(n_bytes=10, n_items=2)
    assert budget.excess(n_bytes=10, n_items=2) is None
    assert budget.excess(n_bytes=11) == "has 11 bytes; the limit is 10"
    assert budget.excess(n_items=3, of="lines") == "has 3 lines; the limit is 2"


def test_garbage_collection_is_off_until_the_last_parser_ends():
    def states():
        with collector_paused():
            with pytest.raises(ValueError, match="broken"), collector_paused():
                raise ValueError("broken")
            yield gc.isenabled()
        yield gc.isenabled()

    assert list(states()) == [False, True]
    gc.disable()
    try:
        assert list(states()) == [False, False]
    finally:
        gc.enable()
