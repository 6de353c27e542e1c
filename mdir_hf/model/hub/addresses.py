"""Checks the URLs in environment variables before the Hub client is imported and reads them."""

from __future__ import annotations

import os
from collections.abc import Container
from urllib.parse import urlsplit

from mdir_hf.errors import InputError
from mdir_hf.names import shown_name

DEFAULT_PORTS = {"http": 80, "https": 443}


def check_endpoint(endpoint: str) -> None:
    """Refuse an invalid URL of the Hub.

    Raises:
        InputError: If it is not an http(s) URL.
    """
    if not is_address(endpoint, DEFAULT_PORTS):
        shown = shown_name(endpoint.rpartition("@")[2])  # without a password
        raise InputError(
            f"HF_ENDPOINT is {shown!r}, expected an address like https://huggingface.co; unset or correct it"
        )


def is_address(url: str, schemes: Container[str]) -> bool:
    """Whether a text is a URL of one of these schemes, with a host."""
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises where it is not a number of a port
    except ValueError:
        return False
    is_plain = url.isprintable() and " " not in url and not parts.query and not parts.fragment
    return is_plain and parts.scheme.lower() in schemes and bool(parts.hostname)


def check_environment() -> None:
    """Refuse an ``HF_ENDPOINT`` that cannot be taken apart: importing the client would end in a traceback.

    Raises:
        InputError: If it is not a URL.
    """
    endpoint = os.environ.get("HF_ENDPOINT", "")
    try:
        urlsplit(endpoint)
    except ValueError:
        check_endpoint(endpoint)
