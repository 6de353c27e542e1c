"""What the loopback Hub serves: folders as repositories with commits, files with digests."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

# The Hub's own .gitattributes for new model repositories, as far as models here use it.
LFS_SUFFIXES = (".safetensors", ".bin", ".gguf", ".model", ".pt", ".pth", ".h5", ".onnx", ".msgpack", ".npz", ".zip")
LFS_BYTES = 10 << 20  # the Hub refuses larger files outside LFS


@dataclass(frozen=True)
class StoredFile:
    """One file of one commit; its digests are computed when first asked for.

    Attributes:
        place: Where its bytes lie on this disk.
        n_bytes: Size.
        is_lfs: Whether the Hub would keep it outside git, and redirect to it.
        given_sha256: Its digest, believed instead of computed.
    """

    place: Path
    n_bytes: int
    is_lfs: bool
    given_sha256: str | None = None

    @classmethod
    def at(cls, place: Path, path: str, given_sha256: str | None = None) -> StoredFile:
        """Take a file of this disk as one of a repository."""
        n_bytes = place.stat().st_size
        return cls(place, n_bytes, path.endswith(LFS_SUFFIXES) or n_bytes > LFS_BYTES, given_sha256)

    @cached_property
    def sha256(self) -> str:
        """The digest of the content."""
        return self.given_sha256 or self._digest("sha256")

    @cached_property
    def blob_id(self) -> str:
        """The git blob id: of the content, or for an LFS file of the pointer that git holds."""
        if self.is_lfs:
            return hashlib.sha1(self._pointer, usedforsecurity=False).hexdigest()
        return self._digest("sha1", b"blob %d\0" % self.n_bytes)

    @property
    def etag(self) -> str:
        """What tells one content from another."""
        return self.sha256 if self.is_lfs else self.blob_id

    @property
    def listed(self) -> dict[str, Any]:
        """What the API says of the file, besides its name."""
        said: dict[str, Any] = {"size": self.n_bytes, "blobId": self.blob_id}
        if self.is_lfs:
            said["lfs"] = {"sha256": self.sha256, "size": self.n_bytes, "pointerSize": len(self._pointer)}
        return said

    @property
    def _pointer(self) -> bytes:
        return f"version https://git-lfs.github.com/spec/v1\noid sha256:{self.sha256}\nsize {self.n_bytes}\n".encode()

    def _digest(self, kind: str, head: bytes = b"") -> str:
        digest = hashlib.new(kind, head, usedforsecurity=False)
        with self.place.open("rb") as content:
            while block := content.read(1 << 20):
                digest.update(block)
        return digest.hexdigest()


@dataclass
class StoredRepository:
    """A repository of the loopback Hub.

    Attributes:
        repo_id: ``owner/name``.
        revisions: Commit sha, by branch or tag.
        commits: Files by path, by commit sha.
    """

    repo_id: str
    revisions: dict[str, str] = field(default_factory=dict)
    commits: dict[str, dict[str, StoredFile]] = field(default_factory=dict)

    @property
    def address(self) -> str:
        """Its path on the Hub."""
        return self.repo_id

    def add_revision(self, name: str, folder: Path, sha256: Mapping[str, str] | None = None) -> str:
        """Take a folder as a branch; return its commit sha, made from names, sizes and times of the files, unread.

        Args:
            name: The branch.
            folder: What it holds.
            sha256: Digests of large files by path, for files too large to read.
        """
        files: dict[str, StoredFile] = {}
        described: list[object] = [self.address]
        for place in sorted(folder.rglob("*")):
            if place.is_file():
                path = place.relative_to(folder).as_posix()
                files[path] = StoredFile.at(place, path, (sha256 or {}).get(path))
                described.append([path, files[path].n_bytes, place.stat().st_mtime_ns])
        return self.point(name, files, described)

    def point(self, name: str, files: dict[str, StoredFile], described: object) -> str:
        """Have a branch point to files; return the sha of the commit, made from a description of them."""
        commit = hashlib.sha1(json.dumps(described).encode(), usedforsecurity=False).hexdigest()
        self.revisions[name] = commit
        self.commits[commit] = files
        return commit

    def commit(self, revision: str) -> str | None:
        """Return the full sha of a branch, tag, sha or the beginning of one."""
        if revision in self.revisions:
            return self.revisions[revision]
        matches = [commit for commit in self.commits if len(revision) >= 7 and commit.startswith(revision)]
        return matches[0] if len(matches) == 1 else None
