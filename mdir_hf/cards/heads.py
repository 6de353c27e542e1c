"""Where the repositories of a claim stand now, against the commits that it pins."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from urllib.parse import quote

from mdir_hf.cards.claim import PinnedModel
from mdir_hf.errors import RepositoryNotFoundError, RevisionNotFoundError
from mdir_hf.hub import Repository, open_repository
from mdir_hf.hub.endpoint import is_offline

_COMMIT = re.compile(r"[0-9a-f]{40}")
# Changes of these say nothing of the weights: a card that shows the badge moves the head by itself.
_BESIDE_THE_MODEL = re.compile(
    r"\.git(attributes|ignore)|(.*/)?(LICEN[CS]E|NOTICE|USE_POLICY)[^/]*|\.lineage/.*|\.eval_results/.*"
    r"|.*\.(md|png|jpe?g|gif|svg|webp|pdf)",
    re.I,
)


@dataclass(frozen=True, slots=True)
class Head:
    """Where a repository stands now.

    Attributes:
        repo: The repository.
        pinned: The commit of the claim.
        head: What its branch stands for now; None where that could not be asked.
        changed: Files of the model that differ between the two, pictures and texts left out.
    """

    repo: str
    pinned: str
    head: str | None
    changed: tuple[str, ...]

    def __str__(self) -> str:
        if self.head is None:
            return "where its branch stands now could not be asked"
        if self.head == self.pinned:
            return "still the head of its branch"
        if not self.changed:
            return f"the head moved to {self.head[:7]} with no change to the model"
        shown = ", ".join(ascii(path)[1:-1] for path in self.changed[:3]) + (", ..." if len(self.changed) > 3 else "")
        return f"the head moved to {self.head[:7]}, changed: {shown}"


def hub_reference(repo: str, revision: str | None = None, file: str | None = None) -> str:
    """Name a repository so that it can only be one on the Hub: ids come from cards and badges of strangers."""
    return f"hf://models/{repo}" + (f"@{quote(revision, safe='')}" if revision else "") + (f"/{file}" if file else "")


def head_of(
    model: PinnedModel, *, token: str | bool | None = None, cache_dir: str | os.PathLike[str] | None = None
) -> Head:
    """Ask what the branch of a pinned model stands for now, and which files of the model have changed since.

    Raises:
        HubError: If the Hub cannot be asked.

    Cost: one API request, a second one where the head has moved.
    """
    assert model.repo is not None and model.commit is not None
    if is_offline():
        return Head(model.repo, model.commit, None, ())
    # Who pinned a commit by hand meant that commit; whether the model moved on is told by its main branch.
    branch = None if model.revision is None or _COMMIT.fullmatch(model.revision) else model.revision
    try:
        head = open_repository(hub_reference(model.repo, branch), token=token, cache_dir=cache_dir)
    except (RepositoryNotFoundError, RevisionNotFoundError):
        return Head(model.repo, model.commit, None, ())
    if head.commit == model.commit:
        return Head(model.repo, model.commit, head.commit, ())
    pinned = open_repository(hub_reference(model.repo, model.commit), token=token, cache_dir=cache_dir)
    return Head(model.repo, model.commit, head.commit, changed_files(pinned, head))


def changed_files(pinned: Repository, head: Repository) -> tuple[str, ...]:
    """Return the files of the model that are not the same in two commits, by their digests and sizes."""
    paths = {path for path in {*pinned.files, *head.files} if not _BESIDE_THE_MODEL.fullmatch(path)}
    return tuple(sorted(path for path in paths if pinned.files.get(path) != head.files.get(path)))
