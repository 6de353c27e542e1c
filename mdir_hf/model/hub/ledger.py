"""Counts the bytes read by file, and enforces the byte cap."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from mdir_hf.errors import ByteBudgetError, InputError

T = TypeVar("T")


class IoLedger:
    """Counts what every source of a comparison reads, and stops it at a cap. Thread safe.

    One ledger may serve several repositories: ``files`` is keyed by file label, so two ``config.json`` stay apart.

    Args:
        max_bytes: Most bytes that may ever be fetched from the network (or read from a local folder) through this
            ledger; None: no cap. Bytes that a cache on this disk already holds are free. A cap for one piece of work
            is :meth:`limited`.

    Attributes:
        bytes_read: Bytes fetched from the network, or read from a local source.
        bytes_from_cache: Bytes that one of the caches on this disk held already.
        requests: HTTP requests made for file metadata and content, retries included.
        files: Bytes of either kind, by file label.
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
        """Hold a cap on bytes inside the block, and none of its own afterwards.

        Blocks may stand inside each other; a read must then keep to every cap. Bytes are counted for the ledger as a
        whole: what other threads read through it meanwhile counts too.

        Args:
            max_bytes: Most bytes that may be read from the beginning of the block; None: no further cap.

        Raises:
            InputError: If ``max_bytes`` is negative.
        """
        with _held(self._caps, _caps(max_bytes, self.bytes_read), self._lock):
            yield

    @contextmanager
    def listening(self, on_bytes: Callable[[int], None]) -> Iterator[None]:
        """Call a function inside the block each time bytes arrive, cached ones included; for a progress bar.

        Several may listen at once. Calls come from any thread, one at a time, and none comes after the block.

        Args:
            on_bytes: Called with the number of bytes. What it raises ends the read. It must not read itself.
        """
        with _held(self._listeners, [on_bytes], self._progress_lock):
            yield

    @contextmanager
    def reserve(self, label: str, n_bytes: int) -> Iterator[Callable[[int], None]]:
        """Hold ``n_bytes`` of the cap for one read, and count what arrives.

        Reads in flight at the same time hold their bytes together, so the cap cannot be passed by concurrency.

        Args:
            label: Label of the file, e.g. ``owner/name@0123abc:model.safetensors``.
            n_bytes: What the read is about to ask for.

        Yields:
            A function to call with the size of each piece that arrives.

        Raises:
            ByteBudgetError: If the read would pass a cap; nothing has been read then.
        """
        with self._lock:
            self._check(label, n_bytes)
            self._reserved += n_bytes
        left = n_bytes

        def arrived(n_arrived: int) -> None:
            nonlocal left
            with self._lock:
                if n_arrived > left:  # bytes fetched a second time, after a file was found changed
                    self._check(label, n_arrived - left)
                covered = min(n_arrived, left)
                left -= covered
                self._reserved -= covered
                self.bytes_read += n_arrived
                self.files[label] = self.files.get(label, 0) + n_arrived
            self._progress(n_arrived)

        try:
            yield arrived
        finally:
            with self._lock:
                self._reserved -= left

    def served_from_cache(self, label: str, n_bytes: int) -> None:
        """Count bytes that a cache on this disk held; they are free of the cap."""
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
            used = self.bytes_read - cap.n_bytes_before + self._reserved
            if used + n_bytes > cap.max_bytes:
                raise ByteBudgetError(
                    f"the next read needs {n_bytes:,} bytes, and {used:,} of the {cap.max_bytes:,} bytes allowed are "
                    "used or held; raise the cap on bytes, or compare at a lighter level",
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
        raise InputError(f"the cap on bytes is {max_bytes}, expected 0 or more")
    return [] if max_bytes is None else [_Cap(max_bytes, n_bytes_before)]


@contextmanager
def _held(among: list[T], items: list[T], lock: threading.Lock) -> Iterator[None]:
    with lock:
        among += items
    try:
        yield
    finally:
        with lock:
            for item in items:
                among.remove(item)
