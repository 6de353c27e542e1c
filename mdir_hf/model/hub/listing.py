"""Lists the models of an author or of a collection on the Hub."""

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
    """Models named by the Hub.

    Attributes:
        names: Repo ids, each once.
        is_cut: Whether there are more than were asked for.
    """

    names: tuple[str, ...]
    is_cut: bool = False


def models_of_author(
    author: str, *, limit: int = 100, text_generation: bool = True, token: str | bool | None = None
) -> ModelList:
    """List the models of a user or an organisation, the most downloaded first.

    Args:
        author: Name of the user or organisation.
        limit: How many at most.
        text_generation: Only those that the Hub takes for text generation.
        token: As the Hub client takes it.

    Raises:
        InputError: If the author has no such model, or the name is invalid.
        HubError: If the Hub cannot be asked.

    Cost: one request for each thousand models.
    """
    if not author or "/" in author:
        raise InputError(f"{author!r} is not an author; write the name of a user or organisation, without a slash")
    if limit < 1:
        raise InputError(f"a list of at most {limit} models is empty; ask for one or more")
    endpoint = _endpoint(subject=author)
    asked = {"author": author, "sort": "downloads", "limit": min(limit + 1, _MODELS_OF_A_PAGE)}
    if text_generation:
        asked["pipeline_tag"] = "text-generation"
    found: list[str] = []
    page: str | None = f"{endpoint}/api/models?{urlencode(asked)}"
    while page is not None and len(found) <= limit:
        said, after = ask(page, label=author, endpoint=endpoint, token=token)
        found += _names(said, label=author)
        # A page that has nothing new would be followed by others for ever.
        page = None if after is None or not said else secured(page, after, subject=author)
    if not found:
        kind = "model for text generation" if text_generation else "model"
        raise InputError(f"the Hub lists no {kind} of this author that may be seen; check the name", subject=author)
    names = tuple(dict.fromkeys(found))
    return ModelList(names[:limit], is_cut=len(names) > limit)


def models_of_collection(collection: str, *, token: str | bool | None = None) -> ModelList:
    """List the models of a collection, in its order; its data sets, papers and Spaces are left out.

    Args:
        collection: ``owner/title-0123456789abcdef01234567``, or the address of its page.
        token: As the Hub client takes it.

    Raises:
        InputError: If the collection holds no model, or this names none.
        HubError: If there is no such collection, or the Hub cannot be asked.

    Cost: one request.
    """
    slug = _slug(collection)
    endpoint = _endpoint(subject=slug)
    try:
        said, _ = ask(f"{endpoint}/api/collections/{quote(slug)}", label=slug, endpoint=endpoint, token=token)
    except FileMissingError as exc:
        raise RepositoryNotFoundError(
            "there is no such collection, or it is private and this token may not see it", subject=slug
        ) from exc
    items = said.get("items") if isinstance(said, dict) else None
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
            f"{text!r} names no collection; write owner/title-0123456789abcdef01234567, or the address of its page"
        )
    return slug


def _names(said: object, *, label: str) -> list[str]:
    """Return the names in a list of models."""
    if not isinstance(said, list):
        raise no_answer(label, "expected a list of models")
    names = [one.get("id") if isinstance(one, dict) else None for one in said]
    wrong = next((name for name in names if not isinstance(name, str) or not is_repo_id(name)), "")
    if wrong != "":
        raise no_answer(label, f"{repr(wrong)[:60]} is not a name of a model")
    return [name for name in names if name is not None]


def _endpoint(*, subject: str) -> str:
    if is_offline():
        raise OfflineError("the Hub's lists need the network, which HF_HUB_OFFLINE forbids", subject=subject)
    return current_endpoint()
