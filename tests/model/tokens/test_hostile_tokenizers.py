from __future__ import annotations

import base64
import json
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mdir_hf.errors import VocabularyError
from mdir_hf.model.tokens import read_vocabulary

DEEP = 100_000
# No deadline: a busy machine must not fail a test of behaviour.
UNTIMED = settings(deadline=None)


@pytest.mark.parametrize("name", ["tokenizer.json", "vocab.json", "tekken.json"])
@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "expected JSON in UTF-8, found an empty file"),
        (b"not json at all", "expected JSON in UTF-8, found 15 bytes that begin with b'not json at all'"),
        (b"\xff\xfe{\0}\0", "expected JSON in UTF-8, found 6 bytes"),
        (b"[]", "expected a JSON object, found a list"),
        (b"null", "expected a JSON object, found null"),
        (b"3", "expected a JSON object, found a number"),
        (b'{"a": ' + b"9" * 5000 + b"}", "expected JSON in UTF-8, found 5007 bytes"),
        (b'{"model": ' * DEEP, "nested too deeply"),
        (b"[" * DEEP, "nested too deeply"),
        (b'{"merges": [' * DEEP, "nested too deeply"),
    ],
    ids=[
        "empty",
        "prose",
        "utf-16",
        "list",
        "null",
        "number",
        "long number",
        "deep objects",
        "deep lists",
        "deep merges",
    ],
)
def test_json_other_than_an_object_is_an_error_that_names_its_type(read, name: str, data: bytes, message: str):
    with pytest.raises(VocabularyError, match=rf"{name}: .*{message}"):
        read({name: data})


TOKENIZER = {
    "added_tokens": [{"id": 5, "content": "<s>", "special": True}, {"id": 6, "content": "  ", "special": False}],
    "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
    "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Metaspace"}]},
    "model": {
        "type": "BPE",
        "unk_token": "<unk>",
        "vocab": {"<unk>": 0, "▁a": 1, "<0x41>": 2},
        "merges": ["a b", "c d"],
    },
}
TEKKEN = {
    "config": {"default_vocab_size": 4, "default_num_special_tokens": 2},
    "vocab": [{"rank": 0, "token_bytes": "IQ=="}, {"rank": 1, "token_bytes": "Ig=="}],
}
UNIGRAM = {"added_tokens": [], "model": {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], ["▁a", -1.0]]}}
FILES = {
    "tokenizer.json": json.dumps(TOKENIZER, ensure_ascii=False).encode(),
    "vocab.json": '{"a": 0, "Ġb": 1, "<|x|>": 2}'.encode(),
    "a.tiktoken": b"".join(base64.b64encode(bytes([byte])) + b" %d\n" % byte for byte in range(8)),
    "tekken.json": json.dumps(TEKKEN).encode(),
    "vocab.txt": "[PAD]\nrun\n##ning\n中\n".encode(),
    "rwkv_vocab_v1.txt": "1 '\\x00' 1\n2 'é' 2\n3 b'\\xff' 1\n".encode(),
}


def check(name: str, data: bytes) -> None:
    """Check that the result is a consistent vocabulary or an error that names the file."""
    try:
        vocabulary = read_vocabulary([name], lambda _: data)
    except VocabularyError as error:
        assert str(error).startswith(f"{name}: ")
        return
    assert len(set(vocabulary.row_of.values())) == vocabulary.n_tokens > 0
    assert b"" not in vocabulary.row_of
    assert vocabulary.n_unused >= 0


@st.composite
def damaged(draw: Callable[..., object], data: bytes) -> bytes:
    """Replace, drop, repeat or insert a few bytes."""
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(data)))
        stop = draw(st.integers(start, min(len(data), start + 8)))
        filling = draw(
            st.one_of(st.binary(max_size=4), st.sampled_from([b'"', b"{", b"[", b"-1", b"1e999", b"\\", b"null"]))
        )
        data = data[:start] + filling + data[stop:] if draw(st.booleans()) else data[:start] + data[start:stop] * 2
    return data


@pytest.mark.parametrize("name", FILES)
@UNTIMED
@given(choice=st.data())
def test_damaged_files_end_in_a_vocabulary_or_in_our_error(name: str, choice):
    check(name, choice.draw(damaged(FILES[name])))


@UNTIMED
@given(choice=st.data())
def test_damaged_sentencepiece_ends_in_our_error(sentencepiece_file, choice):
    model = sentencepiece_file([("<unk>", 2), ("<s>", 3), ("<0x41>", 6), ("▁a", 1), ("A", 0), ("b" * 200, 4)])
    check("tokenizer.model", choice.draw(damaged(model)))


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=3), inner, max_size=3)),
    max_leaves=4,
)


def places(node: object, path: tuple[object, ...] = ()) -> list[tuple[object, ...]]:
    inner = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    return [path, *(place for key, child in inner for place in places(child, (*path, key)))]


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("tokenizer.json", TOKENIZER),
        ("tokenizer.json", UNIGRAM),
        ("tekken.json", TEKKEN),
        ("vocab.json", {"a": 0, "Ġ": 1}),
    ],
    ids=["bpe", "unigram", "tekken", "vocab"],
)
@UNTIMED
@given(choice=st.data())
def test_any_value_in_anothers_place_ends_in_our_error(name: str, file, choice):
    changed = json.loads(json.dumps(file))
    *path, last = choice.draw(st.sampled_from(places(changed)[1:]))
    node = changed
    for key in path:
        node = node[key]
    node[last] = choice.draw(JSON)
    check(name, json.dumps(changed).encode())
