"""What a name stands for at this moment: which commit of which repository, and whether everybody may read it."""

from __future__ import annotations

import os
from dataclasses import dataclass

from huggingface_hub import HfApi, constants

from mdir_hf.errors import ServerError
from mdir_hf.hub.endpoint import CALLER, current_endpoint
from mdir_hf.hub.errors_map import hub_errors
from mdir_hf.hub.reference import parse_reference
from mdir_hf.hub.retry import with_patience

RESOLVE_TIMEOUT_S = 15.0


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """A model as it stands now.

    Attributes:
        repo: Its present repo id, which may not be the one asked for; for something local, the text that names it.
        revision: The revision that was asked for, None if none was.
        commit: Full sha of the commit that the revision stands for; None for a folder or file of this machine.
        pinned: A text that names the same files for ever, as :class:`~mdir_hf.checker.HomologyChecker` takes it.
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
        reference: As for :func:`~mdir_hf.hub.reference.parse_reference`.
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
    api = HfApi(endpoint=current_endpoint(), token=token, **CALLER)
    with hub_errors(f"{repo}@{asked}" if parsed.revision else repo, revision=asked):
        info = with_patience(
            lambda: api.model_info(
                repo, revision=asked, expand=["sha", "private", "gated"], timeout=RESOLVE_TIMEOUT_S, token=token
            )
        )
    if info.sha is None:
        raise ServerError(f"the Hub does not say which commit {asked!r} is", subject=repo)
    repo = info.id or repo  # gpt2 has an owner now, and renamed repositories another name
    place = "/".join(part for part in (parsed.subfolder, parsed.file) if part)
    kind = f":{parsed.variant}" if parsed.variant else ""
    pinned = f"hf://models/{repo}@{info.sha}{kind}" + (f"/{place}" if place else "")
    # What the Hub does not say is not public.
    is_public = info.private is False and info.gated is False
    return ResolvedModel(repo, parsed.revision, info.sha, pinned, is_public=is_public)
