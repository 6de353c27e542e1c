"""Accept requests to the names of this server only, from its own pages only.

A page of another site may give its own name the address of this machine (DNS rebinding), and would then read answers
as if they were its own.
"""

from __future__ import annotations

import ipaddress
import os
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

VARIABLE = "MDIR_SPACE_HOSTS"
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


def known_hosts(bound_to: str) -> frozenset[str] | None:
    """Return the names of a server, or None if all are accepted.

    In a Space, this is its name; on loopback, the names of loopback. ``MDIR_SPACE_HOSTS`` adds names. A server in
    another network accepts every name, unless that variable is set.
    """
    more = {name.strip().lower() for name in os.environ.get(VARIABLE, "").split(",") if name.strip()}
    if space := os.environ.get("SPACE_HOST", ""):
        more |= {name.strip().lower() for name in space.split(",")}
    return LOOPBACK | more if more or bound_to.strip("[]") in LOOPBACK or _is_loopback(bound_to) else None


class KnownHosts:
    """Refuses requests to another host with 421, and those from a page of another origin with 403.

    An IP address is accepted as a host, because only a name can be rebound.
    """

    def __init__(self, app: ASGIApp, hosts: frozenset[str] | None) -> None:
        self._app, self._hosts = app, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if self._hosts is None or scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        host, origin = headers.get("host", "").lower(), headers.get("origin")
        if not self._is_known(_name(host)):
            await _refusal("host", 421)(scope, receive, send)
        elif origin is not None and not self._is_own(origin.lower(), host):
            await _refusal("origin", 403)(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _is_known(self, name: str) -> bool:
        return self._hosts is not None and (name in self._hosts or _is_address(name))

    def _is_own(self, origin: str, host: str) -> bool:
        place = origin.partition("://")[2]
        return place == host or (self._hosts is not None and _name(place) in self._hosts - LOOPBACK)


def _refusal(header: str, status: int) -> PlainTextResponse:
    words = f"This server does not accept this {header}. Its owner can add one with {VARIABLE}.\n"
    return PlainTextResponse(words, status_code=status)


def _name(place: str) -> str:
    """Return the name in ``name:port``; empty if it is malformed."""
    try:
        return urlsplit(f"//{place}").hostname or ""
    except ValueError:
        return ""


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _is_loopback(name: str) -> bool:
    return _is_address(name) and ipaddress.ip_address(name).is_loopback
