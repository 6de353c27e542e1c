"""Faults of the loopback Hub."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from mdir_hf.demo.loopback import Origin
from tests.loopback.traffic import LoggedRequest

FaultKind = Literal[
    "status", "ignore_range", "drop", "truncate", "slow", "wrong_content_range", "changed_etag", "no_content_length",
    "hang_up", "chunked", "gzip", "unknown_size",
]  # fmt: skip


@dataclass
class Fault:
    """A fault that affects a given number of matching requests.

    Attributes:
        kind: ``status``: answer ``status`` with ``headers`` and ``body``. ``ignore_range``: send the whole file with
            200. ``drop``: close the connection after ``after_bytes`` of body. ``truncate``: announce and send only
            ``after_bytes``, with the Content-Range of the whole. ``slow``: wait ``delay_s`` before every 64 KiB.
            ``wrong_content_range``: name a range that is not the one sent. ``changed_etag``: change the ETag (and
            size). ``no_content_length``: close the connection to end the body.
            ``hang_up``: close the connection without a response. ``chunked``: send the body in chunks. ``gzip``:
            compress the body, whatever the client accepts. ``unknown_size``: omit the file size from Content-Range.
        origin: Affect only requests to this server; None for both.
        method: Affect only requests with this method; None for all.
        path: Affect only paths that contain this.
        times: Number of affected requests; None for all.
        after_bytes: See ``kind``.
        status: See ``kind``.
        headers: Further headers of a ``status`` response.
        body: Body of a ``status`` response.
        delay_s: See ``kind``.
    """

    kind: FaultKind
    origin: Origin | None = None
    method: str | None = None
    path: str = ""
    times: int | None = 1
    after_bytes: int = 0
    status: int = 503
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b'{"error":"injected"}'
    delay_s: float = 0.0

    def takes(self, request: LoggedRequest) -> bool:
        """Tell whether the fault affects a request."""
        is_meant = self.origin in (None, request.origin) and self.method in (None, request.method)
        return is_meant and self.path in request.path and self.times != 0
