from __future__ import annotations

import pytest

from mdir_hf.errors import VocabularyError
from mdir_hf.model.tokens import VocabularyKind

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6


def test_pieces_are_numbered_by_place_and_kept_by_type(read, sentencepiece_file):
    pieces = [
        ("<unk>", UNKNOWN),
        ("<s>", CONTROL),
        ("<0x41>", BYTE),
        ("<0x80>", BYTE),
        ("▁the", NORMAL),
        ("A", 0),
        ("[DOC]", USER_DEFINED),
        ("gone", UNUSED),
        ("<unused1>", USER_DEFINED),
    ]
    vocabulary = read({"tokenizer.model": sentencepiece_file(pieces)})
    assert vocabulary.kind is VocabularyKind.SENTENCEPIECE
    assert vocabulary.row_of == {b"\x80": 3, b" the": 4, b"A": 5, b"[DOC]": 6}
    assert vocabulary.duplicates == {b"A": (2,)}
    assert (vocabulary.n_special, vocabulary.n_reserved, vocabulary.n_unused) == (2, 1, 1)


def test_a_normal_piece_that_reads_like_a_byte_is_text(read, sentencepiece_file):
    assert read({"spiece.model": sentencepiece_file([("<0x41>", NORMAL)])}).row_of == {b"<0x41>": 0}


def test_added_tokens_beside_a_model_are_read_too(read, sentencepiece_file):
    files = {"tokenizer.model": sentencepiece_file([("a", 0)]), "added_tokens.json": {"[PAD]": 1, "tool": 2}}
    vocabulary = read(files)
    assert vocabulary.row_of == {b"a": 0, b"tool": 2}
    assert vocabulary.files == ("tokenizer.model", "added_tokens.json")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\x12\x00", "found 2 bytes that begin with .* without any piece"),
        (b"\x0a\x05\x0a\x01a", "after 0 pieces: a field of 5 bytes at byte 2, but 3 are left"),
        (b"\x0a\x03\x0a\x01a\x0a\xff\xff\xff\xff\x0f", "after 1 pieces: a field of 4294967295 bytes"),
        (b"\x0a\x03\x0a\x01a\x0a\xff", "after 1 pieces: the number at byte 6 does not end"),
        (b"\x0a" + b"\xff" * 11, "the number at byte 1 does not end"),
        (b"\x0a\x03\x0a\x01\xff", "after 0 pieces: 'utf-8' codec can't decode"),
        (b"\x0a\x05\x0a\x01a\x18\x09", "piece 'a' has the unknown type 9"),
        (b"\x0a\x05\x0a\x01a\x18\x06", "piece 'a' has the type of a byte but is not of the form <0xNN>"),
        (b"\x0a\x05\x0a\x01a\x1a\x00", "the type of a piece is not a number"),
        (b"\x08\x01", "wire type 0 instead of a string or message"),
        (b"\x0b", "wire type 3 at byte 1"),
        (b"\x02\x00", "field number 0 at byte"),
        (b"\x0d\x00", "a field of 4 bytes at byte 1, but 1 are left"),
    ],
)
def test_broken_wire_format_is_an_error_that_says_where(read, data: bytes, message: str):
    with pytest.raises(VocabularyError, match=r"tokenizer\.model: expected a SentencePiece model, .*" + message):
        read({"tokenizer.model": data})
