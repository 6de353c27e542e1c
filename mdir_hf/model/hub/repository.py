"""Opens a repository by name: on the Hub at a commit, or a folder."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Protocol, runtime_checkable

from huggingface_hub import constants
from huggingface_hub.file_download import repo_folder_name

from mdir_hf.errors import FileMissingError, InputError, OfflineError
from mdir_hf.model.files.sources import ByteSource, FileEntry
from mdir_hf.model.hub.endpoint import is_offline
from mdir_hf.model.hub.ledger import IoLedger
from mdir_hf.model.hub.local import LocalRepository
from mdir_hf.model.hub.paths import COMMIT, safe_path
from mdir_hf.model.hub.reference import Reference, parse_reference
from mdir_hf.model.hub.remote import HubRepository, hub_cache_dir


@runtime_checkable
class Repository(Protocol):
    """A :class:`~mdir_hf.model.files.sources.FileTree` that says where it comes from.

    Attributes:
        repo: What a report calls it: the repo id that was asked for, or the folder.
        revision: The revision that was asked for, None if none was.
        commit: Full sha of the commit everything is pinned to; None for a plain folder.
        is_local: Whether the files lie in a folder that was named; False for a repository on the Hub, cached or not.
        subfolder: Folder of the repository on the Hub that takes the place of its root; empty for the root itself.
        file: The one weight file that was named, relative to the tree; None for the usual ones.
        variant: The quantisation that was named after a colon, None where none was.
        ledger: Counts every byte read through it.
    """

    repo: str
    revision: str | None
    commit: str | None
    is_local: bool
    subfolder: str
    file: str | None
    variant: str | None
    ledger: IoLedger

    @property
    def label(self) -> str: ...  # noqa: D102

    @property
    def files(self) -> Mapping[str, FileEntry]: ...  # noqa: D102

    def open(self, path: str) -> ByteSource: ...  # noqa: D102

    def read(self, path: str, *, max_bytes: int = 64 << 20) -> bytes: ...  # noqa: D102

    def expect(self, *, whole: Iterable[str] = (), heads: Iterable[str] = ()) -> None: ...  # noqa: D102


def open_repository(
    reference: str | os.PathLike[str],
    *,
    revision: str | None = None,
    token: str | bool | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    local_files_only: bool = False,
    force_download: bool = False,
    subfolder: str = "",
    allow_local: bool = True,
    use_caches: bool = True,
    public_only: bool = False,
    ledger: IoLedger | None = None,
) -> Repository:
    """Find what a text names, and pin it to one commit.

    Args:
        reference: See :func:`~mdir_hf.model.hub.reference.parse_reference`.
        revision: Branch, tag or commit; ``main`` by default.
        token: As the Hub client takes it: a token, False for none, None or True for the stored one.
        cache_dir: The Hub's cache of downloaded files; the standard one by default. Files found there are used.
        local_files_only: Never touch the network; resolve the revision from the cache, too.
        force_download: Ask the network also for what a cache holds.
        subfolder: Folder inside the repository that takes the place of its root.
        allow_local: False refuses folders and files of this machine: for a server that reads what strangers name.
        use_caches: False neither reads nor writes any cache on this disk, so that what one person's token may read
            stays with that person: the Hub is asked for every byte, with that token.
        public_only: Refuse a repository on the Hub that not everybody may read, whatever the token may.
        ledger: Where to count what is read; a new one by default.

    Returns:
        The files at that commit. Nothing but the listing has been read.

    Raises:
        InvalidReferenceError: If the text names nothing that can be opened.
        InputError: If ``revision`` or ``subfolder`` contradict the text.
        HubError: If the repository or revision is missing, gated, private, or the Hub cannot be asked.

    Cost: one API request for a repository on the Hub, none for a folder or offline.
    """
    parsed = parse_reference(reference, allow_local=allow_local)
    revision = _one_of("revision", parsed.text, parsed.revision, revision)
    subfolder = _one_of("subfolder", parsed.text, parsed.subfolder, subfolder.strip("/")) or ""
    if subfolder:
        safe_path(subfolder, subject=parsed.text)
    ledger = ledger or IoLedger()
    if parsed.folder is not None:
        return _open_folder(parsed, revision=revision, subfolder=subfolder, ledger=ledger)
    assert parsed.repo_id is not None
    if local_files_only or is_offline():
        if force_download or public_only or not use_caches:
            what = "force_download" if force_download else "public_only" if public_only else "reading without caches"
            raise InputError(f"{what} needs the network, which local_files_only or HF_HUB_OFFLINE forbids")
        return _open_cached(parsed, revision=revision, subfolder=subfolder, cache_dir=cache_dir, ledger=ledger)
    repository = HubRepository(
        parsed.repo_id,
        revision=revision,
        token=token,
        cache_dir=cache_dir,
        force_download=force_download,
        subfolder=subfolder,
        file=parsed.file,
        use_caches=use_caches,
        public_only=public_only,
        ledger=ledger,
    )
    repository.variant = parsed.variant
    return repository


def _open_folder(parsed: Reference, *, revision: str | None, subfolder: str, ledger: IoLedger) -> LocalRepository:
    assert parsed.folder is not None
    folder = parsed.folder / subfolder
    if not folder.is_dir():
        raise FileMissingError(f"there is no folder {subfolder!r} in it", subject=parsed.text)
    repository = LocalRepository(
        folder,
        repo=f"{parsed.text.rstrip('/')}/{subfolder}" if subfolder else parsed.text,
        file=parsed.file,
        ledger=ledger,
    )
    if revision not in (None, repository.commit):
        raise InputError(
            f"revision {revision!r} was given for a local folder, which has none: name the repository on the Hub",
            subject=parsed.text,
        )
    repository.revision = revision
    return repository


def _open_cached(
    parsed: Reference,
    *,
    revision: str | None,
    subfolder: str,
    cache_dir: str | os.PathLike[str] | None,
    ledger: IoLedger,
) -> LocalRepository:
    """Open a snapshot of the Hub's cache, without the network."""
    assert parsed.repo_id is not None
    asked = revision or constants.DEFAULT_REVISION
    repository = Path(hub_cache_dir(cache_dir), repo_folder_name(repo_id=parsed.repo_id, repo_type="model"))
    commit = _cached_commit(repository, safe_path(asked, subject=parsed.repo_id))
    if commit is None or not (repository / "snapshots" / commit).is_dir():
        raise _not_cached(f"revision {asked!r}", parsed.repo_id)
    folder = repository / "snapshots" / commit / subfolder
    if not folder.is_dir():
        raise OfflineError(f"the cache holds no folder {subfolder!r} of it", subject=f"{parsed.repo_id}@{commit[:7]}")
    return LocalRepository(
        folder,
        repo=parsed.repo_id,
        revision=revision,
        commit=commit,
        file=parsed.file,
        ledger=ledger,
        missing=lambda path, label: _not_cached(repr(path), label),
        is_local=False,
        subfolder=subfolder,
        variant=parsed.variant,
    )


def _cached_commit(repository: Path, revision: str) -> str | None:
    if COMMIT.fullmatch(revision):
        return revision
    try:
        commit = (repository / "refs" / revision).read_text().strip()
    except OSError:
        return None
    return commit if COMMIT.fullmatch(commit) else None


def _not_cached(what: str, subject: str) -> OfflineError:
    return OfflineError(
        f"{what} is not in the cache, and HF_HUB_OFFLINE or local_files_only forbids the network: either it was never "
        "downloaded (`hf download` does it), or a folder of this machine was meant and its name is mistyped",
        subject=subject,
    )


def _one_of(what: str, text: str, named: str | None, asked: str | None) -> str | None:
    if named and asked and named != asked:
        raise InputError(f"{text!r} names {what} {named!r}, and {what}={asked!r} was passed; give one of them")
    return named or asked or None
