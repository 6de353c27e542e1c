"""Who runs, who waits and for how many others, and when there is no more room."""

from __future__ import annotations

import threading
from collections import Counter

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
    """So many run at a time, and nobody keeps others waiting by asking often. Thread safe.

    Those who wait come in the order of their arrival, but whoever runs or waits already comes after those who do not.
    Where visitors are bounded, no one of them has the last place, too: others wait for the work of others, and one who
    asks for the longest that there is takes one place of those that there are.

    Args:
        n_running: How many may run at a time.
        n_waiting: How many may wait.
        n_per_visitor: How many of one visitor may run or wait; None: unbounded, and one may have every place.
    """

    def __init__(self, n_running: int, n_waiting: int, n_per_visitor: int | None) -> None:
        self._n_running, self._n_waiting, self._n_per_visitor = n_running, n_waiting, n_per_visitor
        self._most_of_one = n_running if n_per_visitor is None else max(1, n_running - 1)
        self._lock = threading.Lock()
        self._running: list[Ticket] = []
        self._waiting: list[Ticket] = []

    def enter(self, visitor: str) -> Ticket:
        """Take a place.

        Args:
            visitor: Tells visitors apart; no one of them may fill the room.

        Raises:
            RefusedError: If the room is full, or this visitor has enough places.
        """
        with self._lock:
            n_mine = sum(ticket.visitor == visitor for ticket in (*self._running, *self._waiting))
            if self._n_per_visitor is not None and n_mine >= self._n_per_visitor:
                raise RefusedError(
                    f"{n_mine} comparisons of yours are running or waiting here already. Let one of them end, or run "
                    "this one on your own machine.",
                    runs_locally=True,
                )
            n_waiting = len(self._waiting)
            if n_waiting >= self._n_waiting:
                raise RefusedError(
                    f"The queue is full: {n_waiting} comparisons are waiting. Try again in some minutes, or run this "
                    "one on your own machine.",
                    runs_locally=True,
                )
            ticket = Ticket(self, visitor)
            self._waiting.append(ticket)
            self._let_run()
            return ticket

    def n_ahead(self, ticket: Ticket) -> int:
        """How many must leave before this ticket may run."""
        with self._lock:
            return 0 if ticket in self._running else self._in_turn().index(ticket) + 1

    def leave(self, ticket: Ticket) -> None:
        """Take a ticket out; one that is not there is not missed."""
        with self._lock:
            for place in (self._running, self._waiting):
                if ticket in place:
                    place.remove(ticket)
            self._let_run()

    def __len__(self) -> int:
        with self._lock:
            return len(self._running) + len(self._waiting)

    def _in_turn(self) -> list[Ticket]:
        """Those who wait, each after as many of others as it has before it of its own visitor."""
        n_before = Counter(ticket.visitor for ticket in self._running)
        turns: list[tuple[int, int, Ticket]] = []
        for arrived, ticket in enumerate(self._waiting):
            turns.append((n_before[ticket.visitor], arrived, ticket))
            n_before[ticket.visitor] += 1
        return [ticket for _, _, ticket in sorted(turns, key=lambda turn: turn[:2])]

    def _let_run(self) -> None:
        of = Counter(ticket.visitor for ticket in self._running)
        for ticket in self._in_turn():
            if len(self._running) == self._n_running:
                break
            if of[ticket.visitor] < self._most_of_one:
                of[ticket.visitor] += 1
                self._waiting.remove(ticket)
                self._running.append(ticket)
