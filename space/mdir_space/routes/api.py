"""The API: one gradio endpoint for each tool."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any

import gradio as gr
from gradio.events import api

from mdir_space.html.notices import place_in_words
from mdir_space.jobs.question import RefusedError
from mdir_space.jobs.service import Queued, Running, Service
from mdir_space.routes.tools import REQUIRED, TOOLS, Call, Tool

FROM_GRADIO = {
    "request": gr.Request | None,
    "account": gr.OAuthProfile | None,
    "account_token": gr.OAuthToken | None,
}
"""Types of parameters that gradio fills in itself."""
N_PLANS = 8
"""Number of concurrent calls of ``/plan``."""


def add_endpoints(service: Service) -> None:
    """Add an endpoint for each tool, such as ``/compare``, to the page being built."""
    for tool in TOOLS:
        limit = N_PLANS if tool.name == "plan" else None
        api(_endpoint(service, tool), api_name=tool.name, concurrency_limit=limit, api_description=tool.description)


def _endpoint(service: Service, tool: Tool) -> Callable[..., Awaitable[dict[str, Any]]]:
    """Return the function of an endpoint, whose parameter types gradio reads."""
    arguments_of_api = [argument for argument in tool.arguments if argument.is_in_api]

    async def call(*values: Any) -> dict[str, Any]:  # noqa: ANN401 - as the signature says
        *argument_values, request, account, account_token = values
        arguments = {
            argument.name: value
            for argument, value in zip(arguments_of_api, argument_values, strict=True)
            if argument.default is REQUIRED or value != argument.default
        }
        progress = gr.Progress()
        try:
            tool.question(arguments)  # its messages are clearer than the errors of the schema
            if why_not := tool.why_not(arguments):
                raise RefusedError(why_not)
            visitor = service.visitor(request, account, account_token)
            async with aclosing(tool.answer(service, Call(arguments, visitor, request))) as steps:
                async for step in steps:
                    if isinstance(step, dict):
                        return step
                    _show(step, progress)
        except RefusedError as refused:
            raise gr.Error(refused.message, duration=10, print_exception=False, title="Not compared") from refused
        raise AssertionError("a call ends with its result or is refused")

    types: dict[str, Any] = {argument.name: argument.type for argument in arguments_of_api} | FROM_GRADIO
    defaults = {argument.name: argument.default for argument in arguments_of_api} | dict.fromkeys(FROM_GRADIO)
    parameters = [
        inspect.Parameter(
            name,
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
            default=inspect.Parameter.empty if defaults[name] is REQUIRED else defaults[name],
            annotation=annotation,
        )
        for name, annotation in types.items()
    ]
    call.__name__ = tool.name
    call.__annotations__ = {**types, "return": dict[str, Any]}
    call.__signature__ = inspect.Signature(parameters, return_annotation=dict[str, Any])  # type: ignore[attr-defined]
    return call


def _show(step: Queued | Running[Any], progress: gr.Progress) -> None:
    if isinstance(step, Queued):
        progress(None, desc=place_in_words(step))
        return
    at = step.progress
    progress((at.bytes_read, at.bytes_expected), desc=at.stage, unit="bytes")
