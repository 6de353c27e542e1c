"""Flags of single rows from tokenizer_config.json, for repositories without a tokenizer.json."""

from __future__ import annotations

import base64

import pytest

from mdir_hf.errors import VocabularyError
from mdir_hf.model.tokens import vocabulary_files

CONFIG = "tokenizer_config.json"


def config(*tokens: tuple[int, str, bool]) -> dict[str, object]:
    return {"added_tokens_decoder": {str(row): {"content": text, "special": flag} for row, text, flag in tokens}}


@pytest.mark.parametrize(
    ("primary", "is_read"),
    [
        *((name, True) for name in ("vocab.json", "tokenizer.model", "tokenizer.model.v3", "a.tiktoken", "vocab.txt")),
        *((name, False) for name in ("tokenizer.json", "tekken.json", "rwkv_vocab_v1.txt")),
    ],
)
def test_it_is_read_beside_files_that_hold_no_flags(primary, is_read):
    assert vocabulary_files({primary, CONFIG, "merges.txt"}) == ((primary, CONFIG) if is_read else (primary,))


def test_a_row_flagged_special_is_left_out_though_it_looks_like_text(read):
    files = {"vocab.json": {"a": 0, "begin": 1, "Ġb": 2}}
    assert read(files).row_of == {b"a": 0, b"begin": 1, b" b": 2}
    vocabulary = read(files | {CONFIG: config((1, "begin", True))})
    assert vocabulary.row_of == {b"a": 0, b" b": 2}
    assert vocabulary.n_special == 1


def test_rows_that_only_the_config_knows_are_literal_text_or_special(read):
    ranks = base64.b64encode(b"a") + b" 0\n" + base64.b64encode(b"b") + b" 1\n"
    added = config((2, "<|endoftext|>", True), (3, "  ", False), (4, "<|x|>", False), (5, "<|reserved_7|>", False))
    vocabulary = read({"qwen.tiktoken": ranks, CONFIG: added})
    assert vocabulary.row_of == {b"a": 0, b"b": 1, b"  ": 3}
    assert (vocabulary.n_special, vocabulary.n_reserved, vocabulary.n_rows) == (2, 1, 6)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{]", "expected JSON in UTF-8"),
        ({"added_tokens_decoder": []}, '"added_tokens_decoder" to be an object, found a list'),
        ({"added_tokens_decoder": {"x": {}}}, "to map numbers to objects, found 'x': an object"),
        ({"added_tokens_decoder": {"-1": {}}}, "to map numbers to objects, found '-1'"),
        ({"added_tokens_decoder": {"9" * 12: {}}}, "to map numbers to objects, found '999"),
        ({"added_tokens_decoder": {"3": "a"}}, "found '3': a string"),
        ({"added_tokens_decoder": {"3": {"content": 5}}}, '"content" to be a string, found a number'),
    ],
)
def test_a_broken_config_is_named(read, content, message):
    with pytest.raises(VocabularyError, match=rf"{CONFIG}: .*{message}"):
        read({"vocab.json": {"a": 0}, CONFIG: content})
