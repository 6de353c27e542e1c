"""Who runs, who waits and for how many others, and when there is no more room."""

from __future__ import annotations

import threading

from mdir_space.question import RefusedError


class Ticket:
    """A place in the room, kept until :meth:`leave`."""

    def __init__(self, room: WaitingRoom, visitor: str) -> None:
        self._room = room
        self.visitor = visitor

    @property
    def n_ahead(self) -> int:
        """How many must leave before this one may run; 0: it may run."""
        return self._room.n_ahead(self)

    def leave(self) -> None:
        """Give the place back; the second time does nothing."""
        self._room.leave(self)


class WaitingRoom:
    """First come, first served, so many at a time. Thread safe.

    Args:
        n_running: How many may run at a time.
        n_waiting: How many may wait.
        n_per_visitor: How many of one visitor may run or wait; None: unbounded.
    """

    def __init__(self, n_running: int, n_waiting: int, n_per_visitor: int | None) -> None:
        self._n_running, self._n_waiting, self._n_per_visitor = n_running, n_waiting, n_per_visitor
        self._lock = threading.Lock()
        self._tickets: list[Ticket] = []

    def enter(self, visitor: str) -> Ticket:
        """Take the last place.

        Args:
            visitor: Tells visitors apart; no one of them may fill the room.

        Raises:
            RefusedError: If the room is full, or this visitor has enough places.
        """
        with self._lock:
            n_mine = sum(ticket.visitor == visitor for ticket in self._tickets)
            if self._n_per_visitor is not None and n_mine >= self._n_per_visitor:
                raise RefusedError(
                    f"{n_mine} comparisons of yours are running or waiting here already. Let one of them end, or run "
                    "this one on your own machine.",
                    runs_locally=True,
                )
            n_waiting = len(self._tickets) - self._n_running
            if n_waiting >= self._n_waiting:
                raise RefusedError(
                    f"The queue is full: {n_waiting} comparisons are waiting. Try again in some minutes, or run this "
                    "one on your own machine.",
                    runs_locally=True,
                )
            ticket = Ticket(self, visitor)
            self._tickets.append(ticket)
            return ticket

    def n_ahead(self, ticket: Ticket) -> int:
        """How many must leave before this ticket may run."""
        with self._lock:
            return max(0, self._tickets.index(ticket) - self._n_running + 1)

    def leave(self, ticket: Ticket) -> None:
        """Take a ticket out; one that is not there is not missed."""
        with self._lock:
            if ticket in self._tickets:
                self._tickets.remove(ticket)

    def __len__(self) -> int:
        with self._lock:
            return len(self._tickets)
