"""The door for agents: tools over the Model Context Protocol, with schemas of what goes in and what comes out.

gradio has such a door, too, but its results are Python's own notation as text, without a structure or a schema, and a
call that is cancelled goes on. So this is the server of the ``mcp`` package itself, at the address where agents look
for gradio's. Its calls come to the same desk as everybody's, with the same limits and the same queue.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import jsonschema
from mcp import types
from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from mdir_hf import __version__
from mdir_space.bodies import MOST_BYTES
from mdir_space.question import RefusedError, shortened
from mdir_space.visitor import Visitor, visitor_of

log = logging.getLogger(__name__)

ADDRESS = "/gradio_api/mcp"
MOST_SESSIONS = 1000
BETWEEN_NEWS_S = 0.5
BROKEN = "Something went wrong on this server, and it has been noted there. Try again."
INSTRUCTIONS = (
    "These tools say from the weights alone whether language models on the Hugging Face Hub share weight ancestry. "
    "Name models as owner/name or owner/name@revision. A result has no direction and accuses nobody: quote its "
    "headline, means and does_not_mean. no_evidence is not evidence of unrelated models."
)

News = str | dict[str, Any]
"""A sentence on how far a call is, or its result."""


@dataclass(frozen=True)
class Call:
    """One call of a tool.

    Attributes:
        arguments: Valid by the tool's schema.
        visitor: Who calls.
        request: Their request, for links.
    """

    arguments: dict[str, Any]
    visitor: Visitor
    request: Any


@dataclass(frozen=True)
class AgentTool:
    """A tool as agents see it.

    Attributes:
        name: What they call.
        title: What people read.
        description: What it does, when to use it, and how long it takes.
        takes: JSON Schema of the arguments.
        gives: JSON Schema of the result.
        answer: Answers a call, as news of which the last is the result; closing it stops the work.
    """

    name: str
    title: str
    description: str
    takes: dict[str, Any]
    gives: dict[str, Any]
    answer: Callable[[Call], AsyncGenerator[News, None]]

    def described(self) -> types.Tool:
        """What is listed of it."""
        return types.Tool(
            name=self.name,
            title=self.title,
            description=self.description,
            inputSchema=self.takes,
            outputSchema=self.gives,
            annotations=types.ToolAnnotations(readOnlyHint=True, idempotentHint=True, openWorldHint=True),
        )

    def why_not(self, arguments: dict[str, Any]) -> str:
        """Return in a sentence why it does not take these arguments; empty if it does."""
        errors = jsonschema.Draft202012Validator(self.takes).iter_errors(arguments)
        wrong = jsonschema.exceptions.best_match(errors)
        if wrong is None:
            return ""
        where = ".".join(map(str, wrong.absolute_path))
        said = shortened(wrong.message, 300)
        names = ", ".join(self.takes["properties"])
        return f"{self.name} does not take this{f' {where}' if where else ''}: {said}. Its arguments are {names}."


class Agents:
    """The server of the tools.

    Args:
        tools: What it offers.
        n_proxies: How many proxies the server stands behind; see :func:`~mdir_space.visitor.visitor_of`.
    """

    def __init__(self, tools: tuple[AgentTool, ...], *, n_proxies: int = 0) -> None:
        self.tools = {tool.name: tool for tool in tools}
        self._n_proxies = n_proxies
        self._server: Server[Any, Any] = Server("mdir-hf", version=__version__, instructions=INSTRUCTIONS)
        self._server.list_tools()(self._list)  # type: ignore[no-untyped-call]
        self._server.call_tool(validate_input=False)(self._call)
        self._sessions: StreamableHTTPSessionManager | None = None

    @asynccontextmanager
    async def lifespan(self, _: ASGIApp) -> AsyncIterator[None]:
        """Serve while the app runs."""
        # Sessions are kept, so that a client can cancel a call by its number: that comes as a request of its own.
        self._sessions = StreamableHTTPSessionManager(
            self._server, max_request_body_size=MOST_BYTES, max_sessions=MOST_SESSIONS
        )
        async with self._sessions.run():
            yield

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request to :data:`ADDRESS`."""
        headers = dict(scope["headers"])
        if scope["path"].rstrip("/").endswith("/schema"):
            listed = [tool.described().model_dump(mode="json", exclude_none=True) for tool in self.tools.values()]
            await JSONResponse(listed)(scope, receive, send)
        elif scope["method"] == "GET" and b"text/event-stream" not in headers.get(b"accept", b""):
            names = ", ".join(self.tools)
            words = f"An address for agents (Model Context Protocol, streamable HTTP). Its tools: {names}.\n"
            await PlainTextResponse(words)(scope, receive, send)
        elif self._sessions is None:
            await PlainTextResponse("This server is starting.", status_code=503)(scope, receive, send)
        else:
            await self._sessions.handle_request(scope, receive, send)

    async def _list(self) -> list[types.Tool]:
        return [tool.described() for tool in self.tools.values()]

    async def _call(self, name: str, arguments: dict[str, Any]) -> types.CallToolResult:
        tool = self.tools.get(name)
        if tool is None:
            return _refused(f"There is no tool {shortened(name)}. There are {', '.join(self.tools)}.")
        if why_not := tool.why_not(arguments):
            return _refused(why_not)
        context = self._server.request_context
        visitor = visitor_of(context.request, n_proxies=self._n_proxies)
        try:
            async with aclosing(tool.answer(Call(arguments, visitor, context.request))) as news:
                return await self._last_of(news)
        except RefusedError as refused:
            return _refused(refused.message)
        except Exception:
            log.exception("a call of an agent failed in a way that is not foreseen")
            return _refused(BROKEN)

    async def _last_of(self, news: AsyncGenerator[News, None]) -> types.CallToolResult:
        """Pass on how far a call is, and return its result."""
        context = self._server.request_context
        token = None if context.meta is None else context.meta.progressToken
        started = last = time.monotonic()
        said = ""
        async for one in news:
            if isinstance(one, dict):
                # The text is the same once more, for clients that read no structure.
                text = types.TextContent(type="text", text=json.dumps(one, separators=(",", ":"), ensure_ascii=False))
                return types.CallToolResult(content=[text], structuredContent=one)
            now = time.monotonic()
            if token is not None and one != said and (not said or now - last >= BETWEEN_NEWS_S):
                said, last = one, now
                await context.session.send_progress_notification(
                    token, now - started, message=one, related_request_id=str(context.request_id)
                )
        raise AssertionError("a call ends with its result or is refused")


class AgentsDoor:
    """Hands requests to :data:`ADDRESS` to the agents' server, and everything else on.

    Args:
        app: What answers everything else.
        agents: The server.
    """

    def __init__(self, app: ASGIApp, agents: Agents) -> None:
        self._app, self._agents = app, agents

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        path = scope.get("path", "").rstrip("/")
        if scope["type"] == "http" and path.endswith((ADDRESS, f"{ADDRESS}/http", f"{ADDRESS}/schema")):
            await self._agents.serve(scope, receive, send)
        else:
            await self._app(scope, receive, send)


def _refused(why: str) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(type="text", text=why)], isError=True)
