"""Lists the models of an author or a collection on the Hub."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote, unquote, urlencode

from mdir_hf.errors import (
    FileMissingError,
    InputError,
    InvalidReferenceError,
    OfflineError,
    RepositoryNotFoundError,
)
from mdir_hf.model.hub.api import ask, no_answer
from mdir_hf.model.hub.connection import secured
from mdir_hf.model.hub.endpoint import current_endpoint, is_offline, path_on_hub
from mdir_hf.model.hub.model_info import is_repo_id

_MODELS_OF_A_PAGE = 1000


@dataclass(frozen=True, slots=True)
class ModelList:
    """Repo ids of models on the Hub, without duplicates; ``is_cut`` if there are more than the limit."""

    names: tuple[str, ...]
    is_cut: bool = False


def models_of_author(
    author: str, *, limit: int = 100, text_generation: bool = True, token: str | bool | None = None
) -> ModelList:
    """List the models of a user or an organisation, most downloaded first.

    Takes one request for each thousand models.

    Args:
        author: Name of the user or organisation.
        limit: Maximum number of models.
        text_generation: Whether to list only models for text generation.
        token: Token, as in the Hub client.

    Raises:
        InputError: If the author has no such model, or the name is invalid.
        HubError: If the request fails.
    """
    if not author or "/" in author:
        raise InputError(f"{author!r} is not an author; write the name of a user or organisation, without a slash")
    if limit < 1:
        raise InputError(f"a list of at most {limit} models is empty; ask for one or more")
    endpoint = _endpoint(subject=author)
    query = {"author": author, "sort": "downloads", "limit": min(limit + 1, _MODELS_OF_A_PAGE)}
    if text_generation:
        query["pipeline_tag"] = "text-generation"
    listed: list[str] = []
    page: str | None = f"{endpoint}/api/models?{urlencode(query)}"
    while page is not None and len(listed) <= limit:
        models, next_page = ask(page, label=author, endpoint=endpoint, token=token)
        listed += _names(models, label=author)
        # Stop at an empty page, even if it links to another one.
        page = None if next_page is None or not models else secured(page, next_page, subject=author)
    if not listed:
        kind = "model for text generation" if text_generation else "model"
        raise InputError(f"the Hub lists no {kind} of this author that you can access; check the name", subject=author)
    names = tuple(dict.fromkeys(listed))
    return ModelList(names[:limit], is_cut=len(names) > limit)


def models_of_collection(collection: str, *, token: str | bool | None = None) -> ModelList:
    """List the models of a collection in its order, without its data sets, papers and Spaces. Takes one request.

    Args:
        collection: ``owner/title-0123456789abcdef01234567``, or the URL of its page.
        token: Token, as in the Hub client.

    Raises:
        InputError: If the collection holds no model, or its name is invalid.
        HubError: If there is no such collection, or the request fails.
    """
    slug = _slug(collection)
    endpoint = _endpoint(subject=slug)
    try:
        response, _ = ask(f"{endpoint}/api/collections/{quote(slug)}", label=slug, endpoint=endpoint, token=token)
    except FileMissingError as exc:
        raise RepositoryNotFoundError(
            "there is no such collection, or it is private and this token may not see it", subject=slug
        ) from exc
    items = response.get("items") if isinstance(response, dict) else None
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise no_answer(slug, "expected the items of a collection")
    names = tuple(dict.fromkeys(_names([item for item in items if item.get("type") == "model"], label=slug)))
    if not names:
        raise InputError("there is no model in this collection", subject=slug)
    return ModelList(names)


def _slug(text: str) -> str:
    slug = text.strip()
    if slug.startswith(("http://", "https://")):
        path = path_on_hub(slug)
        folder, _, slug = unquote(path or "").strip("/").partition("/")
        if folder != "collections":
            raise InvalidReferenceError(f"{text!r} is not the page of a collection on the Hub")
    if slug.count("/") != 1 or not all(slug.split("/")) or any(part in ("..", ".") for part in slug.split("/")):
        raise InvalidReferenceError(
            f"{text!r} is not the name of a collection; write owner/title-0123456789abcdef01234567, or its URL"
        )
    return slug


def _names(models: object, *, label: str) -> list[str]:
    if not isinstance(models, list):
        raise no_answer(label, "expected a list of models")
    names = [model.get("id") if isinstance(model, dict) else None for model in models]
    wrong = next((name for name in names if not isinstance(name, str) or not is_repo_id(name)), "")
    if wrong != "":
        raise no_answer(label, f"{repr(wrong)[:60]} is not a name of a model")
    return [name for name in names if name is not None]


def _endpoint(*, subject: str) -> str:
    if is_offline():
        raise OfflineError("the Hub's lists need the network, which HF_HUB_OFFLINE forbids", subject=subject)
    return current_endpoint()
