"""Waits for the Hub's rate limit before a request would be answered with 429.

Every answer of the Hub says what is left of the window (docs/hub-behaviour.md). It is kept here, in one place for all
threads of the process. Plenty left: nobody waits. Little left: requests are spread over the rest of the window.
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
"""Requests in a window that the Hub answers one address without a token (docs/hub/rate-limits, September 2025)."""
USER: Mapping[Bucket, int] = {"api": 1000, "resolvers": 5000, "pages": 200}
"""And one user with a token, of the plan that costs nothing."""
WINDOW_S = 300

_LITTLE_LEFT = 10  # per cent of the window's requests, from which on they are spread


def bucket_of(url: str) -> Bucket:
    """Return the class of requests that the Hub counts an address of its own under."""
    path = urlsplit(url).path
    if "/resolve/" in path or "/api/resolve-cache/" in path:
        return "resolvers"
    return "api" if "/api/" in path else "pages"


@dataclass(slots=True)
class _Window:
    """What is left of one window.

    Attributes:
        n_left: Requests, less those that were sent since the Hub said so.
        n_little: From how few on requests are spread.
        ends_at: When.
        free_at: When the next request may be sent.
    """

    n_left: int
    n_little: int
    ends_at: float
    free_at: float = 0.0


class Quota:
    """What the Hub said is left, for each caller and class of requests. Thread safe.

    Args:
        clock: What time it is, in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._windows: dict[tuple[object, str, str], _Window] = {}

    def before(self, url: str, authorization: str, cancelled: threading.Event | None = None) -> float:
        """Wait until a request to the Hub should be sent, and count it; return how long that was, in seconds.

        Args:
            url: An address of the Hub itself; other hosts count nothing.
            authorization: The header of that name, empty for none.
            cancelled: Ends the wait.
        """
        key = (origin(url), _caller(authorization), bucket_of(url))
        with self._lock:
            wait_s = _wait_s(self._windows.get(key), self._clock())
        if wait_s > 0:
            retry.pause(wait_s, cancelled)
        return wait_s

    def after(self, url: str, authorization: str, headers: Mapping[str, str]) -> None:
        """Take note of what an answer says is left."""
        try:
            said = parse_ratelimit_headers(headers)
        except ValueError:  # thousands of digits
            return
        if said is None or said.reset_in_seconds > 2 * WINDOW_S:
            return
        n_allowed = said.limit if said.limit is not None else ANONYMOUS.get(bucket_of(url), 0)
        key = (origin(url), _caller(authorization), bucket_of(url))
        with self._lock:
            ends_at = self._clock() + said.reset_in_seconds
            known = self._windows.get(key)
            is_same = known is not None and abs(known.ends_at - ends_at) < 3  # the header counts whole seconds
            if known is not None and is_same:
                # Answers overtake each other; of one window the least is the latest.
                known.n_left = min(known.n_left, said.remaining)
            elif known is None or ends_at > known.ends_at:
                self._windows[key] = _Window(said.remaining, n_allowed * _LITTLE_LEFT // 100, ends_at)


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
"""That of this process."""
