from __future__ import annotations

import numpy as np
import pytest

from mdir_hf.errors import VocabularyError
from mdir_hf.model.tokens import VocabularyKind, gguf_vocabulary

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)


def read(model: str | None, *tokens: tuple[str | bytes, int], types: bool = True, **more: object):
    strings = [token if isinstance(token, bytes) else token.encode() for token, _ in tokens]
    metadata: dict[str, object] = {"tokenizer.ggml.tokens": strings} | more
    if model is not None:
        metadata["tokenizer.ggml.model"] = model
    if types:
        metadata["tokenizer.ggml.token_type"] = np.array([kind for _, kind in tokens], np.int32)
    return gguf_vocabulary(metadata, file="m.gguf")


def test_byte_level_tokens_are_bytes_and_added_ones_literal():
    vocabulary = read(
        "gpt2",
        ("<|endoftext|>", CONTROL),
        ("Ġthe", NORMAL),
        ("Ã©", NORMAL),
        ("Ġ Ġ", USER_DEFINED),
        ("<tool>", USER_DEFINED),
        ("<|x|>", USER_DEFINED),
        ("[PAD6]", USER_DEFINED),
        ("[PAD7]", UNUSED),
        ("", NORMAL),
    )
    assert vocabulary.kind is VocabularyKind.BYTE_LEVEL
    assert vocabulary.row_of == {b" the": 1, "é".encode(): 2, "Ġ Ġ".encode(): 3, b"<tool>": 4}
    assert (vocabulary.n_special, vocabulary.n_reserved, vocabulary.n_unused) == (2, 2, 1)
    assert vocabulary.files == ("m.gguf",)


@pytest.mark.parametrize("model", ["llama", "t5"])
def test_sentencepiece_marks_spaces_and_falls_back_to_bytes(model):
    vocabulary = read(
        model,
        ("<unk>", UNKNOWN),
        ("<s>", CONTROL),
        ("<0x41>", BYTE),
        ("<0xC3>", BYTE),
        ("▁the", NORMAL),
        ("A", NORMAL),
        ("▁▁", USER_DEFINED),
        ("</s>", USER_DEFINED),
    )
    assert vocabulary.kind is VocabularyKind.SENTENCEPIECE
    assert vocabulary.row_of == {b"\xc3": 3, b" the": 4, b"A": 5, b"  ": 6, b"</s>": 7}
    assert vocabulary.duplicates == {b"A": (2,)}


def test_bert_marks_words_and_not_endings():
    vocabulary = read("bert", ("[CLS]", CONTROL), ("▁run", NORMAL), ("ning", NORMAL), ("▁▁", NORMAL))
    assert vocabulary.kind is VocabularyKind.WORDPIECE
    assert vocabulary.row_of == {b" run": 1, b"ning": 2, " ▁".encode(): 3}


def test_rwkv_tokens_are_bytes_as_python_writes_them():
    written = [b"\x00", b"\n\t\r", b"\xff\xfe", b"it's", b'"', b"'\"", b"\\n", "é".encode()]
    tokens = [("<s>", CONTROL), *((repr(token)[2:-1], NORMAL) for token in written)]
    vocabulary = read("rwkv", *tokens)
    assert vocabulary.kind is VocabularyKind.RWKV
    assert vocabulary.row_of == {token: row for row, token in enumerate(written, start=1)}


@pytest.mark.parametrize("model", [None, "something-new"])
def test_tokens_give_an_unknown_kind(model):
    assert read(model, ("Ġthe", NORMAL), ("Ġa", NORMAL), ("b", NORMAL)).row_of == {b" the": 0, b" a": 1, b"b": 2}
    assert read(model, ("▁the", NORMAL), ("▁a", NORMAL), ("b", NORMAL)).row_of == {b" the": 0, b" a": 1, b"b": 2}


def test_without_types_names_decide():
    vocabulary = read("gpt2", ("<|endoftext|>", 1), ("<s>", 1), ("Ġthe", 1), ("<unused3>", 1), types=False)
    assert vocabulary.row_of == {b" the": 2}
    assert (vocabulary.n_special, vocabulary.n_reserved) == (2, 1)


@pytest.mark.parametrize("kind", [NORMAL, USER_DEFINED])
@pytest.mark.parametrize("model", ["llama", "gpt2", "bert", "plamo2"])
def test_a_token_cut_in_the_middle_of_a_character_is_its_bytes(model, kind):
    assert read(model, ("a", NORMAL), (b"\xe2\x96", kind)).row_of[b"\xe2\x96"] == 1


@pytest.mark.parametrize("model", ["none", "no_vocab"])
def test_a_model_without_a_vocabulary_has_none(model):
    assert read(model, ("a", NORMAL)) is None


def test_a_header_without_tokens_has_none():
    assert gguf_vocabulary({"tokenizer.ggml.model": "gpt2"}, file="m.gguf") is None


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"tokenizer.ggml.tokens": 7}, r"tokens to be an array of strings, found 7"),
        ({"tokenizer.ggml.tokens": "text"}, r"tokens to be an array of strings, found 'text'"),
        ({"tokenizer.ggml.tokens": np.array([1, 2])}, r"tokens to hold strings, found other values"),
        ({"tokenizer.ggml.tokens": [b"a"], "tokenizer.ggml.token_type": np.array([1, 1])}, "each of 1 tokens, found 2"),
        ({"tokenizer.ggml.tokens": [b"a"], "tokenizer.ggml.token_type": "x"}, "token_type to be an array of integers"),
        ({"tokenizer.ggml.tokens": [b"a"], "tokenizer.ggml.token_type": 5}, "token_type to be an array of integers"),
        ({"tokenizer.ggml.tokens": [b"<s>"], "tokenizer.ggml.token_type": [3]}, "without a usable token"),
    ],
)
def test_a_header_that_contradicts_itself_is_refused(metadata, message):
    with pytest.raises(VocabularyError, match=rf"m\.gguf: .*{message}"):
        gguf_vocabulary(metadata, file="m.gguf")
