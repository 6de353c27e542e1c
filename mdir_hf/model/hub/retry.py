"""Retries: which failures, after how long, and for how long.

The client's own ``http_backoff`` waits as long as a ``Retry-After`` header says, however long, and resumes no body.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.utils import parse_ratelimit_headers  # type: ignore[attr-defined]

T = TypeVar("T")

RETRIED_STATUSES = frozenset({408, 429, 500, 502, 503, 504})
LONGEST_WAIT_S = 310.0
"""The Hub counts requests in windows of 300 s, so no honest wait is longer; beyond it we stop and say so."""

MOST_STALLS = 3
"""Silences in a row after which to give up: each has cost its whole timeout already."""

MOST_UNCONNECTED = 3
"""Failures in a row to reach a host at all, after which to give up a question: a person offline waits 2 s, not 20."""

_TRANSIENT = frozenset({"TimeoutException", "NetworkError", "RemoteProtocolError"})
_never = threading.Event()


def pause(wait_s: float, cancelled: threading.Event | None = None) -> None:
    """Wait, unless cancelled; the one place where this folder sleeps, so that tests can replace it."""
    (cancelled or _never).wait(wait_s)


class StalledError(TimeoutError):
    """A body came too slowly to ever end."""


def is_transport_error(exc: BaseException) -> bool:
    """Tell whether the HTTP library raised this: httpx under the Hub client 1.x, httpx2 under 2.x, neither imported."""
    return isinstance(exc, HfHubHTTPError.__bases__[0]) and not isinstance(exc, HfHubHTTPError)


def is_transient(exc: BaseException) -> bool:
    """Tell whether asking again may help: a timeout, a lost connection, or a status worth retrying."""
    if isinstance(exc, HfHubHTTPError):
        return exc.response.status_code in RETRIED_STATUSES
    if isinstance(exc, StalledError):
        return True
    return is_transport_error(exc) and any(kind.__name__ in _TRANSIENT for kind in type(exc).__mro__)


def is_stall(exc: BaseException | None) -> bool:
    """Tell whether a server kept us waiting until a timeout."""
    return isinstance(exc, StalledError) or any(kind.__name__ == "TimeoutException" for kind in type(exc).__mro__)


def is_unconnected(exc: BaseException | None) -> bool:
    """Tell whether no connection was made: no network, no such host, nobody there."""
    return exc is not None and is_transport_error(exc) and type(exc).__name__ == "ConnectError"


def asked_wait_s(headers: Mapping[str, str]) -> float | None:
    """Return the wait the server asks for, in seconds: ``RateLimit`` when used up, else ``Retry-After``, else None."""
    try:
        limit = parse_ratelimit_headers(headers)
    except ValueError:
        limit = None
    if limit is not None and limit.remaining == 0:
        return float(limit.reset_in_seconds) + 1  # the header counts whole seconds
    value = next((value.strip() for key, value in headers.items() if key.lower() == "retry-after"), "")
    return float(value) + 1 if value.isascii() and value.isdigit() and len(value) < 10 else None


@dataclass(slots=True)
class Patience:
    """How often and how long one operation has failed, and whether to try again.

    Attributes:
        attempts: Failures in a row after which to give up.
        failures: Failures in a row so far.
        stalls: How many of them were timeouts.
    """

    attempts: int = 6
    failures: int = 0
    stalls: int = 0

    def progressed(self) -> None:
        """Start counting anew: the operation moved on."""
        self.failures = self.stalls = 0

    def failed(
        self,
        headers: Mapping[str, str] | None = None,
        cancelled: threading.Event | None = None,
        *,
        cause: BaseException | None = None,
    ) -> bool:
        """Count a failure; wait and return True if it is worth asking again, else return False at once.

        Waits 0.5, 1, 2, 4, 8 s (up to 25 % more at random, so that clients do not return together), or as asked.
        """
        self.failures += 1
        self.stalls += is_stall(cause)
        if self.failures >= self.attempts or self.stalls >= MOST_STALLS:
            return False
        wait_s = asked_wait_s(headers) if headers is not None else None
        if wait_s is None:
            wait_s = min(8.0, 0.5 * 2 ** (self.failures - 1)) * (1 + random.random() / 4)
        if wait_s > LONGEST_WAIT_S:
            return False
        pause(wait_s, cancelled)
        return True


def with_patience(call: Callable[[], T], *, before_each: Callable[[], None] = lambda: None) -> T:
    """Call until it succeeds, fails for good, or patience ends; the last exception is raised as it is.

    Args:
        call: A request through the Hub client that raises on an error status.
        before_each: Called before every try, to count requests.
    """
    patience = Patience()
    while True:
        before_each()
        try:
            return call()
        except Exception as exc:
            headers = exc.response.headers if isinstance(exc, HfHubHTTPError) else None
            if not is_transient(exc) or not patience.failed(headers, cause=exc):
                raise
