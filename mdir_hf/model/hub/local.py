"""Files on the local disk: a folder, a weight file, or a cached snapshot."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from pathlib import Path

from mdir_hf.errors import (
    ByteBudgetError,
    FileMissingError,
    HubError,
    InputError,
    MdirError,
    ServerError,
    ShortReadError,
    UnsafePathError,
)
from mdir_hf.model.hub.ledger import IoLedger
from mdir_hf.model.sources import FileEntry, Span
from mdir_hf.names import safe_path

COMMIT = re.compile(r"[0-9a-f]{40}")
"""A commit SHA or the id of a git blob."""
SHA256 = re.compile(r"[0-9a-f]{64}")
_DIGEST = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


def digest(etag: object) -> str | None:
    """Return the ETag if it consists of 40 or 64 hex digits, else None."""
    return etag if isinstance(etag, str) and _DIGEST.fullmatch(etag) else None


def commit_named(commit: object, *, revision: str, subject: str) -> str:
    """Return the commit named in a Hub response, checking that it is 40 hex digits."""
    if isinstance(commit, str) and COMMIT.fullmatch(commit):
        return commit
    what = "nothing" if commit is None else repr(commit)[:60]
    raise ServerError(
        f"the Hub does not say which commit {revision!r} is: expected 40 hex digits, got {what}; check HF_ENDPOINT and "
        "any proxy",
        subject=subject,
    )


def has_digest(content: bytes, expected: str | None) -> bool:
    """Return whether the bytes have the expected SHA-256 or git blob id; True if none is expected."""
    if expected is None:
        return True
    if SHA256.fullmatch(expected):
        return hashlib.sha256(content).hexdigest() == expected
    head = b"blob %d\0" % len(content)
    return hashlib.sha1(head + content, usedforsecurity=False).hexdigest() == expected


_MOST_FILES = 100_000  # a model has at most a few thousand files; a folder with more may be a home folder


def check_span(start: int, stop: int, n_bytes: int, label: str) -> None:
    """Raise ``InputError`` for an invalid span, and ``ShortReadError`` for one that extends past the end."""
    if not 0 <= start <= stop:
        raise InputError(f"invalid byte range {start}-{stop}: expected 0 <= start <= stop", subject=label)
    if stop > n_bytes:
        raise ShortReadError(f"cannot read bytes {start:,} to {stop:,} of a file with {n_bytes:,}", subject=label)


class LocalFile:
    """A byte source for a local file. Follows links. If ``from_cache``, reads do not count towards the limit."""

    gap_bytes = 1 << 16
    """Largest gap between spans to read rather than skip. At 1 GB/s, reading it takes as long as a system call."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        label: str | None = None,
        ledger: IoLedger | None = None,
        from_cache: bool = False,
    ) -> None:
        self.label = label or os.fspath(path)
        self._ledger = ledger or IoLedger()
        self._from_cache = from_cache
        try:
            # O_NONBLOCK: opening a named pipe must not block; it is rejected below.
            descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0))
        except OSError as exc:
            raise FileMissingError(f"cannot be opened: {exc.strerror}", subject=self.label) from exc
        self._close = weakref.finalize(self, os.close, descriptor)
        self._descriptor = descriptor
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            self.close()
            raise FileMissingError("is not a regular file", subject=self.label)
        self.n_bytes = status.st_size
        self._seek_lock = threading.Lock()

    def read(self, start: int, stop: int) -> bytes:
        """Return exactly the bytes ``[start, stop)``."""
        check_span(start, stop, self.n_bytes, self.label)
        if start == stop:
            return b""
        if self._from_cache:
            content = self._read(start, stop)
            self._ledger.served_from_cache(self.label, len(content))
            return content
        with self._ledger.reserve(self.label, stop - start) as arrived:
            content = self._read(start, stop)
            arrived(len(content))
        return content

    def read_many(self, spans: Sequence[Span]) -> Iterator[bytes]:
        """Yield the bytes of each span in order, with one span in memory at a time."""
        for start, stop in spans:
            check_span(start, stop, self.n_bytes, self.label)
        return (self.read(start, stop) for start, stop in spans)

    def close(self) -> None:
        """Close the file."""
        self._close()

    def _read(self, start: int, stop: int) -> bytes:
        pieces: list[bytes] = []
        position = start
        while position < stop:
            try:
                piece = self._read_at(position, stop - position)
            except OSError as exc:
                raise HubError(f"cannot be read at byte {position:,}: {exc.strerror}", subject=self.label) from exc
            if not piece:
                raise ShortReadError(
                    f"cannot read bytes {start:,} to {stop:,}: the file now ends at {position:,}",
                    subject=self.label,
                )
            pieces.append(piece)
            position += len(piece)  # one call reads at most 2 GiB on Linux
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _read_at(self, position: int, n_bytes: int) -> bytes:
        if hasattr(os, "pread"):
            return os.pread(self._descriptor, n_bytes, position)
        with self._seek_lock:
            os.lseek(self._descriptor, position, os.SEEK_SET)
            return os.read(self._descriptor, n_bytes)


def _not_in_folder(path: str, label: str) -> MdirError:
    return FileMissingError(f"there is no file {path!r} in this folder", subject=label)


@dataclass(eq=False, repr=False)
class LocalRepository:
    """The files of a local folder or a cached Hub snapshot. Implements ``Repository``.

    Attributes:
        commit: Commit of a snapshot in the Hub's cache, or None.
    """

    folder: Path
    _: KW_ONLY
    repo: str = ""
    revision: str | None = None
    commit: str | None = None
    file: str | None = None
    ledger: IoLedger = field(default_factory=IoLedger)
    missing: Callable[[str, str], MdirError] = _not_in_folder
    is_local: bool = True
    is_sharded: bool = False
    subfolder: str = ""
    variant: str | None = None

    def __post_init__(self) -> None:
        self.repo = self.repo or str(self.folder)
        self.folder = Path(os.path.realpath(self.folder))
        self.commit = self.commit or commit_of_snapshot(self.folder)

    def __repr__(self) -> str:
        return f"LocalRepository({self.label!r})"

    @property
    def present_name(self) -> str:
        """Same as ``repo``."""
        return self.repo

    @property
    def label(self) -> str:
        """The path of the folder, or ``owner/name@0123abc`` for a snapshot."""
        return self.repo if self.commit is None or self.is_local else f"{self.repo}@{self.commit[:7]}"

    @cached_property
    def files(self) -> Mapping[str, FileEntry]:
        """All regular files below the folder, keyed by relative path; hidden folders are skipped."""
        entries: dict[str, FileEntry] = {}
        for folder, subfolders, names in os.walk(self.folder):
            subfolders[:] = sorted(name for name in subfolders if not name.startswith("."))
            for name in sorted(names):
                path = Path(folder, name)
                try:
                    status = path.stat()
                except OSError:  # a dangling link
                    continue
                if not stat.S_ISREG(status.st_mode):
                    continue
                if len(entries) >= _MOST_FILES:
                    raise InputError(
                        f"has more than {_MOST_FILES:,} files below it, which is too many for a model's folder",
                        subject=self.label,
                    )
                relative = path.relative_to(self.folder).as_posix()
                blob = _blob_name(path)
                entries[relative] = FileEntry(
                    relative,
                    status.st_size,
                    sha256=blob if SHA256.fullmatch(blob) else None,
                    blob_id=blob if COMMIT.fullmatch(blob) else None,
                    inode=(status.st_dev, status.st_ino) if status.st_ino else None,
                )
        return entries

    def open(self, path: str) -> LocalFile:
        """Open a file for random access."""
        place = self.folder / safe_path(path, subject=self.label)
        try:
            mode = place.stat().st_mode
        except OSError as exc:
            if exc.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EINVAL):
                raise FileMissingError(f"{path!r} cannot be read: {exc.strerror}", subject=self.label) from exc
            mode = 0
        if not stat.S_ISREG(mode):
            raise self.missing(path, self.label)
        self._refuse_link_leaving(place, path)
        return LocalFile(place, label=f"{self.label}:{path}", ledger=self.ledger, from_cache=not self.is_local)

    def read(self, path: str, *, max_bytes: int = 64 << 20) -> bytes:
        """Return the content of a small file."""
        source = self.open(path)
        try:
            check_size(source.n_bytes, max_bytes, source.label)
            return source.read(0, source.n_bytes)
        finally:
            source.close()

    def expect(self, *, whole: Iterable[str] = (), heads: Iterable[str] = ()) -> None:
        """Do nothing, because disk reads are fast."""

    def _refuse_link_leaving(self, place: Path, path: str) -> None:
        real = Path(os.path.realpath(place))
        if real.is_relative_to(self.folder):
            return
        repository = _cache_folder_of(self.folder)
        # <cache>/models--a--b/snapshots/<sha>/f -> ../../blobs/<etag>; 2.x may link on to <cache>/blobs/<xx>/<hash>.
        if repository is not None and (
            real.is_relative_to(repository / "blobs") or real.is_relative_to(repository.parent / "blobs")
        ):
            return
        raise UnsafePathError(
            f"{path!r} is a link that leaves the folder; name the real folder, or copy the file into this one",
            subject=self.label,
        )


def check_size(n_bytes: int, max_bytes: int, label: str) -> None:
    """Raise ``ByteBudgetError`` if a file is too large to read whole."""
    if n_bytes > max_bytes:
        raise ByteBudgetError(
            f"has {n_bytes:,} bytes; the limit for a file of this kind is {max_bytes:,}", subject=label
        )


def commit_of_snapshot(folder: Path) -> str | None:
    """Return the commit of the cached snapshot that contains a folder, or None."""
    repository = _cache_folder_of(folder)
    return None if repository is None else folder.relative_to(repository / "snapshots").parts[0]


def _cache_folder_of(folder: Path) -> Path | None:
    for inner in (folder, *folder.parents):
        if inner.parent.name == "snapshots" and COMMIT.fullmatch(inner.name) and "--" in inner.parent.parent.name:
            return inner.parent.parent
    return None


def _blob_name(path: Path) -> str:
    if not path.is_symlink():
        return ""
    # Follow one link only: the next one leads to a store keyed by another hash.
    target = path.readlink()
    return target.name if target.parent.name == "blobs" and _cache_folder_of(path.parent) is not None else ""
