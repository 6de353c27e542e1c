"""The loopback Hub of the demo, as strict as the Hub and with further features for tests.

It checks permissions, accepts commits, signs the URLs of its CDN, which expire, and refuses tokens there. It logs all
requests, and tests can inject faults.

    with FullHub() as hub:
        hub.add_repository("owner/name", folder, private=True)
        hub.faults.append(Fault("status", status=503))
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
from typing import ClassVar, Literal

from mdir_hf.demo.loopback import LoopbackHub, Origin
from tests.loopback.commits import Writer
from tests.loopback.faults import Fault
from tests.loopback.handler import FullHandler
from tests.loopback.limits import RateLimits
from tests.loopback.lists import LARGEST_PAGE, StoredCollection, new_collection
from tests.loopback.repository import FullRepository, PullRequest
from tests.loopback.traffic import LoggedConnection, LoggedRequest, Network
from tests.loopback.xet import CasState, closed_port


class FullHub(LoopbackHub):
    """A Hub on this machine that runs while the ``with`` block does.

    Args:
        signature_lifetime_s: Lifetime of a signed CDN URL.

    Attributes:
        token: A token that may read everything.
        outsider_token: A valid token of a user without access to gated or private repositories.
        reading_token: A token that may read everything and write nothing.
        requests: All requests so far, in order of arrival.
        connections: All connections so far.
        network: Simulated latency and bandwidth.
        limits: Rate limits.
        faults: Faults to inject; each is used up by matching requests.
        largest_page: Number of models on a page of a list, and of files on a page of a tree.
        redirects_small_files: Redirect small files to a second URL on the hub, ``/api/resolve-cache/…``.
        stores_in_xet: Report that large files are in Xet storage, with the CDN as its bridge.
        cas: Failure of the CAS server of that storage.
    """

    handler: ClassVar[type[FullHandler]] = FullHandler

    def __init__(self, *, signature_lifetime_s: int = 3600) -> None:
        super().__init__()
        self.signature_lifetime_s = signature_lifetime_s
        self.redirects_small_files = True
        self.stores_in_xet = False
        self.cas: CasState = "unreachable"
        self.network = Network()
        self.limits = RateLimits()
        self.token = f"hf_{secrets.token_hex(17)}"
        self.outsider_token = f"hf_{secrets.token_hex(17)}"
        self.reading_token = f"hf_{secrets.token_hex(17)}"
        self.requests: list[LoggedRequest] = []
        self.connections: list[LoggedConnection] = []
        self.faults: list[Fault] = []
        self.largest_page = LARGEST_PAGE
        self.writer = Writer()
        self._collections: dict[str, StoredCollection] = {}
        self._renamed: dict[str, str] = {}
        self._secret = secrets.token_bytes(16)
        self._closed_port = closed_port()
        self._lock = threading.Lock()

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        super().__exit__(kind, exc, traceback)
        self.writer.close()

    def add_repository(
        self,
        repo_id: str,
        folder: str | Path,
        *,
        private: bool = False,
        gated: bool = False,
        disabled: bool = False,
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
            folder: Files of ``main``.
            private: The Hub tells strangers that it does not exist.
            gated: Strangers get the listing but no files.
            disabled: Nobody has access; the Hub tells strangers that it does not exist.
            revisions: Further branches or tags, each a folder.
            sha256: Digests of large files by path, for files too large to read.
            discussions: Whether pull requests may be opened.
            kind: ``model`` or ``dataset``; other methods name a data set ``datasets/owner/name``.
            pipeline_tag: Task of the model.
            downloads: Number of downloads, by which lists are sorted.

        Returns:
            The commit sha of ``main``.
        """
        repository = FullRepository(
            repo_id,
            private=private,
            gated=gated,
            disabled=disabled,
            has_discussions=discussions,
            kind=kind,
            pipeline_tag=pipeline_tag,
            downloads=downloads,
        )
        for name, place in {**(revisions or {}), "main": folder}.items():
            repository.add_revision(name, Path(place), sha256)
        self._repositories[repository.address] = repository
        return repository.revisions["main"]

    def add_collection(
        self, owner: str, title: str, items: Sequence[str | tuple[str, str]], *, private: bool = False
    ) -> str:
        """Serve a collection; return its slug.

        Args:
            owner: Owner of the collection.
            title: Its title.
            items: Repo ids of models, or ``(kind, id)`` of other things.
            private: The Hub tells strangers that it does not exist.
        """
        collection = new_collection(owner, title, items, private=private)
        self._collections[collection.slug] = collection
        return collection.slug

    def pull_requests(self, address: str) -> list[PullRequest]:
        """Return the pull requests of a repository, oldest first."""
        return self._repositories[address].pull_requests

    def merge(self, address: str, number: int) -> str:
        """Merge a pull request whose base is still the head; return the new commit of its branch."""
        repository = self._repositories[address]
        wanted = repository.pull_requests[number - 1]
        if repository.revisions[wanted.branch] != wanted.base:
            raise ValueError(f"{wanted.branch} has moved since pull request {number} was opened")
        repository.revisions[wanted.branch] = wanted.commit
        wanted.status = "merged"
        return wanted.commit

    def content(self, address: str, path: str, revision: str = "main") -> bytes:
        """Return the content of a file in a repository."""
        repository = self._repositories[address]
        return repository.commits[repository.commit(revision) or ""][path].place.read_bytes()

    def rename_repository(self, old: str, new: str) -> None:
        """Give a repository another name; the old one redirects, as on the Hub."""
        repository = self._repositories.pop(old)
        repository.repo_id = new
        self._repositories[new] = repository
        self._renamed[old] = new

    def expire_locations(self) -> None:
        """Invalidate all signed URLs so far."""
        self._secret = secrets.token_bytes(16)

    def sent(self, origin: Origin | None = None, path: str = "") -> list[LoggedRequest]:
        """Return the logged requests to one server whose path contains a text."""
        return [request for request in self.requests if origin in (None, request.origin) and path in request.path]

    def wait_until_left(self, timeout_s: float = 60.0) -> None:
        """Wait until all connections are closed, including connections of killed processes.

        Raises:
            TimeoutError: If a client is still connected.
        """
        ends_at = time.monotonic() + timeout_s
        while any(server._connections for server in self._servers):
            if time.monotonic() > ends_at:
                raise TimeoutError(f"a client is still connected after {timeout_s:.0f} s")
            time.sleep(0.002)

    # For the request handlers.

    def note_connection(self, connection: LoggedConnection) -> int:
        """Log a connection, and return its number."""
        with self._lock:
            self.connections.append(connection)
            return len(self.connections) - 1

    @property
    def cas_endpoint(self) -> str:
        """URL of the CAS server of the Xet storage."""
        return f"http://127.0.0.1:{self._closed_port}" if self.cas == "unreachable" else f"{self.cdn_endpoint}/cas"

    def take_fault(self, request: LoggedRequest) -> Fault | None:
        """Return the first fault that matches, and use it up."""
        with self._lock:
            for fault in self.faults:
                if fault.takes(request):
                    if fault.times is not None:
                        fault.times -= 1
                    return fault
        return None

    def collection(self, slug: str) -> StoredCollection | None:
        """Return a collection."""
        return self._collections.get(slug)

    def new_name(self, repo_id: str) -> str | None:
        """Return the current name of a repository that was renamed."""
        return self._renamed.get(repo_id)

    def cdn_address(self, path: str) -> str:
        """Return a signed CDN URL for a path, which expires."""
        expires = int(time.time()) + self.signature_lifetime_s
        return f"{super().cdn_address(path)}?Expires={expires}&Signature={self._signature(path, expires)}"

    def accepts(self, path: str, query: Mapping[str, str]) -> bool:
        """Tell whether a CDN URL is signed and has not expired."""
        expires = query.get("Expires", "0")
        return (
            expires.isdigit()
            and time.time() < int(expires)
            and hmac.compare_digest(query.get("Signature", ""), self._signature(path, int(expires)))
        )

    def _signature(self, path: str, expires: int) -> str:
        return hmac.new(self._secret, f"{path}\n{expires}".encode(), hashlib.sha256).hexdigest()
