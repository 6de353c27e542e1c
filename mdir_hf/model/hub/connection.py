"""Send HTTP requests, including JSON API requests, through the Hub client's session.

``HfApi`` is not used, because it limits neither the waiting time nor the length of a response.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.cookiejar import Cookie, DefaultCookiePolicy
from typing import Any
from urllib.parse import urljoin
from urllib.request import Request

from huggingface_hub.utils import build_hf_headers, get_session  # type: ignore[attr-defined]

from mdir_hf.budgets import HUB_ANSWER, json_weight
from mdir_hf.errors import MdirError, ServerError, ShortReadError
from mdir_hf.model.hub.endpoint import CALLER, may_see_token, origin
from mdir_hf.model.hub.errors_map import hub_errors, of_status
from mdir_hf.model.hub.retry import (
    MOST_UNCONNECTED,
    RETRIED_STATUSES,
    Patience,
    StalledError,
    is_transient,
    is_unconnected,
)

CONNECT_TIMEOUT_S = 10.0
READ_TIMEOUT_S = 20.0
"""Longest wait for the next part of a response."""
SLOWEST_BYTES = 64 << 10
SLOWEST_S = 30.0
"""A response that takes longer than this to deliver the next ``SLOWEST_BYTES`` (2 kB/s) is abandoned."""

MOVED = frozenset({301, 302, 303, 307, 308})
_SMALL_BODY = 64 << 10  # bodies up to this size are read to the end, so that the connection can be reused


class _TakesNone(DefaultCookiePolicy):
    """A policy that rejects all cookies, because requests with different tokens share a session."""

    def set_ok(self, cookie: Cookie, request: Request) -> bool:
        return False


@contextmanager
def get(
    url: str,
    *,
    endpoint: str,
    token: str | bool | None,
    headers: Mapping[str, str] | None = None,
) -> Iterator[Any]:  # a response from httpx or httpx2
    """Send a GET request. Redirects are not followed, and the token is sent only to the Hub."""
    sent = build_hf_headers(token=token if may_see_token(url, endpoint) else False, **CALLER)
    timeouts_s = (CONNECT_TIMEOUT_S, READ_TIMEOUT_S, READ_TIMEOUT_S, READ_TIMEOUT_S)  # connect, read, write, pool
    session = get_session()
    session.cookies.jar.set_policy(_TakesNone())
    with session.stream(
        "GET", url, headers={**sent, **(headers or {})}, timeout=timeouts_s, follow_redirects=False
    ) as response:
        yield response


def secured(url: str, target: str, *, subject: str) -> str:
    """Return the absolute URL that a redirect leads to.

    Raises:
        ServerError: If the URL is invalid, or would downgrade the connection from https to http.
    """
    try:
        target = urljoin(url, target)
        scheme = origin(target)[0]
    except ValueError as exc:  # an unclosed bracket, an invalid port
        raise ServerError("the server redirects to an invalid URL; refused", subject=subject) from exc
    if scheme not in ("http", "https") or (origin(url)[0] == "https" and scheme != "https"):
        raise ServerError("the server redirects away from a secure connection; refused", subject=subject)
    return target


def pieces(
    response: Any,  # noqa: ANN401
    *,
    subject: str,
    cancelled: threading.Event | None = None,
    decoded: bool = False,
) -> Iterator[bytes]:
    """Yield the chunks of a response body as they arrive, decompressed if ``decoded``.

    Raises:
        StalledError: If the body arrives too slowly.
        ShortReadError: If the read is cancelled.
    """
    body = response.iter_bytes() if decoded else response.iter_raw()
    n_bytes, waited_s = 0, 0.0
    while True:
        before_s = time.monotonic()
        piece = next(body, None)
        waited_s += time.monotonic() - before_s
        if piece is None:
            return
        if cancelled is not None and cancelled.is_set():
            raise ShortReadError("the read was cancelled", subject=subject)
        yield piece
        n_bytes += len(piece)
        if n_bytes >= SLOWEST_BYTES:
            n_bytes, waited_s = 0, 0.0
        elif waited_s > SLOWEST_S:
            raise StalledError(f"{n_bytes} bytes in {waited_s:.0f} s")


def drain(response: Any, *, subject: str) -> bytes:  # noqa: ANN401
    """Read a short response body to the end, so that the connection can be reused; return ``b""`` for a long one."""
    length = response.headers.get("content-length", "")
    if length.isascii() and length.isdigit() and len(length) < 8 and int(length) <= _SMALL_BODY:
        return b"".join(pieces(response, subject=subject))
    return b""


_MOST_MOVES = 4


class RefusalError(Exception):
    """Status and message of an error response."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(status)
        self.status = status
        self.text = text


def ask(
    url: str,
    *,
    label: str,
    endpoint: str,
    token: str | bool | None,
    revision: str | None = None,
    before_each: Callable[[], None] = lambda: None,
) -> tuple[Any, str | None]:
    """Send a GET request to the Hub's API, following redirects.

    Returns the parsed JSON, without checking its structure, and the URL of the next page or None.

    Raises:
        HubError: If the Hub refuses the request (the cause is then a :class:`RefusalError`), is unreachable, or does
            not return JSON.
    """
    patience = Patience()
    n_moves = n_unconnected = 0
    with hub_errors(label, revision=revision):
        while True:
            before_each()
            failure: MdirError | None = None
            cause: Exception | None = None
            refusal: RefusalError | None = None
            headers: Mapping[str, str] = {}
            try:
                with get(url, endpoint=endpoint, token=token) as response:
                    status, headers = response.status_code, response.headers
                    if status == 200:
                        content = _parsed(_whole(response, label), label)
                        return content, response.links.get("next", {}).get("url")
                    body = drain(response, subject=label)
                    if status in MOVED and "location" in headers and n_moves < _MOST_MOVES:
                        n_moves += 1
                        url = secured(url, headers["location"], subject=label)
                        continue
                lowered = {key.lower(): value for key, value in headers.items()}
                failure = of_status(status, headers=lowered, subject=label, revision=revision)
                refusal = RefusalError(status, f"{lowered.get('x-error-message', '')} {body.decode(errors='replace')}")
                if status not in RETRIED_STATUSES:
                    raise failure from refusal
            except MdirError:
                raise
            except Exception as exc:
                if not is_transient(exc):
                    raise
                cause = exc
                n_unconnected += is_unconnected(exc)
            if n_unconnected == MOST_UNCONNECTED or not patience.failed(headers, cause=cause):
                if failure is not None:
                    raise failure from refusal
                raise cause or ServerError("the Hub did not answer", subject=label)


def no_answer(label: str, why: str) -> ServerError:
    """Return the error for a response that cannot come from the Hub."""
    return ServerError(f"the response is not from the Hub: {why}; check HF_ENDPOINT and any proxy", subject=label)


def _whole(response: Any, label: str) -> bytes:  # noqa: ANN401 - a response from httpx or httpx2
    content = bytearray()
    for piece in pieces(response, subject=label, decoded=True):
        content += piece
        if len(content) > HUB_ANSWER.n_bytes:
            raise no_answer(label, f"it is longer than {HUB_ANSWER.n_bytes:,} bytes")
    return bytes(content)


def _parsed(content: bytes, label: str) -> Any:  # noqa: ANN401 - any JSON value
    excess = HUB_ANSWER.excess(n_items=json_weight(content), of="values")
    if excess is not None:
        raise no_answer(label, f"it {excess}")
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as exc:
        is_page = content.lstrip()[:1] == b"<"
        what = "a web page, perhaps to log in to the network" if is_page else "not JSON"
        raise no_answer(label, f"it is {what}") from exc
