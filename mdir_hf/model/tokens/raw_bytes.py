"""Vocabularies stored as lines or raw bytes: tiktoken, ``tekken.json``, RWKV's word list, ``vocab.txt``."""

from __future__ import annotations

import ast
import binascii
import re
from collections.abc import Iterator
from typing import Any

from mdir_hf.budgets import MAX_TOKEN_N_BYTES, TOKEN_LINES
from mdir_hf.errors import VocabularyError
from mdir_hf.model.tokens import spelling
from mdir_hf.model.tokens.json_file import described, glimpse, row_id, shown
from mdir_hf.model.tokens.tokens import Token, TokenType, VocabularyKind

# Padding alone is a token without bytes; Whisper's last token is one.
_BASE64 = re.compile(rb"[A-Za-z0-9+/]*={0,2}")
TIKTOKEN_LINE = re.compile(rb"(" + _BASE64.pattern + rb")[ \t]+([0-9]{1,9})")
# Escapes that Python itself writes; for others its parser warns or gives unintended results.
_ESCAPES = rb"\\'\"abfnrtvx"


def _literal(prefix: bytes, escapes: bytes) -> bytes:
    single, double = (
        prefix + quote + rb"(?:[^\\" + quote + rb"]|\\[" + escapes + rb"])*" + quote for quote in (b"'", b'"')
    )
    return single + b"|" + double


LITERAL_LINE = re.compile(_literal(b"b", _ESCAPES))
RWKV_LINE = re.compile(
    rb"([0-9]{1,9}) (" + _literal(b"", _ESCAPES + b"uU") + b"|" + LITERAL_LINE.pattern + rb") ([0-9]{1,9})"
)


def lines_of(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield each non-empty line and its number, starting at 1. Removes a byte order mark."""
    check_lines(data)
    for number, line in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        if len(line) > MAX_TOKEN_N_BYTES:
            raise _unexpected(number, f"a token of at most {MAX_TOKEN_N_BYTES:,} bytes as written", line)
        if content := line.removesuffix(b"\r"):
            yield number, content


def check_lines(data: bytes) -> None:
    """Raise ``VocabularyError`` if a list of tokens has too many bytes or lines."""
    excess = TOKEN_LINES.excess(n_bytes=len(data), n_items=data.count(b"\n"), of="lines")
    if excess is not None:
        raise VocabularyError(f"expected one token per line, found a file that {excess}")


def tiktoken_tokens(data: bytes) -> Iterator[Token]:
    """Read a tiktoken file. Each line contains a token in base64, a space, and the token's row.

    Special tokens are not in the file.

    Raises:
        VocabularyError: If a line is invalid.
    """
    for number, line in lines_of(data):
        match = TIKTOKEN_LINE.fullmatch(line)
        if match is None:
            raise _unexpected(number, "base64 and a rank", line)
        yield int(match[2]), _from_base64(match[1], f"line {number}"), TokenType.TEXT


def tekken_tokens(content: dict[str, Any]) -> Iterator[Token]:
    """Read a ``tekken.json``, special tokens first.

    A token's row is its rank plus ``default_num_special_tokens``. Rows from ``default_vocab_size`` on are skipped.
    """
    config, entries = content.get("config"), content.get("vocab")
    if not isinstance(config, dict) or not isinstance(entries, list):
        raise VocabularyError(
            f'expected "config" to be an object and "vocab" a list, found {described(config)} and {described(entries)}'
        )
    n_rows = row_id(config.get("default_vocab_size"), "default_vocab_size")
    n_special = row_id(config.get("default_num_special_tokens"), "default_num_special_tokens")
    if not (0 <= n_special <= n_rows <= len(entries) + n_special and n_special <= len(entries)):
        raise VocabularyError(
            f"expected {n_rows} rows, {n_special} of them special, found {len(entries)} tokens, which do not fill them"
        )
    for row in range(n_special):
        yield row, b"", TokenType.SPECIAL
    for entry in entries:
        encoded = entry.get("token_bytes") if isinstance(entry, dict) else None
        if not isinstance(entry, dict) or not isinstance(encoded, str):
            raise VocabularyError(f'expected objects with "rank" and "token_bytes", found {shown(entry)}')
        rank = row_id(entry.get("rank"), encoded)
        # A negative rank would be taken for a special row.
        if rank < 0:
            raise VocabularyError(f"token {encoded[:40]!r} has the rank {rank}; expected at least 0")
        if rank < n_rows - n_special:
            yield rank + n_special, _from_base64(encoded.encode(), f"rank {rank}"), TokenType.TEXT


def rwkv_tokens(data: bytes) -> Iterator[Token]:
    """Read RWKV's word list. Each line contains the row, a Python literal (text or bytes), and the number of bytes.

    Literals are not evaluated. Row 0, the end of text, is not in the file.

    Raises:
        VocabularyError: If a line is invalid, or the stated length is wrong.
    """
    yield 0, b"", TokenType.SPECIAL
    for number, line in lines_of(data):
        match = RWKV_LINE.fullmatch(line)
        if match is None:
            raise _unexpected(number, "a row, a literal and a length", line)
        text = _from_literal(match[2], number)
        if len(text) != int(match[3]):
            raise _unexpected(number, f"a literal of {int(match[3])} bytes", line)
        yield int(match[1]), text, TokenType.TEXT


def literal_tokens(data: bytes) -> Iterator[Token]:
    """Read RWKV's ``vocab.txt`` in the Hub's format: line n is a Python bytes literal for row n - 1.

    Line 1 is treated as special, because row 0 is the end of text.
    """
    for number, line in lines_of(data):
        if LITERAL_LINE.fullmatch(line) is None:
            raise _unexpected(number, "a literal of bytes", line)
        text = _from_literal(line, number)
        yield number - 1, text, TokenType.TEXT if number > 1 else TokenType.SPECIAL


def _from_literal(literal: bytes, number: int) -> bytes:
    try:
        value = ast.literal_eval(literal.decode())
        return value.encode() if isinstance(value, str) else bytes(value)
    except (ValueError, SyntaxError, RecursionError, MemoryError) as exc:
        raise _unexpected(number, "a literal of text or bytes", literal) from exc


def _from_base64(encoded: bytes, place: str) -> bytes:
    try:
        if _BASE64.fullmatch(encoded) is None:
            raise ValueError("a character outside the alphabet")
        return binascii.a2b_base64(encoded)
    except ValueError as exc:
        raise VocabularyError(f"expected base64 on {place}, found {encoded[:40]!r}: {exc}") from exc


def _unexpected(number: int, expected: str, line: bytes) -> VocabularyError:
    return VocabularyError(f"expected {expected} on line {number}, found {line[:60]!r}")


# fairseq puts <s>, <pad>, </s> and <unk> before the words of its dictionary.
_N_IN_FRONT = 4
_N_JUDGED = 64
_CONTINUES = "@@"


def word_list_tokens(data: bytes) -> tuple[VocabularyKind, Iterator[Token]]:
    """Read a ``vocab.txt`` and return the kind of vocabulary and its tokens. Empty lines stand for unused rows.

    The kind is guessed from markers, and special tokens are recognised by their names.

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
    """Read a fairseq dictionary, in which ``@@`` marks unfinished words."""
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
