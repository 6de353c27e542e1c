"""Files on this disk: a folder, a weight file, a snapshot in the Hub's own cache."""

from __future__ import annotations

import errno
import os
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
    ShortReadError,
    UnsafePathError,
)
from mdir_hf.model.files.sources import FileEntry, Span
from mdir_hf.model.hub.ledger import IoLedger
from mdir_hf.model.hub.paths import COMMIT, SHA256, safe_path

_MOST_FILES = 100_000  # a model has at most some thousand files; more means that somebody named a home folder


def check_span(start: int, stop: int, n_bytes: int, label: str) -> None:
    """Refuse a span that is not one, or ends past the file.

    Raises:
        InputError: If ``0 <= start <= stop`` does not hold.
        ShortReadError: If ``stop`` lies past the end.
    """
    if not 0 <= start <= stop:
        raise InputError(f"the byte range {start}-{stop} is not one: expected 0 <= start <= stop", subject=label)
    if stop > n_bytes:
        raise ShortReadError(f"bytes {start:,} to {stop:,} were asked for, and the file has {n_bytes:,}", subject=label)


class LocalFile:
    """A file on this disk as a byte source: positioned reads, nothing mapped, nothing kept.

    Args:
        path: The file; links are followed.
        label: What an error calls it; the path by default.
        ledger: Where to count what is read.
        from_cache: Count as bytes a cache held already, free of the cap on bytes.

    Attributes:
        label: What an error calls the file.
        n_bytes: Its size.

    Raises:
        FileMissingError: If it cannot be opened.
    """

    gap_bytes = 1 << 16
    """Bytes worth reading over to save a read: at about 1 GB/s they cost what a call does."""

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
            # O_NONBLOCK: a named pipe must not hang the open; it is refused just below.
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
        """Return exactly the bytes ``[start, stop)``.

        Raises:
            ShortReadError: If the file ends before ``stop``, or shrank since it was opened.
            ByteBudgetError: If the read would pass the cap of the ledger.
        """
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
        """Yield the bytes of each span, in order, one span in memory at a time."""
        for start, stop in spans:
            check_span(start, stop, self.n_bytes, self.label)
        return (self.read(start, stop) for start, stop in spans)

    def close(self) -> None:
        """Give the file back to the system; it is also done when the object goes away."""
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
                    f"bytes {start:,} to {stop:,} were asked for, and the file now ends at {position:,}",
                    subject=self.label,
                )
            pieces.append(piece)
            position += len(piece)  # one call gives at most 2 GiB on Linux
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
    """The files of a folder on this disk, or of a snapshot in the Hub's cache.

    Attributes:
        folder: The folder, links followed.
        repo: How a report names it; the folder by default.
        revision: The revision that was asked for.
        commit: Commit the folder holds; found from the path for a snapshot in the Hub's cache.
        file: The one weight file that was named, relative to the folder.
        ledger: Where to count what is read.
        missing: Makes the error for a file that is not there.
        is_local: Whether the folder itself was named; False for a snapshot that stands in for its repository on the
            Hub, whose bytes are counted as held by a cache already.
        subfolder: Folder of that repository that ``folder`` is.
        variant: The quantisation that was named after a colon.
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
    subfolder: str = ""
    variant: str | None = None

    def __post_init__(self) -> None:
        self.repo = self.repo or str(self.folder)
        self.folder = Path(os.path.realpath(self.folder))
        self.commit = self.commit or commit_of_snapshot(self.folder)

    def __repr__(self) -> str:
        return f"LocalRepository({self.label!r})"

    @property
    def label(self) -> str:
        """The folder, or ``owner/name@0123abc`` for a snapshot of a repository."""
        return self.repo if self.commit is None or self.is_local else f"{self.repo}@{self.commit[:7]}"

    @cached_property
    def files(self) -> Mapping[str, FileEntry]:
        """Every regular file below the folder, hidden folders apart, by path; sizes and no content are read."""
        entries: dict[str, FileEntry] = {}
        for folder, subfolders, names in os.walk(self.folder):
            subfolders[:] = sorted(name for name in subfolders if not name.startswith("."))
            for name in sorted(names):
                path = Path(folder, name)
                try:
                    status = path.stat()
                except OSError:  # a dangling link: nothing to read there
                    continue
                if not stat.S_ISREG(status.st_mode):
                    continue
                if len(entries) >= _MOST_FILES:
                    raise InputError(
                        f"has more than {_MOST_FILES:,} files below it, so it is not a model's folder",
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
        """Give random access to a file.

        Raises:
            FileMissingError: If there is no such file.
            UnsafePathError: If the path, or a link on it, leaves the folder.
        """
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
        """Return a whole small file.

        Raises:
            FileMissingError: If there is no such file.
            ByteBudgetError: If it is larger than ``max_bytes``.
            UnsafePathError: If the path, or a link on it, leaves the folder.
        """
        source = self.open(path)
        try:
            check_size(source.n_bytes, max_bytes, source.label)
            return source.read(0, source.n_bytes)
        finally:
            source.close()

    def expect(self, *, whole: Iterable[str] = (), heads: Iterable[str] = ()) -> None:
        """Do nothing: a disk is near."""

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
    """Refuse to read a file whole that is too large for it.

    Raises:
        ByteBudgetError: If ``n_bytes`` is more than ``max_bytes``.
    """
    if n_bytes > max_bytes:
        raise ByteBudgetError(
            f"has {n_bytes:,} bytes, and a file of its kind is read up to {max_bytes:,}", subject=label
        )


def commit_of_snapshot(folder: Path) -> str | None:
    """Return the commit of a folder inside a snapshot of the Hub's cache, else None."""
    repository = _cache_folder_of(folder)
    return None if repository is None else folder.relative_to(repository / "snapshots").parts[0]


def _cache_folder_of(folder: Path) -> Path | None:
    """Return ``<cache>/models--owner--name`` if the folder is (inside) one of its snapshots, else None."""
    for inner in (folder, *folder.parents):
        if inner.parent.name == "snapshots" and COMMIT.fullmatch(inner.name) and "--" in inner.parent.parent.name:
            return inner.parent.parent
    return None


def _blob_name(path: Path) -> str:
    """Return the name a cache link points to, which is the file's digest, or nothing.

    One step only: further on lies a store keyed by another hash.
    """
    if not path.is_symlink():
        return ""
    target = path.readlink()
    return target.name if target.parent.name == "blobs" and _cache_folder_of(path.parent) is not None else ""
