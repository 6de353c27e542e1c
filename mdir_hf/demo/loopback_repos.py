"""What the loopback Hub serves: folders as repositories with commits, digests and access rules."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mdir_hf.demo.loopback_commits import PullRequest

# The Hub's own .gitattributes for new model repositories, as far as models here use it.
LFS_SUFFIXES = (".safetensors", ".bin", ".gguf", ".model", ".pt", ".pth", ".h5", ".onnx", ".msgpack", ".npz", ".zip")
LFS_BYTES = 10 << 20  # the Hub refuses larger files outside LFS


@dataclass(frozen=True)
class StoredFile:
    """One file of one commit.

    Attributes:
        place: Where its bytes lie on this disk.
        n_bytes: Size.
        is_lfs: Whether the Hub would keep it outside git, and redirect to it.
    """

    place: Path
    n_bytes: int
    is_lfs: bool


@dataclass
class StoredRepository:
    """A repository of the loopback Hub.

    Attributes:
        repo_id: ``owner/name``.
        revisions: Commit sha, by branch or tag.
        commits: Files by path, by commit sha.
        private: Whether strangers are told that it does not exist.
        gated: Whether strangers see the listing and no content.
        sha256: Digests by path, believed instead of computed.
        has_discussions: Whether discussions and pull requests are enabled.
        pull_requests: Pull requests, oldest first.
        kind: ``model`` or ``dataset``.
        pipeline_tag: What the Hub takes the model for.
        downloads: By which lists are sorted.
    """

    repo_id: str
    private: bool
    gated: bool
    sha256: Mapping[str, str]
    revisions: dict[str, str] = field(default_factory=dict)
    commits: dict[str, dict[str, StoredFile]] = field(default_factory=dict)
    has_discussions: bool = True
    pull_requests: list[PullRequest] = field(default_factory=list)
    kind: str = "model"
    pipeline_tag: str | None = "text-generation"
    downloads: int = 0

    @property
    def address(self) -> str:
        """Its path on the Hub: what a repository is known by, models by their id alone."""
        return self.repo_id if self.kind == "model" else f"{self.kind}s/{self.repo_id}"

    def add_revision(self, name: str, folder: Path) -> str:
        """Take a folder as a branch; return its commit sha, made from names, sizes and times of the files, unread."""
        files: dict[str, StoredFile] = {}
        description: list[object] = [self.address]
        for place in sorted(folder.rglob("*")):
            if place.is_file():
                path, status = place.relative_to(folder).as_posix(), place.stat()
                is_lfs = path.endswith(LFS_SUFFIXES) or status.st_size > LFS_BYTES
                files[path] = StoredFile(place, status.st_size, is_lfs)
                description.append([path, status.st_size, status.st_mtime_ns])
        commit = hashlib.sha1(json.dumps(description).encode(), usedforsecurity=False).hexdigest()
        self.revisions[name] = commit
        self.commits[commit] = files
        return commit

    def add_commit(self, name: str, parent: str, added: Mapping[str, Path]) -> str:
        """Put files on top of a commit, and have a branch (or the ref of a pull request) point there."""
        files = dict(self.commits[parent])
        for path, place in added.items():
            n_bytes = place.stat().st_size
            files[path] = StoredFile(place, n_bytes, path.endswith(LFS_SUFFIXES) or n_bytes > LFS_BYTES)
        description = json.dumps([self.address, parent, sorted(map(str, added.values()))]).encode()
        commit = hashlib.sha1(description, usedforsecurity=False).hexdigest()
        self.commits[commit] = files
        self.revisions[name] = commit
        return commit

    def commit(self, revision: str) -> str | None:
        """Return the full sha of a branch, tag, sha or the beginning of one."""
        if revision in self.revisions:
            return self.revisions[revision]
        matches = [commit for commit in self.commits if len(revision) >= 7 and commit.startswith(revision)]
        return matches[0] if len(matches) == 1 else None


class Digests:
    """Digests of files, computed when first asked for, a block at a time, and kept."""

    def __init__(self) -> None:
        self._known: dict[tuple[Path, int, int, str], str] = {}
        self._lock = threading.Lock()

    def sha256(self, repository: StoredRepository, path: str, file: StoredFile) -> str:
        """Return the digest of an LFS file: the one given at registration, else computed by reading all of it."""
        return repository.sha256.get(path) or self._digest(file, "sha256")

    def blob_id(self, repository: StoredRepository, path: str, file: StoredFile) -> str:
        """Return the git blob id: of the content, or for an LFS file of the pointer that git holds."""
        if file.is_lfs:
            return hashlib.sha1(self._pointer(repository, path, file), usedforsecurity=False).hexdigest()
        return self._digest(file, "sha1")

    def sibling(self, repository: StoredRepository, path: str, file: StoredFile) -> dict[str, Any]:
        """Return how the API lists a file when asked for blobs."""
        listed: dict[str, Any] = {
            "rfilename": path,
            "size": file.n_bytes,
            "blobId": self.blob_id(repository, path, file),
        }
        if file.is_lfs:
            n_pointer = len(self._pointer(repository, path, file))
            sha256 = self.sha256(repository, path, file)
            listed["lfs"] = {"sha256": sha256, "size": file.n_bytes, "pointerSize": n_pointer}
        return listed

    def _pointer(self, repository: StoredRepository, path: str, file: StoredFile) -> bytes:
        sha256 = self.sha256(repository, path, file)
        return f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha256}\nsize {file.n_bytes}\n".encode()

    def _digest(self, file: StoredFile, kind: str) -> str:
        key = (file.place, file.n_bytes, file.place.stat().st_mtime_ns, kind)
        with self._lock:
            if key not in self._known:
                digest = hashlib.new(kind, usedforsecurity=False)
                if kind == "sha1":
                    digest.update(b"blob %d\0" % file.n_bytes)
                with file.place.open("rb") as content:
                    while block := content.read(1 << 20):
                        digest.update(block)
                self._known[key] = digest.hexdigest()
            return self._known[key]
