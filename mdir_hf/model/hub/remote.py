"""A model repository on the Hub, pinned to one commit."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from huggingface_hub import constants, try_to_load_from_cache

from mdir_hf.background import result_of, run_beside
from mdir_hf.errors import FileMissingError, GatedRepositoryError, ServerError
from mdir_hf.model.hub.endpoint import current_endpoint
from mdir_hf.model.hub.ledger import IoLedger
from mdir_hf.model.hub.local import LocalFile, check_size, has_digest
from mdir_hf.model.hub.location import HubPlace
from mdir_hf.model.hub.model_info import model_info
from mdir_hf.model.hub.range_cache import shared_range_cache
from mdir_hf.model.hub.ranges import HubFile
from mdir_hf.model.sources import ByteSource, FileEntry
from mdir_hf.names import safe_path

_MOST_EXPECTED_BYTES = 64 << 20
_KEPT_BYTES = 1 << 20
"""Prefetched files of up to this size are kept in memory, because configs are read several times."""


@dataclass(frozen=True, slots=True)
class RepositoryOptions:
    """Options for opening a repository; :class:`~mdir_hf.model.open.Reading` describes each of them."""

    token: str | bool | None = None
    cache_dir: str | os.PathLike[str] | None = None
    local_files_only: bool = False
    force_download: bool = False
    use_caches: bool = True
    public_only: bool = False


class HubRepository:
    """A model repository on the Hub, pinned to a commit; see :func:`open_repository`."""

    is_local = False
    is_sharded = False
    variant: str | None = None

    def __init__(
        self,
        repo: str,
        options: RepositoryOptions = RepositoryOptions(),
        *,
        revision: str | None = None,
        subfolder: str = "",
        file: str | None = None,
        ledger: IoLedger | None = None,
    ) -> None:
        self.repo = repo
        self.revision = revision
        self.subfolder = subfolder
        self.file = file
        self.ledger = ledger or IoLedger()
        self._options = options
        self._cache_dir = hub_cache_dir(options.cache_dir)
        self._prefix = f"{subfolder}/" if subfolder else ""
        self._endpoint = current_endpoint()
        self._use_caches = options.use_caches
        self._ranges = shared_range_cache() if options.use_caches else None
        self._opened: dict[str, HubFile] = {}
        self._coming: dict[str, Future[bytes]] = {}
        self._lock = threading.Lock()
        self.present_name, commit, self._files = self._listing()
        self._commit = commit
        self.commit: str | None = commit

    def __repr__(self) -> str:
        return f"HubRepository({self.label!r})"

    @property
    def label(self) -> str:
        """``owner/name@0123abc``."""
        return f"{self.repo}@{self._commit[:7]}"

    @property
    def files(self) -> Mapping[str, FileEntry]:
        """All files, keyed by path relative to the subfolder."""
        return self._files

    def open(self, path: str) -> ByteSource:
        """Open a file from the Hub's cache, or with range requests."""
        entry = self._entry(path)
        downloaded = None if self._options.force_download else self._in_cache(entry)
        if downloaded is not None:
            return LocalFile(downloaded, label=f"{self.label}:{path}", ledger=self.ledger, from_cache=True)
        return self._ranged(entry)

    def read(self, path: str, *, max_bytes: int = 64 << 20) -> bytes:
        """Return a small file's content, checked against its listed digest."""
        entry = self._entry(path)
        check_size(entry.n_bytes, max_bytes, f"{self.label}:{path}")
        with self._lock:
            coming = self._coming.get(path)
        if coming is None:
            return self._content(entry)
        content = b""
        try:
            content = result_of(coming)
        finally:
            if not 0 < len(content) <= _KEPT_BYTES:
                with self._lock:
                    self._coming.pop(path, None)
        return content

    def expect(self, *, whole: Iterable[str] = (), heads: Iterable[str] = ()) -> None:
        """Prefetch files in the background. A later read waits for the prefetch, and raises its error, if any."""
        for path in whole:
            # Skip large files; the later read may not need all of them.
            is_small = path in self._files and 0 <= self._files[path].n_bytes <= _MOST_EXPECTED_BYTES
            if is_small and path not in self._coming:
                self._coming[path] = run_beside(partial(self._content, self._entry(path)), name="mdir-hf-ahead")
        for path in heads:
            source = self.open(path)
            if isinstance(source, HubFile):
                source.begin()

    def _content(self, entry: FileEntry) -> bytes:
        label = f"{self.label}:{entry.path}"
        expected = entry.sha256 or entry.blob_id
        downloaded = None if self._options.force_download else self._in_cache(entry)
        if downloaded is not None:
            with suppress(OSError):
                content = Path(downloaded).read_bytes()
                if len(content) == entry.n_bytes and has_digest(content, expected):
                    self.ledger.served_from_cache(label, len(content))
                    return content
        source = self._ranged(entry)
        content = source.whole()
        if not has_digest(content, expected):
            source.distrust()
            content = source.whole()
        if not has_digest(content, expected):
            raise ServerError(
                f"the content differs from the digest that the Hub lists ({expected}), even on a second attempt; check "
                "HF_ENDPOINT and any proxy, or try again later",
                subject=label,
            )
        return content

    def _listing(self) -> tuple[str, str, dict[str, FileEntry]]:
        revision = self.revision or constants.DEFAULT_REVISION
        info = model_info(
            self.repo,
            revision=revision,
            label=f"{self.repo}@{revision}" if self.revision else self.repo,
            token=self._options.token,
            with_files=True,
            before_each=self.ledger.requested,
        )
        if self._options.public_only and not info.is_public:
            raise GatedRepositoryError(
                "the repository is gated or private, and only public ones are allowed here; open it with a token that "
                "has access, and without public_only",
                subject=f"{self.repo}@{info.commit[:7]}",
            )
        self._is_restricted = info.is_restricted
        if self._options.token is False and info.is_restricted:
            # The caches may contain content that only other tokens can access; without a token, ask the Hub.
            self._use_caches, self._ranges = False, None
        files = {
            entry.path[len(self._prefix) :]: replace(entry, path=entry.path[len(self._prefix) :])
            for entry in info.files
            if entry.path.startswith(self._prefix)
        }
        if self._prefix and not files:
            raise FileMissingError(
                f"there is no folder {self._prefix[:-1]!r} at this commit", subject=f"{self.repo}@{info.commit[:7]}"
            )
        return info.repo, info.commit, files

    def _entry(self, path: str) -> FileEntry:
        safe_path(path, subject=self.label)
        entry = self._files.get(path)
        if entry is None:
            raise FileMissingError(f"there is no file {path!r} at this commit", subject=self.label)
        if entry.n_bytes < 0:
            # Some mirrors list no sizes.
            entry = replace(entry, n_bytes=self._ranged(entry).n_bytes)
            self._files[path] = entry
        return entry

    def _ranged(self, entry: FileEntry) -> HubFile:
        with self._lock:
            if entry.path not in self._opened:
                self._opened[entry.path] = HubFile(
                    self._place(entry.path),
                    n_bytes=entry.n_bytes if entry.n_bytes >= 0 else None,
                    etag=entry.sha256 or entry.blob_id,
                    ledger=self.ledger,
                    cache=self._ranges,
                    use_cached=not self._options.force_download,
                )
            return self._opened[entry.path]

    def _in_cache(self, entry: FileEntry) -> str | None:
        if not self._use_caches:
            return None
        cached = try_to_load_from_cache(
            self.repo, self._prefix + entry.path, cache_dir=self._cache_dir, revision=self._commit
        )
        is_whole = isinstance(cached, str) and Path(cached).is_file() and Path(cached).stat().st_size == entry.n_bytes
        return cached if isinstance(cached, str) and is_whole else None

    def _place(self, path: str) -> HubPlace:
        # Use the current name, so that requests for a renamed repository are not redirected one by one.
        return HubPlace(
            self.present_name,
            self._commit,
            self._prefix + path,
            self._endpoint,
            self._options.token,
            self.label,
            is_restricted=self._is_restricted,
        )


def hub_cache_dir(cache_dir: str | os.PathLike[str] | None) -> str:
    """Return the given cache folder, or the Hub client's default."""
    return str(Path(cache_dir if cache_dir is not None else constants.HF_HUB_CACHE).expanduser())
