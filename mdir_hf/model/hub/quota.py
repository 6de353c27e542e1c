"""Waits for the Hub's rate limit, instead of running into 429 responses.

Every response of the Hub states the remaining requests of the window (docs/hub-behaviour.md). They are tracked in one
place for all threads of the process. If few are left, requests are spread over the rest of the window.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

from huggingface_hub.utils import parse_ratelimit_headers  # type: ignore[attr-defined]

from mdir_hf.model.hub import retry
from mdir_hf.model.hub.endpoint import origin

Bucket = Literal["api", "resolvers", "pages"]

ANONYMOUS: Mapping[Bucket, int] = {"api": 500, "resolvers": 3000, "pages": 100}
"""Requests per window for an IP address without a token (docs/hub/rate-limits, September 2025)."""
USER: Mapping[Bucket, int] = {"api": 1000, "resolvers": 5000, "pages": 200}
"""Requests per window for a user with a token, on the free plan."""
WINDOW_S = 300

_LITTLE_LEFT = 10  # requests are spread if less than this percentage of the window is left


def bucket_of(url: str) -> Bucket:
    """Return the class of requests under which the Hub counts a URL."""
    path = urlsplit(url).path
    if "/resolve/" in path or "/api/resolve-cache/" in path:
        return "resolvers"
    return "api" if "/api/" in path else "pages"


@dataclass(slots=True)
class _Window:
    """The state of one window."""

    n_left: int
    n_little: int
    ends_at: float
    free_at: float = 0.0


class Quota:
    """Tracks remaining requests for each caller and class of requests. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._windows: dict[tuple[object, str, str], _Window] = {}

    def before(self, url: str, authorization: str, cancelled: threading.Event | None = None) -> float:
        """Wait until a request to the Hub may be sent, and count it; return the wait in seconds.

        Args:
            url: A URL on the Hub itself; other hosts are not limited.
            authorization: The ``Authorization`` header, or empty.
            cancelled: Ends the wait when set.
        """
        key = (origin(url), _caller(authorization), bucket_of(url))
        with self._lock:
            wait_s = _wait_s(self._windows.get(key), self._clock())
        if wait_s > 0:
            retry.pause(wait_s, cancelled)
        return wait_s

    def after(self, url: str, authorization: str, headers: Mapping[str, str]) -> None:
        """Record the remaining requests that a response states."""
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
            known = self._windows.get(key)
            is_same = known is not None and abs(known.ends_at - ends_at) < 3  # the header counts whole seconds
            if known is not None and is_same:
                # Responses may arrive out of order; within a window the smallest number is the latest.
                known.n_left = min(known.n_left, limit.remaining)
            elif known is None or ends_at > known.ends_at:
                self._windows[key] = _Window(limit.remaining, n_allowed * _LITTLE_LEFT // 100, ends_at)


def _wait_s(window: _Window | None, now: float) -> float:
    if window is None or now >= window.ends_at:
        return 0.0
    window.n_left -= 1
    if window.n_left >= window.n_little:
        return 0.0
    if window.n_left < 0:
        return min(retry.LONGEST_WAIT_S, window.ends_at - now + 1)  # the header counts whole seconds
    window.free_at = max(now, window.free_at) + max(0.0, window.ends_at - max(now, window.free_at)) / (
        window.n_left + 2
    )
    return min(retry.LONGEST_WAIT_S, window.free_at - now)


def _caller(authorization: str) -> str:
    return hashlib.sha256(authorization.encode("utf-8", "replace")).hexdigest() if authorization else ""


QUOTA = Quota()
"""The quota of this process."""
