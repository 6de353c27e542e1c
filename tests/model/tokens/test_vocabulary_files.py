from __future__ import annotations

import base64
import json

import pytest

from mdir_hf.errors import VocabularyError
from mdir_hf.model.tokens import doubts_of_vocabulary, read_vocabulary, vocabulary_files


@pytest.mark.parametrize(
    ("primary", "files"),
    [
        ("tokenizer.json", ("tokenizer.json",)),
        ("vocab.json", ("vocab.json", "added_tokens.json")),
        ("tokenizer.model", ("tokenizer.model", "added_tokens.json")),
        ("tekken.json", ("tekken.json",)),
    ],
)
def test_added_tokens_are_a_companion_of_the_primary_file(primary: str, files: tuple[str, ...]):
    assert vocabulary_files({"added_tokens.json", primary, "merges.txt"}) == files


def test_a_tokenizer_in_its_own_folder_is_found(read):
    files = {"tokenizer/vocab.json": {"a": 0, "b": 2}, "tokenizer/added_tokens.json": {"c": 1}, "added_tokens.json": {}}
    assert vocabulary_files(files) == ("tokenizer/vocab.json", "tokenizer/added_tokens.json")
    assert read(files).row_of == {b"a": 0, b"b": 2, b"c": 1}
    assert vocabulary_files({"original/tokenizer.model"}) == ("original/tokenizer.model",)
    assert vocabulary_files({*files, "vocab.txt"}) == ("vocab.txt",)


@pytest.mark.parametrize("second", ["vocab.json", "tokenizer.model"])
def test_a_stale_tokenizer_json_counts_the_tokens_that_moved(read, sentencepiece_file, second: str):
    words = [f"w{n}" for n in range(400)]
    turned = [*words[5:], *words[:5]]
    model = {"vocab": {word: row for row, word in enumerate(turned)}}
    own = sentencepiece_file([(word, 1) for word in words])
    if second == "vocab.json":
        own = {word: row for row, word in enumerate(words)}
    files = {"tokenizer.json": {"model": model}, second: own}

    def content(name: str) -> bytes:
        return files[name] if isinstance(files[name], bytes) else json.dumps(files[name]).encode()

    vocabulary = read(files)
    assert doubts_of_vocabulary(files, content, vocabulary) == (
        f"tokenizer.json and {second} give different rows to 400 of 400 tokens that both have; tokenizer.json was read",
    )
    model["vocab"] = {word: row for row, word in enumerate(words)} | {"w0": 999}  # a few may have changed since
    assert doubts_of_vocabulary(files, content, read(files)) == ()


def test_a_second_file_that_is_no_vocabulary_casts_no_doubt(read):
    files = {"tokenizer.json": b'{"model": {"vocab": {"a": 0}}}', "classifier.model": b"\x80no pieces"}
    assert doubts_of_vocabulary(files, files.__getitem__, read(files)) == ()


def test_only_the_files_named_beforehand_are_read():
    files = {"vocab.json": b'{"a": 0}', "merges.txt": b"", "tokenizer.model": b"", "added_tokens.json": b'{"b": 1}'}
    asked = []

    def read(name: str) -> bytes:
        asked.append(name)
        return files[name]

    vocabulary = read_vocabulary(files, read)
    assert tuple(asked) == vocabulary.files == vocabulary_files(files)


def test_without_a_vocabulary_the_error_lists_what_would_do():
    with pytest.raises(VocabularyError, match=r"expected tokenizer\.json, vocab\.json.* found none among 1 files"):
        read_vocabulary(["config.json"], lambda name: b"")


EVERY_KIND = [
    *("tokenizer.json", "vocab.json", "tokenizer.model", "a.tiktoken", "tekken.json", "vocab.txt", "rwkv_vocab_v1.txt"),
]


@pytest.mark.parametrize("name", EVERY_KIND)
@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "a Git LFS pointer"),
        (b"<!DOCTYPE html>\n<html><body>404</body></html>", "a web page instead of the file"),
        (b"\xef\xbb\xbf \r\n<html>\n<head>", "a web page instead of the file"),
        (b"", "an empty file"),
    ],
    ids=["pointer", "web page", "web page with a mark", "empty"],
)
def test_a_wrongly_downloaded_file_is_named_in_the_error(read, name: str, data: bytes, what: str):
    with pytest.raises(VocabularyError, match=rf"{name}: expected .* found {what}"):
        read({name: data})


def test_a_tokenizer_json_beside_a_tekken_is_read_and_says_the_same(read):
    vocab = [{"rank": rank, "token_bytes": base64.b64encode(text).decode()} for rank, text in enumerate([b"a", b" b"])]
    tekken = {"config": {"default_vocab_size": 4, "default_num_special_tokens": 2}, "vocab": vocab}
    special = [{"id": row, "content": f"<{row}>", "special": True} for row in range(2)]
    both = {
        "tekken.json": tekken,
        "tokenizer.json": {
            "added_tokens": special,
            "decoder": {"type": "ByteLevel"},
            "model": {"vocab": {"<0>": 0, "<1>": 1, "a": 2, "Ġb": 3}},
        },
    }
    assert vocabulary_files(both) == ("tokenizer.json",)
    assert read(both).row_of == read({"tekken.json": tekken}).row_of == {b"a": 2, b" b": 3}
    assert read({"tekken.json": tekken}).n_special == read(both).n_special == 2
