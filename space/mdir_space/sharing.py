"""What a public result may be taken along as: a card for other pages, a notebook, a discussion on a model's page."""

from __future__ import annotations

import json
import os
from urllib.parse import quote, urlencode

from huggingface_hub import constants
from starlette.requests import Request
from starlette.responses import HTMLResponse

from mdir_hf import HomologyReport, __version__
from mdir_hf.installing import install_command
from mdir_hf.names import shown_name
from mdir_hf.render.description import describe
from mdir_hf.render.sections import SectionKind
from mdir_space.addresses import page_address, read_link, server_address
from mdir_space.answer_card import answer_words
from mdir_space.desk import Answered, Desk
from mdir_space.markup import code, download, prose, text
from mdir_space.question import RefusedError
from mdir_space.results import Result
from mdir_space.visitor import visitor_of
from mdir_space.ways import AnyQuestion, asked_way

CARD = "/card"
CARD_SIZE = (480, 190)
"""Width and height of the frame that a card needs, in pixels."""

CARD_RULES = {
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "cache-control": "public, max-age=300",
}
CARD_STYLE = (
    "body{margin:0;font:15px/1.45 system-ui,sans-serif;color:#1b1f24;background:#fff}"
    "a{color:#00609a}main{box-sizing:border-box;height:100vh;padding:12px 16px;border:1px solid #c4ccd5;"
    "border-left:4px solid #00609a;overflow:auto}p{margin:0 0 6px;overflow-wrap:anywhere}"
    ".quiet{color:#57606a;font-size:13px}h1{font-size:19px;line-height:1.25;margin:0 0 6px}"
    "@media(prefers-color-scheme:dark){body{color:#e6edf3;background:#111418}a{color:#79c0ff}"
    "main{border-color:#3d444d}.quiet{color:#9da7b1}}"
)


def sharing_panel(report: HomologyReport, link: str, server: str) -> str:
    """Return how to show a result elsewhere; HTML.

    Args:
        report: The result; it is one for everybody.
        link: Its address.
        server: Base address of this server.
    """
    discussions = "".join(
        f'<li><a href="{text(discussion_link(report, side, link))}" target="_blank" rel="noopener">'
        f"On the page of {text(shown_name(model.repo))}</a></li>"
        for side, model in enumerate((report.reference, report.candidate))
    )
    return (
        card_code(report.headline, link, server)
        + "<h3>A discussion on the Hub</h3>"
        + prose(
            "These open a new discussion on a model's page with a title and a text in neutral words. Nothing is sent "
            "before you have read it and press the button there."
        )
        + f'<ul class="discussions">{discussions}</ul>'
    )


def card_code(title: str, link: str, server: str) -> str:
    """Return the lines that show the card of a result on another page; HTML.

    Args:
        title: Of the card.
        link: Address of the result.
        server: Base address of this server.
    """
    width, height = CARD_SIZE
    address = f"{server}{CARD}?{link.partition('?')[2]}"
    frame = (
        f'<iframe src="{text(address)}" width="{width}" height="{height}" '
        f'title="{text(title)}" loading="lazy" sandbox="allow-popups" style="border:0"></iframe>'
    )
    return code(frame, "A card for a page of yours (HTML)")


def discussion_link(report: HomologyReport, side: int, link: str) -> str:
    """Return the address that opens a new discussion on the page of one of the models, not yet sent.

    Args:
        report: The result.
        side: 0 for the reference, 1 for the candidate.
        link: Address of the result.
    """
    models = (report.reference, report.candidate)
    mine, other = models[side], models[1 - side]
    title = f"Weights compared with {shown_name(other.repo)}"
    lines = [
        f"The weights of this model (`{mine.pinned}`) were compared with those of `{other.pinned}` by mdir-hf "
        f"{report.version}, which looks for shared weight ancestry.",
        f"**{report.headline}.** {report.means}",
        "What this does not mean:\n" + "\n".join(f"- {sentence}" for sentence in report.does_not_mean),
        f"The result, its evidence and how to compute it again: {link}",
        "Does this agree with how the model was made? If so, `base_model` in the card is where to say it.",
    ]
    endpoint = (os.environ.get("HF_ENDPOINT") or constants.ENDPOINT).rstrip("/")
    query = urlencode({"title": title, "description": "\n\n".join(lines)}, quote_via=quote)
    return f"{endpoint}/{quote(mine.repo)}/discussions/new?{query}"


def notebook_link(report: HomologyReport, stem: str) -> str:
    """Return a link that saves a notebook which computes the same report again; HTML.

    Args:
        report: The report.
        stem: Of the file's name.
    """
    return download(notebook(report), f"{stem}.ipynb", "Download a notebook (.ipynb)", "application/x-ipynb+json")


def notebook(report: HomologyReport) -> str:
    """Return a notebook (nbformat 4.5) with the commands that give the same report, and the Python for it."""
    section = next(section for section in describe(report) if section.kind is SectionKind.REPRODUCE)
    python = [listing.text for listing in section.code if listing.language == "python"]
    names = " and ".join(shown_name(model.repo) for model in (report.reference, report.candidate))
    cells = [
        ("markdown", f"# Do {names} share weight ancestry?\n\nThe same comparison, at the same commits."),
        ("code", f"%{install_command(for_others=True)}"),
        *(("code", listing) for listing in python),
        ("markdown", f"The page said: **{report.headline}.** {report.means}"),
    ]
    body = {
        "nbformat": 4,
        "nbformat_minor": 5,
        "metadata": {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}},
        "cells": [
            {"id": f"cell-{at}", "cell_type": kind, "metadata": {}, "source": source}
            | ({"outputs": [], "execution_count": None} if kind == "code" else {})
            for at, (kind, source) in enumerate(cells)
        ],
    }
    return json.dumps(body, indent=1, ensure_ascii=False)


async def kept_for_everybody(desk: Desk, request: Request) -> tuple[AnyQuestion, Answered[Result]] | None:
    """Return what the address of a request asks and its kept result, as a visitor without rights finds it; else None.

    Args:
        desk: Where results are kept.
        request: Its query is that of a result's address.
    """
    asked = read_link(request)
    try:
        question = asked_way(asked.reference, asked.candidate, asked.level, asked.alpha, asked.only)
        visitor = visitor_of(request, n_proxies=desk.serving.limits.n_proxies)
        answered = await desk.kept(question, visitor.without_rights())
    except RefusedError:
        return None
    return None if answered is None else (question, answered)


class Cards:
    """Serves cards: a kept, public result on a page of its own, small enough for a frame. It never computes anything.

    Args:
        desk: Where results are kept.
    """

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    async def show(self, request: Request) -> HTMLResponse:
        """Answer a request to :data:`CARD`, whose query is that of a result's address."""
        kept = await kept_for_everybody(self._desk, request)
        link = f"{page_address(request)}?{request.url.query}"
        if kept is None:
            body = (
                "<p>This result is not kept here.</p>"
                f'<p><a href="{text(link)}" target="_blank" rel="noopener">Compute it again</a></p>'
            )
            return _card("Not kept here", body, status=404)
        question, answered = kept
        words = answer_words(answered.result, question)
        body = (
            f'<p class="quiet"><b>{text(words.about)}</b></p><h1>{text(words.headline)}</h1>'
            f'<p class="quiet">{text(words.caveat)}</p>'
            f'<p><a href="{text(link)}" target="_blank" rel="noopener">The evidence</a> '
            f'<span class="quiet">mdir-hf {text(__version__)}, {text(server_address(request))}</span></p>'
        )
        return _card(words.headline, body)


def _card(title: str, body: str, *, status: int = 200) -> HTMLResponse:
    page = (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{text(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{CARD_STYLE}</style></head>'
        f"<body><main>{body}</main></body></html>"
    )
    return HTMLResponse(page, status_code=status, headers=CARD_RULES)
