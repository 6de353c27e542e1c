from __future__ import annotations

import base64

import pytest

from mdir_hf.errors import VocabularyError
from mdir_hf.model.tokens import VocabularyKind


def ranks(*tokens: bytes, end: bytes = b"\n") -> bytes:
    return b"".join(base64.b64encode(token) + b" %d" % rank + end for rank, token in enumerate(tokens))


def test_a_token_of_no_bytes_is_an_unused_row(read):
    vocabulary = read({"a.tiktoken": ranks(b"!") + b"= 1\n"})
    assert vocabulary.row_of == {b"!": 0}
    assert vocabulary.n_unused == 1


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (ranks(b"!") + b"IQ==\n", r"expected base64 and a rank on line 2, found b'IQ=='"),
        (ranks(b"!") + b"IQ== -1\n", r"expected base64 and a rank on line 2"),
        (ranks(b"!") + b"IQ== 12345678901234567890\n", r"expected base64 and a rank on line 2"),
        (ranks(b"!") + b"\xff 1\n", r"expected base64 and a rank on line 2"),
        (ranks(b"!") + b"I 1\n", r"expected base64 on line 2, found b'I'"),
    ],
)
def test_an_invalid_rank_is_named_by_its_line(read, data: bytes, message: str):
    with pytest.raises(VocabularyError, match=r"a\.tiktoken: " + message):
        read({"a.tiktoken": data})


def tekken(*tokens: bytes, n_special: int = 2, n_rows: int | None = None) -> dict[str, object]:
    vocab = [
        {"rank": rank, "token_bytes": base64.b64encode(token).decode(), "token_str": None}
        for rank, token in enumerate(tokens)
    ]
    config = {
        "default_vocab_size": n_rows if n_rows is not None else n_special + len(tokens),
        "default_num_special_tokens": n_special,
    }
    return {"config": config, "vocab": vocab}


def test_tekken_rows_come_after_the_special_tokens(read):
    vocabulary = read({"tekken.json": tekken(b"!", b"\xff", b"too much", n_special=2, n_rows=4)})
    assert vocabulary.kind is VocabularyKind.TEKKEN
    assert vocabulary.row_of == {b"!": 2, b"\xff": 3}
    assert (vocabulary.n_rows, vocabulary.n_special) == (4, 2)


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ({"config": {}}, r'"config" to be an object and "vocab" a list, found an object and null'),
        ({"config": {}, "vocab": []}, r"token 'default_vocab_size' has the id None; expected an integer"),
        (tekken(b"a", n_special=2, n_rows=9), r"expected 9 rows, 2 of them special, found 1 tokens"),
        (tekken(b"a", n_special=10**9), r"expected 1000000001 rows, 1000000000 of them special, found 1 tokens"),
        (tekken(b"a", n_special=-1), r"expected 0 rows, -1 of them special"),
        (
            {**tekken(b"a", n_special=0), "vocab": ["a"]},
            r"expected objects with \"rank\" and \"token_bytes\", found 'a'",
        ),
        ({**tekken(b"a", n_special=0), "vocab": [{"rank": -1, "token_bytes": "IQ=="}]}, r"has the rank -1"),
        ({**tekken(b"a", n_special=0), "vocab": [{"rank": 0, "token_bytes": "I"}]}, r"expected base64 on rank 0"),
        ({**tekken(b"a", n_special=0), "vocab": [{"rank": 0, "token_bytes": "é"}]}, r"expected base64 on rank 0"),
    ],
)
def test_a_broken_tekken_is_named_with_what_was_expected(read, file, message: str):
    with pytest.raises(VocabularyError, match=r"tekken\.json: .*" + message):
        read({"tekken.json": file})


RWKV = "rwkv_vocab_v20230424.txt"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"2 'ab' 3", "expected a literal of 3 bytes on line 2, found b\"2 'ab' 3\""),
        (b"2 __import__('os').getcwd() 1", "expected a row, a literal and a length on line 2"),
        (b"2 'a' + 'b' 2", "expected a row, a literal and a length on line 2"),
        (b"2 'a' 'b' 2", "expected a row, a literal and a length on line 2"),
        (b"2 '\\d' 2", "expected a row, a literal and a length on line 2"),
        (b"2 b'\\u0041' 1", "expected a row, a literal and a length on line 2"),
        (b"2 '\\xZ' 1", "expected a literal of text or bytes on line 2"),
        (b"2 '\\ud800' 3", "expected a literal of text or bytes on line 2"),
        (b"2 b'\xc3\xa9' 2", "expected a literal of text or bytes on line 2"),
        (b"2 '\xff' 1", "expected a literal of text or bytes on line 2"),
        (b"two 'a' 1", "expected a row, a literal and a length on line 2"),
    ],
)
def test_an_invalid_line_of_rwkv_is_an_error_and_never_executed(read, line: bytes, message: str):
    with pytest.raises(VocabularyError) as caught:
        read({RWKV: b"1 'a' 1\n" + line})
    assert message in str(caught.value)


def test_a_vocab_txt_of_byte_literals_is_read_as_rwkv(read):
    lines = [b"b'<s>'", b"b'\\x00'", b"b' a'", b'b"it\'s"', b"b'\\xff\\n'"]
    vocabulary = read({"vocab.txt": b"\n".join(lines) + b"\n"})
    assert vocabulary.kind is VocabularyKind.RWKV
    assert vocabulary.row_of == {b"\0": 1, b" a": 2, b"it's": 3, b"\xff\n": 4}
    assert vocabulary.n_special == 1


def test_an_invalid_line_among_literals_is_an_error(read):
    with pytest.raises(VocabularyError, match=r"vocab\.txt: expected a literal of bytes on line 2, found b\"b'a'\.x\""):
        read({"vocab.txt": b"b'<s>'\nb'a'.x\n"})


def test_both_word_lists_of_rwkv_hold_the_same_tokens(read, real_data):
    data = (real_data / "tokenizers" / "rwkv-world" / "rwkv_vocab_v20230424.txt").read_bytes()
    listed = read({"rwkv_vocab_v20230424.txt": data})
    text_of = {row: text for text, row in listed.row_of.items()}
    lines = [repr(text_of.get(row, b"<s>")).encode() for row in range(max(text_of) + 1)]
    assert read({"vocab.txt": b"\n".join(lines)}).row_of == listed.row_of
    assert len(text_of) == 65_529


# --- word list


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_wordpiece_rows_are_line_numbers(read, end: str, mark: str):
    words = ["[PAD]", "[unused0]", "run", "", "##ning", "中", "[CLS]"]
    vocabulary = read({"vocab.txt": (mark + end.join(words) + end).encode()})
    assert vocabulary.kind is VocabularyKind.WORDPIECE
    assert vocabulary.row_of == {b" run": 2, b"ning": 4, " 中".encode(): 5}
    assert (vocabulary.n_special, vocabulary.n_reserved, vocabulary.n_unused, vocabulary.n_rows) == (2, 1, 1, 7)


def test_a_token_that_ends_lines_for_python_does_not_end_them_here(read):
    assert read({"vocab.txt": "##a\n\u2028\n\x0c\nb".encode()}).row_of == {
        b"a": 0,
        b" \xe2\x80\xa8": 1,
        b" \x0c": 2,
        b" b": 3,
    }


def test_a_word_list_may_begin_with_a_brace(read):
    assert read({"vocab.txt": b"{\n##a\n"}).row_of == {b" {": 0, b"a": 1}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"a\n\xff\n", "expected one token per line.* found 4 bytes that begin with"),
        (b"a\n\0\n", "found 4 bytes that begin with .* with zero bytes"),
        (b"\n", "found 1 rows without a usable token"),
    ],
)
def test_an_invalid_word_list_is_an_error(read, data: bytes, message: str):
    with pytest.raises(VocabularyError, match=r"vocab\.txt: .*" + message):
        read({"vocab.txt": data})


def test_a_fairseq_dictionary_starts_after_four_tokens(read):
    vocabulary = read({"vocab.txt": "và 995\nco@@ 870\nhọc_sinh 12\n".encode()})
    assert vocabulary.row_of == {"và ".encode(): 4, b"co": 5, "học_sinh ".encode(): 6}
    assert vocabulary.n_special == 4
