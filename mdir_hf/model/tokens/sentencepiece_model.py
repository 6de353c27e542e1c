"""Read the pieces of SentencePiece ``.model`` files with a strict protobuf reader.

Decodes only field 1 of ``ModelProto`` (pieces in id order) and, in each piece, fields 1 (text) and 3 (type). Source:
SentencePiece's ``sentencepiece_model.proto``.
"""

from __future__ import annotations

from collections.abc import Iterator

from mdir_hf.budgets import MAX_TOKEN_N_BYTES, SENTENCEPIECE
from mdir_hf.errors import VocabularyError
from mdir_hf.model.tokens import spelling
from mdir_hf.model.tokens.json_file import glimpse
from mdir_hf.model.tokens.tokens import Token, TokenType

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = 1, 2, 3, 4, 5, 6
_TYPES = {
    _NORMAL: TokenType.TEXT,
    _UNKNOWN: TokenType.SPECIAL,
    _CONTROL: TokenType.SPECIAL,
    _USER_DEFINED: TokenType.TEXT,
    _UNUSED: TokenType.UNUSED,
    _BYTE: TokenType.FALLBACK,
}


def sentencepiece_tokens(data: bytes) -> Iterator[Token]:
    """Read the pieces of a SentencePiece model.

    Raises:
        VocabularyError: If the bytes are not a SentencePiece model, or contain no pieces.
    """
    row = n_fields = 0
    if (excess := SENTENCEPIECE.excess(n_bytes=len(data))) is not None:
        raise VocabularyError(f"expected a SentencePiece model, found a file that {excess}")
    try:
        for field, wire, value in _fields(data, 0, len(data)):
            if field == 1:
                start, stop = _span(wire, value)
                piece, kind, n_inside = _piece(data, start, stop)
                yield row, *_meaning(piece, kind)
                row += 1
                n_fields += n_inside
            n_fields += 1
            if n_fields > SENTENCEPIECE.n_items:
                raise ValueError(f"there are more than {SENTENCEPIECE.n_items:,} fields")
    except ValueError as exc:  # also UnicodeDecodeError
        raise VocabularyError(
            f"expected a SentencePiece model, found {glimpse(data)}, which are invalid after {row} pieces: {exc}"
        ) from exc
    if row == 0:
        raise VocabularyError(f"expected a SentencePiece model, found {glimpse(data)} without any piece")


def _meaning(piece: str, kind: int) -> tuple[bytes, TokenType]:
    token_type = _TYPES.get(kind)
    if token_type is None:
        raise ValueError(f"piece {piece[:40]!r} has the unknown type {kind}")
    if token_type is TokenType.FALLBACK:
        byte = spelling.fallback_byte(piece)
        if byte is None:
            raise ValueError(f"piece {piece[:40]!r} has the type of a byte but is not of the form <0xNN>")
        return byte, token_type
    if spelling.is_reserved(piece):
        token_type = TokenType.RESERVED
    return spelling.meta_space(piece), token_type


def _piece(data: bytes, start: int, stop: int) -> tuple[str, int, int]:
    if stop - start > MAX_TOKEN_N_BYTES:
        raise ValueError(f"a piece of {stop - start:,} bytes")
    text, kind, n_fields = "", _NORMAL, 0
    for field, wire, value in _fields(data, start, stop):
        n_fields += 1
        if field == 1:
            first, last = _span(wire, value)
            text = data[first:last].decode()
        elif field == 3:
            if not isinstance(value, int) or wire != _VARINT:
                raise ValueError("the type of a piece is not a number")
            kind = value
    return text, kind, n_fields


def _span(wire: int, value: int | tuple[int, int]) -> tuple[int, int]:
    if wire != _BYTES or not isinstance(value, tuple):
        raise ValueError(f"wire type {wire} instead of a string or message")
    return value


def _fields(data: bytes, start: int, stop: int) -> Iterator[tuple[int, int, int | tuple[int, int]]]:
    position = start
    while position < stop:
        tag, position = _varint(data, position, stop)
        field, wire = tag >> 3, tag & 7
        if field == 0:
            raise ValueError(f"field number 0 at byte {position}")
        if wire == _VARINT:
            number, position = _varint(data, position, stop)
            yield field, wire, number
            continue
        if wire == _BYTES:
            length, position = _varint(data, position, stop)
        elif wire in (_FIXED32, _FIXED64):
            length = 4 if wire == _FIXED32 else 8
        else:
            raise ValueError(f"wire type {wire} at byte {position}")
        if length > stop - position:
            raise ValueError(f"a field of {length} bytes at byte {position}, but {stop - position} are left")
        yield field, wire, (position, position + length)
        position += length


def _varint(data: bytes, position: int, stop: int) -> tuple[int, int]:
    if position < stop and data[position] < 0x80:  # true for nearly all numbers
        return data[position], position + 1
    number = shift = 0
    for place in range(position, min(stop, position + 10)):
        number |= (data[place] & 0x7F) << shift
        if data[place] < 0x80:
            return number, place + 1
        shift += 7
    raise ValueError(f"the number at byte {position} does not end")
