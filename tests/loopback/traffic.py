"""Traffic between a client and the loopback Hub: connections, requests and their times, and simulated latency."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from mdir_hf.demo.loopback import Origin


@dataclass
class Network:
    """Latency and bandwidth of the Hub; no delay by default.

    Attributes:
        round_trip_s: Delay of every response.
        handshake_round_trips: Additional round trips of a new connection: one for TCP, one for TLS 1.3.
        bytes_per_s: Bandwidth of one connection; None for no limit.
    """

    round_trip_s: float = 0.0
    handshake_round_trips: int = 2
    bytes_per_s: float | None = None


@dataclass
class LoggedConnection:
    """One connection that a client opened.

    Attributes:
        origin: The server that accepted it.
        opened_at: Time on the monotonic clock.
        n_requests: Number of requests so far.
    """

    origin: Origin
    opened_at: float
    n_requests: int = 0


@dataclass
class LoggedRequest:
    """One request and its response.

    Attributes:
        method: ``GET``, ``HEAD``, ``POST`` or ``PUT``.
        origin: The server that received it.
        path: Path without the query.
        range: The ``Range`` header, if any.
        had_token: Whether it carried an ``Authorization`` header.
        status: Status of the response.
        bytes_sent: Number of body bytes written to the connection.
        connection: Index of its connection, in the order of opening.
        began: Start on the monotonic clock; for the first of a connection, the time of opening.
        ended: Time just before the last byte of the response is sent.
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
    """Return the largest number of requests without overlap, as a measure of the effect of latency.

    Without latency, concurrent requests may not overlap; set :attr:`Network.round_trip_s` to measure.
    """
    count, free_from = 0, float("-inf")
    for request in sorted(requests, key=lambda one: one.ended):
        if request.began >= free_from:
            count, free_from = count + 1, request.ended
    return count
