"""What passes between a client and the loopback Hub: connections, requests and their times, and how far away it is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from mdir_hf.demo.loopback import Origin


@dataclass
class Network:
    """How far away the Hub is; of no distance at first.

    Attributes:
        round_trip_s: What every request waits before it is answered.
        handshake_round_trips: What a new connection waits in addition: one for TCP, one for TLS 1.3.
        bytes_per_s: How fast one connection brings content; None: as fast as this machine.
    """

    round_trip_s: float = 0.0
    handshake_round_trips: int = 2
    bytes_per_s: float | None = None


@dataclass
class LoggedConnection:
    """One connection that a client opened.

    Attributes:
        origin: To which of the two servers.
        opened_at: When, on the monotonic clock.
        n_requests: Requests that came over it so far.
    """

    origin: Origin
    opened_at: float
    n_requests: int = 0


@dataclass
class LoggedRequest:
    """One request as it was received and answered.

    Attributes:
        method: ``GET``, ``HEAD``, ``POST`` or ``PUT``.
        origin: Which of the two servers it came to.
        path: Path without the query.
        range: The ``Range`` header, if any.
        had_token: Whether it carried an ``Authorization`` header.
        status: What was answered.
        bytes_sent: Bytes of body handed to the connection.
        connection: Number of the connection it came over, in the order in which they were opened.
        began: When it was sent, on the monotonic clock; for the first of a connection, when that was opened.
        ended: When the last byte of the answer was about to leave.
    """

    method: str
    origin: Origin
    path: str
    range: str | None
    had_token: bool
    status: int = 0
    bytes_sent: int = 0
    connection: int = 0
    began: float = 0.0
    ended: float = float("inf")


def in_sequence(requests: Iterable[LoggedRequest]) -> int:
    """Count the most requests of which no two were under way at once: what a distant Hub makes a reader wait for.

    With a round trip of no length, requests that could overlap may not; set :attr:`Network.round_trip_s` to measure.
    """
    count, free_from = 0, float("-inf")
    for request in sorted(requests, key=lambda one: one.ended):
        if request.began >= free_from:
            count, free_from = count + 1, request.ended
    return count
