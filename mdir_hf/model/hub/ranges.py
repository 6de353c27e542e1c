"""Read byte ranges of one file on the Hub, at one commit."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import Any

from mdir_hf.background import in_order, result_of, run_beside
from mdir_hf.errors import HubError, MdirError, RangeIgnoredError, ServerError, ShortReadError
from mdir_hf.model.hub.connection import MOVED, drain, get, pieces
from mdir_hf.model.hub.endpoint import may_see_token
from mdir_hf.model.hub.errors_map import of_status, translate
from mdir_hf.model.hub.ledger import IoLedger
from mdir_hf.model.hub.local import check_span
from mdir_hf.model.hub.location import HubPlace, Location, Locator
from mdir_hf.model.hub.range_cache import RangeCache, content_key
from mdir_hf.model.hub.retry import RETRIED_STATUSES, Patience, is_stall, is_transient
from mdir_hf.model.sources import Span

DEFAULT_IN_FLIGHT = 8
WHOLE_SPAN_BYTES = 8 << 20
"""A whole file is read in spans of this length, several at once."""
FIRST_BYTES = 8 + 100_000
"""Length of the first read of a safetensors file; 97% of headers are shorter."""

_STALE = frozenset({401, 403, 404, 410, 416})  # an expired CDN signature, or a file that is missing from a mirror
_MOST_MOVES = 4  # refreshed or redirected locations within one read
_PROGRESS_BYTES = 1 << 20  # a connection that delivered at least this much before it broke has made progress
_CONTENT_RANGE = re.compile(r"bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18}|\*)")  # *: unknown size


class HubFile:
    """A byte source for a file on the Hub, read with range requests. Thread-safe.

    Sends one GET request per uncached span, preceded by a HEAD request if needed. ``n_bytes`` and ``etag`` come from
    the listing, or are None. If ``use_cached`` is False, cached ranges are replaced. ``n_in_flight`` limits concurrent
    requests.
    """

    gap_bytes = 1 << 18
    """Largest gap between spans to read rather than skip. Reading 256 KiB takes about as long as a round trip."""

    def __init__(
        self,
        place: HubPlace,
        *,
        n_bytes: int | None = None,
        etag: str | None = None,
        ledger: IoLedger | None = None,
        cache: RangeCache | None = None,
        use_cached: bool = True,
        n_in_flight: int = DEFAULT_IN_FLIGHT,
    ) -> None:
        self._place = place
        self._n_bytes = n_bytes
        self._etag = etag
        self._ledger = ledger or IoLedger()
        self._cache = cache
        self._is_stale = not use_cached
        self._n_in_flight = n_in_flight
        self._locator = Locator(place, n_bytes=n_bytes, etag=etag, ledger=self._ledger)
        self._lock = threading.Lock()
        self._begun: tuple[int, Future[bytes]] | None = None  # number of first bytes, and their future

    def __repr__(self) -> str:
        return f"HubFile({self.label!r})"

    @property
    def label(self) -> str:
        """``owner/name@0123abc:path``."""
        return f"{self._place.label}:{self._place.path}"

    @property
    def n_bytes(self) -> int:
        """Size in bytes. Sends a HEAD request if the listing does not include it."""
        return self._n_bytes if self._n_bytes is not None else self._locator.current().n_bytes

    def read(self, start: int, stop: int) -> bytes:
        """Return exactly the bytes ``[start, stop)``.

        Raises:
            ShortReadError: If the file ends before ``stop``, or the connection keeps failing.
            RangeIgnoredError: If the server does not send the requested range.
            RateLimitedError: If the server still returns 429 after all retries, or requests too long a wait.
            ServerError: If the request still fails for another reason after all retries, or the file has changed.
            ByteBudgetError: If the read would exceed the limit on bytes.
        """
        return self._read((start, stop), None)

    def read_many(self, spans: Sequence[Span]) -> Iterator[bytes]:
        """Yield the bytes of each span in order, with at most ``n_in_flight`` spans in memory.

        The first failure cancels the remaining reads.
        """
        for start, stop in spans:
            check_span(start, stop, self.n_bytes, self.label)
        return in_order(spans, self._read, n_in_flight=self._n_in_flight, name="mdir-hf-range")

    def whole(self) -> bytes:
        """Return the whole file, using concurrent requests."""
        return b"".join(self.read_many(self.spans()))

    def spans(self) -> list[Span]:
        """Split the whole file into spans."""
        n_bytes = self.n_bytes
        return [(at, min(at + WHOLE_SPAN_BYTES, n_bytes)) for at in range(0, n_bytes, WHOLE_SPAN_BYTES)]

    def begin(self) -> None:
        """Start reading the file's first bytes in the background."""
        n_first = min(FIRST_BYTES, self.n_bytes)
        future = run_beside(lambda: self._through_cache(0, n_first, None), name="mdir-hf-ahead")
        with self._lock:
            self._begun = n_first, future

    def distrust(self) -> None:
        """Ignore cached content on the next read, and look up the location again."""
        with self._lock:
            self._is_stale = True
        self._locator.forget(self._locator.current())

    def _read(self, span: Span, cancelled: threading.Event | None) -> bytes:
        start, stop = span
        check_span(start, stop, self.n_bytes, self.label)
        if start == stop:
            return b""
        begun = self._take(start, stop)
        return begun if begun is not None else self._through_cache(start, stop, cancelled)

    def _through_cache(self, start: int, stop: int, cancelled: threading.Event | None) -> bytes:
        if self._cache is None:
            return self._fetched(start, stop, cancelled)
        key = self.key
        with self._lock:
            if self._is_stale:
                self._cache.drop(key)
                self._is_stale = False
        with self._cache.alone(key, start, stop):
            content = self._cache.get(key, start, stop)
            if content is not None:
                self._ledger.served_from_cache(self.label, len(content))
                return content
            content = self._fetched(start, stop, cancelled)
            self._cache.put(key, start, content)
            return content

    def _take(self, start: int, stop: int) -> bytes | None:
        with self._lock:
            begun = self._begun
            if begun is None or stop > begun[0]:
                return None
            self._begun = None
        return result_of(begun[1])[start:stop]

    def _fetched(self, start: int, stop: int, cancelled: threading.Event | None) -> bytes:
        with self._ledger.reserve(self.label, stop - start) as arrived:
            return self._fetch(start, stop, arrived, cancelled)

    @property
    def key(self) -> str:
        """The file's cache key."""
        place = self._place
        etag = None if place.is_restricted else self._etag or self._locator.current().etag
        return content_key(endpoint=place.endpoint, etag=etag, repo=place.repo, commit=place.commit, path=place.path)

    def _fetch(self, start: int, stop: int, arrived: Callable[[int], None], cancelled: threading.Event | None) -> bytes:
        body = _Body(start, stop)
        patience = Patience()
        n_moves = 0
        while True:
            n_before = body.n_arrived
            failure: MdirError | None = None
            cause: Exception | None = None
            headers: Mapping[str, str] | None = None
            location = self._locator.current()
            try:
                self._ledger.requested()
                with self._get(location.url, body.position, stop) as response:
                    status = response.status_code
                    if status not in (200, 206):
                        drain(response, subject=self.label)
                    if self._is_content(status, body, location):
                        self._believe(response, body, location)
                        self._receive(response, body, arrived, cancelled)
                    elif status in MOVED and "location" in response.headers and n_moves < _MOST_MOVES:
                        n_moves += 1
                        self._locator.moved(location, response.headers["location"])
                        continue
                    elif status in _STALE and n_moves < _MOST_MOVES and (status == 416 or self._is_off_hub(location)):
                        n_moves += 1
                        self._locator.forget(location)
                        continue
                    else:
                        failure = self._refused(status, response.headers, body, location)
                        if status not in RETRIED_STATUSES:
                            raise failure
                        headers = response.headers
            except _ContentChangedError:
                body = _Body(start, stop)
                failure = ServerError("its content changed while it was read; start again", subject=self.label)
            except MdirError:
                raise
            except Exception as exc:
                if not is_transient(exc):
                    translated = translate(exc, subject=self._place.label, file=self._place.path)
                    if translated is None:
                        raise
                    raise translated from exc
                cause = exc
            if body.position == stop:
                return body.content()
            if body.n_arrived - n_before >= _PROGRESS_BYTES:
                patience.progressed()
            if (cancelled is not None and cancelled.is_set()) or not patience.failed(headers, cancelled, cause=cause):
                raise (failure or self._dropped(body, cause)) from cause

    def _get(self, url: str, start: int, stop: int) -> AbstractContextManager[Any]:
        # Offsets refer to the bytes of the file, so the content must not be compressed.
        headers = {"Accept-Encoding": "identity", "Range": f"bytes={start}-{stop - 1}"}
        place = self._place
        return get(url, endpoint=place.endpoint, token=place.token, headers=headers)

    def _is_off_hub(self, location: Location) -> bool:
        return not may_see_token(location.url, self._place.endpoint)

    def _is_content(self, status: int, body: _Body, location: Location) -> bool:
        return status == 206 or (status == 200 and (body.position, body.stop) == (0, location.n_bytes))

    def _believe(self, response: Any, body: _Body, location: Location) -> None:  # noqa: ANN401
        headers = response.headers
        expected_range = f"bytes {body.position}-{body.stop - 1}/{location.n_bytes}"
        sent_range = headers.get("content-range", "").strip()
        length = headers.get("content-length", "")
        n_expected = body.stop - body.position
        wrong = None
        if response.status_code == 206:
            match = _CONTENT_RANGE.fullmatch(sent_range)
            expected = (body.position, body.stop - 1, location.n_bytes)
            sent = match and (int(match[1]), int(match[2]), location.n_bytes if match[3] == "*" else int(match[3]))
            if sent != expected:
                wrong = f"sent {sent_range[:60]!r}"
            elif _is_longer(length, n_expected):
                wrong = f"announced {length[:20]} bytes, not {n_expected:,}"
        elif length != str(n_expected):
            wrong = f"sent a whole file of {length[:20] or 'unknown'} bytes"
        if headers.get("content-encoding", "identity").lower() != "identity":
            wrong = f"sent it compressed ({headers['content-encoding'][:20]!r})"
        if wrong is not None:
            raise RangeIgnoredError(
                f"{expected_range!r} was requested, but the server {wrong}; the response was discarded",
                subject=self.label,
            )
        etag = headers.get("etag")
        if None not in (body.etag, etag) and body.etag != etag:
            raise _ContentChangedError
        body.etag = etag or body.etag

    def _receive(
        self,
        response: Any,  # noqa: ANN401
        body: _Body,
        arrived: Callable[[int], None],
        cancelled: threading.Event | None,
    ) -> None:
        # A body with a known length is read to its end, so that the connection can be reused.
        ends_by_itself = "content-length" in response.headers
        for piece in pieces(response, subject=self.label, cancelled=cancelled):
            arrived(body.add(piece))
            if body.position == body.stop and not ends_by_itself:
                return

    def _refused(self, status: int, headers: Mapping[str, str], body: _Body, location: Location) -> MdirError:
        span = f"bytes {body.position:,} to {body.stop - 1:,}"
        lowered = {key.lower(): value for key, value in headers.items()}
        if status == 200 and lowered.get("content-type", "").lower().startswith("text/html"):
            return RangeIgnoredError(
                f"{span} were requested, but the response is a web page (text/html); log in to the network, or check "
                "HF_ENDPOINT and any proxy",
                subject=self.label,
            )
        if status == 200:
            return RangeIgnoredError(
                f"the server answered 200 instead of 206 for {span}, so it ignored the range. Nothing was read; "
                f"download the {location.n_bytes:,} bytes with `hf download` and name the folder",
                subject=self.label,
            )
        if status == 416:
            return ServerError(
                f"{span} of {location.n_bytes:,} were refused (416); the server says {headers.get('content-range')!r}",
                subject=self.label,
            )
        if status in _STALE and self._is_off_hub(location):
            return ServerError(
                f"the storage of the Hub rejects the URL that the Hub returned ({status}), and a new one too; "
                "try again later",
                subject=self.label,
            )
        return of_status(status, headers=lowered, subject=self._place.label, file=self._place.path)

    def _dropped(self, body: _Body, cause: Exception | None) -> HubError:
        how = "ended" if cause is None else f"broke ({type(cause).__name__})"
        if is_stall(cause):
            how = "brought too little data for too long"
        return ShortReadError(
            f"the connection {how} after {body.n_arrived:,} of {body.stop - body.start:,} bytes, on every attempt; "
            "try again later",
            subject=self.label,
        )


def _is_longer(length: str, n_bytes: int) -> bool:
    return length.isascii() and length.isdigit() and (len(length) > 18 or int(length) > n_bytes)


class _ContentChangedError(Exception):
    """The file's content changed between two responses."""


class _Body:
    def __init__(self, start: int, stop: int) -> None:
        self.start = start
        self.stop = stop
        self.etag: str | None = None
        self.n_arrived = 0
        self._pieces: list[bytes] = []

    @property
    def position(self) -> int:
        return self.start + self.n_arrived

    def add(self, piece: bytes) -> int:
        piece = piece[: self.stop - self.position]
        self._pieces.append(piece)
        self.n_arrived += len(piece)
        return len(piece)

    def content(self) -> bytes:
        return self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
