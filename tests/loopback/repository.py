"""A repository of the loopback Hub of the tests: access, kinds, commits, pull requests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from mdir_hf.demo.stored_repository import StoredFile, StoredRepository


@dataclass
class PullRequest:
    """A pull request of the loopback Hub.

    Attributes:
        number: Counts from 1.
        title: First line of its commit.
        description: The rest.
        branch: The target branch.
        base: The parent of its commit.
        commit: Its own commit.
        status: open, merged or closed.
    """

    number: int
    title: str
    description: str
    branch: str
    base: str
    commit: str
    status: str = "open"


@dataclass
class FullRepository(StoredRepository):
    """A repository with access rules that accepts commits.

    Attributes:
        private: Whether the Hub tells strangers that it does not exist.
        gated: Whether strangers see only the listing.
        disabled: Whether the Hub has closed it to everybody.
        has_discussions: Whether discussions and pull requests are enabled.
        pull_requests: Pull requests, oldest first.
        kind: ``model`` or ``dataset``.
        pipeline_tag: Task of the model.
        downloads: Number of downloads, by which lists are sorted.
        n_parameters: Number of parameters in safetensors files; None if the Hub has not counted them.
    """

    private: bool = False
    gated: bool = False
    disabled: bool = False
    has_discussions: bool = True
    pull_requests: list[PullRequest] = field(default_factory=list)
    kind: str = "model"
    pipeline_tag: str | None = "text-generation"
    downloads: int = 0
    n_parameters: int | None = None

    @property
    def address(self) -> str:
        """Path on the Hub; for models, the id alone."""
        return self.repo_id if self.kind == "model" else f"{self.kind}s/{self.repo_id}"

    def add_commit(self, name: str, parent: str, added: Mapping[str, Path]) -> str:
        """Commit files on top of a parent, and point a branch (or the ref of a pull request) to the commit."""
        files = self.commits[parent] | {path: StoredFile.at(place, path) for path, place in added.items()}
        return self.point(name, files, [self.address, parent, sorted(map(str, added.values()))])
