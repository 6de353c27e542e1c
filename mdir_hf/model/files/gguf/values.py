"""Reads keys and values of a GGUF header from a growing prefix of the file.

A header does not state its length; its end is only known after the last entry of the tensor table. Most of it
is the vocabulary, so arrays stay packed bytes and become objects only when iterated.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NoReturn

import numpy as np

from mdir_hf.budgets import GGUF_HEADER, GGUF_STRINGS
from mdir_hf.errors import CorruptCheckpointError
from mdir_hf.model.files.sources import ByteSource

MAX_HEADER_N_BYTES = GGUF_HEADER.n_bytes

MAX_KEY_N_BYTES = 1 << 16
"""Longest key or name accepted; the format allows 65,535 bytes."""

_UINT32, _UINT64 = struct.Struct("<I"), struct.Struct("<Q")
_BOOL, _STRING, _ARRAY = 7, 8, 9
_NUMBERS: dict[int, np.dtype[np.generic]] = {
    0: np.dtype("u1"),
    1: np.dtype("i1"),
    2: np.dtype("<u2"),
    3: np.dtype("<i2"),
    4: np.dtype("<u4"),
    5: np.dtype("<i4"),
    6: np.dtype("<f4"),
    _BOOL: np.dtype("?"),
    10: np.dtype("<u8"),
    11: np.dtype("<i8"),
    12: np.dtype("<f8"),
}
_NOT_KEPT = frozenset({"tokenizer.ggml.merges"})
"""Long arrays of strings that are not needed."""


@dataclass(frozen=True, slots=True, eq=False)
class PackedStrings:
    """An array of strings as stored, each after its length. Iteration creates the objects."""

    data: bytes = field(repr=False)
    n_strings: int

    def __len__(self) -> int:
        return self.n_strings

    def __iter__(self) -> Iterator[bytes]:
        at, length_at, data = 0, _UINT64.unpack_from, self.data
        for _ in range(self.n_strings):
            start = at + 8
            at = start + length_at(data, at)[0]
            yield data[start:at]


class GrowingPrefix:
    """The first bytes of a file, read in growing steps as a parser needs them.

    Args:
        source: The file.
        first_n_bytes: Size of the first read. Each further read doubles the prefix, or more if needed.
    """

    def __init__(self, source: ByteSource, *, first_n_bytes: int) -> None:
        self.label, self.n_file_bytes = source.label, source.n_bytes
        self._source = source
        self._data = bytearray()
        self._first_n_bytes = first_n_bytes
        self.at = 0

    def uint32(self, what: str) -> int:
        """Read an unsigned 32-bit integer."""
        return int(_UINT32.unpack_from(self._data, self._claim(4, what))[0])

    def uint64(self, what: str) -> int:
        """Read an unsigned 64-bit integer."""
        return int(_UINT64.unpack_from(self._data, self._claim(8, what))[0])

    def take(self, n_bytes: int, what: str) -> bytes:
        """Read ``n_bytes`` bytes."""
        start = self._claim(n_bytes, what)
        return bytes(self._data[start : self.at])

    def name(self, what: str) -> str:
        """Read a key or a name, which must be UTF-8 and not too long."""
        n_bytes = self.uint64(f"the length of {what}")
        if n_bytes > MAX_KEY_N_BYTES:
            self.fail(f"{what} claims {n_bytes:,} bytes; the format allows 65,535")
        data = self.take(n_bytes, what)
        try:
            return data.decode()
        except UnicodeDecodeError as exc:
            raise CorruptCheckpointError(f"{what} is not UTF-8: {data[:40]!r}", subject=self.label) from exc

    def value(self, key: str) -> object:
        """Read the type and value of a pair.

        Returns:
            A bool, int, float or str. For an array, numpy numbers or :class:`PackedStrings`, or None for an array of
            strings that is not needed.
        """
        kind = self.uint32(f"the type of {key!r}")
        what = f"the value of {key!r}"
        if kind == _STRING:
            # Chat templates are not always valid UTF-8, which should not fail a comparison.
            return self.take(self.uint64(f"the length of {key!r}"), what).decode(errors="replace")
        if kind == _ARRAY:
            return self._array(key, what)
        return self._numbers(kind, 1, key, what)[0].item()

    def fail(self, message: str) -> NoReturn:
        """Raise an error about the header."""
        raise CorruptCheckpointError(message, subject=self.label)

    def _array(self, key: str, what: str) -> object:
        kind = self.uint32(f"the type of {key!r}")
        n_values = self.uint64(f"the length of {key!r}")
        if kind == _ARRAY:
            self.fail(f"{what} is an array of arrays, which GGUF models do not use")
        if kind == _STRING:
            return self._strings(n_values, key, what)
        return self._numbers(kind, n_values, key, what)

    def _numbers(self, kind: int, n_values: int, key: str, what: str) -> np.ndarray:
        dtype = _NUMBERS.get(kind)
        if dtype is None:
            self.fail(f"{key!r} has values of type {kind}, which is unknown to the format")
        data = self.take(n_values * dtype.itemsize, what)
        if kind == _BOOL:  # any byte except 0 is true, but numpy needs 0 or 1
            return np.frombuffer(data, np.uint8).astype(np.bool_)
        return np.frombuffer(data, dtype)

    def _strings(self, n_strings: int, key: str, what: str) -> PackedStrings | None:
        if n_strings > GGUF_STRINGS:
            self.fail(f"{key!r} claims {n_strings:,} strings; expected at most {GGUF_STRINGS:,}")
        self.check_room(8 * n_strings, what)
        start = at = self.at
        have, length_at = len(self._data), _UINT64.unpack_from
        for _ in range(n_strings):
            if at + 8 > have:
                have = self._read_to(at + 8, what)
            at += 8 + length_at(self._data, at)[0]
        self._read_to(at, what)
        self.at = at
        return None if key in _NOT_KEPT else PackedStrings(bytes(self._data[start:at]), n_strings)

    def _claim(self, n_bytes: int, what: str) -> int:
        start, stop = self.at, self.at + n_bytes
        if stop > len(self._data):
            self._read_to(stop, what)
        self.at = stop
        return start

    def check_room(self, n_bytes: int, what: str) -> None:
        """Reject, without reading, a value that cannot fit into the rest of the file or into a header."""
        stop = self.at + n_bytes
        if stop > self.n_file_bytes:
            self.fail(
                f"{what} takes {n_bytes:,} bytes from byte {self.at:,} on, but this file of {self.n_file_bytes:,} ends "
                "before that; it is truncated, or not a GGUF file"
            )
        if stop > MAX_HEADER_N_BYTES:
            self.fail(f"the header is longer than {MAX_HEADER_N_BYTES:,} bytes, which is too long for a model")

    def _read_to(self, stop: int, what: str) -> int:
        """Extend the prefix to at least ``stop``; return its length."""
        have = len(self._data)
        if stop > have:
            self.check_room(stop - self.at, what)
            wanted = max(stop, 2 * have, self._first_n_bytes)
            wanted = min(wanted, self.n_file_bytes, MAX_HEADER_N_BYTES)
            self._data += self._source.read(have, wanted)
        return len(self._data)
