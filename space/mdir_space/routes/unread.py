"""Drop answers that are never fetched, and stop their jobs.

gradio stores the answers of 2,000 visitors, a megabyte or two each, until they are fetched.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from gradio import Blocks
from starlette.types import ASGIApp, Receive, Scope, Send

KEPT_S = 120.0
"""Minimum time for which an unfetched answer is stored. With steady requests, the maximum is twice this time."""


class DropUnread:
    """Checks for unfetched answers when requests arrive, at most once every ``kept_s`` seconds."""

    def __init__(self, app: ASGIApp, kept_s: float = KEPT_S, clock: Callable[[], float] = time.monotonic) -> None:
        self._app, self._kept_s, self._clock = app, kept_s, clock
        self._looked = clock()
        self._waiting: dict[str, int] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] == "http" and self._clock() - self._looked >= self._kept_s:
            self._looked = self._clock()
            await self._forget(scope["app"].get_blocks())
        await self._app(scope, receive, send)

    async def _forget(self, page: Blocks) -> None:
        queue = page._queue
        waiting = {session: events.qsize() for session, events in queue.pending_messages_per_session.items()}
        for session, n_messages in waiting.items():
            # A listening client fetches everything at once, so the number decreases or is 0.
            if 0 < self._waiting.get(session, 0) <= n_messages:
                await queue.clean_events(session_hash=session)
                queue.pending_messages_per_session.pop(session, None)
                queue.pending_event_ids_session.pop(session, None)
        self._waiting = {session: n for session, n in waiting.items() if n}
