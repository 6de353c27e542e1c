"""Checks URLs in environment variables before the Hub client is imported and reads them."""

from __future__ import annotations

import os
from collections.abc import Container
from urllib.parse import urlsplit

from mdir_hf.errors import InputError
from mdir_hf.names import shown_name

DEFAULT_PORTS = {"http": 80, "https": 443}


def check_endpoint(endpoint: str) -> None:
    """Raise an error if the URL of the Hub is invalid.

    Raises:
        InputError: If it is not an http(s) URL.
    """
    if not is_address(endpoint, DEFAULT_PORTS):
        shown = shown_name(endpoint.rpartition("@")[2])  # without a password
        raise InputError(f"HF_ENDPOINT is {shown!r}, expected a URL like https://huggingface.co; unset or correct it")


def is_address(url: str, schemes: Container[str]) -> bool:
    """Return whether a text is a URL with a host and one of these schemes."""
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises if the port is not a number
    except ValueError:
        return False
    is_plain = url.isprintable() and " " not in url and not parts.query and not parts.fragment
    return is_plain and parts.scheme.lower() in schemes and bool(parts.hostname)


def check_environment() -> None:
    """Raise an error if ``HF_ENDPOINT`` cannot be parsed; importing the client would then end in a traceback.

    Raises:
        InputError: If it is not a URL.
    """
    endpoint = os.environ.get("HF_ENDPOINT", "")
    try:
        urlsplit(endpoint)
    except ValueError:
        check_endpoint(endpoint)
