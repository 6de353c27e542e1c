from __future__ import annotations

import base64
import json

import pytest

from mdir_hf.errors import FileMissingError, VocabularyError
from mdir_hf.model.tokens import VocabularyKind, doubts_of_vocabulary, read_vocabulary, vocabulary_files

IN_ORDER = [
    "tokenizer.json",
    "vocab.json",
    "tokenizer.model",
    "spiece.model",
    "sentencepiece.bpe.model",
    "tokenizer.model.v3",
    "qwen.tiktoken",
    "tekken.json",
    "vocab.txt",
    "rwkv_vocab_v20230424.txt",
    "classifier.model",
    "20B_tokenizer.json",
    "encoder.json",
]


@pytest.mark.parametrize("place", range(len(IN_ORDER)))
def test_the_most_complete_file_is_preferred(place: int):
    names = ["merges.txt", "model.safetensors", "special_tokens_map.json", *reversed(IN_ORDER[place:])]
    assert vocabulary_files(names) == (IN_ORDER[place],)


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


def test_files_of_other_folders_hold_no_vocabulary():
    assert vocabulary_files(["onnx/tokenizer.json", "tokenizer_config.json", "model.bin", "readme.txt"]) == ()


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


def test_an_error_of_the_reader_comes_through_as_it_is():
    def read(name: str) -> bytes:
        raise FileMissingError("gone", subject=name)

    with pytest.raises(FileMissingError, match=r"tokenizer\.json: gone"):
        read_vocabulary(["tokenizer.json"], read)


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
def test_what_was_downloaded_instead_is_called_what_it_is(read, name: str, data: bytes, what: str):
    with pytest.raises(VocabularyError, match=rf"{name}: expected .* found {what}"):
        read({name: data})


def test_json_in_a_model_file_is_read_as_json(read):
    vocabulary = read({"tokenizer.model": {"model": {"vocab": {"Ġa": 0}}, "decoder": {"type": "ByteLevel"}}})
    assert vocabulary.kind is VocabularyKind.BYTE_LEVEL
    assert vocabulary.row_of == {b" a": 0}


def test_a_plain_vocabulary_in_a_model_file_is_read_as_one(read):
    assert read({"tokenizer.model": {"Ġa": 0, "b": 1}}).row_of == {b" a": 0, b"b": 1}


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


def test_lines_may_end_as_on_windows_in_every_format_of_lines(read):
    lines = {"vocab.txt": b"[PAD]\nrun\n##ning\n", "a.tiktoken": b"YQ== 0\nIGI= 1\n", "rwkv_vocab_v1.txt": b"1 'a' 1\n"}
    for name, data in lines.items():
        assert read({name: data.replace(b"\n", b"\r\n")}).row_of == read({name: data}).row_of
    pretty = b'{\r\n  "a": 0,\r\n  "b": 1\r\n}\r\n'
    assert read({"vocab.json": pretty}).row_of == {b"a": 0, b"b": 1}


def test_json_may_have_a_byte_order_mark(read):
    assert read({"vocab.json": b'\xef\xbb\xbf{"a": 0}'}).row_of == {b"a": 0}


def test_a_broken_first_file_is_an_error_even_if_another_would_do(read):
    with pytest.raises(
        VocabularyError, match=r"tokenizer\.json: expected JSON in UTF-8, found 2 bytes that begin with"
    ):
        read({"tokenizer.json": b"{]", "vocab.json": {"a": 0}})
