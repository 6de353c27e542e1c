"""Repositories of the loopback Hub: local folders as commits, with the digests that the Hub would report."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import cached_property
from pathlib import Path
from typing import Any

# From the Hub's default .gitattributes for models.
LFS_SUFFIXES = (".safetensors", ".bin", ".gguf", ".model", ".pt", ".pth", ".h5", ".onnx", ".msgpack", ".npz", ".zip")
LFS_BYTES = 10 << 20  # the Hub rejects larger files outside LFS


@dataclass(frozen=True)
class StoredFile:
    """One file of a commit; digests are computed on first use.

    Attributes:
        is_lfs: Whether the Hub would store the file in LFS, and redirect to it.
        given_sha256: Known SHA-256, or None if it must be computed.
    """

    place: Path
    n_bytes: int
    is_lfs: bool
    given_sha256: str | None = None

    @classmethod
    def at(cls, place: Path, path: str, given_sha256: str | None = None) -> StoredFile:
        """Describe a local file as the file at ``path`` in a repository."""
        n_bytes = place.stat().st_size
        return cls(place, n_bytes, path.endswith(LFS_SUFFIXES) or n_bytes > LFS_BYTES, given_sha256)

    @cached_property
    def sha256(self) -> str:
        """SHA-256 of the content."""
        return self.given_sha256 or self._digest("sha256")

    @cached_property
    def blob_id(self) -> str:
        """The git blob id of the content or, for LFS files, of the pointer."""
        if self.is_lfs:
            return hashlib.sha1(self._pointer, usedforsecurity=False).hexdigest()
        return self._digest("sha1", b"blob %d\0" % self.n_bytes)

    @property
    def etag(self) -> str:
        """The ETag: SHA-256 for LFS files, otherwise the blob id."""
        return self.sha256 if self.is_lfs else self.blob_id

    @property
    def listed(self) -> dict[str, Any]:
        """The file's entry in the API, without its name."""
        entry: dict[str, Any] = {"size": self.n_bytes, "blobId": self.blob_id}
        if self.is_lfs:
            entry["lfs"] = {"sha256": self.sha256, "size": self.n_bytes, "pointerSize": len(self._pointer)}
        return entry

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
        revisions: Map from branches and tags to commit SHAs.
        commits: Map from commit SHAs to files keyed by path.
        dates: Map from commit SHAs to dates.
    """

    repo_id: str
    revisions: dict[str, str] = field(default_factory=dict)
    commits: dict[str, dict[str, StoredFile]] = field(default_factory=dict)
    dates: dict[str, str] = field(default_factory=dict)

    @property
    def address(self) -> str:
        """The repository's path on the Hub."""
        return self.repo_id

    def add_revision(self, name: str, folder: Path, sha256: Mapping[str, str] | None = None) -> str:
        """Add a folder as a branch and return its commit SHA; ``sha256`` maps paths to known digests."""
        files: dict[str, StoredFile] = {}
        description: list[object] = [self.address]
        for place in sorted(folder.rglob("*")):
            if place.is_file():
                path = place.relative_to(folder).as_posix()
                files[path] = StoredFile.at(place, path, (sha256 or {}).get(path))
                description.append([path, files[path].n_bytes, place.stat().st_mtime_ns])
        commit = self.point(name, files, description)
        newest = max((file.place.stat().st_mtime for file in files.values()), default=0.0)
        self.dates[commit] = datetime.fromtimestamp(newest, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.000Z")
        return commit

    def point(self, name: str, files: dict[str, StoredFile], description: object) -> str:
        """Point a branch at files and return its commit SHA, a hash of ``description``."""
        commit = hashlib.sha1(json.dumps(description).encode(), usedforsecurity=False).hexdigest()
        self.revisions[name] = commit
        self.commits[commit] = files
        return commit

    def commit(self, revision: str) -> str | None:
        """Return the full SHA for a branch, a tag or an abbreviated SHA."""
        if revision in self.revisions:
            return self.revisions[revision]
        matches = [commit for commit in self.commits if len(revision) >= 7 and commit.startswith(revision)]
        return matches[0] if len(matches) == 1 else None
