from __future__ import annotations

import pytest

from mdir_hf.errors import FileMissingError, VocabularyError
from mdir_hf.vocabulary import VocabularyKind, read_vocabulary, vocabulary_files

IN_ORDER = [
    "tokenizer.json",
    "vocab.json",
    "tokenizer.model",
    "spiece.model",
    "sentencepiece.bpe.model",
    "other.model",
    "tokenizer.model.v3",
    "qwen.tiktoken",
    "tekken.json",
    "vocab.txt",
    "rwkv_vocab_v20230424.txt",
]


@pytest.mark.parametrize("place", range(len(IN_ORDER)))
def test_the_most_complete_file_is_preferred(place: int):
    names = ["config.json", "merges.txt", "model.safetensors", "special_tokens_map.json", *reversed(IN_ORDER[place:])]
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
def test_added_tokens_are_a_companion_where_the_primary_file_lacks_them(primary: str, files: tuple[str, ...]):
    assert vocabulary_files({"added_tokens.json", primary, "merges.txt"}) == files


def test_files_of_other_folders_and_unrelated_files_hold_no_vocabulary():
    assert vocabulary_files(["original/tokenizer.json", "tokenizer_config.json", "model.bin", "readme.txt"]) == ()


def test_only_the_files_named_beforehand_are_read():
    files = {"vocab.json": b'{"a": 0}', "merges.txt": b"", "tokenizer.model": b"", "added_tokens.json": b'{"b": 1}'}
    asked = []

    def read(name: str) -> bytes:
        asked.append(name)
        return files[name]

    vocabulary = read_vocabulary(files, read)
    assert tuple(asked) == vocabulary.files == vocabulary_files(files)


def test_no_file_that_could_hold_a_vocabulary_is_an_error_that_lists_what_would_do():
    with pytest.raises(VocabularyError, match=r"expected tokenizer\.json, vocab\.json.* found none among 1 files"):
        read_vocabulary(["config.json"], lambda name: b"")


def test_an_error_of_the_reader_comes_through_as_it_is():
    def read(name: str) -> bytes:
        raise FileMissingError("gone", subject=name)

    with pytest.raises(FileMissingError, match=r"tokenizer\.json: gone"):
        read_vocabulary(["tokenizer.json"], read)


@pytest.mark.parametrize(
    "name", ["tokenizer.json", "vocab.json", "tokenizer.model", "a.tiktoken", "tekken.json", "vocab.txt"]
)
def test_a_git_lfs_pointer_is_called_what_it_is(read, name: str):
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"
    with pytest.raises(VocabularyError, match=rf"{name}: expected .* found a Git LFS pointer"):
        read({name: pointer})


def test_json_in_a_model_file_is_read_as_json(read):
    vocabulary = read({"tokenizer.model": {"model": {"vocab": {"Ġa": 0}}, "decoder": {"type": "ByteLevel"}}})
    assert vocabulary.kind is VocabularyKind.BYTE_LEVEL
    assert vocabulary.row_of == {b" a": 0}


def test_json_may_have_a_byte_order_mark(read):
    assert read({"vocab.json": b'\xef\xbb\xbf{"a": 0}'}).row_of == {b"a": 0}


def test_a_broken_first_file_is_an_error_even_if_another_would_do(read):
    with pytest.raises(
        VocabularyError, match=r"tokenizer\.json: expected JSON in UTF-8, found 2 bytes that begin with"
    ):
        read({"tokenizer.json": b"{]", "vocab.json": {"a": 0}})
