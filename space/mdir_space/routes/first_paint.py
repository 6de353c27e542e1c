"""The first paint: before its scripts load, the page shows the stored result named in its URL, if any."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterable
from dataclasses import replace

import gradio as gr
from markupsafe import Markup
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mdir_hf import Verdict
from mdir_space.html.answer_card import answer_card, answer_words
from mdir_space.html.links import page_address, pinned_link, server_address
from mdir_space.html.templates import render
from mdir_space.html.verdict_card import KEPT
from mdir_space.jobs.question import Question
from mdir_space.jobs.results import Result
from mdir_space.jobs.service import Answered, Service
from mdir_space.jobs.survey import SurveyResult
from mdir_space.routes.cards import kept_result

log = logging.getLogger(__name__)

MAX_WAIT_S = 1.0
"""Longest wait for the Hub to confirm that the models of a stored result are still public."""

DESCRIPTION = "Do two language models share weight ancestry? An answer from their weights alone, with a p-value."
PREVIEW_PICTURES = {True: "/pictures/landing-yes-light.webp", False: "/pictures/landing-no-light.webp"}
"""Picture in the preview of a link: a diagonal, or noise if a comparison found nothing."""

_PREVIEW_TAGS = re.compile(r"<meta\s+(?:property|name)=[\"'](?:og|twitter):[^>]*>\s*")
"""Tags that gradio writes for link previews. They are removed, because readers use the first tag of each name."""

_VARIABLE = re.compile(r"var\(--([a-z][a-z0-9-]*)\)")
_LAYOUT = """
#first-paint { --measure: 44rem; --quiet: var(--body-text-color-subdued); --line: var(--border-color-primary);
  --soft: var(--background-fill-secondary); --accent: var(--link-text-color); }
body:has(> #first-paint) > gradio-app { position: absolute; visibility: hidden; }
#first-paint { box-sizing: border-box; width: 100%; max-width: 62rem; margin: 0 auto; padding: 0 1.25rem 2rem;
  font: 1rem/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif;
  color: var(--body-text-color); }
#first-paint > nav { display: flex; justify-content: flex-end; gap: 1.5rem; font-size: .875rem; line-height: 3rem;
  height: 3rem; margin: 0 calc(50% - 50vw) 2.5rem; padding: 0 calc(50vw - 50%); border-bottom: 1px solid var(--line); }
:where(#first-paint) a { color: var(--link-text-color); }
#first-paint > nav a { color: var(--quiet); text-decoration: none; }
#first-paint > .coming { height: 16rem; margin: 0; color: var(--quiet); }
@media (max-width: 640px) { #first-paint > .coming { height: 27rem; } }
"""


class FirstPaint:
    """Adds content that is readable before gradio's scripts run and remove it.

    If the URL names a stored public result, the page shows its card, and the tags for link previews have its words.
    ``introduction`` is the head of the page as HTML.
    """

    def __init__(
        self, app: ASGIApp, *, service: Service, theme: gr.themes.Base, css: str, title: str, introduction: Markup
    ) -> None:
        self._app, self._service = app, service
        self._title, self._introduction = title, introduction
        names = sorted(set(_VARIABLE.findall(css + _LAYOUT)))
        light = _values(theme, names, "")
        dark = light | _values(theme, names, "_dark")
        self._style = {
            "": f"{_rule(light)}@media (prefers-color-scheme: dark) {{ {_rule(dark)} }}{css}{_LAYOUT}",
            "light": f"{_rule(light)}{css}{_LAYOUT}",
            "dark": f"{_rule(dark)}{css}{_LAYOUT}",
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] != "http" or scope["path"] != "/" or scope["method"] != "GET":
            await self._app(scope, receive, send)
            return
        looking = asyncio.ensure_future(self._kept_answer(Request(scope)))
        start: Message | None = None
        body = bytearray()

        async def gathered(message: Message) -> None:
            nonlocal start
            if message["type"] == "http.response.start":
                start = message
            elif message["type"] == "http.response.body":
                body.extend(message.get("body", b""))

        try:
            await self._app(scope, receive, gathered)
            kept_answer = await looking
        finally:
            looking.cancel()
        if start is None:
            return
        headers = MutableHeaders(raw=start["headers"])
        content = bytes(body)
        if start["status"] == 200 and headers.get("content-type", "").startswith("text/html"):
            content = self._written(content.decode("utf-8"), Request(scope), kept_answer).encode("utf-8")
            headers["content-length"] = str(len(content))
        await send(start)
        await send({"type": "http.response.body", "body": content})

    async def _kept_answer(self, request: Request) -> tuple[Question, Answered[Result]] | None:
        try:
            return await asyncio.wait_for(kept_result(self._service, request), MAX_WAIT_S)
        except asyncio.TimeoutError:
            return None
        except Exception:  # the page must load regardless
            log.exception("looking up a cached result failed with an unexpected error")
            return None

    def _written(self, page: str, request: Request, kept_answer: tuple[Question, Answered[Result]] | None) -> str:
        title, description, card = self._title, DESCRIPTION, Markup()
        if kept_answer is not None:
            question, answered = kept_answer
            result = answered.result
            words = answer_words(result, question)
            title, description = words.headline, words.sentence
            # Figures come later, with the scripts that make them interactive, because they are by far the largest part.
            light = replace(result, pictures={}) if isinstance(result, SurveyResult) else result
            card = answer_card(light, question, link=pinned_link(answered, request, question), note=KEPT)
        theme = request.query_params.get("__theme", "")
        page = _PREVIEW_TAGS.sub("", page)
        address = page_address(request)
        query = f"?{request.url.query}" if kept_answer is not None else ""
        preview = {"title": title, "description": description, "address": f"{address}{query}"}
        is_found = kept_answer is None or getattr(kept_answer[1].result, "verdict", None) is not Verdict.NO_EVIDENCE
        picture = f"{server_address(request)}{PREVIEW_PICTURES[is_found]}"
        head = str(render("first_paint_head", picture=picture, **preview))
        head += f"<style>{self._style.get(theme, self._style[''])}</style>"
        body = str(render("first_paint_body", introduction=self._introduction, card=card))
        page = page.replace("<head>", f"<head>{head}", 1)
        return re.sub(r"<body[^>]*>", lambda body_tag: body_tag.group() + body, page, count=1)


def _values(theme: gr.themes.Base, names: Iterable[str], ending: str) -> dict[str, str]:
    values = {name: getattr(theme, name.replace("-", "_") + ending, None) for name in names}
    return {name: str(value) for name, value in values.items() if value is not None}


def _rule(values: dict[str, str]) -> str:
    return "#first-paint { " + " ".join(f"--{name}: {value};" for name, value in values.items()) + " } "
