"""Open a Hub repository at a commit, or a local folder, by name."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from huggingface_hub import constants
from huggingface_hub.file_download import repo_folder_name

from mdir_hf.errors import FileMissingError, InputError, OfflineError
from mdir_hf.model.hub.endpoint import is_offline
from mdir_hf.model.hub.ledger import IoLedger
from mdir_hf.model.hub.local import COMMIT, LocalRepository
from mdir_hf.model.hub.model_info import model_info
from mdir_hf.model.hub.reference import Reference, parse_reference
from mdir_hf.model.hub.remote import HubRepository, RepositoryOptions, hub_cache_dir
from mdir_hf.model.sources import ByteSource, FileEntry
from mdir_hf.names import safe_path


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """A model at its current commit.

    Attributes:
        repo: Current repo id, or the given name for local files.
        commit: Full SHA; None for local files.
        pinned: A name for exactly these files, accepted by :class:`~mdir_hf.comparison.api.HomologyChecker`.
        is_public: Whether the Hub reports it as public.
    """

    repo: str
    revision: str | None
    commit: str | None
    pinned: str
    is_public: bool


def resolve_model(
    reference: str | os.PathLike[str], *, token: str | bool | None = None, allow_local: bool = True
) -> ResolvedModel:
    """Resolve a name to its current commit without opening the model.

    Sends one API request, or none for local files. See :func:`open_repository`.

    Raises:
        InvalidReferenceError: If the name is invalid.
        HubError: If the repository or revision is missing or private, or the request fails.
    """
    parsed = parse_reference(reference, allow_local=allow_local)
    if parsed.repo_id is None:
        return ResolvedModel(parsed.text, None, None, parsed.text, is_public=False)
    repo, revision = parsed.repo_id, parsed.revision or constants.DEFAULT_REVISION
    info = model_info(
        repo,
        revision=revision,
        label=f"{repo}@{revision}" if parsed.revision else repo,
        token=token,
        with_files=False,
    )
    place = "/".join(part for part in (parsed.subfolder, parsed.file) if part)
    kind = f":{parsed.variant}" if parsed.variant else ""
    pinned = f"hf://models/{info.repo}@{info.commit}{kind}" + (f"/{place}" if place else "")
    # The id may differ from the given one: gpt2 now has an owner, and repositories can be renamed.
    return ResolvedModel(info.repo, parsed.revision, info.commit, pinned, is_public=info.is_public)


@runtime_checkable
class Repository(Protocol):
    """A :class:`~mdir_hf.model.sources.FileTree` that knows its origin.

    Attributes:
        repo: Name to show in reports: the requested repo id, or the folder.
        present_name: Name on the Hub now, which differs from ``repo`` after a rename; else the same as ``repo``.
        is_local: Whether the user named a local folder.
        is_sharded: Whether several ranks of ``torch.distributed`` store parts of the model.
        subfolder: Folder used as root, or empty.
        file: Weight file that the name selects, relative to the tree, or None.
    """

    repo: str
    revision: str | None
    commit: str | None
    is_local: bool
    is_sharded: bool
    subfolder: str
    file: str | None
    variant: str | None
    ledger: IoLedger

    @property
    def label(self) -> str: ...  # noqa: D102

    @property
    def present_name(self) -> str: ...  # noqa: D102

    @property
    def files(self) -> Mapping[str, FileEntry]: ...  # noqa: D102

    def open(self, path: str) -> ByteSource: ...  # noqa: D102

    def read(self, path: str, *, max_bytes: int = 64 << 20) -> bytes: ...  # noqa: D102

    def expect(self, *, whole: Iterable[str] = (), heads: Iterable[str] = ()) -> None: ...  # noqa: D102


def open_repository(
    reference: str | os.PathLike[str],
    options: RepositoryOptions = RepositoryOptions(),
    *,
    revision: str | None = None,
    subfolder: str = "",
    allow_local: bool = True,
    ledger: IoLedger | None = None,
) -> Repository:
    """Open a repository or folder by name, pinned to one commit.

    Sends one API request, or none for a folder or when offline. ``revision`` defaults to ``main``. ``subfolder``
    becomes the root. If ``allow_local`` is False, local names are rejected.

    Raises:
        InvalidReferenceError: If the name is invalid.
        InputError: If ``revision`` or ``subfolder`` contradicts the name.
        HubError: If the repository or revision is missing, gated or private, or the request fails.
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
    if options.local_files_only or is_offline():
        if options.force_download or options.public_only or not options.use_caches:
            what = "public_only" if options.public_only else "reading without caches"
            what = "force_download" if options.force_download else what
            raise InputError(f"{what} needs the network, which local_files_only or HF_HUB_OFFLINE forbids")
        return _open_cached(parsed, revision=revision, subfolder=subfolder, cache_dir=options.cache_dir, ledger=ledger)
    repository = HubRepository(
        parsed.repo_id, options, revision=revision, subfolder=subfolder, file=parsed.file, ledger=ledger
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
            f"revision {revision!r} was given for a local folder, which has none; name the repository on the Hub",
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
    assert parsed.repo_id is not None
    revision_name = revision or constants.DEFAULT_REVISION
    repository = Path(hub_cache_dir(cache_dir), repo_folder_name(repo_id=parsed.repo_id, repo_type="model"))
    commit = _cached_commit(repository, safe_path(revision_name, subject=parsed.repo_id))
    if commit is None or not (repository / "snapshots" / commit).is_dir():
        raise _not_cached(f"revision {revision_name!r}", parsed.repo_id)
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
        f"{what} is not in the cache, and HF_HUB_OFFLINE or local_files_only forbids the network: it was never "
        "downloaded (use `hf download`), or a mistyped local folder was taken for a name on the Hub",
        subject=subject,
    )


def _one_of(what: str, text: str, named: str | None, passed: str | None) -> str | None:
    if named and passed and named != passed:
        raise InputError(f"{text!r} names {what} {named!r}, but {what}={passed!r} was passed; give only one of them")
    return named or passed or None
