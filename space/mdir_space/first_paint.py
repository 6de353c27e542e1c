"""What a visitor sees before the scripts of the page have come: the question, or the kept result of the address."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterable
from dataclasses import replace
from html import escape

import gradio as gr
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mdir_space.addresses import pinned_link
from mdir_space.answer_card import answer_card, answer_words
from mdir_space.desk import Answered, Desk
from mdir_space.many import Surveyed
from mdir_space.results import Result
from mdir_space.sharing import kept_for_everybody
from mdir_space.verdict_card import KEPT
from mdir_space.ways import AnyQuestion

log = logging.getLogger(__name__)

MOST_WAITING_S = 1.0
"""For a kept result: the Hub is asked whether its models are still there for everybody."""

DESCRIPTIONS = ('name="description"', 'property="og:description"')

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
    """Writes into the page what can be read before gradio's scripts are there; they take that away again.

    A link to a kept result shows the result's card so, and says it in the tags that previews of links read. It is
    looked up as for a visitor without rights, and nothing is computed.

    Args:
        app: What answers all requests.
        desk: Where results are kept.
        theme: Theme of the page; the colours are its own.
        css: Style sheet of the page.
        title: Of the page.
        introduction: Head of the page; HTML.
    """

    def __init__(
        self, app: ASGIApp, *, desk: Desk, theme: gr.themes.Base, css: str, title: str, introduction: str
    ) -> None:
        self._app, self._desk = app, desk
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
        """Answer a request."""
        if scope["type"] != "http" or scope["path"] != "/" or scope["method"] != "GET":
            await self._app(scope, receive, send)
            return
        looking = asyncio.ensure_future(self._kept(Request(scope)))
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
            kept = await looking
        finally:
            looking.cancel()
        if start is None:
            return
        headers = MutableHeaders(raw=start["headers"])
        content = bytes(body)
        if start["status"] == 200 and headers.get("content-type", "").startswith("text/html"):
            content = self._written(content.decode("utf-8"), Request(scope), kept).encode("utf-8")
            headers["content-length"] = str(len(content))
        await send(start)
        await send({"type": "http.response.body", "body": content})

    async def _kept(self, request: Request) -> tuple[AnyQuestion, Answered[Result]] | None:
        try:
            return await asyncio.wait_for(kept_for_everybody(self._desk, request), MOST_WAITING_S)
        except asyncio.TimeoutError:
            return None
        except Exception:  # the page is to come all the same
            log.exception("looking a kept result up failed in a way that is not foreseen")
            return None

    def _written(self, page: str, request: Request, kept: tuple[AnyQuestion, Answered[Result]] | None) -> str:
        title, described, holds = self._title, "", "question"
        shown = f'{self._introduction}<p class="coming">The form is coming…</p>'
        if kept is not None:
            question, answered = kept
            result = answered.result
            words = answer_words(result, question)
            title, described, holds = words.headline, words.sentence, "result"
            # Figures come with the scripts that make them answer: as text they are heavier than all else here.
            light = replace(result, pictures={}) if isinstance(result, Surveyed) else result
            shown += answer_card(light, question, link=pinned_link(answered, request, question), note=KEPT)
        tags = [f"<title>{escape(title)}</title>", f'<meta property="og:title" content="{escape(title)}">']
        if described:
            tags += [f'<meta {name} content="{escape(described)}">' for name in DESCRIPTIONS]
        wanted = request.query_params.get("__theme", "")
        head = "".join(tags) + f"<style>{self._style.get(wanted, self._style[''])}</style>"
        body = (
            f'<main id="first-paint" data-holds="{holds}">'
            '<nav><a href="./">Compare</a><a href="method">How it works</a></nav>'
            f"{shown}<noscript><p>Asking a question here needs JavaScript.</p></noscript></main>"
        )
        # Before gradio's own tags: what reads them takes the first of a name.
        page = page.replace("<head>", f"<head>{head}", 1)
        return re.sub(r"<body[^>]*>", lambda found: found.group() + body, page, count=1)


def _values(theme: gr.themes.Base, names: Iterable[str], ending: str) -> dict[str, str]:
    """Return what the theme says of the variables that the style sheet uses."""
    values = {name: getattr(theme, name.replace("-", "_") + ending, None) for name in names}
    return {name: str(value) for name, value in values.items() if value is not None}


def _rule(values: dict[str, str]) -> str:
    return "#first-paint { " + " ".join(f"--{name}: {value};" for name, value in values.items()) + " } "
