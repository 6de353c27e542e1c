"""Which models belong together on the Hub: those of an author, those of a collection."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from urllib.parse import unquote, urlsplit

from huggingface_hub import HfApi

from mdir_hf.errors import (
    FileMissingError,
    InputError,
    InvalidReferenceError,
    OfflineError,
    RepositoryNotFoundError,
)
from mdir_hf.hub.endpoint import CALLER, current_endpoint, hub_hosts, is_offline
from mdir_hf.hub.errors_map import hub_errors
from mdir_hf.hub.retry import with_patience


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
        InputError: If the author has no such model, or the name is none.
        HubError: If the Hub cannot be asked.

    Cost: one request for each thousand models.
    """
    if not author or "/" in author:
        raise InputError(f"{author!r} is no author; write the name of a user or organisation, without a slash")
    if limit < 1:
        raise InputError(f"a list of at most {limit} models is empty; ask for one or more")
    api = _api(token, subject=author)
    with hub_errors(author):
        found = with_patience(
            lambda: list(
                islice(
                    api.list_models(
                        author=author,
                        pipeline_tag="text-generation" if text_generation else None,
                        sort="downloads",
                        limit=limit + 1,
                    ),
                    limit + 1,
                )
            )
        )
    if not found:
        kind = "model for text generation" if text_generation else "model"
        raise InputError(f"the Hub lists no {kind} of this author that may be seen; check the name", subject=author)
    names = tuple(dict.fromkeys(info.id for info in found))
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
    api = _api(token, subject=slug)
    try:
        with hub_errors(slug):
            found = with_patience(lambda: api.get_collection(slug))
    except FileMissingError as exc:
        raise RepositoryNotFoundError(
            "there is no such collection, or it is private and this token may not see it", subject=slug
        ) from exc
    names = tuple(dict.fromkeys(item.item_id for item in found.items if item.item_type == "model"))
    if not names:
        raise InputError("there is no model in this collection", subject=slug)
    return ModelList(names)


def _slug(text: str) -> str:
    slug = text.strip()
    if slug.startswith(("http://", "https://")):
        parts = urlsplit(slug)
        folder, _, slug = unquote(parts.path).strip("/").partition("/")
        if parts.netloc.lower() not in hub_hosts() or folder != "collections":
            raise InvalidReferenceError(f"{text!r} is not the page of a collection on the Hub")
    if slug.count("/") != 1 or not all(slug.split("/")) or any(part in ("..", ".") for part in slug.split("/")):
        raise InvalidReferenceError(
            f"{text!r} names no collection; write owner/title-0123456789abcdef01234567, or the address of its page"
        )
    return slug


def _api(token: str | bool | None, *, subject: str) -> HfApi:
    if is_offline():
        raise OfflineError("the Hub's lists need the network, which HF_HUB_OFFLINE forbids", subject=subject)
    return HfApi(endpoint=current_endpoint(), token=token, **CALLER)
