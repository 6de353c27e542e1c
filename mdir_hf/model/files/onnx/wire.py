"""Parses protocol buffers from a byte source, skipping long payloads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mdir_hf.errors import CorruptCheckpointError
from mdir_hf.model.files.sources import ByteSource

FIRST_READ_N_BYTES = 1 << 18
AFTER_A_STEP_N_BYTES = 1 << 12
"""Size of a read after a skipped payload; the next one usually begins within a hundred bytes."""

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5


class Field(NamedTuple):
    """A field of a message.

    Attributes:
        number: Field number in the schema.
        kind: Wire type.
        value: Value of a varint; otherwise 0.
        start: Offset of the payload in the file.
        stop: Offset past the payload.
    """

    number: int
    kind: int
    value: int
    start: int
    stop: int


class MessageReader:
    """Reads messages of one file from front to back."""

    def __init__(self, source: ByteSource) -> None:
        self.source = source
        self._at = 0
        self._data = b""
        self._next_n_bytes = FIRST_READ_N_BYTES

    def fields(self, start: int, stop: int) -> Iterator[Field]:
        """Yield the fields of the message ``[start, stop)`` without reading their payloads.

        Raises:
            CorruptCheckpointError: If the bytes are not a valid message.
        """
        at = start
        while at < stop:
            tag, at = self._varint(at, stop)
            number, kind = tag >> 3, tag & 7
            value, begin = 0, at
            if kind == VARINT:
                value, at = self._varint(at, stop)
            elif kind == LENGTH:
                n_bytes, begin = self._varint(at, stop)
                at = begin + n_bytes
            elif kind in (FIXED64, FIXED32):
                at += 8 if kind == FIXED64 else 4
            else:
                raise self._error(f"a field at byte {begin:,} has the wire type {kind}")
            if at > stop or not number:
                raise self._error(f"field {number} at byte {begin:,} ends at byte {at:,}, past its message ({stop:,})")
            yield Field(number, kind, value, begin, at)

    def payload(self, field: Field, most: int) -> bytes:
        """Read the payload of a field.

        Raises:
            CorruptCheckpointError: If it has more than ``most`` bytes.
        """
        if field.stop - field.start > most:
            raise self._error(f"field {field.number} has {field.stop - field.start:,} bytes; the limit is {most:,}")
        return self._bytes(field.start, field.stop)

    def text(self, field: Field) -> str:
        """Read a string."""
        try:
            return self.payload(field, 1 << 14).decode()
        except UnicodeDecodeError as exc:
            raise self._error(f"the text at byte {field.start:,} is not UTF-8") from exc

    def varints(self, field: Field, most: int = 1 << 16) -> list[int]:
        """Return the signed numbers of a repeated field, packed or not."""
        if field.kind == VARINT:
            return [_signed(field.value)]
        numbers, at = [], field.start
        if field.stop - at > most:
            raise self._error(f"the list at byte {at:,} has {field.stop - at:,} bytes; the limit is {most:,}")
        while at < field.stop:
            value, at = self._varint(at, field.stop)
            numbers.append(_signed(value))
        return numbers

    def _varint(self, at: int, stop: int) -> tuple[int, int]:
        value = shift = 0
        while True:
            if at >= stop or shift > 63:
                raise self._error(f"the number at byte {at:,} does not end")
            byte = self._byte(at)
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value, at
            shift += 7

    def _byte(self, at: int) -> int:
        offset = at - self._at
        if not 0 <= offset < len(self._data):
            self._fill(at, 1)
            offset = 0
        return self._data[offset]

    def _bytes(self, start: int, stop: int) -> bytes:
        if not (self._at <= start and stop <= self._at + len(self._data)):
            self._fill(start, stop - start)
        return self._data[start - self._at : stop - self._at]

    def _fill(self, start: int, n_bytes: int) -> None:
        # Reads grow while reading on, and start small after a skipped payload.
        is_next = start <= self._at + len(self._data) and bool(self._data)
        self._next_n_bytes = min(4 * self._next_n_bytes, FIRST_READ_N_BYTES) if is_next else self._next_n_bytes
        if self._data and not is_next:
            self._next_n_bytes = AFTER_A_STEP_N_BYTES
        stop = min(self.source.n_bytes, start + max(n_bytes, self._next_n_bytes))
        if stop - start < n_bytes:
            raise self._error(f"the file ends at byte {self.source.n_bytes:,}, within a message")
        self._data, self._at = bytes(self.source.read(start, stop)), start

    def _error(self, what: str) -> CorruptCheckpointError:
        return CorruptCheckpointError(f"this is not an ONNX file: {what}", subject=self.source.label)


def decode_varints(data: bytes) -> npt.NDArray[np.uint64] | None:
    """Decode packed varints, negative ones as two's complement; return None for an incomplete last one."""
    raw = np.frombuffer(data, np.uint8)
    last = np.flatnonzero(raw < 0x80)
    if not raw.size or last.size == 0 or last[-1] != raw.size - 1:
        return None if raw.size else np.zeros(0, np.uint64)
    first = np.concatenate([[0], last[:-1] + 1])
    lengths = last - first + 1
    if lengths.max() > 10:
        return None
    values = np.zeros(last.size, np.uint64)
    for place in range(int(lengths.max())):
        longer = np.flatnonzero(lengths > place)
        values[longer] |= (raw[first[longer] + place] & np.uint64(0x7F)) << np.uint64(7 * place)
    return values


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value
