"""What goes wrong with some requests to the loopback Hub."""

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
    """Something that goes wrong, for as many matching requests as said.

    Attributes:
        kind: ``status``: answer ``status`` with ``headers`` and ``body``. ``ignore_range``: send the whole file with
            200. ``drop``: close the connection after ``after_bytes`` of body. ``truncate``: announce and send only
            ``after_bytes``, under a Content-Range that promises all. ``slow``: wait ``delay_s`` before every 64 KiB.
            ``wrong_content_range``: name another range than the one sent. ``changed_etag``: another ETag (and size)
            than before. ``no_content_length``: close the connection to end the body.
            ``hang_up``: close the connection before any answer. ``chunked``: send the body in chunks. ``gzip``:
            compress the body, whatever was accepted. ``unknown_size``: a Content-Range without the size of the file.
        origin: Only requests to this server; None: both.
        method: Only requests with this method; None: both.
        path: Only paths that contain this.
        times: How often; None: for ever.
        after_bytes: See ``kind``.
        status: See ``kind``.
        headers: Further headers of a ``status`` answer.
        body: What a ``status`` answer holds.
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
        """Tell whether a request is to go wrong in this way."""
        is_meant = self.origin in (None, request.origin) and self.method in (None, request.method)
        return is_meant and self.path in request.path and self.times != 0
