"""Decide which failures to retry, and wait as the Hub's rate limit requires.

``http_backoff`` of the Hub client is not used: it logs URLs, which may be signed, its waits have no limit and cannot be
cancelled, and it closes the connections of other threads.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeVar

from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.utils import parse_ratelimit_headers  # type: ignore[attr-defined]

T = TypeVar("T")

RETRIED_STATUSES = frozenset({408, 429, 500, 502, 503, 504})
LONGEST_WAIT_S = 310.0
"""Longest wait. The Hub counts requests in windows of 300 s, so a longer wait is pointless."""

MOST_STALLS = 3
"""Number of timeouts without progress before giving up."""

MOST_UNCONNECTED = 3
"""Number of failed connections before giving up, so that an offline user waits 2 s rather than 20 s."""

_TRANSIENT = frozenset({"TimeoutException", "NetworkError", "RemoteProtocolError"})
_never = threading.Event()


def pause(wait_s: float, cancelled: threading.Event | None = None) -> None:
    """Wait unless cancelled."""
    (cancelled or _never).wait(wait_s)


class StalledError(TimeoutError):
    """A response body arrived too slowly."""


def is_transport_error(exc: BaseException) -> bool:
    """Return whether an exception comes from the HTTP library (httpx or httpx2)."""
    return isinstance(exc, HfHubHTTPError.__bases__[0]) and not isinstance(exc, HfHubHTTPError)


def is_transient(exc: BaseException) -> bool:
    """Return whether a retry may succeed."""
    if isinstance(exc, HfHubHTTPError):
        return exc.response.status_code in RETRIED_STATUSES
    if isinstance(exc, StalledError):
        return True
    return is_transport_error(exc) and any(kind.__name__ in _TRANSIENT for kind in type(exc).__mro__)


def is_stall(exc: BaseException | None) -> bool:
    """Return whether the exception is a timeout."""
    return isinstance(exc, StalledError) or any(kind.__name__ == "TimeoutException" for kind in type(exc).__mro__)


def is_unconnected(exc: BaseException | None) -> bool:
    """Return whether the exception means that no connection could be made."""
    return exc is not None and is_transport_error(exc) and type(exc).__name__ == "ConnectError"


def requested_wait_s(headers: Mapping[str, str]) -> float | None:
    """Return the wait that the server requests, in seconds, or None."""
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
    """Counts failures and timeouts of one operation, and decides whether to retry it."""

    attempts: int = 6
    failures: int = 0
    stalls: int = 0

    def progressed(self) -> None:
        """Reset the counts after some data has arrived."""
        self.failures = self.stalls = 0

    def failed(
        self,
        headers: Mapping[str, str] | None = None,
        cancelled: threading.Event | None = None,
        *,
        cause: BaseException | None = None,
    ) -> bool:
        """Count a failure. If a retry is worthwhile, wait and return True.

        The wait is as long as the server requests, or else grows exponentially.
        """
        self.failures += 1
        self.stalls += is_stall(cause)
        if self.failures >= self.attempts or self.stalls >= MOST_STALLS:
            return False
        wait_s = requested_wait_s(headers) if headers is not None else None
        if wait_s is None:
            wait_s = min(8.0, 0.5 * 2 ** (self.failures - 1)) * (1 + random.random() / 4)
        if wait_s > LONGEST_WAIT_S:
            return False
        pause(wait_s, cancelled)
        return True


def with_patience(call: Callable[[], T], *, before_each: Callable[[], None] = lambda: None) -> T:
    """Call a function, and retry it after transient failures."""
    patience = Patience()
    while True:
        before_each()
        try:
            return call()
        except Exception as exc:
            headers = exc.response.headers if isinstance(exc, HfHubHTTPError) else None
            if not is_transient(exc) or not patience.failed(headers, cause=exc):
                raise


Bucket = Literal["api", "resolvers"]

ANONYMOUS: Mapping[Bucket, int] = {"api": 500, "resolvers": 3000}
"""Number of requests per window for an IP address without a token (docs/hub/rate-limits, September 2025)."""
USER: Mapping[Bucket, int] = {"api": 1000, "resolvers": 5000}
"""Number of requests per window for a user on the free plan."""
WINDOW_S = 300
