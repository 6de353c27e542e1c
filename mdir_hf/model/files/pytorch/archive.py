"""Read the directory of a zip file written by ``torch.save``, using a few byte ranges.

The parser follows the zip format strictly (APPNOTE 6.3, sections 4.3 and 4.5). Reading each local header would cost a
request per tensor. Instead, offsets are computed from torch's padding (``getPadding`` in
``caffe2/serialize/inline_container.cc``), and accepted if the data then ends at the next entry.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NoReturn

from mdir_hf.budgets import ZIP_DIRECTORY
from mdir_hf.errors import CorruptCheckpointError, UnsupportedFormatError
from mdir_hf.model.sources import ByteSource

_END = struct.Struct("<I4H2IH")
_END64_LOCATOR = struct.Struct("<IIQI")
_END64 = struct.Struct("<IQ2H2I4Q")
_CENTRAL = struct.Struct("<I6H3I5H2I")
_LOCAL = struct.Struct("<I5H3I2H")
_END_MAGIC, _END64_LOCATOR_MAGIC, _END64_MAGIC = 0x06054B50, 0x07064B50, 0x06064B50
_CENTRAL_MAGIC, _LOCAL_MAGIC = 0x02014B50, 0x04034B50
_U16_MAX, _U32_MAX = 0xFFFF, 0xFFFFFFFF

TAIL_N_BYTES = _END.size + _U16_MAX
"""Length of the first read, at the end of the file. It covers the longest possible end record, or the directory entries
of 500 tensors."""

MAX_PADDING_N_BYTES = 4096
"""Longest padding that is read together with an entry; longer padding costs another read."""

TORCH_ALIGNMENT = 64
"""Torch's default for ``storage_alignment``."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One file inside the archive.

    Attributes:
        header_start: Absolute offset of the local header.
        is_stored: Whether the content is neither compressed nor encrypted.
        has_descriptor: Whether a data descriptor follows the content.
        stop: Absolute offset of the next entry or, after the last, of the directory.
    """

    name: str
    header_start: int
    n_bytes: int
    n_name_bytes: int
    is_stored: bool
    has_descriptor: bool
    stop: int

    @property
    def furthest_stop(self) -> int:
        """Upper bound on the end of the content, including any padding."""
        return min(self.stop, self.header_start + _LOCAL.size + self.n_name_bytes + MAX_PADDING_N_BYTES + self.n_bytes)

    def aligned_start(self, alignment: int) -> int | None:
        """Return the content's offset according to torch's padding, or None if it would not end at the next entry."""
        start = self.header_start + _LOCAL.size + self.n_name_bytes + 4
        if self.n_bytes >= _U32_MAX or self.header_start >= _U32_MAX:
            start += 4 + 16 * (self.n_bytes >= _U32_MAX) + 8 * (self.header_start >= _U32_MAX)
        start += -start % alignment
        after = (16, 24) if self.has_descriptor else (0,)
        return start if self.stop - start - self.n_bytes in after else None


class NoArchiveError(CorruptCheckpointError):
    """Raised if a file does not end like a zip archive."""


class Archive:
    """A zip file, with its directory parsed and some of its bytes cached. Opening it takes one or two reads.

    Raises:
        NoArchiveError: If the file is not a zip archive.
        CorruptCheckpointError: If the directory is inconsistent.
        UnsupportedFormatError: If the archive is split over several disks, or has more entries than the limit.
    """

    def __init__(self, source: ByteSource) -> None:
        self.label = source.label
        self._source = source
        self._pieces: list[tuple[int, bytes]] = []
        self.entries: Mapping[str, Entry] = self._read_directory()

    def read(self, start: int, stop: int) -> bytes:
        """Return the bytes ``[start, stop)``, from the cache if possible."""
        for at, piece in self._pieces:
            if at <= start and stop <= at + len(piece):
                return piece[start - at : stop - at]
        return self._source.read(start, stop)

    def keep(self, start: int, stop: int) -> None:
        """Cache ``[start, stop)`` until :meth:`forget` is called."""
        if start < stop:
            self._pieces.append((start, self.read(start, stop)))

    def forget(self) -> None:
        """Empty the cache."""
        self._pieces.clear()

    def content(self, entry: Entry) -> bytes:
        """Return the content of an entry; see :meth:`data_start` for errors."""
        start = self.data_start(entry)
        return self.read(start, start + entry.n_bytes)

    def data_start(self, entry: Entry) -> int:
        """Return the absolute offset of an entry's content, using one small read.

        Raises:
            UnsupportedFormatError: If the entry is compressed or encrypted.
            CorruptCheckpointError: If the local header contradicts the directory.
        """
        self.check_stored(entry)
        stop = min(entry.header_start + _LOCAL.size, entry.stop)
        raw = self.read(entry.header_start, stop)
        if len(raw) < _LOCAL.size:
            self._fail(f"there is no room for the local header of {entry.name!r}")
        magic, *_, n_name_bytes, n_extra_bytes = _LOCAL.unpack(raw)
        start = stop + n_name_bytes + n_extra_bytes
        if magic != _LOCAL_MAGIC or n_name_bytes != entry.n_name_bytes or start + entry.n_bytes > entry.stop:
            self._fail(f"the local header of {entry.name!r} contradicts the directory")
        return int(start)

    def check_stored(self, entry: Entry) -> None:
        """Raise ``UnsupportedFormatError`` if an entry is compressed or encrypted."""
        if not entry.is_stored:
            raise UnsupportedFormatError(
                f"the entry {entry.name!r} is compressed or encrypted, which is not supported, and which torch.save "
                "never does; load the file with torch and save it as safetensors",
                subject=self.label,
            )

    def _read_directory(self) -> dict[str, Entry]:
        n_file_bytes = self._source.n_bytes
        tail_start = max(0, n_file_bytes - TAIL_N_BYTES)
        self.keep(tail_start, n_file_bytes)
        tail = self._pieces[0][1] if self._pieces else b""
        end = _find_end(tail)
        if end is None:
            raise NoArchiveError("this is not a zip archive, or a truncated one", subject=self.label)
        n_entries, n_bytes, start, directory_stop = self._directory_place(tail, tail_start, end)
        if start + n_bytes != directory_stop:
            self._fail(
                f"its directory should be at bytes {start:,} to {start + n_bytes:,}, but ends at {directory_stop:,}"
            )
        if n_bytes > ZIP_DIRECTORY.n_bytes or n_entries > ZIP_DIRECTORY.n_items:
            raise UnsupportedFormatError(
                f"the archive claims {n_entries:,} entries in a directory of {n_bytes:,} bytes; the limit is "
                f"{ZIP_DIRECTORY.n_items:,} entries in {ZIP_DIRECTORY.n_bytes:,} bytes",
                subject=self.label,
            )
        raw = self.read(start, start + n_bytes)
        return self._place(self._parse(raw, n_entries), directory_start=start)

    def _directory_place(self, tail: bytes, tail_start: int, end: int) -> tuple[int, int, int, int]:
        _, disk, first_disk, n_here, n_entries, n_bytes, start, _ = _END.unpack_from(tail, end)
        stop = tail_start + end
        if end >= _END64_LOCATOR.size:
            magic, disk64, end64_start, n_disks = _END64_LOCATOR.unpack_from(tail, end - _END64_LOCATOR.size)
            if magic == _END64_LOCATOR_MAGIC:
                if disk64 != 0 or n_disks > 1 or end64_start + _END64.size > stop - _END64_LOCATOR.size:
                    self._fail("its zip64 end record is not before the end of the archive")
                raw = self.read(end64_start, end64_start + _END64.size)
                magic, _, _, _, disk, first_disk, n_here, n_entries, n_bytes, start = _END64.unpack(raw)
                if magic != _END64_MAGIC:
                    self._fail("its zip64 end record is invalid")
                stop = end64_start
        if disk or first_disk or n_here != n_entries:
            raise UnsupportedFormatError("the zip archive is split over several files", subject=self.label)
        return n_entries, n_bytes, start, stop

    def _parse(self, raw: bytes, n_entries: int) -> list[Entry]:
        entries: list[Entry] = []
        at = 0
        while at < len(raw):
            if len(raw) - at < _CENTRAL.size or len(entries) >= ZIP_DIRECTORY.n_items:
                self._fail(f"its directory breaks off after {len(entries):,} entries")
            (magic, _, _, flags, method, _, _, _, n_stored, n_bytes, n_name, n_extra, n_comment, disk, _, _, start) = (
                _CENTRAL.unpack_from(raw, at)
            )
            name_at = at + _CENTRAL.size
            at = name_at + n_name + n_extra + n_comment
            if magic != _CENTRAL_MAGIC or at > len(raw):
                self._fail(f"entry {len(entries):,} of its directory is invalid")
            extra = raw[name_at + n_name : name_at + n_name + n_extra]
            n_bytes, n_stored, start = self._widen(extra, n_bytes, n_stored, start)
            name = raw[name_at : name_at + n_name].decode("utf-8", errors="backslashreplace")
            is_stored = method == 0 and not flags & 1
            if disk != 0 or (is_stored and n_stored != n_bytes):
                self._fail(f"the entry {name!r} of its directory contradicts itself")
            entries.append(Entry(name, start, n_stored, n_name, is_stored, bool(flags & 8), stop=0))
        if len(entries) != n_entries:
            self._fail(f"its directory has {len(entries):,} entries, but its end record says {n_entries:,}")
        return entries

    def _widen(self, extra: bytes, *values: int) -> tuple[int, int, int]:
        if _U32_MAX not in values:
            return values[0], values[1], values[2]
        at = 0
        while at + 4 <= len(extra):
            kind, n_bytes = struct.unpack_from("<HH", extra, at)
            if kind == 1:
                n_wanted = values.count(_U32_MAX)
                if n_bytes < 8 * n_wanted or at + 4 + 8 * n_wanted > len(extra):
                    break
                wide = iter(struct.unpack_from(f"<{n_wanted}Q", extra, at + 4))
                first, second, third = (next(wide) if value == _U32_MAX else value for value in values)
                return first, second, third
            at += 4 + n_bytes
        self._fail("an entry of its directory says zip64 but has no zip64 sizes")

    def _place(self, entries: list[Entry], *, directory_start: int) -> dict[str, Entry]:
        entries_by_name: dict[str, Entry] = {}
        ordered = sorted(entries, key=lambda entry: entry.header_start)
        starts = [*(entry.header_start for entry in ordered), directory_start][1:]
        for entry, stop in zip(ordered, starts, strict=True):
            if entry.header_start + _LOCAL.size + entry.n_name_bytes + entry.n_bytes > stop:
                self._fail(f"the entry {entry.name!r} overlaps the next one, or ends past the end of the file")
            if entry.name in entries_by_name:
                self._fail(f"the entry {entry.name!r} is in its directory twice")
            entries_by_name[entry.name] = replace(entry, stop=stop)
        return entries_by_name

    def _fail(self, why: str) -> NoReturn:
        raise CorruptCheckpointError(f"this is not a valid zip archive: {why}", subject=self.label)


def _find_end(tail: bytes) -> int | None:
    """Return the offset of the last end record whose comment extends to the end of the file."""
    at = len(tail) - _END.size
    magic = _END_MAGIC.to_bytes(4, "little")
    while (at := tail.rfind(magic, 0, at + 4)) >= 0:
        if at + _END.size + int.from_bytes(tail[at + _END.size - 2 : at + _END.size], "little") == len(tail):
            return at
        at -= 1
    return None
