"""Xet storage of the loopback Hub: headers of HEAD responses, tokens, and a CAS server that fails.

The bridge, plain HTTP on the CDN, serves the content. The CAS server has its own protocol; here it only fails, as it
does behind some proxies and mirrors.
"""

from __future__ import annotations

import hashlib
import socket
import time
from typing import Literal

from mdir_hf.demo.stored_repository import StoredFile

CasState = Literal["unreachable", "failing", "silent"]
"""``unreachable``: no server at its URL. ``failing``: every response is 500. ``silent``: no response."""

TOKEN_LIFETIME_S = 900


def xet_hash(sha256: str) -> str:
    """Return 64 hexadecimal digits that identify the content, as the Hub's Merkle hash does."""
    return hashlib.sha256(f"xet {sha256}".encode()).hexdigest()


def xet_headers(file: StoredFile, *, token_address: str, cas_address: str) -> dict[str, str]:
    """Return the headers of a HEAD response for a file in Xet storage, except its location on the bridge."""
    content = xet_hash(file.sha256)
    return {
        "X-Xet-Hash": content,
        "Link": f'<{token_address}>; rel="xet-auth", '
        f'<{cas_address}/v1/reconstructions/{content}>; rel="xet-reconstruction-info"',
    }


def xet_token(cas_address: str) -> tuple[dict[str, object], dict[str, str]]:
    """Return body and headers of the response to a request for a CAS token."""
    expires = int(time.time()) + TOKEN_LIFETIME_S
    said = {"X-Xet-Cas-Url": cas_address, "X-Xet-Access-Token": "xet", "X-Xet-Token-Expiration": str(expires)}
    return {"accessToken": "xet", "exp": expires, "casUrl": cas_address}, said


def closed_port() -> int:
    """Return an unused port of this machine."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
