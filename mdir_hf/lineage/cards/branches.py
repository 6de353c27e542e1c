"""Check whether pinned models have changed on their branches."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from urllib.parse import quote

from mdir_hf.errors import RepositoryNotFoundError, RevisionNotFoundError
from mdir_hf.lineage.cards.claim import COMMIT, PinnedModel
from mdir_hf.model.hub import Repository, RepositoryOptions, open_repository
from mdir_hf.model.hub.endpoint import is_offline
from mdir_hf.names import unquoted

# Changes to these files do not affect weights; adding a badge to a card creates a commit, too.
_BESIDE_THE_MODEL = re.compile(
    r"\.git(attributes|ignore)|(.*/)?(LICEN[CS]E|NOTICE|USE_POLICY)[^/]*|\.lineage/.*|\.eval_results/.*"
    r"|.*\.(md|png|jpe?g|gif|svg|webp|pdf)",
    re.I,
)


@dataclass(frozen=True, slots=True)
class BranchHead:
    """The newest commit of a branch, and the changes since a pinned commit.

    Attributes:
        head: Newest commit, or None if unknown.
        changed: Files that differ between the two commits, except documentation and images.
    """

    repo: str
    pinned: str
    head: str | None
    changed: tuple[str, ...]

    def __str__(self) -> str:
        if self.head is None:
            return "its branch could not be looked up"
        if self.head == self.pinned:
            return "still the newest commit of its branch"
        if not self.changed:
            return f"the newest commit is {self.head[:7]}, with no change to the model"
        names = ", ".join(map(unquoted, self.changed[:3])) + (", ..." if len(self.changed) > 3 else "")
        return f"the newest commit is {self.head[:7]}, changed: {names}"


def hub_reference(repo: str, revision: str | None = None, file: str | None = None) -> str:
    """Return a Hub reference that cannot be mistaken for a local folder."""
    return f"hf://models/{repo}" + (f"@{quote(revision, safe='')}" if revision else "") + (f"/{file}" if file else "")


def are_same(first: Repository, second: Repository) -> bool:
    """Return whether two names led to one repository or folder, at any commit."""
    if first.is_local or second.is_local:
        places = [os.path.realpath(repository.repo) for repository in (first, second) if repository.is_local]
        return len(places) == 2 and places[0] == places[1]
    return first.present_name.lower() == second.present_name.lower()


def branch_head_of(
    model: PinnedModel, *, token: str | bool | None = None, cache_dir: str | os.PathLike[str] | None = None
) -> BranchHead:
    """Look up the head of a pinned model's branch, and the files that have changed since the pin.

    Raises:
        HubError: If the Hub cannot be reached.
    """
    assert model.repo is not None and model.commit is not None
    if is_offline():
        return BranchHead(model.repo, model.commit, None, ())
    # If the revision is a commit, there is no branch; use the default branch.
    branch = None if model.revision is None or COMMIT.fullmatch(model.revision) else model.revision
    try:
        head = open_repository(hub_reference(model.repo, branch), RepositoryOptions(token=token, cache_dir=cache_dir))
    except (RepositoryNotFoundError, RevisionNotFoundError):
        return BranchHead(model.repo, model.commit, None, ())
    if head.commit == model.commit:
        return BranchHead(model.repo, model.commit, head.commit, ())
    pinned = open_repository(
        hub_reference(model.repo, model.commit), RepositoryOptions(token=token, cache_dir=cache_dir)
    )
    return BranchHead(model.repo, model.commit, head.commit, changed_files(pinned, head))


def changed_files(pinned: Repository, head: Repository) -> tuple[str, ...]:
    """Return the files that differ between two commits, except documentation and images."""
    paths = {path for path in {*pinned.files, *head.files} if not _BESIDE_THE_MODEL.fullmatch(path)}
    return tuple(sorted(path for path in paths if pinned.files.get(path) != head.files.get(path)))
