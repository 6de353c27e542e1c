"""A model repository on the Hub, pinned to one commit."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from huggingface_hub import HfApi, constants, hf_hub_download, try_to_load_from_cache
from tqdm import tqdm

from mdir_hf.checkpoint.sources import ByteSource, FileEntry
from mdir_hf.errors import FileMissingError, HubError, ServerError
from mdir_hf.hub.endpoint import CALLER, current_endpoint
from mdir_hf.hub.errors_map import hub_errors
from mdir_hf.hub.ledger import IoLedger
from mdir_hf.hub.local import LocalFile, check_size
from mdir_hf.hub.location import HubPlace
from mdir_hf.hub.paths import COMMIT, safe_path
from mdir_hf.hub.range_cache import shared_range_cache
from mdir_hf.hub.ranges import HubFile
from mdir_hf.hub.retry import with_patience

LISTING_TIMEOUT_S = 30.0
# The client draws a bar per file; ours counts the whole comparison, so theirs are not shown.
HIDDEN_BAR = cast(Any, functools.partial(tqdm, disable=True))


class HubRepository:
    """A model repository on the Hub, pinned to the commit its revision stood for when it was opened.

    Args and errors: as for :func:`open_repository`; ``file`` is the one weight file that was named.

    Cost: one API request.
    """

    is_local = False
    variant: str | None = None

    def __init__(
        self,
        repo: str,
        *,
        revision: str | None = None,
        token: str | bool | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        force_download: bool = False,
        subfolder: str = "",
        file: str | None = None,
        use_caches: bool = True,
        ledger: IoLedger | None = None,
    ) -> None:
        self.repo = repo
        self.revision = revision
        self.subfolder = subfolder
        self.file = file
        self.ledger = ledger or IoLedger()
        self._token = token
        self._cache_dir = hub_cache_dir(cache_dir)
        self._force_download = force_download
        self._prefix = f"{subfolder}/" if subfolder else ""
        self._endpoint = current_endpoint()
        self._use_caches = use_caches
        self._ranges = shared_range_cache() if use_caches else None
        self._opened: dict[str, ByteSource] = {}
        self._downloaded: set[str] = set()
        commit, self._files = self._listing()
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
        """Every file at the commit, by path relative to the subfolder."""
        return self._files

    def open(self, path: str) -> ByteSource:
        """Give random access to a file: from the Hub's cache if it was downloaded, else by ranges.

        Raises:
            FileMissingError: If there is no such file.
            UnsafePathError: If the path leaves the repository.
        """
        entry = self._entry(path)
        if path not in self._opened:
            downloaded = None if self._force_download else self._in_cache(path)
            if downloaded is not None:
                return LocalFile(downloaded, label=f"{self.label}:{path}", ledger=self.ledger, from_cache=True)
            self._opened[path] = self._ranged(entry)
        return self._opened[path]

    def read(self, path: str, *, max_bytes: int = 64 << 20) -> bytes:
        """Return a whole small file, downloaded into the Hub's cache unless it is there or caches are not used.

        Raises:
            FileMissingError: If there is no such file.
            ByteBudgetError: If it is larger than ``max_bytes``, or would pass the cap of the ledger.
            UnsafePathError: If the path leaves the repository.
            HubError: If it cannot be had.
        """
        entry = self._entry(path)
        label = f"{self.label}:{path}"
        check_size(entry.n_bytes, max_bytes, label)
        if not self._use_caches:
            return self.open(path).read(0, entry.n_bytes)
        force = self._force_download and path not in self._downloaded
        downloaded = None if force else self._in_cache(path)
        if downloaded is None:
            with self.ledger.reserve(label, entry.n_bytes) as arrived:
                content = self._download(path, label, force=force)
                arrived(len(content))
            self._downloaded.add(path)
        else:
            content = Path(downloaded).read_bytes()
            self.ledger.served_from_cache(label, len(content))
        if len(content) != entry.n_bytes:
            raise ServerError(
                f"the Hub lists {entry.n_bytes:,} bytes and {len(content):,} came; try force_download=True",
                subject=label,
            )
        return content

    def _listing(self) -> tuple[str, dict[str, FileEntry]]:
        asked = self.revision or constants.DEFAULT_REVISION
        api = HfApi(endpoint=self._endpoint, token=self._token, **CALLER)
        with hub_errors(f"{self.repo}@{asked}" if self.revision else self.repo, revision=asked):
            info = with_patience(
                lambda: api.model_info(self.repo, revision=asked, files_metadata=True, timeout=LISTING_TIMEOUT_S),
                before_each=self.ledger.requested,
            )
        if info.sha is None or not COMMIT.fullmatch(info.sha):
            raise ServerError(f"the Hub does not say which commit {asked!r} is", subject=self.repo)
        if self._token is False and (info.private or info.gated):
            # What lies in the caches was read with somebody's token; whoever comes with none asks the Hub.
            self._use_caches, self._ranges = False, None
        files: dict[str, FileEntry] = {}
        for sibling in info.siblings or ():
            name = sibling.rfilename
            if not name.startswith(self._prefix):
                continue
            path = name[len(self._prefix) :]
            lfs = sibling.lfs
            n_bytes = lfs.size if lfs is not None else sibling.size
            files[path] = FileEntry(
                path,
                -1 if n_bytes is None else n_bytes,
                sha256=lfs.sha256 if lfs is not None else None,
                blob_id=sibling.blob_id,
            )
        if self._prefix and not files:
            raise FileMissingError(
                f"there is no folder {self._prefix[:-1]!r} at this commit", subject=f"{self.repo}@{info.sha[:7]}"
            )
        return info.sha, files

    def _entry(self, path: str) -> FileEntry:
        safe_path(path, subject=self.label)
        entry = self._files.get(path)
        if entry is None:
            raise FileMissingError(f"there is no file {path!r} at this commit", subject=self.label)
        if entry.n_bytes < 0:
            # Some mirrors list no sizes.
            entry = FileEntry(path, self._ranged(entry).n_bytes, entry.sha256, entry.blob_id)
            self._files[path] = entry
        return entry

    def _ranged(self, entry: FileEntry) -> HubFile:
        return HubFile(
            self._place(entry.path),
            n_bytes=entry.n_bytes if entry.n_bytes >= 0 else None,
            etag=entry.sha256 or entry.blob_id,
            ledger=self.ledger,
            cache=self._ranges,
            use_cached=not self._force_download,
        )

    def _in_cache(self, path: str) -> str | None:
        if not self._use_caches:
            return None
        found = try_to_load_from_cache(self.repo, self._prefix + path, cache_dir=self._cache_dir, revision=self._commit)
        return found if isinstance(found, str) else None

    def _download(self, path: str, label: str, *, force: bool) -> bytes:
        def download() -> str:
            return hf_hub_download(
                self.repo,
                self._prefix + path,
                revision=self._commit,
                cache_dir=self._cache_dir,
                force_download=force,
                token=self._token,
                endpoint=self._endpoint,
                tqdm_class=HIDDEN_BAR,
                **CALLER,
            )

        try:
            with hub_errors(self.label, file=path, revision=self._commit):
                # The client asks for the metadata, then for the content.
                place = with_patience(download, before_each=functools.partial(self.ledger.requested, 2))
                return Path(place).read_bytes()
        except HubError as exc:
            if type(exc) is not HubError or not isinstance(exc.__cause__, OSError):
                raise
            # The Hub's cache cannot be written: go on without it. The bytes are counted by the caller.
            ledger = IoLedger()
            n_bytes = self._files[path].n_bytes
            content = HubFile(self._place(path), n_bytes=n_bytes, ledger=ledger).read(0, n_bytes)
            self.ledger.requested(ledger.requests)
            return content

    def _place(self, path: str) -> HubPlace:
        return HubPlace(self.repo, self._commit, self._prefix + path, self._endpoint, self._token, self.label)


def hub_cache_dir(cache_dir: str | os.PathLike[str] | None) -> str:
    """Return the Hub's cache of downloaded files: the one named, else the client's own."""
    return str(Path(cache_dir if cache_dir is not None else constants.HF_HUB_CACHE).expanduser())
