from __future__ import annotations

import pytest

from mdir_hf.errors import VocabularyError
from mdir_hf.model.tokens import VocabularyKind


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


def test_a_fairseq_dictionary_begins_behind_four_tokens(read):
    vocabulary = read({"vocab.txt": "và 995\nco@@ 870\nhọc_sinh 12\n".encode()})
    assert vocabulary.row_of == {"và ".encode(): 4, b"co": 5, "học_sinh ".encode(): 6}
    assert vocabulary.n_special == 4
