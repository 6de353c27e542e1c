"""Limit the size of request bodies: a question consists of a few names, and there are no uploads."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MAX_BODY_BYTES = 64 * 1024


class BodyLimit:
    """Responds with 413 if a body is too long, according to its header or the bytes received so far."""

    def __init__(self, app: ASGIApp, most_bytes: int = MAX_BODY_BYTES) -> None:
        self._app, self._most = app, most_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        declared = Headers(scope=scope).get("content-length", "0")
        if not (declared.isascii() and declared.isdigit()) or len(declared) > 18 or int(declared) > self._most:
            await _TOO_LONG(scope, receive, send)
            return
        n_read, has_answered = 0, False

        async def counted() -> Message:
            nonlocal n_read
            message = await receive()
            n_read += len(message.get("body", b""))
            if n_read > self._most:
                raise _TooLongError
            return message

        async def noted(message: Message) -> None:
            nonlocal has_answered
            has_answered = True
            await send(message)

        try:
            await self._app(scope, counted, noted)
        except _TooLongError:
            if not has_answered:
                await _TOO_LONG(scope, receive, send)


class _TooLongError(Exception):
    pass


_TOO_LONG = PlainTextResponse("The body of a request must not exceed 64 kB.", status_code=413)
