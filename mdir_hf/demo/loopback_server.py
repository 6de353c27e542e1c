"""The two servers of the loopback Hub: what is answered to each request."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import json
import re
import socket
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import parse_qs, quote, unquote, urlsplit

from mdir_hf.demo.loopback_commits import RefusedError, discussions
from mdir_hf.demo.loopback_lists import model_page
from mdir_hf.demo.loopback_repos import StoredFile, StoredRepository

if TYPE_CHECKING:
    from mdir_hf.demo.loopback import LoopbackHub

Origin = Literal["hub", "cdn"]
FaultKind = Literal[
    "status", "ignore_range", "drop", "truncate", "slow", "wrong_content_range", "changed_etag", "no_content_length"
]
_BLOCK = 1 << 16
_API = r"/api/(models|datasets)/"
_NAME = r"([^/]+(?:/[^/]+)?)"
_SINGLE_RANGE = re.compile(r"bytes=(\d+)-(\d*)")


@dataclass
class LoggedRequest:
    """One request as it was received and answered.

    Attributes:
        method: ``GET`` or ``HEAD``.
        origin: Which of the two servers it came to.
        path: Path without the query.
        range: The ``Range`` header, if any.
        had_token: Whether it carried an ``Authorization`` header.
        status: What was answered.
        bytes_sent: Bytes of body handed to the connection.
    """

    method: str
    origin: Origin
    path: str
    range: str | None
    had_token: bool
    status: int = 0
    bytes_sent: int = 0


@dataclass
class Fault:
    """Something that goes wrong, for as many matching requests as said.

    Attributes:
        kind: ``status``: answer ``status`` with ``headers``. ``ignore_range``: send the whole file with 200. ``drop``:
            close the connection after ``after_bytes`` of body. ``truncate``: announce and send only ``after_bytes``,
            under a Content-Range that promises all. ``slow``: wait ``delay_s`` before every 64 KiB.
            ``wrong_content_range``: name another range than the one sent. ``changed_etag``: another ETag (and size)
            than before. ``no_content_length``: close the connection to end the body.
        origin: Only requests to this server; None: both.
        method: Only requests with this method; None: both.
        path: Only paths that contain this.
        times: How often; None: for ever.
        after_bytes: See ``kind``.
        status: See ``kind``.
        headers: Further headers of a ``status`` answer.
        delay_s: See ``kind``.
    """

    kind: FaultKind
    origin: Origin | None = None
    method: str | None = None
    path: str = ""
    times: int | None = 1
    after_bytes: int = 0
    status: int = 503
    headers: Mapping[str, str] = field(default_factory=dict)
    delay_s: float = 0.0


class Server(ThreadingHTTPServer):
    """One of the two origins, on a port of its own."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self, hub: LoopbackHub, origin: Origin) -> None:
        self.hub = hub
        self.origin: Origin = origin
        self._connections: set[socket.socket] = set()
        super().__init__(("127.0.0.1", 0), Handler)

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


def _address(kind: str, name: str) -> str:
    return name if kind == "models" else f"{kind}/{name}"


class Handler(BaseHTTPRequestHandler):
    """Answers the requests of one connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Server

    def log_message(self, format: str, *args: Any) -> None:  # noqa: ANN401
        """Print nothing; the hub keeps its own log."""

    def do_HEAD(self) -> None:
        """Answer with headers alone."""
        self._serve()

    def do_GET(self) -> None:
        """Answer with content."""
        self._serve()

    def do_POST(self) -> None:
        """Answer what was written."""
        self._posted = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self._serve()

    def do_PUT(self) -> None:
        """Take a large file."""
        self._posted = self._body_sent()
        self._serve()

    def _body_sent(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        blocks = []
        while n_bytes := int(self.rfile.readline().split(b";")[0], 16):
            blocks.append(self.rfile.read(n_bytes))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(blocks)

    def _serve(self) -> None:
        self._hub = self.server.hub
        parts = urlsplit(self.path)
        self._path, self._query = unquote(parts.path), parts.query
        self._log = LoggedRequest(
            self.command, self.server.origin, self._path, self.headers.get("Range"), "Authorization" in self.headers
        )
        self._hub.requests.append(self._log)
        self._fault = self._hub.take_fault(self._log)
        if self._fault is not None and self._fault.kind == "status":
            self._answer(self._fault.status, b'{"error":"injected"}', dict(self._fault.headers))
        elif self.command == "PUT":
            self._take_upload()
        elif self.command == "POST" and self.server.origin == "cdn":
            self._error(404, "", "Not found")
        elif self.server.origin == "cdn":
            self._serve_cdn()
        elif self._token() == "invalid":
            self._error(401, "", "Invalid credentials in Authorization header")
        else:
            self._serve_hub()

    # The hub.

    def _token(self) -> str:
        sent = self.headers.get("Authorization", "").removeprefix("Bearer ")
        known = {
            "": "anonymous",
            self._hub.token: "owner",
            self._hub.reading_token: "owner",
            self._hub.outsider_token: "outsider",
        }
        return known.get(sent, "invalid")

    def _may_write(self) -> bool:
        return self._hub.reading_token not in self.headers.get("Authorization", "")

    def _serve_hub(self) -> None:
        if self.command == "POST":
            try:
                self._serve_post()
            except RefusedError as refusal:
                self._error(refusal.status, refusal.code, refusal.message)
        elif self._path == "/api/agent-harnesses":
            self._json({"standardEnvVars": [], "harnesses": {}})
        elif self._path == "/api/models":
            self._search()
        elif match := re.fullmatch(r"/api/collections/([^/]+/[^/]+)", self._raw_path()):
            self._collection(unquote(match[1]))
        elif match := re.fullmatch(rf"{_API}{_NAME}/tree/([^/]+)(?:/(.*))?", self._raw_path()):
            kind, *asked = map(unquote, match.groups(default=""))
            self._listing(_address(kind, asked[0]), *asked[1:])
        elif match := re.fullmatch(rf"{_API}([^/]+/[^/]+)/discussions", self._raw_path()):
            repository = self._repository(_address(*map(unquote, match.groups())))
            if repository is not None:
                self._json(discussions(repository, parse_qs(self._query)))
        elif match := re.fullmatch(rf"{_API}([^/]+(?:/[^/]+)??)(?:/revision/([^/]+))?", self._raw_path()):
            self._model_info(_address(*map(unquote, match.group(1, 2))), unquote(match[3] or "main"))
        elif match := re.fullmatch(
            r"(?:/api/resolve-cache/models)?/((?:datasets/[^/]+/)?[^/]+(?:/[^/]+)?)/resolve/([^/]+)/(.+)",
            self._raw_path(),
        ):
            self._resolve(*map(unquote, match.groups()))
        else:
            self._error(404, "", "Not found")

    def _serve_post(self) -> None:
        if self._path == "/api/validate-yaml":
            status, remarks = self._hub.writer.validate(self._posted)
            self._answer(status, json.dumps(remarks).encode(), {"Content-Type": "application/json; charset=utf-8"})
            return
        match = re.fullmatch(rf"{_API}([^/]+/[^/]+)/(preupload|commit)/([^/]+)", self._raw_path())
        lfs = re.fullmatch(r"/((?:datasets/)?[^/]+/[^/]+)\.git/info/lfs/objects/batch", self._raw_path())
        if match is None and lfs is None:
            raise RefusedError(404, "", "Not found")
        if match is not None:
            kind, name, action, revision = map(unquote, match.groups())
            repo_id = _address(kind, name)
        elif lfs is not None:
            repo_id, action, revision = unquote(lfs[1]), "lfs", "main"
        if self._token() == "anonymous":
            raise RefusedError(401, "", "Invalid username or password.")
        repository = self._repository(repo_id)
        commit = self._commit(repository, revision) if repository is not None else None
        if repository is None or commit is None:
            return
        # Whoever may propose may upload what is proposed.
        create_pr = action == "lfs" or parse_qs(self._query).get("create_pr") == ["1"]
        if not self._may_write():
            raise RefusedError(403, "", "Forbidden: you must use a write token to access this resource.")
        if self._token() != "owner" and not create_pr:
            raise RefusedError(403, "", "Forbidden: pass `create_pr=1` as a query parameter to create a Pull Request")
        if create_pr and not repository.has_discussions:
            raise RefusedError(403, "", "Discussions are disabled for this repo")
        writer = self._hub.writer
        if action == "lfs":
            self._json(writer.lfs_batch(self._hub, self._posted))
        elif action == "preupload":
            self._json(writer.preupload(self._hub, repository, commit, self._posted))
        elif self.headers.get("Content-Type") != "application/x-ndjson":
            raise RefusedError(400, "", "Expected application/x-ndjson")
        else:
            self._json(writer.commit(self._hub, repository, revision, self._posted, create_pr=create_pr))

    def _raw_path(self) -> str:
        return urlsplit(self.path).path  # a revision with a slash comes quoted

    def _repository(self, repo_id: str) -> StoredRepository | None:
        """Return the repository, or answer why not."""
        new = self._hub.new_name(repo_id)
        repository = self._hub.find(repo_id)
        if new is not None:
            self._answer(307, b"", {"Location": self.path.replace(quote(repo_id), quote(new), 1)})
        elif repository is not None and (not repository.private or self._token() == "owner"):
            return repository
        elif self._token() == "anonymous":
            self._error(401, "", "Invalid username or password.")  # the Hub does not tell strangers what exists
        else:
            self._error(404, "RepoNotFound", "Repository not found")
        return None

    def _commit(self, repository: StoredRepository, revision: str) -> str | None:
        commit = repository.commit(revision)
        if commit is None:
            self._error(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return commit

    def _search(self) -> None:
        visible = [
            known
            for known in self._hub.repositories()
            if known.kind == "model" and (not known.private or self._token() == "owner")
        ]
        address = f"{self._hub.endpoint}/api/models"
        page, after = model_page(visible, self._query, largest_page=self._hub.largest_page, address=address)
        self._json(page, {} if after is None else {"Link": f'<{after}>; rel="next"'})

    def _collection(self, slug: str) -> None:
        collection = self._hub.collection(slug)
        if collection is None or (collection.private and self._token() != "owner"):
            self._error(404, "", "Collection not found")
        else:
            self._json(collection.answer())

    def _model_info(self, repo_id: str, revision: str) -> None:
        repository = self._repository(repo_id)
        commit = self._commit(repository, revision) if repository is not None else None
        if repository is None or commit is None:
            return
        files, digests = repository.commits[commit], self._hub.digests
        with_blobs = parse_qs(self._query).get("blobs", [""])[0].lower() in ("true", "1")
        self._json(
            {
                "_id": hashlib.sha1(repository.repo_id.encode(), usedforsecurity=False).hexdigest()[:24],
                "id": repository.repo_id,
                "modelId": repository.repo_id,
                "sha": commit,
                "private": repository.private,
                "gated": "auto" if repository.gated else False,
                "disabled": False,
                "tags": [],
                "downloads": 0,
                "likes": 0,
                "siblings": [
                    digests.sibling(repository, path, file) if with_blobs else {"rfilename": path}
                    for path, file in files.items()
                ],
            }
        )

    def _listing(self, repo_id: str, revision: str, below: str) -> None:
        repository = self._repository(repo_id)
        commit = self._commit(repository, revision) if repository is not None else None
        if repository is None or commit is None:
            return
        entries = []
        for path, file in repository.commits[commit].items():
            if not below or path.startswith(f"{below}/"):
                listed = self._hub.digests.sibling(repository, path, file)
                entry = {"type": "file", "oid": listed["blobId"], "size": file.n_bytes, "path": path}
                if "lfs" in listed:
                    entry["lfs"] = {"oid": listed["lfs"]["sha256"], **listed["lfs"]}
                entries.append(entry)
        self._json(entries)

    def _resolve(self, repo_id: str, revision: str, path: str) -> None:
        repository = self._repository(repo_id)
        commit = self._commit(repository, revision) if repository is not None else None
        if repository is None or commit is None:
            return
        if repository.gated and self._token() != "owner":
            status = 401 if self._token() == "anonymous" else 403
            self._error(status, "GatedRepo", f"Access to model {repo_id} is restricted.")
            return
        file = repository.commits[commit].get(path)
        headers = {"X-Repo-Commit": commit, "Accept-Ranges": "bytes", "Vary": "Origin"}
        if file is None:
            self._error(404, "EntryNotFound", "Entry not found", headers)
            return
        digests = self._hub.digests
        etag = digests.sha256(repository, path, file) if file.is_lfs else digests.blob_id(repository, path, file)
        n_bytes = file.n_bytes
        if self._fault is not None and self._fault.kind == "changed_etag":
            etag, n_bytes = hashlib.new("sha256" if file.is_lfs else "sha1", etag.encode()).hexdigest(), n_bytes + 1
        if file.is_lfs:
            place = f"/{quote(repository.address, safe='')}/{commit}/{quote(path)}"
            headers |= {"X-Linked-Size": str(n_bytes), "X-Linked-Etag": f'"{etag}"', "ETag": f'"{etag}"'}
            self._answer(302, b"", {**headers, "Location": self._hub.sign(place)})
        elif self._hub.redirects_small_files and not self._path.startswith("/api/"):
            headers |= {"X-Linked-Etag": f'"{etag}"', "X-Linked-Size": str(n_bytes)}
            self._answer(307, b"", {**headers, "Location": f"/api/resolve-cache/models{self._raw_path()}"})
        else:
            self._content(file, {**headers, "ETag": f'"{etag}"'}, may_compress=True)

    # The CDN.

    def _take_upload(self) -> None:
        is_ours = self.server.origin == "cdn" and self._hub.accepts(self._raw_path(), self._query)
        match = re.fullmatch(r"/lfs/([0-9a-f]{64})", self._raw_path()) if is_ours else None
        if match is None or "Authorization" in self.headers:
            self._answer(403, b"<Error><Code>AccessDenied</Code></Error>", {})
        elif not self._hub.writer.take_lfs(match[1], self._posted):
            self._answer(400, b"<Error><Code>BadDigest</Code></Error>", {})
        else:
            self._answer(200, b"", {})

    def _serve_cdn(self) -> None:
        if "Authorization" in self.headers:
            self._answer(
                400, b"<Error><Code>InvalidArgument</Code></Error>", {}
            )  # only one way to authenticate is allowed
            return
        if self.command != "GET" or not self._hub.accepts(self._raw_path(), self._query):
            self._answer(403, b"<Error><Code>AccessDenied</Code></Error>", {})
            return
        repo_id, commit, path = self._raw_path().lstrip("/").split("/", 2)
        repository = self._hub.find(unquote(repo_id))
        file = repository.commits[commit].get(unquote(path)) if repository is not None else None
        if file is None:
            self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>", {})
            return
        changed = self._fault is not None and self._fault.kind == "changed_etag"
        self._content(file, {"ETag": '"changed"' if changed else f'"{commit[:32]}"', "Accept-Ranges": "bytes"})

    # Answers.

    def _content(self, file: StoredFile, headers: dict[str, str], *, may_compress: bool = False) -> None:
        kind = self._fault.kind if self._fault is not None else None
        start, stop, status = 0, file.n_bytes, 200
        match = _SINGLE_RANGE.fullmatch(self.headers.get("Range", ""))  # several ranges: the whole file, as on S3
        if match is not None and kind != "ignore_range":
            start, stop, status = int(match[1]), min(int(match[2] or file.n_bytes) + 1, file.n_bytes), 206
            if start >= file.n_bytes or stop <= start:
                self._answer(416, b"", {"Content-Range": f"bytes */{file.n_bytes}"})
                return
            shift = 1 if kind == "wrong_content_range" else 0
            headers["Content-Range"] = f"bytes {start + shift}-{stop - 1 + shift}/{file.n_bytes}"
        elif may_compress and "gzip" in self.headers.get("Accept-Encoding", "") and self.command == "GET":
            self._answer(200, gzip.compress(file.place.read_bytes()), {**headers, "Content-Encoding": "gzip"})
            return
        self._log.status = status
        if kind == "truncate" and self._fault is not None:
            stop = min(stop, start + self._fault.after_bytes)
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if kind == "no_content_length":
            self.close_connection = True
            self.send_header("Connection", "close")
        else:
            self.send_header("Content-Length", str(stop - start))
        self.end_headers()
        if self.command == "GET":
            self._body(file.place, start, stop)

    def _body(self, place: Path, start: int, stop: int) -> None:
        fault = self._fault
        left_before_drop = fault.after_bytes if fault is not None and fault.kind == "drop" else stop - start
        with place.open("rb") as content:
            content.seek(start)
            while start < stop:
                if fault is not None and fault.kind == "slow":
                    time.sleep(fault.delay_s)
                block = content.read(min(_BLOCK, stop - start, left_before_drop))
                if not block:
                    # Hang up in the middle of the body.
                    self.close_connection = True
                    self.wfile.flush()
                    with contextlib.suppress(OSError):
                        self.connection.shutdown(socket.SHUT_RDWR)
                    return
                self._log.bytes_sent += len(block)  # before the write, so that whoever has the bytes finds them logged
                self.wfile.write(block)
                start += len(block)
                left_before_drop -= len(block)

    def _json(self, content: object, headers: Mapping[str, str] | None = None) -> None:
        kind = {"Content-Type": "application/json; charset=utf-8"}
        self._answer(200, json.dumps(content).encode(), {**kind, **(headers or {})})

    def _error(self, status: int, code: str, message: str, headers: Mapping[str, str] | None = None) -> None:
        said = {"X-Error-Message": message, "Content-Type": "application/json; charset=utf-8", **(headers or {})}
        if code:
            said["X-Error-Code"] = code
        self._answer(status, json.dumps({"error": message}).encode(), said)

    def _answer(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        self._log.status = status
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self._log.bytes_sent += len(body)
            self.wfile.write(body)
