"""A Hub on this machine: folders served over HTTP as the Hub serves repositories, and as strictly.

Two origins, 127.0.0.1 and localhost, each with a port of its own: the "hub" (API, small files, redirects) and the
"CDN" (large files behind signed addresses that expire; it refuses requests that carry a token). Everything asked is
logged, and faults can be injected, so that a client can be shown to cope with them. For demonstrations and tests only.

    with LoopbackHub() as hub:
        hub.add_repository("owner/name", folder)
        os.environ["HF_ENDPOINT"] = hub.endpoint
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Literal
from urllib.parse import parse_qs

from mdir_hf.demo.loopback_commits import PullRequest, Writer
from mdir_hf.demo.loopback_lists import LARGEST_PAGE, StoredCollection, new_collection
from mdir_hf.demo.loopback_repos import Digests, StoredRepository
from mdir_hf.demo.loopback_server import Fault, LoggedRequest, Origin, Server

__all__ = ["Fault", "LoggedRequest", "LoopbackHub"]


class LoopbackHub:
    """A Hub on this machine, running while the ``with`` block does.

    Args:
        signature_lifetime_s: How long a signed CDN address is good for.
        redirects_small_files: Send small files through a second address on the hub, as the Hub does for some clients.

    Attributes:
        token: A token that may read everything.
        outsider_token: A valid token of somebody without access to gated or private repositories.
        reading_token: A token that may read everything and write nothing.
        requests: Everything asked so far, in order of arrival.
        faults: What is to go wrong; used up as requests match.
        largest_page: Models on a page of a list.
    """

    def __init__(self, *, signature_lifetime_s: int = 3600, redirects_small_files: bool = False) -> None:
        self.signature_lifetime_s = signature_lifetime_s
        self.redirects_small_files = redirects_small_files
        self.token = f"hf_{secrets.token_hex(17)}"
        self.outsider_token = f"hf_{secrets.token_hex(17)}"
        self.reading_token = f"hf_{secrets.token_hex(17)}"
        self.requests: list[LoggedRequest] = []
        self.faults: list[Fault] = []
        self.largest_page = LARGEST_PAGE
        self._repositories: dict[str, StoredRepository] = {}
        self._collections: dict[str, StoredCollection] = {}
        self._renamed: dict[str, str] = {}
        self._digests = Digests()
        self.writer = Writer()
        self._secret = secrets.token_bytes(16)
        self._lock = threading.Lock()
        self._servers = [Server(self, "hub"), Server(self, "cdn")]
        # Two host names, not only two ports: the Hub client 1.x takes every port of a host for the same server.
        self.endpoint = f"http://127.0.0.1:{self._servers[0].server_port}"
        self.cdn_endpoint = f"http://localhost:{self._servers[1].server_port}"

    def __enter__(self) -> LoopbackHub:
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
        self.writer.close()

    def add_repository(
        self,
        repo_id: str,
        folder: str | Path,
        *,
        private: bool = False,
        gated: bool = False,
        revisions: Mapping[str, str | Path] | None = None,
        sha256: Mapping[str, str] | None = None,
        discussions: bool = True,
        kind: Literal["model", "dataset"] = "model",
        pipeline_tag: str | None = "text-generation",
        downloads: int = 0,
    ) -> str:
        """Serve a folder as a repository.

        Args:
            repo_id: ``owner/name``.
            folder: What ``main`` holds.
            private: Strangers are told that it does not exist.
            gated: Strangers get the listing and no file.
            revisions: Further branches or tags, each a folder.
            sha256: Digests of large files by path, for files too large to read.
            discussions: Whether pull requests may be opened.
            kind: Elsewhere a data set is named ``datasets/owner/name``.
            pipeline_tag: What the Hub takes it for.
            downloads: By which lists are sorted.

        Returns:
            The commit sha of ``main``.
        """
        repository = StoredRepository(
            repo_id,
            private,
            gated,
            dict(sha256 or {}),
            has_discussions=discussions,
            kind=kind,
            pipeline_tag=pipeline_tag,
            downloads=downloads,
        )
        for name, place in {**(revisions or {}), "main": folder}.items():
            repository.add_revision(name, Path(place))
        self._repositories[repository.address] = repository
        return repository.revisions["main"]

    def add_collection(
        self, owner: str, title: str, items: Sequence[str | tuple[str, str]], *, private: bool = False
    ) -> str:
        """Serve a collection; return its slug.

        Args:
            owner: Whose.
            title: Its title.
            items: Repo ids of models, or ``(kind, id)`` of other things.
            private: Strangers are told that it does not exist.
        """
        collection = new_collection(owner, title, items, private=private)
        self._collections[collection.slug] = collection
        return collection.slug

    def pull_requests(self, repo_id: str) -> list[PullRequest]:
        """Return the pull requests of a repository, oldest first."""
        return self._repositories[repo_id].pull_requests

    def merge(self, repo_id: str, number: int) -> str:
        """Merge a pull request whose base is still the head; return the new commit of its branch."""
        repository = self._repositories[repo_id]
        wanted = repository.pull_requests[number - 1]
        if repository.revisions[wanted.branch] != wanted.base:
            raise ValueError(f"{wanted.branch} has moved since pull request {number} was opened")
        repository.revisions[wanted.branch] = wanted.commit
        wanted.status = "merged"
        return wanted.commit

    def content(self, repo_id: str, path: str, revision: str = "main") -> bytes:
        """Return a file as a repository holds it."""
        repository = self._repositories[repo_id]
        return repository.commits[repository.commit(revision) or ""][path].place.read_bytes()

    def rename_repository(self, old: str, new: str) -> None:
        """Give a repository another name; the old one redirects, as on the Hub."""
        repository = self._repositories.pop(old)
        repository.repo_id = new
        self._repositories[new] = repository
        self._renamed[old] = new

    def expire_locations(self) -> None:
        """Make every signed address given out so far worthless."""
        self._secret = secrets.token_bytes(16)

    def sent(self, origin: Origin | None = None, path: str = "") -> list[LoggedRequest]:
        """Return the logged requests to one server whose path contains a text."""
        return [request for request in self.requests if origin in (None, request.origin) and path in request.path]

    # What the request handlers ask.

    def take_fault(self, request: LoggedRequest) -> Fault | None:
        """Return the first fault that matches, and use it up."""
        with self._lock:
            for fault in self.faults:
                matches = fault.origin in (None, request.origin) and fault.method in (None, request.method)
                if matches and fault.path in request.path and fault.times != 0:
                    if fault.times is not None:
                        fault.times -= 1
                    return fault
        return None

    def find(self, repo_id: str) -> StoredRepository | None:
        """Return a repository by its present name."""
        return self._repositories.get(repo_id)

    def repositories(self) -> tuple[StoredRepository, ...]:
        """Return every repository."""
        return tuple(self._repositories.values())

    def collection(self, slug: str) -> StoredCollection | None:
        """Return a collection."""
        return self._collections.get(slug)

    def new_name(self, repo_id: str) -> str | None:
        """Return what a repository is called now, if it was renamed."""
        return self._renamed.get(repo_id)

    @property
    def digests(self) -> Digests:
        """Digests of the files served."""
        return self._digests

    def sign(self, path: str) -> str:
        """Return a CDN address for a path, good for a while."""
        expires = int(time.time()) + self.signature_lifetime_s
        return f"{self.cdn_endpoint}{path}?Expires={expires}&Signature={self._signature(path, expires)}"

    def accepts(self, path: str, query: str) -> bool:
        """Tell whether a CDN address is signed and has not expired."""
        asked = parse_qs(query)
        expires = asked.get("Expires", ["0"])[0]
        signature = asked.get("Signature", [""])[0]
        return (
            expires.isdigit()
            and time.time() < int(expires)
            and hmac.compare_digest(signature, self._signature(path, int(expires)))
        )

    def _signature(self, path: str, expires: int) -> str:
        return hmac.new(self._secret, f"{path}\n{expires}".encode(), hashlib.sha256).hexdigest()
