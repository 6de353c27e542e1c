"""Addresses of questions and results, and what they ask."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from mdir_hf import __version__
from mdir_hf.model.hub.resolve import ResolvedModel
from mdir_space.jobs.question import (
    DEFAULT_ALPHA,
    MAX_LIST_LENGTH,
    MAX_NAME_LENGTH,
    PairQuestion,
    Question,
    SurveyQuestion,
)
from mdir_space.jobs.service import Answered

MCP_PATH = "/gradio_api/mcp"
CARD_PATH = "/card"


@dataclass(frozen=True)
class Asked:
    """What a link asks, as it stands in it; nothing has been checked.

    Attributes:
        reference: ``a``, empty if it is not there. It may be a list of names.
        candidate: ``b``, likewise.
        level: ``level``, auto if it is not there.
        alpha: ``alpha``, as text, empty if it is not there.
        version: ``v``, the version of the package that gave the result that the link is for; empty where the link asks
            a question and is for no result.
        example: ``example``, the name of a stored result.
        only: ``only``, which half of a question about one model.
    """

    reference: str = ""
    candidate: str = ""
    level: str = "auto"
    alpha: str = ""
    version: str = ""
    example: str = ""
    only: str = ""


def read_link(request: Any) -> Asked:  # noqa: ANN401 - of gradio or of starlette
    """Return what the address of a page asks."""
    query = {} if request is None else dict(request.query_params)

    def value(name: str, default: str = "", longest: int = MAX_NAME_LENGTH) -> str:
        # One character more than a name may have, so that too long a name is refused and not cut.
        return str(query.get(name, default)).strip()[: longest + 1]

    return Asked(
        value("a", longest=MAX_LIST_LENGTH),
        value("b"),
        value("level", "auto"),
        value("alpha"),
        value("v"),
        value("example"),
        value("only"),
    )


def query_of(reference: str, candidate: str, level: str, alpha: float) -> str:
    """Return the query that asks a question again; what is the default is left out."""
    fields = {"a": reference} | ({"b": candidate} if candidate else {})
    fields |= {"level": level} if level != "auto" else {}
    fields |= {"alpha": f"{alpha:g}"} if alpha != DEFAULT_ALPHA else {}
    return urlencode(fields, safe="/@:")


def query_again(question: Question, names: Sequence[str] = ()) -> str:
    """Return the query that asks a question again.

    Args:
        question: It.
        names: What names its models; empty: as it does.
    """
    names = names or question.names
    if isinstance(question, PairQuestion):
        return query_of(names[0], names[1], question.level, question.alpha)
    if isinstance(question, SurveyQuestion):
        return query_of(" ".join(names), "", "layers" if question.layers else "auto", question.alpha)
    only = f"&only={question.only}" if question.only else ""
    return query_of(names[0], "", question.level, question.alpha) + only


def link_to_layers(link: str) -> str:
    """Return the link to the same question at the level that analyses every layer; empty where that is asked already.

    Args:
        link: As :func:`query_of` ends it; empty for none.
    """
    asked = {name: values[0] for name, values in parse_qs(urlsplit(link).query).items()}
    if not asked or asked.get("level") == "layers":
        return ""
    asked.pop("v", None)  # that is of another result
    return f"?{urlencode({**asked, 'level': 'layers'}, safe='/@:')}"


def pinned_link(answered: Answered[Any], request: Any, question: Question) -> str:  # noqa: ANN401 - as above
    """Return the address at which this very result stays: with all commits, and the version of the package.

    Args:
        answered: The result.
        request: Whose address it is.
        question: What it answers.

    Returns:
        Empty for what is not for everybody, for what a limit cut short, and for what is kept nowhere.
    """
    names = [*map(_pinned, answered.access.models), *answered.access.left_out]
    # Two names are a comparison.
    if not answered.is_kept or (isinstance(question, SurveyQuestion) and len(names) < 3):
        return ""
    return f"{page_address(request)}?{query_again(question, names)}&{urlencode({'v': __version__})}"


def _pinned(model: ResolvedModel) -> str:
    """Return what names a model at its commit: short where nothing but its id, with an owner, and commit is in it."""
    short = f"{model.repo}@{model.commit}"
    return short if "/" in model.repo and model.pinned == f"hf://models/{short}" else model.pinned


def page_address(request: Any) -> str:  # noqa: ANN401
    """Return the address at which people find this page: that of the Space, else the one that was asked for."""
    space = os.environ.get("SPACE_ID", "")
    if space:
        return f"https://huggingface.co/spaces/{space}"
    return f"{server_address(request)}/"


def server_address(request: Any) -> str:  # noqa: ANN401
    """Return the address at which programs find this server."""
    host = os.environ.get("SPACE_HOST", "").split(",")[0].strip()
    if host:
        return f"https://{host}"
    headers = {} if request is None else {name.lower(): value for name, value in dict(request.headers).items()}
    scheme = str(headers.get("x-forwarded-proto", "http")).split(",")[0].strip()
    host = str(headers.get("x-forwarded-host") or headers.get("host") or "127.0.0.1:7860").split(",")[0].strip()
    return f"{scheme if scheme in ('http', 'https') else 'http'}://{host}"
