"""A Hub on this machine: folders served over HTTP as the Hub serves public models.

Two origins, 127.0.0.1 and localhost, each with a port of its own: the "hub" (API, small files, redirects) and the
"CDN" (large files). For demonstrations; access, writing and faults are added where the tests need them.

    with LoopbackHub() as hub:
        hub.add_repository("owner/name", folder)
        os.environ["HF_ENDPOINT"] = hub.endpoint
"""

from __future__ import annotations

import threading
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, ClassVar

from mdir_hf.demo.loopback_files import StoredRepository
from mdir_hf.demo.loopback_server import Handler, Server

if TYPE_CHECKING:
    from typing_extensions import Self  # in typing from Python 3.11 on


class LoopbackHub:
    """A Hub on this machine, running while the ``with`` block does.

    Attributes:
        handler: What answers the requests.
        endpoint: Address of the hub.
        cdn_endpoint: Address of the CDN.
    """

    handler: ClassVar[type[Handler]] = Handler

    def __init__(self) -> None:
        self._repositories: dict[str, StoredRepository] = {}
        self._servers = [Server(self, "hub"), Server(self, "cdn")]
        # Two host names, not only two ports: the Hub client 1.x takes every port of a host for the same server.
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
        """Serve a folder as ``main`` of the model ``owner/name``; return the sha of its commit."""
        repository = StoredRepository(repo_id)
        self._repositories[repo_id] = repository
        return repository.add_revision("main", Path(folder))

    def find(self, address: str) -> StoredRepository | None:
        """Return a repository by its present address."""
        return self._repositories.get(address)

    def repositories(self) -> tuple[StoredRepository, ...]:
        """Return every repository."""
        return tuple(self._repositories.values())

    def cdn_address(self, path: str) -> str:
        """Return where the CDN serves a path."""
        return f"{self.cdn_endpoint}{path}"
