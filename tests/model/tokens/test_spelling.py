from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import pre_tokenizers

from mdir_hf.model.tokens import spelling
from mdir_hf.model.tokens.tokens import TokenType, VocabularyKind


@settings(deadline=None)  # a busy machine must not fail a test of behaviour
@given(st.text())
def test_byte_level_undoes_the_alphabet_of_tokenizers_for_any_text(text: str):
    alphabet = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    spelt = "".join(piece for piece, _ in alphabet.pre_tokenize_str(text))
    assert spelling.byte_level(spelt) == text.encode()


@pytest.mark.parametrize(
    ("token", "byte"),
    [("<0x41>", b"A"), ("<0xff>", b"\xff"), ("<0xFF>", b"\xff"), ("<0x4>", None), ("<0x041>", None), ("<0xGG>", None)],
)
def test_fallback_tokens_name_a_byte_in_hexadecimal(token: str, byte: bytes | None):
    assert spelling.fallback_byte(token) == byte


@pytest.mark.parametrize("headings", [["###"], ["##", "###", "####"], ["##x"]])
def test_headings_do_not_make_a_plain_vocabulary_wordpiece(headings: list[str]):
    assert spelling.guess_kind([*(f"word{place}" for place in range(60)), *headings]) is VocabularyKind.PLAIN


def test_one_marked_token_in_fifty_makes_a_vocabulary_wordpiece():
    words = [f"word{place}" for place in range(98)]
    assert spelling.guess_kind([*words, "##ing", "##ed"]) is VocabularyKind.WORDPIECE
    assert spelling.guess_kind([*words, "word", "##ed"]) is VocabularyKind.PLAIN


@pytest.mark.parametrize(("token", "text"), [("##ing", b"ing"), ("run", b" run"), ("##", b" ##"), ("#", b" #")])
def test_wordpiece_continues_words_with_its_prefix(token: str, text: bytes):
    assert spelling.wordpiece(token) == text


@pytest.mark.parametrize(("token", "text"), [("ing</w>", b"ing "), ("in", b"in"), ("</w>", b"</w>")])
def test_an_end_of_word_suffix_becomes_a_space_after_it(token: str, text: bytes):
    assert spelling.with_suffix(spelling.plain, "</w>")(token) == text


@pytest.mark.parametrize(
    "token",
    [
        *("<|reserved_special_token_12|>", "<reserved_7>", "<unused99>", "[unused1]", "<extra_id_0>", "<|extra_3|>"),
        *("<|placeholder4|>", "<|dummy_85|>", "<SPECIAL_20>", "[control_747]", "<|reserved_200014|>"),
    ],
)
def test_numbered_places_are_reserved(token: str):
    assert spelling.type_by_name(token) is TokenType.RESERVED


@pytest.mark.parametrize(
    "token",
    ["<reserved" + "1" * 300_000 + "x", "<reserved" + "1" * 300_000 + ">>", "<|" * 150_000, "<pad" + "_1" * 150_000],
)
def test_names_of_any_length_are_judged_in_one_pass(token: str):
    # In quadratic time the first would take half an hour and block the interpreter throughout.
    assert spelling.type_by_name(token) is TokenType.TEXT


@pytest.mark.parametrize(
    ("token", "is_kept"),
    [
        *(("<reserved1>", True), ("<RESERVED_7|>", True), ("[reserved-a-7]", False), ("<reserved_a b7>", False)),
        *(("<reserved_2_of_9>", True), ("<reserved 9>", True), ("[pad7]", True), ("<pad__7>", False), ("<7>", False)),
    ],
)
def test_a_kept_place_is_a_known_name_and_a_number(token: str, is_kept: bool):
    assert spelling.is_reserved(token) is is_kept
