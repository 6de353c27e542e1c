"""Read the vocabulary in a GGUF file, which lists the token of each row and its type.

Source: the converter of llama.cpp (``conversion/base.py``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sized
from typing import cast

from mdir_hf.budgets import MAX_TOKENS
from mdir_hf.errors import VocabularyError, naming
from mdir_hf.model.tokens import spelling
from mdir_hf.model.tokens.json_file import shown
from mdir_hf.model.tokens.tokens import Token, TokenType, Vocabulary, VocabularyKind, assemble

TOKENS, TYPES, MODEL = "tokenizer.ggml.tokens", "tokenizer.ggml.token_type", "tokenizer.ggml.model"

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = range(1, 7)
_LEFT_OUT = {_UNKNOWN: TokenType.SPECIAL, _CONTROL: TokenType.SPECIAL, _UNUSED: TokenType.UNUSED}
_NO_VOCABULARY = frozenset({"none", "no_vocab"})


def gguf_vocabulary(metadata: Mapping[str, object], *, file: str) -> Vocabulary | None:
    """Read the vocabulary in a GGUF header, or return None if there is none.

    Raises:
        VocabularyError: If the header is inconsistent, or a token is invalid.
    """
    tokens, model = metadata.get(TOKENS), metadata.get(MODEL)
    if tokens is None or model in _NO_VOCABULARY:
        return None
    with naming(file):
        if isinstance(tokens, str | bytes) or not isinstance(tokens, Sized) or not isinstance(tokens, Iterable):
            raise VocabularyError(f"expected {TOKENS} to be an array of strings, found {shown(tokens)}")
        if len(tokens) > MAX_TOKENS:
            raise VocabularyError(f"it lists {len(tokens):,} tokens; the limit is {MAX_TOKENS:,}")
        if any(not isinstance(token, bytes) for token in tokens):
            raise VocabularyError(f"expected {TOKENS} to hold strings, found other values")
        types = _types(metadata.get(TYPES), len(tokens))
    kind, spell = _convention(model, tokens)
    return assemble(_read(tokens, types, kind, spell), kind=kind, files=(file,))


def _types(stored: object, n_tokens: int) -> list[int] | None:
    if stored is None:
        return None
    try:
        types = [int(value) for value in cast("Iterable[int]", stored)]
    except (TypeError, ValueError, OverflowError) as exc:
        raise VocabularyError(f"expected {TYPES} to be an array of integers, found {shown(stored)}") from exc
    if len(types) != n_tokens:
        raise VocabularyError(f"expected a type for each of {n_tokens} tokens, found {len(types)}")
    return types


def _convention(model: object, tokens: Iterable[bytes]) -> tuple[VocabularyKind, spelling.Speller]:
    speller = _SPELLERS.get(model) if isinstance(model, str) else None
    if speller is not None:
        return speller
    kind = spelling.guess_kind(token.decode(errors="replace") for token in tokens)
    return kind, spelling.SPELLERS[kind]


def _read(
    tokens: Iterable[bytes], types: list[int] | None, kind: VocabularyKind, spell: spelling.Speller
) -> Iterator[Token]:
    for row, token in enumerate(tokens):
        # Some converters cut a token in the middle of a character; no other vocabulary has such a token.
        text = token.decode(errors="surrogateescape")
        kind_of_token = _NORMAL if types is None else types[row]
        byte = spelling.fallback_byte(text) if kind in _WITH_FALLBACK else None
        if spelling.is_reserved(text):
            yield row, b"", TokenType.RESERVED
        elif kind_of_token in _LEFT_OUT:
            yield row, b"", _LEFT_OUT[kind_of_token]
        elif not token:
            yield row, b"", TokenType.UNUSED
        elif byte is not None and kind_of_token != _USER_DEFINED:
            yield row, byte, TokenType.FALLBACK
        elif kind_of_token == _USER_DEFINED:
            # Added tokens are literal text, but older converters left SentencePiece's mark for spaces in them.
            literal = spelling.meta_space if kind is VocabularyKind.SENTENCEPIECE else spelling.plain
            yield row, _spelt(text, token, literal), spelling.type_by_name(text, may_be_markup=True)
        else:
            yield row, _spelt(text, token, spell), TokenType.TEXT if types is not None else spelling.type_by_name(text)


def _spelt(text: str, token: bytes, spell: spelling.Speller) -> bytes:
    try:
        return spell(text)
    except UnicodeEncodeError:  # the token is not text
        return token


def _phantom_space(token: str) -> bytes:
    if token.startswith(spelling.META_SPACE):
        return b" " + token[1:].encode()
    return token.encode()


_RWKV_ESCAPE = re.compile(rb"\\(x[0-9A-Fa-f]{2}|[^x])")
_RWKV_LETTERS = {b"n": b"\n", b"r": b"\r", b"t": b"\t"}


def _rwkv(token: str) -> bytes:
    def unescaped(match: re.Match[bytes]) -> bytes:
        code = match[1]
        return bytes.fromhex(code[1:].decode()) if len(code) == 3 else _RWKV_LETTERS.get(code, code)

    return _RWKV_ESCAPE.sub(unescaped, token.encode())


_SPELLERS: dict[str, tuple[VocabularyKind, spelling.Speller]] = {
    "gpt2": (VocabularyKind.BYTE_LEVEL, spelling.byte_level),
    "llama": (VocabularyKind.SENTENCEPIECE, spelling.meta_space),
    "t5": (VocabularyKind.SENTENCEPIECE, spelling.meta_space),
    "bert": (VocabularyKind.WORDPIECE, _phantom_space),
    "rwkv": (VocabularyKind.RWKV, _rwkv),
    "plamo2": (VocabularyKind.PLAIN, spelling.plain),
}
"""Kind of vocabulary and speller for each ``tokenizer.ggml.model``."""

_WITH_FALLBACK = frozenset({VocabularyKind.SENTENCEPIECE, VocabularyKind.PLAIN})
