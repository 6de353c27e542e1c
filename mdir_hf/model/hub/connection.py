"""Sends a request through the Hub client's session, which sets token and timeouts."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.cookiejar import Cookie, DefaultCookiePolicy
from typing import Any
from urllib.parse import urljoin
from urllib.request import Request

from huggingface_hub.utils import build_hf_headers, get_session  # type: ignore[attr-defined]

from mdir_hf.errors import ServerError, ShortReadError
from mdir_hf.model.hub.endpoint import CALLER, may_see_token, origin
from mdir_hf.model.hub.quota import QUOTA
from mdir_hf.model.hub.retry import StalledError

CONNECT_TIMEOUT_S = 10.0
READ_TIMEOUT_S = 20.0
"""Longest silence of a server within a response body."""
SLOWEST_BYTES = 64 << 10
SLOWEST_S = 30.0
"""A body must bring ``SLOWEST_BYTES`` in this many seconds (2 kB/s) or end, or a slow server could last forever."""

MOVED = frozenset({301, 302, 303, 307, 308})
_SMALL_BODY = 64 << 10  # bodies up to this size are read to the end, so that the connection can be reused


class _TakesNone(DefaultCookiePolicy):
    """Stores no cookies from responses: one would tie a visitor's requests to the token of another visitor."""

    def set_ok(self, cookie: Cookie, request: Request) -> bool:
        return False


@contextmanager
def get(
    url: str,
    *,
    endpoint: str,
    token: str | bool | None,
    headers: Mapping[str, str] | None = None,
    cancelled: threading.Event | None = None,
) -> Iterator[Any]:  # a response from httpx or httpx2
    """Send a GET request when the Hub's rate limit allows it. The caller handles redirects.

    The token is sent only to the Hub's own origin, also after a redirect.
    """
    is_hub = may_see_token(url, endpoint)
    sent = build_hf_headers(token=token if is_hub else False, **CALLER)
    timeouts_s = (CONNECT_TIMEOUT_S, READ_TIMEOUT_S, READ_TIMEOUT_S, READ_TIMEOUT_S)  # connect, read, write, pool
    if is_hub:
        QUOTA.before(url, sent.get("authorization", ""), cancelled)
    session = get_session()
    session.cookies.jar.set_policy(_TakesNone())
    with session.stream(
        "GET", url, headers={**sent, **(headers or {})}, timeout=timeouts_s, follow_redirects=False
    ) as response:
        if is_hub:
            QUOTA.after(url, sent.get("authorization", ""), response.headers)
        yield response


def wait_for_turn(url: str, *, token: str | bool | None) -> None:
    """Wait for the rate limit, as :func:`get` does, before the client sends a request to the Hub."""
    QUOTA.before(url, build_hf_headers(token=token).get("authorization", ""))


def secured(url: str, target: str, *, subject: str) -> str:
    """Return the target of a redirect.

    Raises:
        ServerError: If it leads from https to http or to another scheme, or is not a valid URL.
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
    """Yield a response body as it arrives.

    Args:
        response: The response.
        subject: The file's name in error messages.
        cancelled: Ends the read when set.
        decoded: Whether to decompress the body.

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
    """Read and return a short body, so that the connection can be reused; return nothing for a longer one."""
    length = response.headers.get("content-length", "")
    if length.isascii() and length.isdigit() and len(length) < 8 and int(length) <= _SMALL_BODY:
        return b"".join(pieces(response, subject=subject))
    return b""
