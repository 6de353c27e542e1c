"""The job queue: running and waiting jobs, their positions, and limits on their number."""

from __future__ import annotations

import threading
from collections import Counter

from mdir_space.jobs.question import RefusedError


class QueueEntry:
    """A place in the queue, held until :meth:`leave` is called."""

    def __init__(self, queue: JobQueue, visitor: str) -> None:
        self._queue = queue
        self.visitor = visitor

    @property
    def n_ahead(self) -> int:
        """Number of jobs ahead of this one; 0 if it may run."""
        return self._queue.n_ahead(self)

    def leave(self) -> None:
        """Give up the place; calling it again does nothing."""
        self._queue.leave(self)


class JobQueue:
    """Limits how many jobs run at a time, and shares the places fairly among visitors. Thread-safe.

    Jobs wait in order of arrival, but visitors take turns. ``n_per_visitor`` limits the running and waiting jobs of
    each visitor, unless it is None. A single visitor then cannot use all running places.
    """

    def __init__(self, n_running: int, n_waiting: int, n_per_visitor: int | None) -> None:
        self._n_running, self._n_waiting, self._n_per_visitor = n_running, n_waiting, n_per_visitor
        self._most_of_one = n_running if n_per_visitor is None else max(1, n_running - 1)
        self._lock = threading.Lock()
        self._running: list[QueueEntry] = []
        self._waiting: list[QueueEntry] = []

    def enter(self, visitor: str) -> QueueEntry:
        """Enter the queue.

        Raises:
            RefusedError: If the queue is full, or this visitor already has enough places.
        """
        with self._lock:
            n_mine = sum(entry.visitor == visitor for entry in (*self._running, *self._waiting))
            if self._n_per_visitor is not None and n_mine >= self._n_per_visitor:
                raise RefusedError(
                    f"{n_mine} comparisons of yours are running or waiting here already. Wait until one of them ends, "
                    "or run this one on your own machine.",
                    runs_locally=True,
                )
            n_waiting = len(self._waiting)
            if n_waiting >= self._n_waiting:
                raise RefusedError(
                    f"The queue is full: {n_waiting} comparisons are waiting. Try again in a few minutes, or run this "
                    "one on your own machine.",
                    runs_locally=True,
                )
            entry = QueueEntry(self, visitor)
            self._waiting.append(entry)
            self._let_run()
            return entry

    @property
    def n_waiting(self) -> int:
        """Number of waiting jobs."""
        with self._lock:
            return len(self._waiting)

    def n_ahead(self, entry: QueueEntry) -> int:
        """Return the place of an entry among the waiting ones, from 1; 0 if it may run."""
        with self._lock:
            return 0 if entry in self._running else self._in_turn().index(entry) + 1

    def leave(self, entry: QueueEntry) -> None:
        """Remove an entry, if it is still in the queue."""
        with self._lock:
            for place in (self._running, self._waiting):
                if entry in place:
                    place.remove(entry)
            self._let_run()

    def __len__(self) -> int:
        with self._lock:
            return len(self._running) + len(self._waiting)

    def _in_turn(self) -> list[QueueEntry]:
        """Return the waiting entries in the order in which they will run. Visitors take turns."""
        n_before = Counter(entry.visitor for entry in self._running)
        turns: list[tuple[int, int, QueueEntry]] = []
        for position, entry in enumerate(self._waiting):
            turns.append((n_before[entry.visitor], position, entry))
            n_before[entry.visitor] += 1
        return [entry for _, _, entry in sorted(turns, key=lambda turn: turn[:2])]

    def _let_run(self) -> None:
        of = Counter(entry.visitor for entry in self._running)
        for entry in self._in_turn():
            if len(self._running) == self._n_running:
                break
            if of[entry.visitor] < self._most_of_one:
                of[entry.visitor] += 1
                self._waiting.remove(entry)
                self._running.append(entry)
