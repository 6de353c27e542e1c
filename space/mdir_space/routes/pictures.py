"""Serve the pictures of the page "How it works" at URLs that reveal no path on this server."""

from __future__ import annotations

from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

PICTURES = Path(__file__).resolve().parent.parent.parent / "pictures"
PREFIX = "/pictures"


class StaticPictures:
    """Serves ``/pictures/…`` and passes other requests to the app."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._files = StaticFiles(directory=PICTURES, check_dir=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] == "http" and scope["path"].startswith(f"{PREFIX}/"):
            inner = {**scope, "path": scope["path"].removeprefix(PREFIX), "root_path": ""}
            try:
                await self._files(inner, receive, send)
            except HTTPException as exc:
                await PlainTextResponse(exc.detail, exc.status_code)(inner, receive, send)
        else:
            await self._app(scope, receive, send)
