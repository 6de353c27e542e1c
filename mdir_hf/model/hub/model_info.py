"""Requests information on a model from the Hub: current name, commit of a revision, files, access."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal
from urllib.parse import quote, urlencode

from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

from mdir_hf.model.files.sources import FileEntry
from mdir_hf.model.hub.api import ask, no_answer
from mdir_hf.model.hub.commit_date import parsed_date
from mdir_hf.model.hub.errors_map import hub_errors
from mdir_hf.model.hub.paths import COMMIT, SHA256, commit_named


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """A model at one commit.

    Attributes:
        repo: Current name.
        commit: Full sha.
        is_public: Whether the Hub says that it is neither private nor gated.
        is_restricted: Whether the Hub says that it is private or gated.
        files: Its files, if requested.
        created_at: Date of the repository; None if the Hub does not state it.
    """

    repo: str
    commit: str
    is_public: bool
    is_restricted: bool
    files: tuple[FileEntry, ...]
    created_at: datetime | None = None


def model_info(
    repo: str,
    *,
    revision: str,
    label: str,
    endpoint: str,
    token: str | bool | None,
    with_files: bool,
    kind: Literal["model", "dataset"] = "model",
    before_each: Callable[[], None] = lambda: None,
) -> ModelInfo:
    """Request information on a model from the Hub.

    Args:
        repo: ``owner/name``.
        revision: Branch, tag or commit.
        label: The model's name in error messages.
        endpoint: Base URL of the Hub.
        token: Token, as in the Hub client.
        with_files: Whether to list its files, with sizes and digests.
        kind: Kind of repository.
        before_each: Called before every request, for counting.

    Raises:
        HubError: If the request fails, or the response is invalid.
    """
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
        created_at=parsed_date(info.get("createdAt")),
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
    # For a large file git holds a pointer, and the blob id belongs to the pointer.
    blob_id = _of_form(COMMIT, sibling.get("blobId")) if in_git or sha256 is not None else None
    return FileEntry(path, -1 if n_bytes is None else n_bytes, sha256=sha256, blob_id=blob_id)


def _of_form(form: Any, text: object) -> str | None:  # noqa: ANN401
    return text if isinstance(text, str) and form.fullmatch(text) else None


def is_repo_id(name: str) -> bool:
    """Return whether a name is valid for a repository."""
    try:
        validate_repo_id(name)
    except ValueError:
        return False
    return True
