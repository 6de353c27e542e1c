"""Rate limits of the loopback Hub: fixed windows, with one count for each caller and class of requests.

They follow https://huggingface.co/docs/hub/rate-limits. Every response has the headers of
draft-ietf-httpapi-ratelimit-headers-09.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

Bucket = Literal["api", "resolvers", "pages"]

DOCUMENTED: dict[str, dict[Bucket, int]] = {
    "anonymous": {"api": 500, "resolvers": 3000, "pages": 100},
    "free user": {"api": 1000, "resolvers": 5000, "pages": 200},
}
"""Requests in a window, for an IP address without a token and for a user with one."""


def bucket_of(path: str) -> Bucket:
    """Return the class of requests to a path on the hub."""
    # The second hop of a small file counts as another request here; the Hub does not document whether it does there.
    if "/resolve/" in path or path.startswith("/api/resolve-cache/"):
        return "resolvers"
    return "api" if path.startswith("/api/") else "pages"


@dataclass
class RateLimits:
    """Counts requests. Thread-safe.

    Attributes:
        quotas: Requests in a window, by plan and class; a test may lower them.
        window_s: Length of a window.
        clock: Returns the time.
    """

    quotas: dict[str, dict[Bucket, int]] = field(
        default_factory=lambda: {plan: dict(quotas) for plan, quotas in DOCUMENTED.items()}
    )
    window_s: int = 300
    clock: Callable[[], float] = time.monotonic
    _used: dict[tuple[str, Bucket], tuple[int, int]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, caller: str, plan: str, bucket: Bucket) -> tuple[bool, dict[str, str]]:
        """Count a request; return whether it is within the quota, and the rate limit headers."""
        quota, now = self.quotas[plan][bucket], self.clock()
        window = int(now // self.window_s)
        with self._lock:
            counted_in, n_used = self._used.get((caller, bucket), (window, 0))
            n_used = (n_used if counted_in == window else 0) + 1
            self._used[caller, bucket] = window, n_used
        reset_s = math.ceil((window + 1) * self.window_s - now)
        return n_used <= quota, {
            "RateLimit": f'"{bucket}";r={max(0, quota - n_used)};t={reset_s}',
            "RateLimit-Policy": f'"fixed window";"{bucket}";q={quota};w={self.window_s}',
        }
