"""Xet storage of the loopback Hub: what a HEAD says of it, its tokens, and a CAS server that fails.

The bridge, plain HTTP on the CDN, serves the content. The CAS server itself speaks a protocol of its own; here it only
fails, in one of the ways in which it fails for people behind proxies and mirrors.
"""

from __future__ import annotations

import hashlib
import socket
import time
from typing import Literal

from mdir_hf.demo.stored_repository import StoredFile

CasState = Literal["unreachable", "failing", "silent"]
"""``unreachable``: no server at its address. ``failing``: every request is answered 500. ``silent``: none is."""

TOKEN_LIFETIME_S = 900


def xet_hash(sha256: str) -> str:
    """Return 64 hexadecimal digits that name the content, as the Hub's Merkle hash does."""
    return hashlib.sha256(f"xet {sha256}".encode()).hexdigest()


def xet_headers(file: StoredFile, *, token_address: str, cas_address: str) -> dict[str, str]:
    """Return what the answer to a HEAD says of a file in Xet storage, besides where the bridge has it."""
    content = xet_hash(file.sha256)
    return {
        "X-Xet-Hash": content,
        "Link": f'<{token_address}>; rel="xet-auth", '
        f'<{cas_address}/v1/reconstructions/{content}>; rel="xet-reconstruction-info"',
    }


def xet_token(cas_address: str) -> tuple[dict[str, object], dict[str, str]]:
    """Return body and headers of the answer to a request for a token of the CAS server."""
    expires = int(time.time()) + TOKEN_LIFETIME_S
    said = {"X-Xet-Cas-Url": cas_address, "X-Xet-Access-Token": "xet", "X-Xet-Token-Expiration": str(expires)}
    return {"accessToken": "xet", "exp": expires, "casUrl": cas_address}, said


def closed_port() -> int:
    """Return a port of this machine at which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
