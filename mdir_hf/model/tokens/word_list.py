"""Reads ``vocab.txt``: one token per line, with the line number as row; or a token and its count (fairseq)."""

from __future__ import annotations

from collections.abc import Iterator

from mdir_hf.errors import VocabularyError
from mdir_hf.model.tokens import spelling
from mdir_hf.model.tokens.json_file import glimpse
from mdir_hf.model.tokens.raw_bytes import check_lines
from mdir_hf.model.tokens.tokens import Token, TokenType, VocabularyKind

# fairseq puts <s>, <pad>, </s> and <unk> before the words of its dictionary.
_N_IN_FRONT = 4
_N_JUDGED = 64
_CONTINUES = "@@"


def word_list_tokens(data: bytes) -> tuple[VocabularyKind, Iterator[Token]]:
    """Read a ``vocab.txt``. Names decide which tokens are special; the content decides whether it is WordPiece.

    Returns:
        The convention, and the tokens; an empty line is an unused row.

    Raises:
        VocabularyError: If the file is not UTF-8 text.
    """
    check_lines(data)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        raise VocabularyError(f"expected one token per line in UTF-8, found {glimpse(data)}: {exc}") from exc
    if "\0" in text:
        raise VocabularyError(f"expected one token per line, found {glimpse(data)}, with zero bytes")
    # Not splitlines(): tokens such as U+2028 end a line for Python, but not for the format.
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    if not lines[-1]:
        lines.pop()
    if lines and all(map(_has_count, lines[:_N_JUDGED])):
        return _counted_tokens(lines)
    kind = spelling.guess_kind(lines)
    spell = spelling.SPELLERS[kind]

    def tokens() -> Iterator[Token]:
        for row, line in enumerate(lines):
            if line:
                yield row, spell(line), spelling.type_by_name(line)
            else:
                yield row, b"", TokenType.UNUSED

    return kind, tokens()


def _has_count(line: str) -> bool:
    token, _, count = line.rpartition(" ")
    return bool(token) and count.isdecimal() and " " not in token


def _counted_tokens(lines: list[str]) -> tuple[VocabularyKind, Iterator[Token]]:
    """Read a fairseq dictionary (PhoBERT, BERTweet), in which ``@@`` marks tokens that do not end a word."""
    words = [line.rpartition(" ")[0] for line in lines]
    kind = spelling.guess_kind(words)
    ends_words = any(word.endswith(_CONTINUES) for word in words)

    def tokens() -> Iterator[Token]:
        for row in range(_N_IN_FRONT):
            yield row, b"", TokenType.SPECIAL
        for row, word in enumerate(words, start=_N_IN_FRONT):
            if ends_words:
                text = word.removesuffix(_CONTINUES) if word.endswith(_CONTINUES) else word + " "
                yield row, text.encode(), spelling.type_by_name(word)
            else:
                yield row, spelling.SPELLERS[kind](word), spelling.type_by_name(word)

    return kind, tokens()
