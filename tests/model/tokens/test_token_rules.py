from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mdir_hf.errors import VocabularyError
from mdir_hf.model.tokens.tokens import MAX_ROWS, Token, TokenType, Vocabulary, VocabularyKind, assemble


def vocabulary_of(*tokens: Token) -> Vocabulary:
    return assemble(tokens, kind=VocabularyKind.PLAIN, files=("vocab.txt",))


def test_special_unused_and_empty_tokens_are_left_out():
    vocabulary = vocabulary_of(
        (0, b"a", TokenType.TEXT),
        (1, b"<s>", TokenType.SPECIAL),
        (2, b"<unused0>", TokenType.RESERVED),
        (3, b"<unused1>", TokenType.RESERVED),
        (4, b"x", TokenType.UNUSED),
        (5, b"", TokenType.TEXT),
    )
    assert vocabulary.row_of == {b"a": 0}
    assert (vocabulary.n_special, vocabulary.n_reserved, vocabulary.n_unused) == (1, 2, 2)


def test_two_rows_of_the_same_bytes_are_both_left_out():
    vocabulary = vocabulary_of(
        (0, b"a", TokenType.TEXT), (1, b"  ", TokenType.TEXT), (7, b"  ", TokenType.TEXT), (9, b"  ", TokenType.TEXT)
    )
    assert vocabulary.row_of == {b"a": 0}
    assert vocabulary.duplicates == {b"  ": (1, 7, 9)}
    assert vocabulary.n_duplicate == 3


def test_two_fallback_rows_of_one_byte_are_both_left_out():
    vocabulary = vocabulary_of(
        (0, b"a", TokenType.TEXT), (1, b"\n", TokenType.FALLBACK), (2, b"\n", TokenType.FALLBACK)
    )
    assert vocabulary.row_of == {b"a": 0}
    assert vocabulary.duplicates == {b"\n": (1, 2)}


def test_a_row_of_two_spellings_is_left_out_with_both():
    vocabulary = vocabulary_of(
        (0, b"a", TokenType.TEXT), (1, b"b", TokenType.TEXT), (1, b"c", TokenType.TEXT), (2, b"c", TokenType.TEXT)
    )
    assert vocabulary.row_of == {b"a": 0}
    assert vocabulary.duplicates == {b"b": (1,), b"c": (1, 2)}
    assert vocabulary.n_duplicate == 2


@pytest.mark.parametrize("row", [-1, MAX_ROWS, 10**30])
def test_a_row_out_of_range_is_an_error(row: int):
    with pytest.raises(VocabularyError, match=rf"vocab\.txt: token b'odd' has the id {row}, expected 0 to"):
        vocabulary_of((0, b"a", TokenType.TEXT), (row, b"odd", TokenType.TEXT))


TOKENS = st.lists(
    st.tuples(st.integers(0, 9), st.sampled_from([b"", b"a", b"b", b"c", b"d"]), st.sampled_from(TokenType))
)


@settings(deadline=None)  # a busy machine must not fail a test of behaviour
@given(TOKENS, st.randoms(use_true_random=False))
def test_the_rules_hold_for_any_tokens_in_any_order(tokens, random):
    texts, types, rows = defaultdict(set), defaultdict(set), defaultdict(set)
    for row, text, token_type in tokens:
        texts[row].add(text)
        types[row].add(token_type)
    usable = {row for row in texts if types[row] <= {TokenType.TEXT, TokenType.FALLBACK} and b"" not in texts[row]}
    fallback = {row for row in usable if TokenType.FALLBACK in types[row] and len(texts[row]) == 1}
    for row in usable:
        for text in texts[row]:
            rows[text].add(row)
    expected = {}
    for text, holders in rows.items():
        holders = holders - fallback or holders
        if len(holders) == 1 and all(len(texts[row]) == 1 for row in holders):
            expected[text] = next(iter(holders))

    random.shuffle(tokens)
    if not expected:
        with pytest.raises(VocabularyError, match="without a usable token"):
            vocabulary_of(*tokens)
        return
    vocabulary = vocabulary_of(*tokens)
    assert vocabulary.row_of == expected
    assert vocabulary.n_rows == 1 + max(texts)
    duplicated = {row for holders in vocabulary.duplicates.values() for row in holders}
    assert duplicated == usable - set(expected.values())
    left_out = vocabulary.n_special + vocabulary.n_reserved + vocabulary.n_unused + vocabulary.n_duplicate
    assert vocabulary.n_tokens + left_out == vocabulary.n_rows
    assert min(vocabulary.n_special, vocabulary.n_reserved, vocabulary.n_unused) >= 0
