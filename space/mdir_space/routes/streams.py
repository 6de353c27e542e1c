"""The streams of pages and API calls: each has a lease, and the answers of a visitor who is gone are dropped.

gradio stores the answers of 2,000 sessions, a megabyte or two each, until they are fetched, and goes on with an API
call whose stream is closed.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from gradio import Blocks
from starlette.datastructures import QueryParams
from starlette.types import ASGIApp, Receive, Scope, Send

from mdir_space.jobs.lease import Leases

LOOKS_EVERY_S = 1.0


class StreamLeases:
    """Renews the lease of a session while one of its streams is open, and drops sessions whose lease is over.

    Sessions are examined when requests arrive, at most once a second. Jobs look at their lease themselves.
    """

    def __init__(self, app: ASGIApp, leases: Leases, clock: Callable[[], float] = time.monotonic) -> None:
        self._app, self._leases, self._clock = app, leases, clock
        self._looked = clock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        page = scope["app"].get_blocks()
        if self._clock() - self._looked >= LOOKS_EVERY_S:
            self._looked = self._clock()
            await self._drop(page)
        session = _session_of(scope, page)
        if session is None:
            await self._app(scope, receive, send)
            return
        with self._leases.take(session).connected():
            await self._app(scope, receive, send)

    async def _drop(self, page: Blocks) -> None:
        queue = page._queue
        for session in (*queue.pending_messages_per_session, *queue.pending_event_ids_session):
            if session not in self._leases:  # its event waits in gradio's queue
                self._leases.take(session)
        for session in self._leases.over():
            self._leases.end(session)
            await queue.clean_events(session_hash=session)
            queue.pending_messages_per_session.pop(session, None)
            queue.pending_event_ids_session.pop(session, None)
            page.state_holder.session_data.pop(session, None)  # the page has no state of its own
            page.state_holder.time_last_used.pop(session, None)


def _session_of(scope: Scope, page: Blocks) -> str | None:
    """Return the session whose stream a request opens, or None."""
    parts = scope["path"].strip("/").split("/")
    if scope["method"] != "GET" or parts[:1] != ["gradio_api"]:
        return None
    if parts[1:] == ["queue", "data"]:
        return QueryParams(scope["query_string"]).get("session_hash")
    if len(parts) >= 4 and parts[1] == "call":
        event = page._queue.event_ids_to_events.get(parts[-1])
        return parts[-1] if event is None else event.session_hash
    return None
