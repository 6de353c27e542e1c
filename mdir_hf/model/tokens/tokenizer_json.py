"""Read ``tokenizer.json`` and ``vocab.json``: token strings and their rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

from mdir_hf.errors import VocabularyError
from mdir_hf.model.tokens import spelling
from mdir_hf.model.tokens.json_file import described, row_id, shown
from mdir_hf.model.tokens.tokens import Token, TokenType, VocabularyKind

# Names such as <s> in a vocab.json are special tokens only if they are in the first rows.
_N_FIRST_ROWS = 16


def tokenizer_json_tokens(content: dict[str, Any]) -> tuple[VocabularyKind, Iterator[Token]]:
    """Read a ``tokenizer.json`` and return the kind of vocabulary and its tokens.

    An added token is special if it is flagged as such or named like ``<|name|>``. Its string is taken literally unless
    ``model.vocab`` gives it the same row.

    Raises:
        VocabularyError: If a value has the wrong type; may also be raised during iteration.
    """
    model = _member(content, "model", dict)
    vocabulary = model.get("vocab")
    if isinstance(vocabulary, list):
        strings = [_unigram_piece(entry, place) for place, entry in enumerate(vocabulary)]
        entries: Iterable[tuple[str, object]] = zip(strings, range(len(strings)), strict=True)
    elif isinstance(vocabulary, dict):
        strings = list(vocabulary)
        entries = vocabulary.items()
    else:
        raise VocabularyError(f'expected "model.vocab" to be an object or a list, found {described(vocabulary)}')
    kind = _declared_kind(content, model) or spelling.guess_kind(strings)
    spell = spelling.SPELLERS[kind]
    prefix = model.get("continuing_subword_prefix")
    if kind is VocabularyKind.WORDPIECE and isinstance(prefix, str) and prefix:
        spell = partial(spelling.wordpiece, prefix=prefix)
    mark = _mark_of_space(content)
    if kind is VocabularyKind.SENTENCEPIECE and mark is not None:
        spell = partial(spelling.meta_space, mark=mark)
    if isinstance(suffix := model.get("end_of_word_suffix"), str) and suffix:
        spell = spelling.with_suffix(spell, suffix)
    added = _added_tokens(content)
    # A pipeline that maps text to the byte-level alphabet never uses pieces with other characters.
    turns_to_bytes = _turns_to_bytes(content)
    unknown = model.get("unk_token")
    if isinstance(vocabulary, list) and type(place := model.get("unk_id")) is int and 0 <= place < len(strings):
        unknown = strings[place]

    def tokens() -> Iterator[Token]:
        listed_rows = set()
        for string, value in entries:
            row = row_id(value, string)
            listed = added.get(row)
            if listed is not None and listed[0] == string:
                listed_rows.add(row)
                token_type = listed[1]
            elif string == unknown:
                token_type = TokenType.SPECIAL
            elif spelling.is_reserved(string):
                token_type = TokenType.RESERVED
            else:
                token_type = (
                    TokenType.UNUSED if turns_to_bytes and not spelling.is_byte_level(string) else TokenType.TEXT
                )
            yield _spelt(row, string, token_type, kind, spell)
        for row, (string, token_type) in added.items():
            if row not in listed_rows:
                yield row, string.encode(), token_type

    return kind, tokens()


def vocab_json_tokens(row_of: dict[str, Any]) -> tuple[VocabularyKind, Iterator[Token]]:
    """Read a ``vocab.json``, which maps token strings to rows; return the guessed kind of vocabulary and its tokens.

    Raises:
        VocabularyError: If a row is not an integer; raised during iteration.
    """
    kind = spelling.guess_kind(row_of)
    spell = spelling.SPELLERS[kind]
    # GPT-1 and similar models mark the end of most words; in other vocabularies such a string is markup.
    if sum(string.endswith(spelling.END_OF_WORD) for string in row_of) * 10 > len(row_of):
        spell = spelling.with_suffix(spell, spelling.END_OF_WORD)

    def tokens() -> Iterator[Token]:
        for string, value in row_of.items():
            row = row_id(value, string)
            token_type = spelling.type_by_name(string, may_be_markup=row >= _N_FIRST_ROWS)
            yield _spelt(row, string, token_type, kind, spell)

    return kind, tokens()


def added_json_tokens(row_of: dict[str, Any]) -> Iterator[Token]:
    """Read an ``added_tokens.json``, which maps literal text to integer rows."""
    for string, value in row_of.items():
        yield row_id(value, string), string.encode(), spelling.type_by_name(string)


def declared_tokens(config: dict[str, Any]) -> Iterator[Token]:
    """Read the tokens in the ``added_tokens_decoder`` of a ``tokenizer_config.json``.

    Raises:
        VocabularyError: If a value has the wrong type; raised during iteration.
    """
    declared = config.get("added_tokens_decoder")
    for row, entry in (_member(config, "added_tokens_decoder", dict) if declared is not None else {}).items():
        if not (row.isascii() and row.isdigit() and len(row) < 10) or not isinstance(entry, dict):
            raise VocabularyError(
                f'expected "added_tokens_decoder" to map numbers to objects, found {row[:40]!r}: {described(entry)}'
            )
        string = _member(entry, "content", str)
        yield int(row), string.encode(), _type_of_added(string, entry)


def _spelt(row: int, string: str, token_type: TokenType, kind: VocabularyKind, spell: spelling.Speller) -> Token:
    if kind is VocabularyKind.SENTENCEPIECE and token_type is TokenType.TEXT:
        byte = spelling.fallback_byte(string)
        if byte is not None:
            return row, byte, TokenType.FALLBACK
    return row, spell(string), token_type


def _declared_kind(content: dict[str, Any], model: dict[str, Any]) -> VocabularyKind | None:
    types, marks_space = set(), False
    for node in _nodes(*(content.get(part) for part in ("normalizer", "pre_tokenizer", "decoder"))):
        if isinstance(declared := node.get("type"), str):
            types.add(declared)
        # Replace has the mark in "content", or in the "String" of its pattern; Prepend in "prepend".
        marks_space = marks_space or spelling.META_SPACE in map(node.get, ("content", "String", "prepend"))
    if "ByteLevel" in types:
        return VocabularyKind.BYTE_LEVEL
    if model.get("type") == "WordPiece" or "WordPiece" in types:
        return VocabularyKind.WORDPIECE
    if "Metaspace" in types or marks_space:
        return VocabularyKind.SENTENCEPIECE
    return None


def _mark_of_space(content: dict[str, Any]) -> str | None:
    """Return the character with which Metaspace replaces spaces, or None if it is U+2581."""
    for node in _nodes(*(content.get(part) for part in ("pre_tokenizer", "decoder", "normalizer"))):
        mark = node.get("replacement")
        if node.get("type") == "Metaspace" and isinstance(mark, str) and mark:
            return None if mark == spelling.META_SPACE else mark
    return None


def _turns_to_bytes(content: dict[str, Any]) -> bool:
    return any(
        node.get("type") == "ByteLevel" for node in _nodes(content.get("normalizer"), content.get("pre_tokenizer"))
    )


def _nodes(*parts: object) -> Iterator[dict[str, Any]]:
    stack = list(parts)
    while stack:
        node = stack.pop()
        if isinstance(node, dict):
            yield node
            stack.extend(node.values())
        elif isinstance(node, list):
            stack.extend(node)


def _added_tokens(content: dict[str, Any]) -> dict[int, tuple[str, TokenType]]:
    listed = content.get("added_tokens")
    added: dict[int, tuple[str, TokenType]] = {}
    for entry in _member(content, "added_tokens", list) if listed is not None else []:
        if not isinstance(entry, dict):
            raise VocabularyError(f'expected objects in "added_tokens", found {described(entry)}')
        string = _member(entry, "content", str)
        row = row_id(entry.get("id"), string)
        added[row] = string, _type_of_added(string, entry)
    return added


def _type_of_added(string: str, entry: dict[str, Any]) -> TokenType:
    if spelling.is_reserved(string):
        return TokenType.RESERVED
    return TokenType.SPECIAL if entry.get("special") is True or spelling.is_control(string) else TokenType.TEXT


def _member(parent: dict[str, Any], name: str, kind: type) -> Any:  # noqa: ANN401 - JSON of the given type
    value = parent.get(name)
    if not isinstance(value, kind):
        expected = described(kind())
        actual = described(value) if name in parent else "no such key"
        raise VocabularyError(f'expected "{name}" to be {expected}, found {actual}')
    return value


def _unigram_piece(entry: object, place: int) -> str:
    if isinstance(entry, list) and entry and isinstance(entry[0], str):
        return entry[0]
    raise VocabularyError(f'expected [piece, score] at place {place} of "model.vocab", found {shown(entry)}')
