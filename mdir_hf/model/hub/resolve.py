"""Resolves a name to its repository, its current commit, and whether it is public."""

from __future__ import annotations

import os
from dataclasses import dataclass

from huggingface_hub import constants

from mdir_hf.model.hub.endpoint import current_endpoint
from mdir_hf.model.hub.model_info import model_info
from mdir_hf.model.hub.reference import parse_reference


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """A model at its current commit.

    Attributes:
        repo: Current repo id, which may differ from the requested one; for local files the given name.
        revision: The requested revision, or None.
        commit: Full sha of the commit of the revision; None for local files.
        pinned: A name for exactly these files, for :class:`~mdir_hf.comparison.api.HomologyChecker`.
        is_public: Whether the Hub says that it is neither private nor gated. False for local files.
    """

    repo: str
    revision: str | None
    commit: str | None
    pinned: str
    is_public: bool


def resolve_model(
    reference: str | os.PathLike[str], *, token: str | bool | None = None, allow_local: bool = True
) -> ResolvedModel:
    """Return the current commit of a name, without opening the model.

    For servers that store results: a result belongs to commits, not names, and results of private models belong to one
    user. Takes one API request, or none for local files.

    Args:
        reference: See :func:`~mdir_hf.model.hub.reference.parse_reference`.
        token: Token, as in the Hub client: a token, False for none, None or True for the stored one.
        allow_local: False rejects local folders and files.

    Raises:
        InvalidReferenceError: If the name is invalid.
        HubError: If the repository or revision is missing or private, or the request fails.
    """
    parsed = parse_reference(reference, allow_local=allow_local)
    if parsed.repo_id is None:
        return ResolvedModel(parsed.text, None, None, parsed.text, is_public=False)
    repo, revision = parsed.repo_id, parsed.revision or constants.DEFAULT_REVISION
    info = model_info(
        repo,
        revision=revision,
        label=f"{repo}@{revision}" if parsed.revision else repo,
        endpoint=current_endpoint(),
        token=token,
        with_files=False,
    )
    place = "/".join(part for part in (parsed.subfolder, parsed.file) if part)
    kind = f":{parsed.variant}" if parsed.variant else ""
    pinned = f"hf://models/{info.repo}@{info.commit}{kind}" + (f"/{place}" if place else "")
    # gpt2 has an owner now, and renamed repositories have another name.
    return ResolvedModel(info.repo, parsed.revision, info.commit, pinned, is_public=info.is_public)
