"""The MCP server: the tools with input and output schemas, progress and cancellation.

gradio's own MCP server returns results as Python literals in text, without structure or schema, and does not stop
cancelled calls. This module uses the server of the ``mcp`` package, at the URL at which agents expect gradio's. Calls
have the same limits and queue as all others.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import ExitStack, aclosing, asynccontextmanager
from typing import Any
from uuid import uuid4

from mcp import types
from mcp.server.lowlevel import Server
from mcp.server.streamable_http import MCP_SESSION_ID_HEADER
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mdir_hf import __version__
from mdir_space.html.links import MCP_PATH
from mdir_space.html.notices import in_words
from mdir_space.jobs.lease import Lease, Leases
from mdir_space.jobs.question import RefusedError, shortened
from mdir_space.jobs.service import Queued, Running, Service
from mdir_space.routes.body_limit import MAX_BODY_BYTES
from mdir_space.routes.tools import TOOLS, Call, Tool

log = logging.getLogger(__name__)

MAX_SESSIONS = 256
MAX_SESSIONS_OF_ONE = 16
"""Number of sessions of one visitor, if there are limits per visitor. Agents have one each, or one for each call."""

IDLE_S = 300.0
"""Time after which a session without requests or an open stream ends. It ends earlier if its place is needed."""

PROGRESS_INTERVAL_S = 0.5
LEASE = "mdir_space.lease"
"""Key of the lease of a call in the scope of its request."""

BROKEN = "Something went wrong on this server, and the error was logged. Try again."
BY_NAME = {tool.name: tool for tool in TOOLS}
INSTRUCTIONS = (
    "These tools use only the weights to decide whether language models on the Hugging Face Hub share weight ancestry. "
    "Name models as owner/name or owner/name@revision. A result has no direction and is not an accusation: quote its "
    "headline, means and does_not_mean. no_evidence is not evidence of unrelated models."
)


class McpServer:
    """The MCP server for the tools."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._server: Server[Any, Any] = Server("mdir-hf", version=__version__, instructions=INSTRUCTIONS)
        self._server.list_tools()(self._list)  # type: ignore[no-untyped-call]
        self._server.call_tool(validate_input=False)(self._call)
        self._sessions: StreamableHTTPSessionManager | None = None
        self._leases = Leases()

    @asynccontextmanager
    async def lifespan(self, _: ASGIApp) -> AsyncIterator[None]:
        """Serve while the app runs."""
        # Stateful sessions, because a client cancels a call by its number in a separate request.
        self._sessions = StreamableHTTPSessionManager(
            self._server,
            max_request_body_size=MAX_BODY_BYTES,
            max_sessions=MAX_SESSIONS,
            session_idle_timeout=IDLE_S,
        )
        async with self._sessions.run():
            yield

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request to :data:`MCP_PATH`."""
        headers = dict(scope["headers"])
        if scope["path"].rstrip("/").endswith("/schema"):
            listed = [_described(tool).model_dump(mode="json", exclude_none=True) for tool in TOOLS]
            await JSONResponse(listed)(scope, receive, send)
        elif scope["method"] == "GET" and b"text/event-stream" not in headers.get(b"accept", b""):
            names = ", ".join(BY_NAME)
            words = f"Endpoint for agents (Model Context Protocol, streamable HTTP). Its tools: {names}.\n"
            await PlainTextResponse(words)(scope, receive, send)
        elif self._sessions is None:
            await PlainTextResponse("This server is starting.", status_code=503)(scope, receive, send)
        else:
            await self._serve_session(self._sessions, scope, receive, send)

    async def _serve_session(
        self, sessions: StreamableHTTPSessionManager, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Handle a request of a session, whose lease it renews, or one that opens a session."""
        request = Request(scope)
        owner = self._service.visitor(request).key
        session = request.headers.get(MCP_SESSION_ID_HEADER)
        is_opening = session is None
        if is_opening and (why_not := await self._make_room(sessions, owner)):
            error = types.ErrorData(code=types.INTERNAL_ERROR, message=why_not)
            body = types.JSONRPCError(jsonrpc="2.0", id="server-error", error=error)
            await JSONResponse(body.model_dump(exclude_none=True), status_code=429)(scope, receive, send)
            return
        session = session or f"opening {uuid4().hex}"  # holds the place until the session has its name
        # A call ends with its own connection, because its answer cannot be fetched later.
        scope[LEASE] = call = Lease(owner)

        async def noted(message: Message) -> None:
            if is_opening and message["type"] == "http.response.start":
                name = Headers(raw=message["headers"]).get(MCP_SESSION_ID_HEADER)
                if name is not None and message["status"] < 400:
                    connections.enter_context(self._leases.take(name, owner).connected())
            await send(message)

        with ExitStack() as connections:
            connections.enter_context(call.connected())
            if is_opening or session in self._leases:
                connections.enter_context(self._leases.take(session, owner).connected())
            try:
                await sessions.handle_request(scope, receive, noted)
            finally:
                if is_opening or request.method == "DELETE":
                    self._leases.end(session)

    async def _make_room(self, sessions: StreamableHTTPSessionManager, owner: str) -> str:
        """End an unused session if there is no place for another one; return why none can end, or ""."""
        own = self._leases.of(owner)
        is_limited = self._service.settings.limits.n_per_visitor is not None
        if is_limited and len(own) >= MAX_SESSIONS_OF_ONE:
            unused = [name for name in self._leases.over() if name in own]
            why_not = f"You have {len(own)} open sessions here, the most for one visitor. Close one, then try again."
        elif len(self._leases) >= MAX_SESSIONS:
            unused = self._leases.over()
            why_not = f"All {MAX_SESSIONS} sessions of this server are in use. Try again in a minute."
        else:
            return ""
        if not unused:
            return why_not
        self._leases.end(unused[0])
        await _close(sessions, unused[0])
        return ""

    async def _list(self) -> list[types.Tool]:
        return [_described(tool) for tool in TOOLS]

    async def _call(self, name: str, arguments: dict[str, Any]) -> types.CallToolResult:
        tool = BY_NAME.get(name)
        if tool is None:
            return _refused(f"There is no tool {shortened(name)}. The tools are {', '.join(BY_NAME)}.")
        if why_not := tool.why_not(arguments):
            return _refused(why_not)
        context = self._server.request_context
        assert context.request is not None  # as in every call over HTTP
        visitor = self._service.visitor(context.request, lease=context.request.scope[LEASE])
        try:
            async with aclosing(tool.answer(self._service, Call(arguments, visitor, context.request))) as steps:
                return await self._result_of(steps)
        except RefusedError as refused:
            return _refused(refused.message)
        except Exception:
            log.exception("an MCP call failed with an unexpected error")
            return _refused(BROKEN)

    async def _result_of(
        self, steps: AsyncGenerator[Queued | Running[Any] | dict[str, Any], None]
    ) -> types.CallToolResult:
        """Send the progress of a call and return its result."""
        context = self._server.request_context
        token = None if context.meta is None else context.meta.progressToken
        started = last = time.monotonic()
        last_words = ""
        async for step in steps:
            if isinstance(step, dict):
                # The same result as text, for clients that ignore structured content.
                text = types.TextContent(type="text", text=json.dumps(step, separators=(",", ":"), ensure_ascii=False))
                return types.CallToolResult(content=[text], structuredContent=step)
            now, words = time.monotonic(), in_words(step)
            if token is not None and words != last_words and (not last_words or now - last >= PROGRESS_INTERVAL_S):
                last_words, last = words, now
                await context.session.send_progress_notification(
                    token, now - started, message=words, related_request_id=str(context.request_id)
                )
        raise AssertionError("a call ends with its result or is refused")


class McpMiddleware:
    """Passes requests to :data:`MCP_PATH` to the MCP server, and all others to the app."""

    def __init__(self, app: ASGIApp, server: McpServer) -> None:
        self._app, self._server = app, server

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        path = scope.get("path", "").rstrip("/")
        if scope["type"] == "http" and path.endswith((MCP_PATH, f"{MCP_PATH}/http", f"{MCP_PATH}/schema")):
            await self._server.serve(scope, receive, send)
        else:
            await self._app(scope, receive, send)


async def _close(sessions: StreamableHTTPSessionManager, session: str) -> None:
    """Close a session as its client would."""
    headers = [(MCP_SESSION_ID_HEADER.encode(), session.encode())]
    scope: Scope = {"type": "http", "method": "DELETE", "path": MCP_PATH, "query_string": b"", "headers": headers}

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(_: Message) -> None:
        """Ignore the response: the session may have ended meanwhile."""

    await sessions.handle_request(scope, receive, send)


def _refused(why: str) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(type="text", text=why)], isError=True)


def _described(tool: Tool) -> types.Tool:
    return types.Tool(
        name=tool.name,
        title=tool.title,
        description=tool.description,
        inputSchema=tool.input_schema,
        outputSchema=tool.output_schema,
        annotations=types.ToolAnnotations(readOnlyHint=True, idempotentHint=True, openWorldHint=True),
    )
