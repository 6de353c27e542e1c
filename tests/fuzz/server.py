"""A Hub that sends given bytes as one kind of response, and valid responses otherwise."""

from __future__ import annotations

import hashlib
import json
import os
import re
import socket
import socketserver
import tempfile
import threading
import time
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import huggingface_hub.utils._detect_agent as detect_agent
from huggingface_hub import constants
from huggingface_hub.utils import get_session

from mdir_hf.model.hub import retry

HUB, CDN = "hub.test", "cdn.test"
ENDPOINT = f"http://{HUB}"
TOKEN = "hf_" + "x" * 34
REPO = "owner/name"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
WEIGHTS = bytes(range(64))
CONFIG = b'{"model_type": "llama"}'
SHA256 = hashlib.sha256(WEIGHTS).hexdigest()
BLOB_ID = hashlib.sha1(b"blob %d\0" % len(CONFIG) + CONFIG, usedforsecurity=False).hexdigest()
MOST_REQUESTS = 80
"""Limit for one read: a HEAD request follows up to twenty redirects of the Hub, and a read sends at most three."""

TAKEN_HEAD, READ_AT_ONCE = 100 << 10, 64 << 10
"""In bytes. The client's parser refuses an incomplete head larger than the first number. It checks after every read of
at most the second number, so a longer head that one read completes still passes."""

LISTING = {
    "id": REPO,
    "sha": COMMIT,
    "private": False,
    "gated": False,
    "siblings": [
        {"rfilename": "config.json", "size": len(CONFIG), "blobId": BLOB_ID},
        {
            "rfilename": "w.bin",
            "size": len(WEIGHTS),
            "blobId": "2" * 40,
            "lfs": {"size": len(WEIGHTS), "sha256": SHA256, "pointerSize": 130},
        },
    ],
}
AUTHOR = [{"id": REPO}, {"id": "owner/other"}]
COLLECTION = {"items": [{"type": "model", "id": REPO}, {"type": "paper", "id": "2401.00001"}]}
DISCUSSIONS = {
    "discussions": [
        {
            "num": 3,
            "title": "Another",
            "status": "open",
            "isPullRequest": True,
            "author": {"name": "somebody"},
            "createdAt": "2026-01-02T03:04:05.000Z",
            "repo": {"name": REPO, "type": "model"},
        }
    ],
    "count": 1,
    "start": 0,
}
PREUPLOAD = {"files": [{"path": ".lineage/a.json", "uploadMode": "regular", "shouldIgnore": False, "oid": None}]}
COMMITTED = {
    "success": True,
    "commitOid": COMMIT,
    "commitUrl": f"{ENDPOINT}/{REPO}/commit/{COMMIT}",
    "pullRequestUrl": f"{ENDPOINT}/{REPO}/discussions/4",
    "hookOutput": "",
}


def answer(status: str, headers: list[bytes], body: bytes = b"", *, length: bytes | None = None) -> bytes:
    """Return the bytes of a response."""
    lines = [*headers, b"Content-Length: " + (b"%d" % len(body) if length is None else length)]
    return b"HTTP/1.1 " + status.encode() + b"\r\n" + b"\r\n".join(lines) + b"\r\n\r\n" + body


def settled(said: bytes) -> bytes:
    """Return a response that the client handles the same way however the network splits it.

    The parser accepts or refuses a head that is slightly too long, depending on the size of the last read. Both are
    right, so only the beginning of such a head is sent. A head that is too long by a whole read is always refused.
    """
    end = re.search(rb"\n\r?\n", said)
    n_bytes = end.end() if end is not None else len(said)
    return said[:TAKEN_HEAD] if TAKEN_HEAD < n_bytes <= TAKEN_HEAD + READ_AT_ONCE else said


JSON = [b"Content-Type: application/json"]
PLACE = [
    b"X-Repo-Commit: " + COMMIT.encode(),
    b"ETag: " + b'"%s"' % SHA256.encode(),
    b"X-Linked-Etag: " + b'"%s"' % SHA256.encode(),
    b"X-Linked-Size: %d" % len(WEIGHTS),
    b"Location: http://cdn.test/w.bin?Expires=4000000000",
]


def range_headers(start: int, stop: int) -> list[bytes]:
    """Return the headers of a range of the weights."""
    return [b"ETag: " + b'"%s"' % SHA256.encode(), b"Content-Range: bytes %d-%d/%d" % (start, stop - 1, len(WEIGHTS))]


def of_kind(method: str, host: str, path: str) -> str | None:
    """Return the kind of a request."""
    path = path.partition("?")[0]
    if host == CDN:
        return "range"
    if method == "HEAD":
        return "head"
    if "/resolve/" in path:
        return "small-file"
    kinds = {"/api/collections/": "collection", "/discussions": "discussions", "/preupload/": "preupload"}
    kinds |= {"/commit/": "commit", "/revision/": "listing", "/api/models": "author"}
    return next((kind for part, kind in kinds.items() if part in path), None)


def valid(kind: str | None, asked: str = "bytes=8-39") -> bytes:
    """Return the response of an honest Hub."""
    said: dict[str | None, Any] = {"listing": LISTING, "author": AUTHOR, "collection": COLLECTION}
    said |= {"discussions": DISCUSSIONS, "preupload": PREUPLOAD, "commit": COMMITTED}
    if kind in said:
        return answer("200 OK", JSON, json.dumps(said[kind]).encode())
    if kind == "head":
        return answer("302 Found", PLACE)
    if kind == "small-file":
        return answer("206 Partial Content", [b"Content-Range: bytes 0-%d/%d" % (len(CONFIG) - 1, len(CONFIG))], CONFIG)
    if kind == "range":
        start, stop = (int(number) for number in asked.removeprefix("bytes=").split("-"))
        return answer("206 Partial Content", range_headers(start, stop + 1), WEIGHTS[start : stop + 1])
    return answer("404 Not Found", [])


class Wire:
    """Two servers, the Hub and its CDN, which answer one kind of request with given bytes.

    Attributes:
        attacked: The kind of request.
        bytes_: The response.
        n_requests: Requests since the last reset.
        leaked: Hosts that wrongly received the token.
    """

    def __init__(self) -> None:
        self.attacked: str | None = None
        self.bytes_ = b""
        self.n_requests = 0
        self.leaked: list[str] = []
        self.ports = {host: self._serve(host) for host in (HUB, CDN)}

    def _serve(self, host: str) -> int:
        wire = self

        class Conversation(socketserver.StreamRequestHandler):
            """Sends a valid response, or the given bytes."""

            def handle(self) -> None:
                method, path = self.rfile.readline(1 << 16).decode("latin-1").split(" ")[:2]
                headers: dict[str, str] = {}
                while (line := self.rfile.readline(1 << 16).decode("latin-1").strip()) != "":
                    name, _, value = line.partition(":")
                    headers[name.lower()] = value.strip()
                self.rfile.read(int(headers.get("content-length", 0)))
                wire.n_requests += 1
                if wire.n_requests > 2 * MOST_REQUESTS:
                    return  # an endless client would never reach the assertion
                if host != HUB and TOKEN in headers.get("authorization", ""):
                    wire.leaked.append(host)
                kind = of_kind(method, host, path)
                said = wire.bytes_ if kind == wire.attacked else valid(kind, headers.get("range", "bytes=0-63"))
                self.wfile.write(said)

        class Server(socketserver.ThreadingTCPServer):
            """A host of the Hub or of its CDN, in a thread."""

            daemon_threads = True
            block_on_close = False
            request_queue_size = 64

            def handle_error(self, request: Any, client_address: Any) -> None:
                """Ignore clients that close the connection."""

        server = Server(("127.0.0.1", 0), Conversation)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return int(server.server_address[1])


@cache
def _wire() -> Wire:
    return Wire()


def _patience() -> Iterator[Any]:
    """Yield patches that skip all waits and allow connections only to the two servers."""
    wire, connect = _wire(), socket.create_connection

    def connected(address: tuple[str, int], *args: Any, **kwargs: Any) -> socket.socket:
        if address[0] not in wire.ports or address[1] != 80:
            raise ConnectionRefusedError(111, "Connection refused")
        return connect(("127.0.0.1", wire.ports[address[0]]), *args, **kwargs)

    without_sleep = types.SimpleNamespace(**{**vars(time), "sleep": lambda wait_s: None})
    yield mock.patch.object(socket, "create_connection", connected)
    yield mock.patch.object(retry, "pause", lambda wait_s, cancelled=None: None)
    yield mock.patch("huggingface_hub.utils._http.time", without_sleep)
    yield mock.patch("huggingface_hub.file_download.time", without_sleep)
    # Else the client's first call would fetch the list of coding agents from the real Hub.
    yield mock.patch.object(detect_agent, "_registry", {"standardEnvVars": [], "harnesses": {}})
    # The servers close the connection after every response. Otherwise, a client might reuse it, and retry or fail.
    yield mock.patch.dict(get_session().headers, {"connection": "close"})


@contextmanager
def hub_that_answers(kind: str, said: bytes) -> Iterator[Path]:
    """Use the Hub of this module while the block runs; yield the folder of all caches.

    At the end, check that no file was written outside that folder, no token sent elsewhere, and few requests made.
    """
    wire = _wire()
    wire.attacked, wire.bytes_, wire.n_requests, wire.leaked = kind, settled(said), 0, []
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        home = Path(folder, "a", "b", "c", "home")
        home.mkdir(parents=True)
        unset = {name: "" for name in os.environ if name.lower().endswith("_proxy")}
        environment: Mapping[str, str] = {
            "HF_ENDPOINT": ENDPOINT,
            "HF_TOKEN": TOKEN,
            "MDIR_HF_CACHE": str(home / "ranges"),
            **unset,
        }
        stack.enter_context(mock.patch.dict(os.environ, environment))
        for name, value in (("HF_HOME", home), ("HF_HUB_CACHE", home / "hub"), ("HF_TOKEN_PATH", home / "token")):
            stack.enter_context(mock.patch.object(constants, name, str(value)))
        for patch in _patience():
            stack.enter_context(patch)
        try:
            yield home
        finally:
            _expect_nothing_else(wire, Path(folder), home)


def _expect_nothing_else(wire: Wire, folder: Path, home: Path) -> None:
    beside = [path for path in folder.rglob("*") if path.is_file() and home not in path.parents]
    assert not beside, f"files outside the caches: {beside}"
    assert not wire.leaked, f"the token went to {wire.leaked}"
    assert wire.n_requests <= MOST_REQUESTS, f"{wire.n_requests} requests"


def asking(kind: str, ask: Callable[[Path], object]) -> Callable[[bytes], object]:
    """Return a reader that calls ``ask`` while the Hub answers one kind of request with the given bytes."""

    def read(data: bytes) -> object:
        with hub_that_answers(kind, data) as home:
            return ask(home)

    return read
