"""URLs of questions and results."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from mdir_hf import __version__
from mdir_hf.model.hub.repository import ResolvedModel
from mdir_space.jobs.question import (
    DEFAULT_ALPHA,
    MAX_LIST_LENGTH,
    MAX_NAME_LENGTH,
    PairQuestion,
    Question,
    SurveyQuestion,
)
from mdir_space.jobs.reconstruction import ReconstructionResult
from mdir_space.jobs.service import Answered

MCP_PATH = "/gradio_api/mcp"
CARD_PATH = "/card"
DOWNLOAD_PATH = "/reconstruction"


@dataclass(frozen=True)
class LinkedQuestion:
    """The query parameters of a link, not yet validated.

    Attributes:
        reference: ``a``, which may be a list of names.
        candidate: ``b``, which may be a list of names.
        level: ``level``, which defaults to auto.
        alpha: ``alpha``, as text.
        version: ``v``, the version of the package that computed the linked result; empty if the link only asks a
            question.
        example: ``example``, the name of a stored result.
        only: ``only``, which limits a question about one model to ``index`` or ``card``.
    """

    reference: str = ""
    candidate: str = ""
    level: str = "auto"
    alpha: str = ""
    version: str = ""
    example: str = ""
    only: str = ""


def read_link(request: Any) -> LinkedQuestion:  # noqa: ANN401 - of gradio or of starlette
    """Return the query parameters in the URL of the page."""
    query = {} if request is None else dict(request.query_params)

    def value(name: str, default: str = "", longest: int = MAX_NAME_LENGTH) -> str:
        # Cut one character over the limit, so that a long name is refused instead of truncated.
        return str(query.get(name, default)).strip()[: longest + 1]

    return LinkedQuestion(
        value("a", longest=MAX_LIST_LENGTH),
        value("b"),
        value("level", "auto"),
        value("alpha"),
        value("v"),
        value("example"),
        value("only"),
    )


def query_of(reference: str, candidate: str, level: str, alpha: float) -> str:
    """Return the URL query that repeats a question, omitting parameters with their default."""
    fields = {"a": reference} | ({"b": candidate} if candidate else {})
    fields |= {"level": level} if level != "auto" else {}
    fields |= {"alpha": f"{alpha:g}"} if alpha != DEFAULT_ALPHA else {}
    return urlencode(fields, safe="/@:")


def query_again(question: Question, names: Sequence[str] = ()) -> str:
    """Return the URL query that repeats a question; ``names``, if any, replace the names in the question."""
    names = names or question.names
    if isinstance(question, PairQuestion):
        return query_of(names[0], names[1], question.level, question.alpha)
    if isinstance(question, SurveyQuestion):
        return query_of(" ".join(names), "", "layers" if question.layers else "auto", question.alpha)
    only = f"&only={question.only}" if question.only else ""
    return query_of(names[0], "", question.level, question.alpha) + only


def link_to_layers(link: str) -> str:
    """Return the link to the same question at level layers; empty if it is already at that level.

    ``link`` must end in a query from :func:`query_of`, or be empty.
    """
    query = {name: values[0] for name, values in parse_qs(urlsplit(link).query).items()}
    if not query or query.get("level") == "layers":
        return ""
    query.pop("v", None)  # belongs to another result
    return f"?{urlencode({**query, 'level': 'layers'}, safe='/@:')}"


def pinned_link(answered: Answered[Any], request: Any, question: Question) -> str:  # noqa: ANN401 - as above
    """Return the permanent URL of a result, with all commits and the version of the package.

    Returns:
        The URL; empty for results that are private, incomplete or not cached.
    """
    names = [*map(_pinned, answered.access.models), *answered.access.left_out]
    # A survey with only two names would open as a comparison.
    if not answered.is_kept or (isinstance(question, SurveyQuestion) and len(names) < 3):
        return ""
    return f"{page_address(request)}?{query_again(question, names)}&{urlencode({'v': __version__})}"


def download_link(result: ReconstructionResult, request: Any) -> str:  # noqa: ANN401 - as above
    """Return the URL of a reconstruction's files."""
    return f"{server_address(request)}{DOWNLOAD_PATH}/{result.name}.zip"


def _pinned(model: ResolvedModel) -> str:
    """Return a name that pins a model to its commit: id and commit if sufficient, otherwise a URL."""
    short = f"{model.repo}@{model.commit}"
    return short if "/" in model.repo and model.pinned == f"hf://models/{short}" else model.pinned


def page_address(request: Any) -> str:  # noqa: ANN401
    """Return the URL of the page for people: the Space's page or, outside a Space, this server."""
    space = os.environ.get("SPACE_ID", "")
    if space:
        return f"https://huggingface.co/spaces/{space}"
    return f"{server_address(request)}/"


def server_address(request: Any) -> str:  # noqa: ANN401
    """Return the base URL of this server for programs."""
    host = os.environ.get("SPACE_HOST", "").split(",")[0].strip()
    if host:
        return f"https://{host}"
    headers = {} if request is None else {name.lower(): value for name, value in dict(request.headers).items()}
    scheme = str(headers.get("x-forwarded-proto", "http")).split(",")[0].strip()
    host = str(headers.get("x-forwarded-host") or headers.get("host") or "127.0.0.1:7860").split(",")[0].strip()
    return f"{scheme if scheme in ('http', 'https') else 'http'}://{host}"
