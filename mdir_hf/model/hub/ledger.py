"""Count the bytes read from each file, and enforce a byte limit."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from mdir_hf.errors import ByteBudgetError, InputError

T = TypeVar("T")


class IoLedger:
    """Counts and limits the bytes that a comparison reads. Thread-safe.

    ``max_bytes`` limits reads from the network and local folders, but not from caches. ``files`` maps each file's label
    to the number of bytes read. ``requests`` also counts retries.
    """

    def __init__(self, *, max_bytes: int | None = None) -> None:
        self.bytes_read = 0
        self.bytes_from_cache = 0
        self.requests = 0
        self.files: dict[str, int] = {}
        self._reserved = 0
        self._caps = _caps(max_bytes, 0)
        self._lock = threading.Lock()
        self._listeners: list[Callable[[int], None]] = []
        self._progress_lock = threading.Lock()

    @contextmanager
    def limited(self, max_bytes: int | None) -> Iterator[None]:
        """Limit the bytes that all threads together read inside the block. Blocks can be nested.

        Raises:
            InputError: If ``max_bytes`` is negative.
        """
        with _registered(self._caps, _caps(max_bytes, self.bytes_read), self._lock):
            yield

    @contextmanager
    def listening(self, on_bytes: Callable[[int], None]) -> Iterator[None]:
        """Call a function with the size of each chunk received inside the block.

        The function may be called from any thread, but never concurrently. If it raises an exception, the read ends.
        """
        with _registered(self._listeners, [on_bytes], self._progress_lock):
            yield

    @contextmanager
    def reserve(self, label: str, n_bytes: int) -> Iterator[Callable[[int], None]]:
        """Reserve part of the byte limit for one read; yield a function to call with the size of each chunk.

        Raises:
            ByteBudgetError: If the read would exceed a limit.
        """
        with self._lock:
            self._check(label, n_bytes)
            self._reserved += n_bytes
        n_left = n_bytes

        def arrived(n_arrived: int) -> None:
            nonlocal n_left
            with self._lock:
                if n_arrived > n_left:  # bytes fetched again because the file has changed
                    self._check(label, n_arrived - n_left)
                covered = min(n_arrived, n_left)
                n_left -= covered
                self._reserved -= covered
                self.bytes_read += n_arrived
                self.files[label] = self.files.get(label, 0) + n_arrived
            self._progress(n_arrived)

        try:
            yield arrived
        finally:
            with self._lock:
                self._reserved -= n_left

    def served_from_cache(self, label: str, n_bytes: int) -> None:
        """Count bytes from a disk cache, which are exempt from the limit."""
        with self._lock:
            self.bytes_from_cache += n_bytes
            self.files[label] = self.files.get(label, 0) + n_bytes
        self._progress(n_bytes)

    def requested(self, n_requests: int = 1) -> None:
        """Count HTTP requests."""
        with self._lock:
            self.requests += n_requests

    def _check(self, label: str, n_bytes: int) -> None:
        for cap in self._caps:
            n_used = self.bytes_read - cap.n_bytes_before + self._reserved
            if n_used + n_bytes > cap.max_bytes:
                raise ByteBudgetError(
                    f"the next read needs {n_bytes:,} bytes, but {n_used:,} of the {cap.max_bytes:,} bytes allowed are "
                    "used or reserved; raise the limit on bytes",
                    subject=label,
                )

    def _progress(self, n_bytes: int) -> None:
        if not n_bytes:
            return
        with self._progress_lock:
            for on_bytes in self._listeners:
                on_bytes(n_bytes)


@dataclass(frozen=True, slots=True)
class _Cap:
    max_bytes: int
    n_bytes_before: int


def _caps(max_bytes: int | None, n_bytes_before: int) -> list[_Cap]:
    if max_bytes is not None and max_bytes < 0:
        raise InputError(f"the limit on bytes is {max_bytes}, expected 0 or more")
    return [] if max_bytes is None else [_Cap(max_bytes, n_bytes_before)]


@contextmanager
def _registered(among: list[T], items: list[T], lock: threading.Lock) -> Iterator[None]:
    with lock:
        among += items
    try:
        yield
    finally:
        with lock:
            for item in items:
                among.remove(item)
