"""Leases: who uses a place of this server, and until when.

The stream of a page or of an API call, and an MCP session, each have a lease, which its owner renews by keeping a
connection open. A job ends when the lease of its visitor ends.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

LEASE_S = 4.0
"""Time for which a lease lasts without an open connection, so that the place of a closed one is free within 5 s."""


class Lease:
    """A place, and the owner who renews it.

    Attributes:
        owner: Key of the visitor.
    """

    def __init__(self, owner: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.owner = owner
        self._clock = clock
        self._n_connections = 0
        self._ends = clock() + LEASE_S

    @property
    def is_over(self) -> bool:
        """Whether the owner is gone."""
        return not self._n_connections and self._clock() > self._ends

    def renew(self) -> None:
        """Let the lease last for its full length from now."""
        self._ends = self._clock() + LEASE_S

    @contextmanager
    def connected(self) -> Iterator[None]:
        """Keep the lease while a connection is open, and for its full length after that."""
        self._n_connections += 1
        try:
            yield
        finally:
            self._n_connections -= 1
            self.renew()


class Leases:
    """Leases by name. Use them in one thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._leases: dict[str, Lease] = {}

    def __len__(self) -> int:
        return len(self._leases)

    def __contains__(self, name: str) -> bool:
        return name in self._leases

    def take(self, name: str, owner: str = "") -> Lease:
        """Take a lease, or renew it. The owner is unknown until a request names one."""
        lease = self._leases.pop(name, None) or Lease(owner, self._clock)
        self._leases[name] = lease  # after all others
        lease.owner = lease.owner or owner
        lease.renew()
        return lease

    def end(self, name: str) -> None:
        """Forget a lease."""
        self._leases.pop(name, None)

    def of(self, owner: str) -> list[str]:
        """Return the names of the leases of an owner."""
        return [name for name, lease in self._leases.items() if lease.owner == owner]

    def over(self) -> list[str]:
        """Return the names of the leases that are over, the least recently used first."""
        return [name for name, lease in self._leases.items() if lease.is_over]
