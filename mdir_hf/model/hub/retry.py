"""Decide which failures to retry, and wait as the Hub's rate limit requires.

Each response states how many requests remain in the current window (docs/hub-behaviour.md). If few remain, they are
spread over the rest of the window.
"""

from __future__ import annotations

import hashlib
import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeVar
from urllib.parse import urlsplit

from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.utils import parse_ratelimit_headers  # type: ignore[attr-defined]

from mdir_hf.model.hub.endpoint import origin

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


Bucket = Literal["api", "resolvers", "pages"]

ANONYMOUS: Mapping[Bucket, int] = {"api": 500, "resolvers": 3000, "pages": 100}
"""Number of requests per window for an IP address without a token (docs/hub/rate-limits, September 2025)."""
USER: Mapping[Bucket, int] = {"api": 1000, "resolvers": 5000, "pages": 200}
"""Number of requests per window for a user on the free plan."""
WINDOW_S = 300

_LITTLE_LEFT = 10  # requests are spread if less than this percentage of the allowed number is left


def bucket_of(url: str) -> Bucket:
    """Return the Hub's rate-limit class for a URL."""
    path = urlsplit(url).path
    if "/resolve/" in path or "/api/resolve-cache/" in path:
        return "resolvers"
    return "api" if "/api/" in path else "pages"


@dataclass(slots=True)
class _Window:
    n_left: int
    n_little: int
    ends_at: float
    free_at: float = 0.0


class Quota:
    """Tracks how many requests each caller has left in each rate-limit class. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._windows: dict[tuple[object, str, str], _Window] = {}

    def before(self, url: str, authorization: str, cancelled: threading.Event | None = None) -> float:
        """Wait until a request to the Hub may be sent, count it, and return the seconds waited."""
        key = (origin(url), _caller(authorization), bucket_of(url))
        with self._lock:
            wait_s = _wait_s(self._windows.get(key), self._clock())
        if wait_s > 0:
            pause(wait_s, cancelled)
        return wait_s

    def after(self, url: str, authorization: str, headers: Mapping[str, str]) -> None:
        """Record the number of remaining requests stated in a response's headers."""
        try:
            limit = parse_ratelimit_headers(headers)
        except ValueError:  # thousands of digits
            return
        if limit is None or limit.reset_in_seconds > 2 * WINDOW_S:
            return
        n_allowed = limit.limit if limit.limit is not None else ANONYMOUS.get(bucket_of(url), 0)
        key = (origin(url), _caller(authorization), bucket_of(url))
        with self._lock:
            ends_at = self._clock() + limit.reset_in_seconds
            window = self._windows.get(key)
            is_same = window is not None and abs(window.ends_at - ends_at) < 3  # the header counts whole seconds
            if window is not None and is_same:
                # Responses may arrive out of order; within a window the smallest number is the latest.
                window.n_left = min(window.n_left, limit.remaining)
            elif window is None or ends_at > window.ends_at:
                self._windows[key] = _Window(limit.remaining, n_allowed * _LITTLE_LEFT // 100, ends_at)


def _wait_s(window: _Window | None, now: float) -> float:
    if window is None or now >= window.ends_at:
        return 0.0
    window.n_left -= 1
    if window.n_left >= window.n_little:
        return 0.0
    if window.n_left < 0:
        return min(LONGEST_WAIT_S, window.ends_at - now + 1)  # the header counts whole seconds
    window.free_at = max(now, window.free_at) + max(0.0, window.ends_at - max(now, window.free_at)) / (
        window.n_left + 2
    )
    return min(LONGEST_WAIT_S, window.free_at - now)


def _caller(authorization: str) -> str:
    return hashlib.sha256(authorization.encode("utf-8", "replace")).hexdigest() if authorization else ""


QUOTA = Quota()
"""Shared by all requests of this process."""
