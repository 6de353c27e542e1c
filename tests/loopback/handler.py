"""Request handler of the loopback Hub in tests: the demo's handler with permissions, lists, commits and faults."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import json
import re
import socket
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qs, quote, unquote, urlsplit

from mdir_hf.demo.loopback import API, Handler, address_of
from mdir_hf.demo.stored_repository import StoredFile
from tests.loopback.commits import RefusedError, discussions
from tests.loopback.faults import Fault, FaultKind
from tests.loopback.limits import bucket_of
from tests.loopback.lists import entry_page, model_page
from tests.loopback.repository import FullRepository
from tests.loopback.traffic import LoggedConnection, LoggedRequest
from tests.loopback.xet import xet_hash, xet_headers, xet_token

_DISABLED = "Access to this resource is disabled."
_SILENCE_S = 600.0  # longer than any client waits


class FullHandler(Handler):
    """Answers and logs the requests of one connection, with simulated latency and faults.

    Faults other than ``status`` and ``changed_etag`` affect only the content of files.
    """

    routes: ClassVar[tuple[tuple[str, str], ...]] = (
        (r"/api/collections/([^/]+/[^/]+)", "_collection"),
        (rf"{API}([^/]+/[^/]+)/discussions", "_discussions"),
        (rf"{API}([^/]+/[^/]+)/xet-read-token/([^/]+)", "_xet_token"),
        (r"/api/resolve-cache/(models|datasets)/([^/]+(?:/[^/]+)?)/([0-9a-f]{40})/(.+)", "_resolve_cache"),
        *Handler.routes,
    )
    _said: Mapping[str, str] = {}
    _fault: Fault | None = None
    _log: LoggedRequest | None = None
    _is_content = False

    def do_POST(self) -> None:
        self._posted = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self._serve()

    def do_PUT(self) -> None:
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

    # The hub.

    def _answer_request(self) -> None:
        self._said, self._is_content = {}, False
        asked, had_token = self.headers.get("Range"), "Authorization" in self.headers
        self._log = LoggedRequest(self.command, self.server.origin, unquote(self._path), asked, had_token)
        is_first = self._connection.n_requests == 0
        self._connection.n_requests += 1
        self._log.connection = self._number
        self._log.began = self._connection.opened_at if is_first else time.monotonic()
        self._hub.requests.append(self._log)
        self._fault = self._hub.take_fault(self._log)
        time.sleep(self._hub.network.round_trip_s)
        if self._has("hang_up"):
            self.close_connection = True
            with contextlib.suppress(OSError):
                self.connection.shutdown(socket.SHUT_RDWR)
        elif self._has("status"):
            self._answer(self._fault.status, self._fault.body, self._fault.headers)
        else:
            super()._answer_request()

    def _head(self, status: int, n_bytes: int, headers: Mapping[str, str]) -> None:
        super()._head(status, n_bytes, {**self._said, **headers})

    def _serve_hub(self) -> None:
        caller, bucket = self.headers.get("Authorization", ""), bucket_of(self._path)
        within, self._said = self._hub.limits.take(caller, "free user" if caller else "anonymous", bucket)
        if not within:
            self._error(429, "", f"The quota of {bucket} requests of this window is used up")
        elif self._token() == "invalid":
            self._error(401, "", "Invalid credentials in Authorization header")
        elif self.command == "POST":
            try:
                self._serve_post()
            except RefusedError as refusal:
                self._error(refusal.status, refusal.code, refusal.message)
        elif self.command == "PUT":
            self._error(404, "", "Not found")
        else:
            super()._serve_hub()

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

    def _repository(self, address: str) -> FullRepository | None:
        new = self._hub.new_name(address)
        known = self._hub.find(address)
        if new is not None:
            self._answer(307, b"", {"Location": self.path.replace(quote(address), quote(new), 1)})
        elif known is not None and known.disabled and self._token() != "anonymous":
            self._error(403, "", _DISABLED)
        elif known is not None and not known.disabled and (not known.private or self._token() == "owner"):
            return known
        elif self._token() == "anonymous":
            self._error(401, "", "Invalid username or password.")  # the Hub does not reveal what exists
        else:
            self._error(404, "RepoNotFound", "Repository not found")
        return None

    def _about(self, repository: FullRepository, commit: str) -> dict[str, Any]:
        access = {"private": repository.private, "gated": "auto" if repository.gated else False}
        return {**super()._about(repository, commit), **access}

    def _resolve(self, address: str, revision: str, path: str) -> None:
        known = self._hub.find(address)
        if known is None or not known.gated or self._token() == "owner" or known.commit(revision) is None:
            super()._resolve(address, revision, path)
        elif self._repository(address) is not None:
            status = 401 if self._token() == "anonymous" else 403
            self._error(status, "GatedRepo", f"Access to model {address} is restricted.")

    def _resolve_cache(self, kind: str, name: str, commit: str, path: str) -> None:
        self._resolve(address_of(kind, name), commit, path)

    def _redirect(self, repository: FullRepository, commit: str, file: StoredFile, headers: Mapping[str, str]) -> None:
        about: dict[str, str] = {}
        if self._hub.stores_in_xet:
            token = f"{self._hub.endpoint}/api/{repository.kind}s/{repository.repo_id}/xet-read-token/{commit}"
            about = xet_headers(file, token_address=token, cas_address=self._hub.cas_endpoint)
        super()._redirect(repository, commit, file, {**headers, **about})

    def _xet_token(self, kind: str, name: str, revision: str) -> None:
        if self._commit(address_of(kind, name), revision) is not None:
            self._json(*xet_token(self._hub.cas_endpoint))

    def _content(self, file: StoredFile, headers: Mapping[str, str]) -> None:
        is_small = self.server.origin == "hub"
        if is_small and self._hub.redirects_small_files and not self._path.startswith("/api/"):
            self._to_cache(file, headers)
        elif is_small and self.command == "GET" and self._accepts_gzip():
            self._answer(200, gzip.compress(file.place.read_bytes()), {**headers, "Content-Encoding": "gzip"})
        else:
            self._is_content = True
            if self._has("ignore_range"):
                del self.headers["Range"]
            super()._content(file, headers)

    def _to_cache(self, file: StoredFile, headers: Mapping[str, str]) -> None:
        """Redirect a client to the cache of git files in the Hub's own CDN."""
        address, _, place = self._path.lstrip("/").partition("/resolve/")
        kind = "datasets" if address.startswith("datasets/") else "models"
        path = place.partition("/")[2]  # after the revision, in which slashes are quoted
        where = f"/api/resolve-cache/{kind}/{address.removeprefix('datasets/')}/{headers['X-Repo-Commit']}/{path}"
        asked = f"{quote(self._path, safe='')}=&etag={quote(headers['ETag'], safe='')}"
        about = {name: value for name, value in headers.items() if name != "ETag"}
        linked = {"X-Linked-Etag": headers["ETag"], "X-Linked-Size": str(file.n_bytes)}
        self._answer(307, b"", {**about, **linked, "Location": f"{where}?{asked}"})

    def _accepts_gzip(self) -> bool:
        return "gzip" in self.headers.get("Accept-Encoding", "") and "Range" not in self.headers

    # Lists.

    def _page(self, entries: list[dict[str, Any]]) -> None:
        if self._hub.stores_in_xet:
            entries = [{**one, "xetHash": xet_hash(one["lfs"]["oid"])} if "lfs" in one else one for one in entries]
        address = f"{self._hub.endpoint}{self._path}"
        page, after = entry_page(entries, self._query, largest_page=self._hub.largest_page, address=address)
        self._json(page, {} if after is None else {"Link": f'<{after}>; rel="next"'})

    def _search(self) -> None:
        visible = [
            known
            for known in self._hub.repositories()
            if known.kind == "model" and (not known.private or self._token() == "owner")
        ]
        address = f"{self._hub.endpoint}/api/models"
        page, after = model_page(
            visible,
            self._query,
            expands=parse_qs(urlsplit(self.path).query).get("expand", []),
            largest_page=self._hub.largest_page,
            address=address,
        )
        self._json(page, {} if after is None else {"Link": f'<{after}>; rel="next"'})

    def _collection(self, slug: str) -> None:
        collection = self._hub.collection(slug)
        if collection is None or (collection.private and self._token() != "owner"):
            self._error(404, "", "Collection not found")
        else:
            self._json(collection.answer())

    def _discussions(self, kind: str, name: str) -> None:
        repository = self._repository(address_of(kind, name))
        if repository is not None:
            self._json(discussions(repository, self._query))

    # Writing.

    def _serve_post(self) -> None:
        if self._path == "/api/validate-yaml":
            status, remarks = self._hub.writer.validate(self._posted)
            self._answer(status, json.dumps(remarks).encode(), {"Content-Type": "application/json; charset=utf-8"})
            return
        match = re.fullmatch(rf"{API}([^/]+/[^/]+)/(preupload|commit)/([^/]+)", self._path)
        lfs = re.fullmatch(r"/((?:datasets/)?[^/]+/[^/]+)\.git/info/lfs/objects/batch", self._path)
        if match is None and lfs is None:
            raise RefusedError(404, "", "Not found")
        if match is not None:
            kind, name, action, revision = map(unquote, match.groups())
            address = address_of(kind, name)
        elif lfs is not None:
            address, action, revision = unquote(lfs[1]), "lfs", "main"
        if self._token() == "anonymous":
            raise RefusedError(401, "", "Invalid username or password.")
        found = self._commit(address, revision)
        if found is None:
            return
        repository, commit = found
        # An account that may propose changes may upload their files.
        create_pr = action == "lfs" or self._query.get("create_pr") == "1"
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
            self._json(writer.preupload(repository, commit, self._posted))
        elif self.headers.get("Content-Type") != "application/x-ndjson":
            raise RefusedError(400, "", "Expected application/x-ndjson")
        else:
            self._json(writer.commit(self._hub, repository, revision, self._posted, create_pr=create_pr))

    # The CDN.

    def _serve_cdn(self) -> None:
        is_signed = self._hub.accepts(self._path, self._query)
        if self._path.startswith("/cas/"):
            self._fail_as_cas()
        elif self.command == "POST":
            self._error(404, "", "Not found")
        elif self.command == "PUT":
            self._take_upload(is_signed)
        elif "Authorization" in self.headers:  # only one way to authenticate is allowed
            self._answer(400, b"<Error><Code>InvalidArgument</Code></Error>", {})
        elif self.command != "GET" or not is_signed:
            self._answer(403, b"<Error><Code>AccessDenied</Code></Error>", {})
        else:
            super()._serve_cdn()

    def _fail_as_cas(self) -> None:
        if self._hub.cas == "silent":
            threading.Event().wait(_SILENCE_S)
        self._answer(500, b"", {})

    def _take_upload(self, is_signed: bool) -> None:
        match = re.fullmatch(r"/lfs/([0-9a-f]{64})", self._path) if is_signed else None
        if match is None or "Authorization" in self.headers:
            self._answer(403, b"<Error><Code>AccessDenied</Code></Error>", {})
        elif not self._hub.writer.take_lfs(match[1], self._posted):
            self._answer(400, b"<Error><Code>BadDigest</Code></Error>", {})
        else:
            self._answer(200, b"", {})

    # The network, and faults.

    def setup(self) -> None:
        """Log a new connection, and wait for its handshake."""
        super().setup()
        hub = self.server.hub
        self._connection = LoggedConnection(self.server.origin, time.monotonic())
        self._number = hub.note_connection(self._connection)
        time.sleep(hub.network.round_trip_s * hub.network.handshake_round_trips)

    def _has(self, *kinds: FaultKind) -> bool:
        return self._fault is not None and self._fault.kind in kinds

    def _body(self, place: Path, start: int, stop: int) -> None:
        sent = start + self._fault.after_bytes if self._has("drop", "truncate") else stop
        if self._has("gzip"):
            with place.open("rb") as file:
                file.seek(start)
                self._send(gzip.compress(file.read(stop - start)))
            return
        super()._body(place, start, min(stop, sent))
        if self._has("chunked"):
            self.wfile.write(b"0\r\n\r\n")
        if self._has("drop") and sent < stop:
            # Close the connection in the middle of the body.
            self.close_connection = True
            self.wfile.flush()
            with contextlib.suppress(OSError):
                self.connection.shutdown(socket.SHUT_RDWR)

    def _send(self, block: bytes) -> None:
        if self._is_content and self._has("slow"):
            time.sleep(self._fault.delay_s)
        if self._hub.network.bytes_per_s is not None:
            time.sleep(len(block) / self._hub.network.bytes_per_s)
        if self._is_content and self._has("chunked"):
            block = b"%x\r\n%b\r\n" % (len(block), block)
        # Logged before the write, so that the log is complete when a client has the bytes.
        self._log.bytes_sent += len(block)
        self._log.ended = time.monotonic()
        super()._send(block)

    def end_headers(self) -> None:
        if self._log is not None:
            self._log.ended = time.monotonic()
        super().end_headers()

    def send_response(self, code: int, message: str | None = None) -> None:
        if self._log is not None:
            self._log.status = code
        super().send_response(code, message)

    def send_header(self, keyword: str, value: str) -> None:
        if self._has("changed_etag") and keyword == "X-Linked-Size":
            value = str(int(value) + 1)
        elif self._has("changed_etag") and keyword in ("ETag", "X-Linked-Etag"):
            kind = "sha256" if len(value) == 2 + 64 else "sha1"
            value = f'"{hashlib.new(kind, value.encode()).hexdigest()}"'
        elif self._has("wrong_content_range") and keyword == "Content-Range":
            value = re.sub(r"\d+(?=[-/])", lambda number: str(int(number[0]) + 1), value)
        elif self._has("truncate") and self._is_content and keyword == "Content-Length":
            value = str(min(int(value), self._fault.after_bytes))
        elif self._has("unknown_size") and keyword == "Content-Range":
            value = f"{value.partition('/')[0]}/*"
        elif self._has("chunked") and self._is_content and keyword == "Content-Length":
            keyword, value = "Transfer-Encoding", "chunked"
        elif self._has("gzip") and self._is_content and keyword == "Content-Length":
            self.close_connection = True
            super().send_header("Connection", "close")
            keyword, value = "Content-Encoding", "gzip"
        elif self._has("no_content_length") and self._is_content and keyword == "Content-Length":
            self.close_connection = True
            keyword, value = "Connection", "close"
        super().send_header(keyword, value)
