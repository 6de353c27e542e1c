"""Request a model's details from the Hub, or list the models of an author or collection."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, Literal
from urllib.parse import quote, unquote, urlencode

from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

from mdir_hf.errors import (
    FileMissingError,
    HubError,
    InputError,
    InvalidReferenceError,
    OfflineError,
    RepositoryNotFoundError,
)
from mdir_hf.model.hub.connection import ask, no_answer, secured
from mdir_hf.model.hub.endpoint import current_endpoint, is_offline, path_on_hub
from mdir_hf.model.hub.errors_map import hub_errors
from mdir_hf.model.hub.local import COMMIT, SHA256, commit_named
from mdir_hf.model.sources import FileEntry
from mdir_hf.names import is_repo_id


def commit_date(repo: str, commit: str, *, token: str | bool | None = None) -> datetime | None:
    """Return the UTC time of a commit, or None if unknown. Sends one API request."""
    if is_offline():
        return None
    endpoint = current_endpoint()
    url = f"{endpoint}/api/models/{repo}/commits/{quote(commit, safe='')}"
    try:
        commits, _ = ask(url, label=f"{repo}@{commit[:7]}", endpoint=endpoint, token=token, revision=commit)
    except HubError:
        return None
    newest = commits[0] if isinstance(commits, list) and commits else None
    if not isinstance(newest, dict) or newest.get("id") != commit:
        return None
    return parsed_date(newest.get("date"))


def parsed_date(text: object) -> datetime | None:
    """Parse a date from the Hub's API, in UTC and whole seconds; return None if invalid."""
    if not isinstance(text, str) or len(text) > 40:
        return None
    try:
        date = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        return None
    if date.tzinfo is None:
        return None
    try:
        return date.astimezone(timezone.utc).replace(microsecond=0)
    except OverflowError:
        return None


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """A model at one commit.

    Attributes:
        repo: Current name on the Hub.
        is_public: Whether the Hub reports it as public.
        is_restricted: Whether the Hub reports it as private or gated.
    """

    repo: str
    commit: str
    is_public: bool
    is_restricted: bool
    files: tuple[FileEntry, ...]


def model_info(
    repo: str,
    *,
    revision: str,
    label: str,
    token: str | bool | None,
    with_files: bool,
    kind: Literal["model", "dataset"] = "model",
    before_each: Callable[[], None] = lambda: None,
) -> ModelInfo:
    """Request information about a model or dataset from the Hub.

    Raises:
        HubError: If the request fails or the response is invalid.
    """
    endpoint = current_endpoint()
    query = [("blobs", "True")] if with_files else [("expand", what) for what in ("sha", "private", "gated")]
    with hub_errors(label, revision=revision):
        validate_repo_id(repo)
    url = f"{endpoint}/api/{kind}s/{repo}/revision/{quote(revision, safe='')}?{urlencode(query)}"
    info, _ = ask(url, label=label, revision=revision, endpoint=endpoint, token=token, before_each=before_each)
    if not isinstance(info, dict):
        raise no_answer(label, "it is not a JSON object")
    name, private, gated = info.get("id"), info.get("private"), info.get("gated")
    return ModelInfo(
        repo=name if isinstance(name, str) and is_repo_id(name) else repo,
        commit=commit_named(info.get("sha"), revision=revision, subject=repo),
        is_public=private is False and gated is False,  # not public unless the Hub says so
        is_restricted=bool(private or gated),
        files=_files(info.get("siblings"), label) if with_files else (),
    )


def _files(siblings: object, label: str) -> tuple[FileEntry, ...]:
    if not isinstance(siblings, list):
        raise no_answer(label, "its 'siblings' are not a list of files")
    return tuple(_file(sibling, label) for sibling in siblings)


def _file(sibling: object, label: str) -> FileEntry:
    path = sibling.get("rfilename") if isinstance(sibling, dict) else None
    if not isinstance(sibling, dict) or not isinstance(path, str):
        raise no_answer(label, f"{repr(sibling)[:60]} is not a file with a name")
    lfs = sibling.get("lfs")
    in_git = not isinstance(lfs, dict)
    n_bytes = sibling.get("size") if not isinstance(lfs, dict) else lfs.get("size", sibling.get("size"))
    if n_bytes is not None and (type(n_bytes) is not int or n_bytes < 0):
        raise no_answer(label, f"the size of {path[:60]!r} is {repr(n_bytes)[:60]}")
    sha256 = None if not isinstance(lfs, dict) else _of_form(SHA256, lfs.get("sha256"))
    # Git stores only a pointer to a large file, and the blob id identifies the pointer.
    blob_id = _of_form(COMMIT, sibling.get("blobId")) if in_git or sha256 is not None else None
    return FileEntry(path, -1 if n_bytes is None else n_bytes, sha256=sha256, blob_id=blob_id)


def _of_form(form: Any, text: object) -> str | None:  # noqa: ANN401
    return text if isinstance(text, str) and form.fullmatch(text) else None


_MODELS_OF_A_PAGE = 1000


@dataclass(frozen=True, slots=True)
class ModelList:
    """Repository ids on the Hub. ``is_cut`` is True if the limit cut the list short."""

    names: tuple[str, ...]
    is_cut: bool = False


def models_of_author(
    author: str, *, limit: int = 100, text_generation: bool = True, token: str | bool | None = None
) -> ModelList:
    """List the models of a user or an organisation, most downloaded first.

    Sends one request per thousand models.

    Raises:
        InputError: If the author has no matching model, or the name is invalid.
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
    model_names: list[str] = []
    page: str | None = f"{endpoint}/api/models?{urlencode(query)}"
    while page is not None and len(model_names) <= limit:
        models, next_page = ask(page, label=author, endpoint=endpoint, token=token)
        model_names += _names(models, label=author)
        # Stop at an empty page, even if it links to another one.
        page = None if next_page is None or not models else secured(page, next_page, subject=author)
    if not model_names:
        kind = "model for text generation" if text_generation else "model"
        raise InputError(f"the Hub lists no {kind} of this author that you can access; check the name", subject=author)
    names = tuple(dict.fromkeys(model_names))
    return ModelList(names[:limit], is_cut=len(names) > limit)


def models_of_collection(collection: str, *, token: str | bool | None = None) -> ModelList:
    """List the models in a collection, in the order the collection lists them.

    ``collection`` is ``owner/title-0123456789abcdef01234567``, or the URL of its page.

    Raises:
        InputError: If the collection contains no models, or its name is invalid.
        HubError: If the collection does not exist, or the request fails.
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
    wrong = next((name for name in names if not is_repo_id(name)), "")
    if wrong != "":
        raise no_answer(label, f"{repr(wrong)[:60]} is not a name of a model")
    return [name for name in names if name is not None]


def _endpoint(*, subject: str) -> str:
    if is_offline():
        raise OfflineError("the Hub's lists need the network, which HF_HUB_OFFLINE forbids", subject=subject)
    return current_endpoint()
