"""The two servers of the loopback Hub: what is answered to each request."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import socket
import sys
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal
from urllib.parse import parse_qs, quote, unquote, urlsplit

from mdir_hf.demo.loopback_files import StoredFile, StoredRepository

if TYPE_CHECKING:
    from mdir_hf.demo.loopback import LoopbackHub

Origin = Literal["hub", "cdn"]
_BLOCK = 1 << 16
API = r"/api/(models|datasets)/"
_SINGLE_RANGE = re.compile(r"bytes=(\d+)-(\d*)")


class Server(ThreadingHTTPServer):
    """One of the two origins, on a port of its own."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self, hub: LoopbackHub, origin: Origin) -> None:
        self.hub = hub
        self.origin: Origin = origin
        self._connections: set[socket.socket] = set()
        super().__init__(("127.0.0.1", 0), hub.handler)

    def process_request(self, request: Any, client_address: Any) -> None:  # noqa: ANN401
        """Remember the connection, to hang up on it in the end."""
        self._connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:  # noqa: ANN401
        """Forget a connection that ends by itself."""
        self._connections.discard(request)
        super().shutdown_request(request)

    def close_connections(self) -> None:
        """Hang up on clients that keep a connection open."""
        for connection in list(self._connections):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401
        """Print only what is a fault of this server."""
        if not isinstance(sys.exc_info()[1], OSError):  # a client that hung up is not news
            super().handle_error(request, client_address)


class Handler(BaseHTTPRequestHandler):
    """Answers the requests of one connection.

    Attributes:
        routes: Pattern of a path on the hub, and the method that is called with its groups.
    """

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Server
    routes: ClassVar[tuple[tuple[str, str], ...]] = (
        ("/api/agent-harnesses", "_harnesses"),
        ("/api/models", "_search"),
        (rf"{API}([^/]+(?:/[^/]+)?)/tree/([^/]+)(?:/(.*))?", "_listing"),
        (rf"{API}([^/]+(?:/[^/]+)??)(?:/revision/([^/]+))?", "_model_info"),
        (r"/((?:datasets/[^/]+/)?[^/]+(?:/[^/]+)?)/resolve/([^/]+)/(.+)", "_resolve"),
    )

    def log_message(self, format: str, *args: Any) -> None:  # noqa: ANN401
        """Print nothing."""

    def do_HEAD(self) -> None:
        """Answer with headers alone."""
        self._serve()

    def do_GET(self) -> None:
        """Answer with content."""
        self._serve()

    def _serve(self) -> None:
        self._hub = self.server.hub
        parts = urlsplit(self.path)
        self._path = parts.path  # still quoted: a revision may hold a slash
        self._query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        self._answer_request()

    def _answer_request(self) -> None:
        if self.server.origin == "cdn":
            self._serve_cdn()
        else:
            self._serve_hub()

    # The hub.

    def _serve_hub(self) -> None:
        for pattern, method in self.routes:
            if match := re.fullmatch(pattern, self._path):
                getattr(self, method)(*map(unquote, match.groups(default="")))
                return
        self._error(404, "", "Not found")

    def _harnesses(self) -> None:
        self._json({"standardEnvVars": [], "harnesses": {}})

    def _repository(self, address: str) -> StoredRepository | None:
        """Return the repository, or answer why not."""
        repository = self._hub.find(address)
        if repository is None:
            self._error(404, "RepoNotFound", "Repository not found")
        return repository

    def _commit(self, address: str, revision: str) -> tuple[StoredRepository, str] | None:
        """Return a repository and the sha of one of its commits, or answer why not."""
        repository = self._repository(address)
        if repository is None:
            return None
        commit = repository.commit(revision)
        if commit is None:
            self._error(404, "RevisionNotFound", f"Invalid rev id: {revision}")
            return None
        return repository, commit

    def _search(self) -> None:
        wanted = self._query.get("search", "").lower()
        found = [known.repo_id for known in self._hub.repositories() if wanted in known.repo_id.lower()]
        limit = int(self._query.get("limit", len(found)))
        self._json([{"_id": object_id(name), "id": name, "modelId": name} for name in found[:limit]])

    def _model_info(self, kind: str, name: str, revision: str) -> None:
        found = self._commit(address_of(kind, name), revision or "main")
        if found is not None:
            self._json(self._about(*found))

    def _about(self, repository: StoredRepository, commit: str) -> dict[str, Any]:
        with_blobs = self._query.get("blobs", "").lower() in ("true", "1")
        return {
            "_id": object_id(repository.repo_id),
            "id": repository.repo_id,
            "modelId": repository.repo_id,
            "sha": commit,
            "private": False,
            "gated": False,
            "disabled": False,
            "tags": [],
            "downloads": 0,
            "likes": 0,
            "siblings": [
                {"rfilename": path, **(file.listed if with_blobs else {})}
                for path, file in repository.commits[commit].items()
            ],
        }

    def _listing(self, kind: str, name: str, revision: str, below: str) -> None:
        found = self._commit(address_of(kind, name), revision)
        if found is None:
            return
        repository, commit = found
        entries = []
        for path, file in repository.commits[commit].items():
            if not below or path.startswith(f"{below}/"):
                entry = {"type": "file", "oid": file.blob_id, "size": file.n_bytes, "path": path}
                if file.is_lfs:
                    entry["lfs"] = {"oid": file.sha256, **file.listed["lfs"]}
                entries.append(entry)
        self._page(entries)

    def _page(self, entries: list[dict[str, Any]]) -> None:
        self._json(entries)

    def _resolve(self, address: str, revision: str, path: str) -> None:
        found = self._commit(address, revision)
        if found is None:
            return
        repository, commit = found
        file = repository.commits[commit].get(path)
        headers = {"X-Repo-Commit": commit, "Accept-Ranges": "bytes", "Vary": "Origin"}
        if file is None:
            self._error(404, "EntryNotFound", "Entry not found", headers)
            return
        headers["ETag"] = f'"{file.etag}"'
        if file.is_lfs:
            location = self._hub.cdn_address(f"/{quote(repository.address, safe='')}/{commit}/{quote(path)}")
            linked = {"X-Linked-Size": str(file.n_bytes), "X-Linked-Etag": headers["ETag"]}
            self._redirect(repository, commit, file, {**headers, **linked, "Location": location})
        else:
            self._content(file, headers)

    def _redirect(
        self, repository: StoredRepository, commit: str, file: StoredFile, headers: Mapping[str, str]
    ) -> None:
        self._answer(302, b"", headers)

    # The CDN.

    def _serve_cdn(self) -> None:
        address, _, rest = self._path.lstrip("/").partition("/")
        commit, _, path = rest.partition("/")
        repository = self._hub.find(unquote(address))
        file = repository.commits.get(commit, {}).get(unquote(path)) if repository is not None else None
        if file is None:
            self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>", {})
        else:
            self._content(file, {"ETag": f'"{commit[:32]}"', "Accept-Ranges": "bytes"})

    # Answers.

    def _content(self, file: StoredFile, headers: Mapping[str, str]) -> None:
        """Answer with a file, or with the range of it that is asked for."""
        start, stop, status, about = 0, file.n_bytes, 200, dict(headers)
        asked = _SINGLE_RANGE.fullmatch(self.headers.get("Range", ""))  # several ranges: the whole file, as on S3
        if asked is not None:
            start, stop, status = int(asked[1]), min(int(asked[2] or file.n_bytes) + 1, file.n_bytes), 206
            if start >= file.n_bytes or stop <= start:
                self._answer(416, b"", {"Content-Range": f"bytes */{file.n_bytes}"})
                return
            about["Content-Range"] = f"bytes {start}-{stop - 1}/{file.n_bytes}"
        self._head(status, stop - start, about)
        if self.command == "GET":
            self._body(file.place, start, stop)

    def _body(self, place: Path, start: int, stop: int) -> None:
        with place.open("rb") as content:
            content.seek(start)
            while block := content.read(min(_BLOCK, stop - start)):
                self._send(block)
                start += len(block)

    def _json(self, content: object, headers: Mapping[str, str] | None = None) -> None:
        kind = {"Content-Type": "application/json; charset=utf-8"}
        self._answer(200, json.dumps(content).encode(), {**kind, **(headers or {})})

    def _error(self, status: int, code: str, message: str, headers: Mapping[str, str] | None = None) -> None:
        said = {"X-Error-Message": message, "Content-Type": "application/json; charset=utf-8", **(headers or {})}
        if code:
            said["X-Error-Code"] = code
        self._answer(status, json.dumps({"error": message}).encode(), said)

    def _answer(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        self._head(status, len(body), headers)
        if self.command != "HEAD":
            self._send(body)

    def _head(self, status: int, n_bytes: int, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(n_bytes)}.items():
            self.send_header(name, value)
        self.end_headers()

    def _send(self, block: bytes) -> None:
        self.wfile.write(block)


def address_of(kind: str, name: str) -> str:
    """Return the path of a repository on the Hub: of a model its name alone."""
    return name if kind == "models" else f"{kind}/{name}"


def object_id(text: str) -> str:
    """Return 24 hexadecimal digits, as the Hub names its objects."""
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()[:24]
