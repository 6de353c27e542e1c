"""Serve folders as public models over HTTP, from a local server that replaces the Hub.

It has two origins, 127.0.0.1 and localhost, each on its own port: the "hub" (API, small files, redirects) and the "CDN"
(large files). It is meant for demos; tests/loopback adds access control, uploads and faults.

    with LoopbackHub() as hub:
        hub.add_repository("owner/name", folder)
        os.environ["HF_ENDPOINT"] = hub.endpoint
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import socket
import sys
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Literal
from urllib.parse import parse_qs, quote, unquote, urlsplit

from mdir_hf.demo.stored_repository import StoredFile, StoredRepository

if TYPE_CHECKING:
    from typing_extensions import Self  # in typing from Python 3.11 on

Origin = Literal["hub", "cdn"]
_BLOCK = 1 << 16
API = r"/api/(models|datasets)/"
_SINGLE_RANGE = re.compile(r"bytes=(\d+)-(\d*)")


class Server(ThreadingHTTPServer):
    """HTTP server for one of the two origins, on its own port."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self, hub: LoopbackHub, origin: Origin) -> None:
        self.hub = hub
        self.origin: Origin = origin
        self._connections: set[socket.socket] = set()
        super().__init__(("127.0.0.1", 0), hub.handler)

    def process_request(self, request: Any, client_address: Any) -> None:  # noqa: ANN401
        """Record the connection, so that it can be closed at the end."""
        self._connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:  # noqa: ANN401
        """Discard the record of a connection that the client closed."""
        self._connections.discard(request)
        super().shutdown_request(request)

    def close_connections(self) -> None:
        """Close all connections that clients kept open."""
        for connection in list(self._connections):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401
        """Print the error unless the client caused it."""
        if not isinstance(sys.exc_info()[1], OSError):  # the client closed the connection
            super().handle_error(request, client_address)


class Handler(BaseHTTPRequestHandler):
    """Request handler for one connection; ``routes`` maps path patterns to methods."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Server
    routes: ClassVar[tuple[tuple[str, str], ...]] = (
        ("/api/agent-harnesses", "_harnesses"),
        ("/api/models", "_search"),
        (rf"{API}([^/]+(?:/[^/]+)?)/tree/([^/]+)(?:/(.*))?", "_listing"),
        (rf"{API}([^/]+(?:/[^/]+)?)/commits/([^/]+)", "_commits"),
        (rf"{API}([^/]+(?:/[^/]+)??)(?:/revision/([^/]+))?", "_model_info"),
        (r"/((?:datasets/[^/]+/)?[^/]+(?:/[^/]+)?)/resolve/([^/]+)/(.+)", "_resolve"),
    )

    def log_message(self, format: str, *args: Any) -> None:  # noqa: ANN401
        """Suppress the log."""

    def do_HEAD(self) -> None:
        """Respond to a HEAD request."""
        self._serve()

    def do_GET(self) -> None:
        """Respond to a GET request."""
        self._serve()

    def _serve(self) -> None:
        self._hub = self.server.hub
        parts = urlsplit(self.path)
        self._path = parts.path  # still quoted: a revision can contain a slash
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
        repository = self._hub.find(address)
        if repository is None:
            self._error(404, "RepoNotFound", "Repository not found")
        return repository

    def _commit(self, address: str, revision: str) -> tuple[StoredRepository, str] | None:
        repository = self._repository(address)
        if repository is None:
            return None
        commit = repository.commit(revision)
        if commit is None:
            self._error(404, "RevisionNotFound", f"Invalid rev id: {revision}")
            return None
        return repository, commit

    def _search(self) -> None:
        search_text = self._query.get("search", "").lower()
        names = [
            repository.repo_id for repository in self._hub.repositories() if search_text in repository.repo_id.lower()
        ]
        limit = int(self._query.get("limit", len(names)))
        self._json([{"_id": object_id(name), "id": name, "modelId": name} for name in names[:limit]])

    def _model_info(self, kind: str, name: str, revision: str) -> None:
        pinned = self._commit(address_of(kind, name), revision or "main")
        if pinned is not None:
            self._json(self._about(*pinned))

    def _commits(self, kind: str, name: str, revision: str) -> None:
        repository_and_commit = self._commit(address_of(kind, name), revision)
        if repository_and_commit is not None:
            repository, commit = repository_and_commit
            about = {"id": commit, "title": "Upload", "message": "", "date": repository.dates.get(commit)}
            self._json([about])

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
        pinned = self._commit(address_of(kind, name), revision)
        if pinned is None:
            return
        repository, commit = pinned
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
        pinned = self._commit(address, revision)
        if pinned is None:
            return
        repository, commit = pinned
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
        address, _, commit_and_path = self._path.lstrip("/").partition("/")
        commit, _, path = commit_and_path.partition("/")
        repository = self._hub.find(unquote(address))
        file = repository.commits.get(commit, {}).get(unquote(path)) if repository is not None else None
        if file is None:
            self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>", {})
        else:
            self._content(file, {"ETag": f'"{commit[:32]}"', "Accept-Ranges": "bytes"})

    # Responses.

    def _content(self, file: StoredFile, headers: Mapping[str, str]) -> None:
        start, stop, status, about = 0, file.n_bytes, 200, dict(headers)
        byte_range = _SINGLE_RANGE.fullmatch(self.headers.get("Range", ""))  # otherwise the whole file, as on S3
        if byte_range is not None:
            start, stop, status = int(byte_range[1]), min(int(byte_range[2] or file.n_bytes) + 1, file.n_bytes), 206
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
        fields = {"X-Error-Message": message, "Content-Type": "application/json; charset=utf-8", **(headers or {})}
        if code:
            fields["X-Error-Code"] = code
        self._answer(status, json.dumps({"error": message}).encode(), fields)

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
    """Return the path of a repository on the Hub, which for a model is its name."""
    return name if kind == "models" else f"{kind}/{name}"


def object_id(text: str) -> str:
    """Return 24 hex digits for a text, like an object id on the Hub."""
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()[:24]


class LoopbackHub:
    """A local replacement for the Hub that runs inside its ``with`` block."""

    handler: ClassVar[type[Handler]] = Handler

    def __init__(self) -> None:
        self._repositories: dict[str, StoredRepository] = {}
        self._servers = [Server(self, "hub"), Server(self, "cdn")]
        # Two host names, because the Hub client 1.x treats all ports of one host as the same server.
        self.endpoint = f"http://127.0.0.1:{self._servers[0].server_port}"
        self.cdn_endpoint = f"http://localhost:{self._servers[1].server_port}"

    def __enter__(self) -> Self:
        for server in self._servers:
            threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for server in self._servers:
            server.shutdown()
            server.close_connections()
            server.server_close()

    def add_repository(self, repo_id: str, folder: str | Path) -> str:
        """Serve a folder as the ``main`` branch of a model; return its commit SHA."""
        repository = StoredRepository(repo_id)
        self._repositories[repo_id] = repository
        return repository.add_revision("main", Path(folder))

    def find(self, address: str) -> StoredRepository | None:
        """Return the repository at a path, or None."""
        return self._repositories.get(address)

    def repositories(self) -> tuple[StoredRepository, ...]:
        """Return all repositories."""
        return tuple(self._repositories.values())

    def cdn_address(self, path: str) -> str:
        """Return the URL of a path on the CDN."""
        return f"{self.cdn_endpoint}{path}"
