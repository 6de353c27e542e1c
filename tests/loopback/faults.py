"""What the loopback Hub notes of every request, and what goes wrong with some."""

from __future__ import annotations

import contextlib
import hashlib
import re
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal
from urllib.parse import unquote

from mdir_hf.demo.loopback_files import StoredFile
from mdir_hf.demo.loopback_server import Handler, Origin
from tests.loopback.traffic import LoggedConnection, LoggedRequest

FaultKind = Literal[
    "status", "ignore_range", "drop", "truncate", "slow", "wrong_content_range", "changed_etag", "no_content_length"
]


@dataclass
class Fault:
    """Something that goes wrong, for as many matching requests as said.

    Attributes:
        kind: ``status``: answer ``status`` with ``headers`` and ``body``. ``ignore_range``: send the whole file with
            200. ``drop``: close the connection after ``after_bytes`` of body. ``truncate``: announce and send only
            ``after_bytes``, under a Content-Range that promises all. ``slow``: wait ``delay_s`` before every 64 KiB.
            ``wrong_content_range``: name another range than the one sent. ``changed_etag``: another ETag (and size)
            than before. ``no_content_length``: close the connection to end the body.
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


class FaultyHandler(Handler):
    """Logs connections and requests, lets them wait as the network says, and answers those with a fault wrongly.

    Faults but ``status`` and ``changed_etag`` concern the content of files only.
    """

    _fault: Fault | None = None
    _log: LoggedRequest | None = None
    _is_content = False

    def setup(self) -> None:
        """Note a new connection, and how long it took to open."""
        super().setup()
        hub = self.server.hub
        self._connection = LoggedConnection(self.server.origin, time.monotonic())
        self._number = hub.note_connection(self._connection)
        time.sleep(hub.network.round_trip_s * hub.network.handshake_round_trips)

    def _answer_request(self) -> None:
        self._is_content = False
        asked, had_token = self.headers.get("Range"), "Authorization" in self.headers
        self._log = LoggedRequest(self.command, self.server.origin, unquote(self._path), asked, had_token)
        is_first = self._connection.n_requests == 0
        self._connection.n_requests += 1
        self._log.connection = self._number
        self._log.began = self._connection.opened_at if is_first else time.monotonic()
        self._hub.requests.append(self._log)
        self._fault = self._hub.take_fault(self._log)
        time.sleep(self._hub.network.round_trip_s)
        if self._has("status"):
            self._answer(self._fault.status, self._fault.body, self._fault.headers)
        else:
            super()._answer_request()

    def _has(self, *kinds: FaultKind) -> bool:
        return self._fault is not None and self._fault.kind in kinds

    def _content(self, file: StoredFile, headers: Mapping[str, str]) -> None:
        self._is_content = True
        if self._has("ignore_range"):
            del self.headers["Range"]
        super()._content(file, headers)

    def _body(self, place: Path, start: int, stop: int) -> None:
        sent = start + self._fault.after_bytes if self._has("drop", "truncate") else stop
        super()._body(place, start, min(stop, sent))
        if self._has("drop") and sent < stop:
            # Hang up in the middle of the body.
            self.close_connection = True
            self.wfile.flush()
            with contextlib.suppress(OSError):
                self.connection.shutdown(socket.SHUT_RDWR)

    def _send(self, block: bytes) -> None:
        if self._is_content and self._has("slow"):
            time.sleep(self._fault.delay_s)
        if self._hub.network.bytes_per_s is not None:
            time.sleep(len(block) / self._hub.network.bytes_per_s)
        # Before the write, so that whoever has the bytes finds them logged.
        self._log.bytes_sent += len(block)
        self._log.ended = time.monotonic()
        super()._send(block)

    def end_headers(self) -> None:
        if self._log is not None:
            self._log.ended = time.monotonic()
        super().end_headers()

    def send_response(self, code: int, message: str | None = None) -> None:
        if self._log is not None:
            self._log.status = code
        super().send_response(code, message)

    def send_header(self, keyword: str, value: str) -> None:
        if self._has("changed_etag") and keyword == "X-Linked-Size":
            value = str(int(value) + 1)
        elif self._has("changed_etag") and keyword in ("ETag", "X-Linked-Etag"):
            kind = "sha256" if len(value) == 2 + 64 else "sha1"
            value = f'"{hashlib.new(kind, value.encode()).hexdigest()}"'
        elif self._has("wrong_content_range") and keyword == "Content-Range":
            value = re.sub(r"\d+(?=[-/])", lambda number: str(int(number[0]) + 1), value)
        elif self._has("truncate") and self._is_content and keyword == "Content-Length":
            value = str(min(int(value), self._fault.after_bytes))
        elif self._has("no_content_length") and self._is_content and keyword == "Content-Length":
            self.close_connection = True
            keyword, value = "Connection", "close"
        super().send_header(keyword, value)
