"""Reads and validates the header of a GGUF file: counts, keys and values, and the table of tensors.

The format: magic ``GGUF``, version, number of tensors, number of pairs, the pairs, the table (name, sizes with the
fastest first, type, offset), and the data at the next multiple of ``general.alignment``. Little-endian files of
versions 2 and 3 have the same layout. Source: ``docs/gguf.md`` and ``src/gguf.cpp`` of ggml.

The uploader controls the file, so every count is checked before memory is allocated or bytes are read for it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NoReturn

from mdir_hf.budgets import GGUF_HEADER, GGUF_PAIRS
from mdir_hf.errors import UnsupportedFormatError
from mdir_hf.model.files.gguf.types import OTHER_LAYOUTS, GgmlType, ggml_type
from mdir_hf.model.files.gguf.values import GrowingPrefix
from mdir_hf.model.files.sources import ByteSource, TensorSpec, excess_of_shape

DEFAULT_ALIGNMENT = 32
MAX_N_DIMENSIONS = 4

FIRST_READ_N_BYTES = (1 << 16, 1 << 20)
"""Bounds of the first read, which is a 64th of the file: 1 MB for a model of 7 billion weights."""

_I64_MAX = 2**63 - 1
_PAIR_N_BYTES = 8 + 4 + 1
_ENTRY_N_BYTES = 8 + 4 + 4 + 8
_OLD_MAGICS = frozenset({b"lmgg", b"fmgg", b"tjgg", b"algg"})


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """A valid header.

    Attributes:
        version: Version of the format.
        metadata: Values by key: bool, int, float, str, numpy array, or an iterable of byte strings with a length.
        tensors: Spec of every tensor by name, with rows first in shapes and absolute offsets.
        n_bytes: Length of the header.
    """

    version: int
    metadata: Mapping[str, object]
    tensors: Mapping[str, TensorSpec]
    n_bytes: int


def read_gguf_header(source: ByteSource, *, path: str, first_n_bytes: int | None = None) -> GgufHeader:
    """Read and validate the header of a file.

    Args:
        source: The file.
        path: Path of the file in its tree, for the specs.
        first_n_bytes: Size of the first read; None to derive it from the size of the file.

    Raises:
        CorruptCheckpointError: If the file is not GGUF, is truncated, or breaks the rules of the format.
        UnsupportedFormatError: If the file is version 1 or big-endian.

    Reads at most twice the length of the header, each byte once, and holds it in memory meanwhile.
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
        """Return the stored size, or 0 for a type of unknown size."""
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
    """Turn relative offsets into absolute ranges; reject overlaps and ranges past the end of the file."""
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
    """For type numbers that forks reuse, choose the first type with which all tensors fit into their space."""
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
