"""Cards: small pages for frames that show stored public results."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import HTMLResponse

from mdir_hf import __version__
from mdir_space.html.answer_card import answer_words
from mdir_space.html.links import page_address, read_link, server_address
from mdir_space.html.templates import render
from mdir_space.jobs.question import Question, RefusedError, parse_question
from mdir_space.jobs.results import Result
from mdir_space.jobs.service import Answered, Service
from mdir_space.jobs.visitor import visitor_of

HEADERS = {
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "cache-control": "public, max-age=300",
}


async def kept_result(service: Service, request: Request) -> tuple[Question, Answered[Result]] | None:
    """Return the question in a request's URL and its stored public result, or None."""
    link = read_link(request)
    try:
        question = parse_question(link.reference, link.candidate, link.level, link.alpha, link.only)
        visitor = visitor_of(request, n_proxies=service.settings.limits.n_proxies)
        answered = await service.kept_answer(question, visitor.without_rights())
    except RefusedError:
        return None
    return None if answered is None else (question, answered)


class Cards:
    """Serves cards."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def show(self, request: Request) -> HTMLResponse:
        """Return the card of the result named in a request's query."""
        stored = await kept_result(self._service, request)
        words = None if stored is None else answer_words(stored[1].result, stored[0])
        page = render(
            "card",
            title="No longer stored here" if words is None else words.headline,
            words=words,
            link=f"{page_address(request)}?{request.url.query}",
            version=__version__,
            server=server_address(request),
        )
        return HTMLResponse(page, status_code=404 if words is None else 200, headers=HEADERS)
