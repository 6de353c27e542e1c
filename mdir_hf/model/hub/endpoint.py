"""The Hub endpoint: its URL, offline mode, and the hosts that may receive the token."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Container
from typing import TypedDict
from urllib.parse import urlsplit

from mdir_hf._version import __version__
from mdir_hf.errors import InputError
from mdir_hf.names import shown_name

DEFAULT_PORTS = {"http": 80, "https": 443}


def check_endpoint(endpoint: str) -> None:
    """Raise ``InputError`` unless the Hub's URL is valid."""
    if not is_address(endpoint, DEFAULT_PORTS):
        shown = shown_name(endpoint.rpartition("@")[2])  # without a password
        raise InputError(f"HF_ENDPOINT is {shown!r}, expected a URL like https://huggingface.co; unset or correct it")


def is_address(url: str, schemes: Container[str]) -> bool:
    """Return whether a string is a valid URL with one of ``schemes``."""
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises if the port is not a number
    except ValueError:
        return False
    is_plain = url.isprintable() and " " not in url and not parts.query and not parts.fragment
    return is_plain and parts.scheme.lower() in schemes and bool(parts.hostname)


def check_environment() -> None:
    """Raise ``InputError`` for an ``HF_ENDPOINT`` that would make importing the Hub client fail."""
    endpoint = os.environ.get("HF_ENDPOINT", "")
    try:
        urlsplit(endpoint)
    except ValueError:
        check_endpoint(endpoint)


_TRUE = frozenset({"1", "ON", "YES", "TRUE"})  # values that the Hub client treats as true
_PROXY_VARIABLES = tuple(
    name for kind in ("HTTP", "HTTPS", "ALL") for name in (f"{kind}_PROXY", f"{kind.lower()}_proxy")
)
_PROXY_SCHEMES = frozenset({"http", "https", "socks5", "socks5h"})
# The public Hub and its short domain. Mirrors may redirect to them, and they may receive the token.
_PUBLIC_HOSTS = frozenset({"huggingface.co", "www.huggingface.co", "hf.co"})
_PUBLIC_HUB = ("https://huggingface.co", "https://hf.co")


class Caller(TypedDict):
    """Keyword arguments that identify this package to the Hub client."""

    library_name: str
    library_version: str


CALLER = Caller(library_name="mdir-hf", library_version=__version__)
"""Sent in the ``User-Agent`` header of every request."""

Origin = tuple[str, str, int]
"""Scheme, host and port."""


def current_endpoint() -> str:
    """Return the Hub's base URL without a trailing slash.

    Raises:
        InputError: If ``HF_ENDPOINT`` or a proxy is not a valid URL.
    """
    from huggingface_hub import constants

    endpoint = (os.environ.get("HF_ENDPOINT") or constants.ENDPOINT).rstrip("/")
    check_endpoint(endpoint)
    _check_proxies()
    return endpoint


def _check_proxies() -> None:
    for name in _PROXY_VARIABLES:
        proxy = os.environ.get(name, "").strip()
        if not proxy:
            continue
        address = proxy if "://" in proxy else f"http://{proxy}"
        if not is_address(address, _PROXY_SCHEMES):
            raise InputError(f"{name} is not the URL of a proxy; write one like http://host:3128, or unset it")
        if address.lower().startswith("socks") and importlib.util.find_spec("socksio") is None:
            raise InputError(f"{name} names a SOCKS proxy, which needs the package socksio: `pip install socksio`")


def is_offline() -> bool:
    """Return whether ``HF_HUB_OFFLINE`` or ``TRANSFORMERS_OFFLINE`` is set, now or at import."""
    from huggingface_hub import constants

    setting = os.environ.get("HF_HUB_OFFLINE") or os.environ.get("TRANSFORMERS_OFFLINE") or ""
    return constants.is_offline_mode() or setting.upper() in _TRUE


def origin(url: str) -> Origin:
    """Return the scheme, lower-case host, and port of a URL."""
    parts = urlsplit(url)
    return (
        parts.scheme.lower(),
        (parts.hostname or "").lower(),
        parts.port or DEFAULT_PORTS.get(parts.scheme.lower(), 0),
    )


def may_see_token(url: str, endpoint: str) -> bool:
    """Return whether a request to this URL may include the token."""
    return origin(url) in {origin(endpoint), *map(origin, _PUBLIC_HUB)}


def hub_hosts() -> frozenset[str]:
    """Return the hosts that serve repository pages."""
    return frozenset({*_PUBLIC_HOSTS, urlsplit(current_endpoint()).netloc.lower()})


def path_on_hub(url: str, *, may_name_user: bool = False) -> str | None:
    """Return a URL's path relative to the Hub's base URL, or None if it is not on the Hub.

    If ``may_name_user``, accept a user name before the host.
    """
    try:
        parts = urlsplit(url if "://" in url else f"https://{url}")
    except ValueError:  # such as an incomplete IPv6 address
        return None
    host, base = parts.netloc.lower(), urlsplit(current_endpoint())
    if may_name_user:
        host = host.rpartition("@")[2]
    if parts.scheme.lower() not in DEFAULT_PORTS:
        return None
    if host == base.netloc.lower() and f"{parts.path}/".startswith(f"{base.path}/"):
        return parts.path[len(base.path) :]
    return parts.path if host in _PUBLIC_HOSTS else None
