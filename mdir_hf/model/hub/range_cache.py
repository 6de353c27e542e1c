"""A disk cache of byte ranges, so that comparing a model again needs no download.

Layout: ``<root>/ranges/<key[:2]>/<key>/<start>-<stop>``, one file per chunk. Each file ends with 24 bytes: the
chunk's length and the first half of its SHA-256. Several processes may share a root.
"""

from __future__ import annotations

import bisect
import contextlib
import functools
import hashlib
import os
import re
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from mdir_hf.model.hub.local import digest
from mdir_hf.own_cache import cache_max_bytes, cache_root

PIECE_BYTES = 4 << 20
"""Largest chunk. Reading any part of a chunk hashes all of it, so this limits the cost of a short read."""

_N_DIGEST = 16
_N_TRAILER = 8 + _N_DIGEST
_ABANDONED_AGE_S = 3600.0  # temporary files older than this belong to a killed process
_PIECE = re.compile(r"(\d+)-(\d+)")
_TEMPORARY = "tmp-"


def content_key(*, endpoint: str, etag: str | None, repo: str, commit: str, path: str) -> str:
    """Return the cache key of a file, 40 hex digits.

    The key is derived from the Hub's URL and the file's digest or, if that is unknown, its repository, commit and
    path. Cached entries therefore never become outdated.
    """
    name = digest(etag) or f"{repo}\n{commit}\n{path}"
    return hashlib.blake2b(f"{endpoint}\n{name}".encode(), digest_size=20).hexdigest()


def shared_range_cache() -> RangeCache:
    """Return this process's range cache, with the folder and size limit set in the environment."""
    return _shared(cache_root(), cache_max_bytes())


@functools.lru_cache(maxsize=8)
def _shared(root: Path, max_bytes: int) -> RangeCache:
    return RangeCache(root, max_bytes=max_bytes)


class RangeCache:
    """A size-limited disk cache of byte ranges. Failed writes raise no error. A limit of 0 disables the cache.

    Attributes:
        is_writable: False if the cache is disabled, or the disk is full or read-only.
    """

    def __init__(self, root: Path | None = None, *, max_bytes: int | None = None) -> None:
        self.root = (root if root is not None else cache_root()) / "ranges"
        self.max_bytes = cache_max_bytes() if max_bytes is None else max_bytes
        self.is_writable = self.max_bytes > 0
        self._lock = threading.Lock()
        self._n_bytes = 0  # total size of all chunks when last counted
        self._n_uncounted: int | None = None  # bytes written since that count; None before the first
        self._spans: dict[str, list[tuple[int, int]]] = {}
        self._wanted: dict[tuple[str, int, int], _Wanted] = {}

    def get(self, key: str, start: int, stop: int) -> bytes | None:
        """Return the bytes ``[start, stop)`` if intact chunks cover them, else None."""
        if self.max_bytes <= 0:
            return None
        covering: list[bytes] = []
        position = start
        while position < stop:
            span = self._covering(key, position)
            piece = self._load(key, span) if span is not None else None
            if span is None or piece is None:
                return None
            covering.append(piece[position - span[0] : min(stop, span[1]) - span[0]])
            position = min(stop, span[1])
        return covering[0] if len(covering) == 1 else b"".join(covering)

    def put(self, key: str, start: int, content: bytes) -> None:
        """Store bytes that begin at ``start``. If the disk is full or read-only, stop writing to the cache."""
        if not self.is_writable or len(content) > self.max_bytes // 4:  # a huge read must not evict everything else
            return
        for offset in range(0, len(content), PIECE_BYTES):
            piece = content[offset : offset + PIECE_BYTES]
            try:
                self._store(key, (start + offset, start + offset + len(piece)), piece)
            except FileNotFoundError:
                continue  # another process deleted the folder
            except OSError:
                self.is_writable = False
                return

    def drop(self, key: str) -> None:
        """Delete all cached ranges of a key."""
        with self._lock:
            spans = self._spans.pop(key, None) or list(self._listed(key))
        for span in {*spans, *self._listed(key)}:
            with contextlib.suppress(OSError):
                self._path(key, span).unlink()

    @contextlib.contextmanager
    def alone(self, key: str, start: int, stop: int) -> Iterator[None]:
        """Lock a range so that only one thread fetches it."""
        with self._lock:
            waited = self._wanted.setdefault((key, start, stop), _Wanted())
            waited.n += 1
        try:
            with waited.lock:
                yield
        finally:
            with self._lock:
                waited.n -= 1
                if not waited.n:
                    del self._wanted[key, start, stop]

    def _covering(self, key: str, position: int) -> tuple[int, int] | None:
        with self._lock:
            if key not in self._spans:
                self._spans[key] = sorted(self._listed(key))
            spans = self._spans[key]
            best = None
            for at in range(bisect.bisect_right(spans, (position, 1 << 63)) - 1, -1, -1):
                if spans[at][0] <= position - PIECE_BYTES:
                    break
                if spans[at][1] > position and (best is None or spans[at][1] > best[1]):
                    best = spans[at]
            return best

    def _listed(self, key: str) -> Iterator[tuple[int, int]]:
        try:
            names = [path.name for path in self._folder(key).iterdir()]
        except OSError:
            return
        for name in names:
            match = _PIECE.fullmatch(name)
            if match is not None:
                yield int(match[1]), int(match[2])

    def _load(self, key: str, span: tuple[int, int]) -> bytes | None:
        path = self._path(key, span)
        with contextlib.suppress(OSError):
            content = path.read_bytes()
            piece, trailer = content[:-_N_TRAILER], content[-_N_TRAILER:]
            if len(piece) == span[1] - span[0] and trailer == _trailer(piece):
                with contextlib.suppress(OSError):
                    os.utime(path)  # for eviction by last use
                return piece
            path.unlink()
        with self._lock, contextlib.suppress(KeyError, ValueError):
            self._spans[key].remove(span)
        return None

    def _store(self, key: str, span: tuple[int, int], piece: bytes) -> None:
        path = self._path(key, span)
        if path.exists():
            return
        self.root.parent.parent.mkdir(parents=True, exist_ok=True)
        for folder in (self.root.parent, self.root, path.parent.parent, path.parent):
            folder.mkdir(exist_ok=True, mode=0o700)
        self._make_room(len(piece) + _N_TRAILER)
        # mkstemp creates files with mode 0600, so that gated and private content stays with its reader.
        descriptor, temporary = tempfile.mkstemp(prefix=_TEMPORARY, dir=self.root)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(piece)
                file.write(_trailer(piece))
            Path(temporary).replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                Path(temporary).unlink()
            raise
        with self._lock:
            spans = self._spans.setdefault(key, [])
            if span not in spans:
                bisect.insort(spans, span)

    def _make_room(self, n_bytes: int) -> None:
        with self._lock:
            if self._n_uncounted is None:
                self._sweep_abandoned()
                self._n_bytes, self._n_uncounted = sum(size for _, size, _ in self._pieces()), 0
            self._n_uncounted += n_bytes
            # Other processes write and delete here too, so the disk is recounted from time to time.
            if self._n_bytes + self._n_uncounted <= self.max_bytes and self._n_uncounted <= self.max_bytes // 8:
                return
            pieces = sorted(self._pieces())
            total = sum(size for _, size, _ in pieces) + n_bytes
            is_full = total > self.max_bytes
            for _, size, path in pieces if is_full else ():
                if total <= self.max_bytes * 9 // 10:
                    break
                if path.name.startswith(_TEMPORARY):  # being written; abandoned ones are removed by age
                    continue
                with contextlib.suppress(OSError):
                    path.unlink()
                    total -= size
            self._n_bytes, self._n_uncounted = total, 0
            if is_full:
                self._spans.clear()

    def _pieces(self) -> Iterator[tuple[float, int, Path]]:
        for folder, _, names in os.walk(self.root):
            for name in names:
                path = Path(folder, name)
                with contextlib.suppress(OSError):
                    status = path.stat()
                    yield status.st_mtime, status.st_size, path

    def _sweep_abandoned(self) -> None:
        oldest = time.time() - _ABANDONED_AGE_S
        with contextlib.suppress(OSError):
            for path in self.root.glob(f"{_TEMPORARY}*"):
                with contextlib.suppress(OSError):
                    if path.stat().st_mtime < oldest:
                        path.unlink()

    def _folder(self, key: str) -> Path:
        return self.root / key[:2] / key

    def _path(self, key: str, span: tuple[int, int]) -> Path:
        return self._folder(key) / f"{span[0]}-{span[1]}"


@dataclass
class _Wanted:
    n: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)


def _trailer(piece: bytes) -> bytes:
    return len(piece).to_bytes(8, "little") + hashlib.sha256(piece).digest()[:_N_DIGEST]
