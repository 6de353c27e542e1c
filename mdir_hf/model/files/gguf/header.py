"""Read and validate the header of a GGUF file.

A file consists of the magic ``GGUF``, the version, the numbers of tensors and key/value pairs, the pairs, the tensor
table (name, sizes with the fastest-varying axis first, type, offset), and the data, which starts at a multiple of
``general.alignment``. Source: ``docs/gguf.md`` and ``src/gguf.cpp`` of ggml.

Every count is checked before memory is allocated. A header does not state its length, so a growing prefix of the file
is read.
"""

from __future__ import annotations

import math
import struct
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import NoReturn

import numpy as np

from mdir_hf.budgets import GGUF_HEADER, GGUF_PAIRS, GGUF_STRINGS
from mdir_hf.errors import CorruptCheckpointError, UnsupportedFormatError
from mdir_hf.model.files.gguf.dequantise import OTHER_LAYOUTS, GgmlType, ggml_type
from mdir_hf.model.sources import ByteSource, TensorSpec, excess_of_shape

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
"""Keys of long string arrays that are not needed."""


@dataclass(frozen=True, slots=True, eq=False)
class PackedStrings:
    """An array of strings as packed bytes, split during iteration."""

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
    """Parses the start of a file, which is read in growing steps. ``what`` names values in errors."""

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
        """Read a key or name, which must be short, valid UTF-8."""
        n_bytes = self.uint64(f"the length of {what}")
        if n_bytes > MAX_KEY_N_BYTES:
            self.fail(f"{what} claims {n_bytes:,} bytes; the format allows 65,535")
        data = self.take(n_bytes, what)
        try:
            return data.decode()
        except UnicodeDecodeError as exc:
            raise CorruptCheckpointError(f"{what} is not UTF-8: {data[:40]!r}", subject=self.label) from exc

    def value(self, key: str) -> object:
        """Read the type and value of a pair; unneeded string arrays become None."""
        kind = self.uint32(f"the type of {key!r}")
        what = f"the value of {key!r}"
        if kind == _STRING:
            # Chat templates are not always valid UTF-8, which should not fail a comparison.
            return self.take(self.uint64(f"the length of {key!r}"), what).decode(errors="replace")
        if kind == _ARRAY:
            return self._array(key, what)
        return self._numbers(kind, 1, key, what)[0].item()

    def fail(self, message: str) -> NoReturn:
        """Raise ``CorruptCheckpointError`` for this file."""
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
        """Raise an error if the next ``n_bytes`` would exceed the file or the limit for headers."""
        stop = self.at + n_bytes
        if stop > self.n_file_bytes:
            self.fail(
                f"{what} takes {n_bytes:,} bytes from byte {self.at:,} on, but this file of {self.n_file_bytes:,} ends "
                "before that; it is truncated, or not a GGUF file"
            )
        if stop > MAX_HEADER_N_BYTES:
            self.fail(f"the header is longer than {MAX_HEADER_N_BYTES:,} bytes, which is too long for a model")

    def _read_to(self, stop: int, what: str) -> int:
        have = len(self._data)
        if stop > have:
            self.check_room(stop - self.at, what)
            wanted = max(stop, 2 * have, self._first_n_bytes)
            wanted = min(wanted, self.n_file_bytes, MAX_HEADER_N_BYTES)
            self._data += self._source.read(have, wanted)
        return len(self._data)


DEFAULT_ALIGNMENT = 32
MAX_N_DIMENSIONS = 4

FIRST_READ_N_BYTES = (1 << 16, 1 << 20)
"""Minimum and maximum size of the first read, which is otherwise 1/64 of the file."""

_I64_MAX = 2**63 - 1
_PAIR_N_BYTES = 8 + 4 + 1
_ENTRY_N_BYTES = 8 + 4 + 4 + 8
_OLD_MAGICS = frozenset({b"lmgg", b"fmgg", b"tjgg", b"algg"})


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """A parsed and validated header.

    Attributes:
        metadata: Values (bool, int, float, str, numpy array or :class:`PackedStrings`), keyed by name.
        tensors: Specs, keyed by tensor name. Rows are the first axis, and offsets are absolute.
    """

    version: int
    metadata: Mapping[str, object]
    tensors: Mapping[str, TensorSpec]
    n_bytes: int


def read_gguf_header(source: ByteSource, *, path: str, first_n_bytes: int | None = None) -> GgufHeader:
    """Read and validate a header, without reading any byte twice.

    Raises:
        CorruptCheckpointError: If the file is not GGUF, is truncated, or breaks the rules of the format.
        UnsupportedFormatError: If the file is version 1 or big-endian.
    """
    if first_n_bytes is None:
        least, most = FIRST_READ_N_BYTES
        first_n_bytes = max(least, min(most, source.n_bytes // 64))
    prefix = GrowingPrefix(source, first_n_bytes=first_n_bytes)
    version = _read_version(prefix)
    n_tensors, n_pairs = prefix.uint64("the number of tensors"), prefix.uint64("the number of pairs")
    _check_count(prefix, n_pairs, GGUF_PAIRS, _PAIR_N_BYTES, "key/value pairs")
    _check_count(prefix, n_tensors, GGUF_HEADER.n_items, _ENTRY_N_BYTES, "tensors")
    metadata: dict[str, object] = {}
    for number in range(n_pairs):
        key = prefix.name(f"key {number}")
        if key in metadata:
            prefix.fail(f"the key {key!r} is in the header twice")
        metadata[key] = prefix.value(key)
    entries = [_read_entry(prefix, number) for number in range(n_tensors)]
    if len({entry.name for entry in entries}) != len(entries):
        ((twice, _),) = Counter(entry.name for entry in entries).most_common(1)
        prefix.fail(f"tensor {twice!r} is in the header twice")
    n_bytes = prefix.at
    alignment = _alignment(prefix, metadata)
    base = -(-n_bytes // alignment) * alignment
    specs = _place(prefix, entries, base=base, alignment=alignment, path=path)
    return GgufHeader(version, metadata, {spec.name: spec for spec in specs}, n_bytes)


@dataclass(frozen=True, slots=True)
class _Entry:
    name: str
    shape: tuple[int, ...]
    kind: GgmlType
    offset: int

    def n_bytes(self) -> int:
        return math.prod(self.shape) // self.kind.n_values * self.kind.n_bytes


def _read_version(prefix: GrowingPrefix) -> int:
    if prefix.n_file_bytes < 24:
        prefix.fail(f"the file has {prefix.n_file_bytes} bytes, but a GGUF file starts with 24 bytes of counts")
    magic = prefix.take(4, "the magic")
    if magic == b"vers":
        prefix.fail("this is a Git LFS pointer, not the weights; fetch the file itself (`git lfs pull`)")
    if magic in _OLD_MAGICS:
        _unsupported(prefix, "a GGML file from before GGUF, which is no longer in use; convert the model again")
    if magic != b"GGUF":
        prefix.fail(f"the file starts with {magic!r}; expected b'GGUF'")
    version = prefix.uint32("the version")
    if version and not version & 0xFFFF:
        _unsupported(prefix, "a big-endian GGUF file; convert it with `gguf-convert-endian` of the gguf package")
    if version == 1:
        _unsupported(prefix, "a GGUF file of version 1, which was in use for a few days; convert the model again")
    if version not in (2, 3):
        _unsupported(prefix, f"a GGUF file of version {version}; this version reads 2 and 3")
    return version


def _check_count(prefix: GrowingPrefix, n: int, most: int, least_n_bytes: int, what: str) -> None:
    if n > most:
        prefix.fail(f"the header claims {n:,} {what}; expected at most {most:,}")
    prefix.check_room(n * least_n_bytes, f"a header of {n:,} {what}")


def _read_entry(prefix: GrowingPrefix, number: int) -> _Entry:
    name = prefix.name(f"the name of tensor {number}")
    n_dimensions = prefix.uint32(f"the number of dimensions of tensor {name!r}")
    if n_dimensions > MAX_N_DIMENSIONS:
        prefix.fail(f"tensor {name!r} has {n_dimensions} dimensions; the format allows {MAX_N_DIMENSIONS}")
    sizes = [prefix.uint64(f"the shape of tensor {name!r}") for _ in range(n_dimensions)]
    kind = ggml_type(prefix.uint32(f"the type of tensor {name!r}"))
    offset = prefix.uint64(f"the offset of tensor {name!r}")
    shape = tuple(reversed(sizes))
    if any(size > _I64_MAX for size in shape) or math.prod(shape) > _I64_MAX // max(1, kind.n_bytes):
        prefix.fail(f"tensor {name!r} of shape {shape} has more bytes than a 63-bit count can hold")
    excess = excess_of_shape(shape)
    if excess is not None:
        prefix.fail(f"tensor {name!r} of shape {shape} {excess}")
    if shape and shape[-1] % kind.n_values:
        prefix.fail(f"tensor {name!r} of shape {shape} has rows of {shape[-1]}; {kind.name} packs {kind.n_values} each")
    if not shape and kind.n_values > 1:
        prefix.fail(f"tensor {name!r} has no dimensions; {kind.name} packs {kind.n_values} numbers each")
    return _Entry(name, shape, kind, offset)


def _alignment(prefix: GrowingPrefix, metadata: Mapping[str, object]) -> int:
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1) or alignment > 1 << 20:
        prefix.fail(f"general.alignment is {alignment!r:.40}; expected a power of two")
    return alignment


def _place(prefix: GrowingPrefix, entries: list[_Entry], *, base: int, alignment: int, path: str) -> list[TensorSpec]:
    specs: list[TensorSpec] = []
    ordered = sorted(entries, key=lambda entry: (entry.offset, entry.n_bytes()))
    starts = [*(base + entry.offset for entry in ordered), prefix.n_file_bytes]
    rooms = [after - start for start, after in pairwise(starts)]
    ordered = _resolve_shared_numbers(ordered, rooms)
    end, previous = base, "the header"
    for place, entry in enumerate(ordered):
        start = base + entry.offset
        stop = start + entry.n_bytes()
        if not entry.kind.n_bytes:  # an unknown type may extend to the next tensor; reading it raises an error
            is_last = place + 1 == len(ordered)
            stop = max(start, prefix.n_file_bytes if is_last else base + ordered[place + 1].offset)
        if entry.offset % alignment:
            prefix.fail(f"tensor {entry.name!r} has data offset {entry.offset:,}, not a multiple of {alignment}")
        if start < end:
            prefix.fail(f"tensor {entry.name!r} overlaps {previous}: it starts at {start:,}, expected at least {end:,}")
        if stop > prefix.n_file_bytes:
            prefix.fail(
                f"tensor {entry.name!r} ({entry.kind.name}, shape {entry.shape}) ends at byte {stop:,}, but the file "
                f"has {prefix.n_file_bytes:,}; it is truncated"
            )
        end, previous = stop, repr(entry.name)
        specs.append(TensorSpec(entry.name, entry.shape, entry.kind.name, path=path, start=start, stop=stop))
    return specs


def _resolve_shared_numbers(entries: list[_Entry], rooms: list[int]) -> list[_Entry]:
    """Choose, for each type number that forks reuse, the first type whose size fits all tensors."""
    kinds: dict[int, GgmlType] = {}
    for number, others in OTHER_LAYOUTS.items():
        of_number = [(entry, room) for entry, room in zip(entries, rooms, strict=True) if entry.kind.number == number]
        for kind in (ggml_type(number), *others):
            if all(
                replace(entry, kind=kind).n_bytes() <= room and entry.shape[-1] % kind.n_values == 0
                for entry, room in of_number
            ):
                kinds[number] = kind
                break
    return [replace(entry, kind=kinds.get(entry.kind.number, entry.kind)) for entry in entries]


def _unsupported(prefix: GrowingPrefix, what: str) -> NoReturn:
    raise UnsupportedFormatError(f"this is {what}", subject=prefix.label)
