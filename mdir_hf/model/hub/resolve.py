"""Resolves a name: its repository, its current commit, and whether it is public."""

from __future__ import annotations

import os
from dataclasses import dataclass

from huggingface_hub import constants

from mdir_hf.model.hub.endpoint import current_endpoint
from mdir_hf.model.hub.model_info import model_info
from mdir_hf.model.hub.reference import parse_reference


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """A model as it stands now.

    Attributes:
        repo: Its present repo id, which may not be the one asked for; for something local, the text that names it.
        revision: The revision that was asked for, None if none was.
        commit: Full sha of the commit that the revision stands for; None for a folder or file of this machine.
        pinned: A text that names the same files for ever, as :class:`~mdir_hf.comparison.api.HomologyChecker` takes it.
        is_public: Whether the Hub says that anybody may read it: neither private nor gated. False for local files.
    """

    repo: str
    revision: str | None
    commit: str | None
    pinned: str
    is_public: bool


def resolve_model(
    reference: str | os.PathLike[str], *, token: str | bool | None = None, allow_local: bool = True
) -> ResolvedModel:
    """Find which commit a name stands for, without opening the model.

    For a server that keeps results: a result belongs to commits, not to names, and what is not public to its reader.

    Args:
        reference: As for :func:`~mdir_hf.model.hub.reference.parse_reference`.
        token: As the Hub client takes it: a token, False for none, None or True for the stored one.
        allow_local: False refuses folders and files of this machine.

    Raises:
        InvalidReferenceError: If the text names no model.
        HubError: If the repository or revision is missing or private, or the Hub cannot be asked.

    Cost: one API request; none for local files.
    """
    parsed = parse_reference(reference, allow_local=allow_local)
    if parsed.repo_id is None:
        return ResolvedModel(parsed.text, None, None, parsed.text, is_public=False)
    repo, asked = parsed.repo_id, parsed.revision or constants.DEFAULT_REVISION
    info = model_info(
        repo,
        revision=asked,
        label=f"{repo}@{asked}" if parsed.revision else repo,
        endpoint=current_endpoint(),
        token=token,
        with_files=False,
    )
    place = "/".join(part for part in (parsed.subfolder, parsed.file) if part)
    kind = f":{parsed.variant}" if parsed.variant else ""
    pinned = f"hf://models/{info.repo}@{info.commit}{kind}" + (f"/{place}" if place else "")
    # gpt2 has an owner now, and renamed repositories another name.
    return ResolvedModel(info.repo, parsed.revision, info.commit, pinned, is_public=info.is_public)
