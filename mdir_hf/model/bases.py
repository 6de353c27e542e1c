"""Open the weights of a model, or of an adapter and its base models."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from mdir_hf.errors import (
    FileMissingError,
    HubError,
    InputError,
    MdirError,
    RepositoryNotFoundError,
    UnsupportedFormatError,
    naming,
)
from mdir_hf.model.files import AdapterConfig, TensorSource, has_adapter, open_checkpoint
from mdir_hf.model.hub import Repository

MAX_ADAPTERS = 4
"""Maximum number of adapters stacked on a base."""


class OpenRepository(Protocol):
    """Signature of :func:`~mdir_hf.model.hub.open_repository` with its other options bound."""

    def __call__(self, reference: str, *, revision: str | None = None, allow_local: bool = True) -> Repository: ...  # noqa: D102


@dataclass(frozen=True, slots=True)
class Weights:
    """The weights of a model, or of an adapter together with its base.

    Attributes:
        tensors: All tensors, including the base's.
        paths: Weight files, excluding the base's.
        recipe: Adapter settings that affect the result, as text; empty if there is no adapter.
    """

    tensors: TensorSource
    repository: Repository
    paths: tuple[str, ...]
    recipe: str = ""
    under: Weights | None = None

    @property
    def chain(self) -> tuple[Weights, ...]:
        """These weights, followed by the weights of each base."""
        return (self,) if self.under is None else (self, *self.under.chain)

    @property
    def base(self) -> Repository:
        """The repository of the last base in the chain."""
        return self.chain[-1].repository

    def digests(self) -> dict[str, str] | None:
        """Return each weight file's SHA-256 followed by the recipe, or None if any SHA-256 is unknown."""
        digests: dict[str, str] = {}
        for files in self.chain:
            for path in files.paths:
                entry = files.repository.files.get(path)
                if entry is None or entry.sha256 is None:
                    return None
                digests[f"{files.repository.label}:{path}"] = entry.sha256 + files.recipe
        return digests

    def identities(self) -> frozenset[str] | None:
        """Return each weight file's SHA-256, or else inode, followed by the recipe; None if any file has neither."""
        entries = [(files.repository.files.get(path), files.recipe) for files in self.chain for path in files.paths]
        identities = [(entry.sha256 or entry.inode, recipe) for entry, recipe in entries if entry is not None]
        if len(identities) < len(entries) or not all(identity for identity, _ in identities):
            return None
        return frozenset(f"{identity}{recipe}" for identity, recipe in identities)


def open_weights(repository: Repository, *, variant: str | None, open_other: OpenRepository) -> Weights:
    """Open the weights of a model, or of an adapter and its base.

    ``variant`` selects the weight files of the model or base. Local paths named by downloaded adapters are never
    opened.

    Raises:
        CheckpointError: If there are no readable weights, or the adapters form a cycle.
        HubError: If the base cannot be read.
    """
    return _open(repository, variant, open_other, ())


def _open(
    repository: Repository, variant: str | None, open_other: OpenRepository, above: tuple[Repository, ...]
) -> Weights:
    chain = (*above, repository)
    bases: list[Weights] = []
    recipes: list[str] = []

    def open_base(config: AdapterConfig) -> TensorSource:
        if len(chain) > MAX_ADAPTERS:
            raise UnsupportedFormatError(
                f"more than {MAX_ADAPTERS} adapters are stacked, or they form a cycle: "
                + " on ".join(link.label for link in chain),
                subject=chain[0].label,
            )
        base = _open_base_repository(repository, config, open_other)
        if any((link.repo, link.commit) == (base.repo, base.commit) for link in chain):
            raise UnsupportedFormatError(
                "the adapters form a cycle: " + " on ".join(link.label for link in (*chain, base)),
                subject=chain[0].label,
            )
        with naming(base.label):
            bases.append(_open(base, variant, open_other, chain))
        recipes.append(config.recipe)
        return bases[0].tensors

    tensors = open_checkpoint(repository, variant=variant, file=repository.file, open_base=open_base)
    if not bases:
        return Weights(tensors, repository, tensors.paths)
    n_base_paths = len(bases[0].tensors.paths)
    return Weights(tensors, repository, tensors.paths[n_base_paths:], recipes[0], bases[0])


def _open_base_repository(adapter: Repository, config: AdapterConfig, open_other: OpenRepository) -> Repository:
    # A folder downloaded from the Hub is not trusted, even though it is on this disk.
    is_ours = adapter.is_local and adapter.commit is None
    if config.base is None:
        raise UnsupportedFormatError(
            "this adapter does not name its base model (base_model_name_or_path in its adapter_config.json); "
            "compare a merged copy, or add the base there",
            subject=adapter.label,
        )
    try:
        if is_ours:
            return open_other(config.base, revision=config.base_revision)
        return open_other(config.base, revision=config.base_revision, allow_local=False)
    except InputError as exc:
        raise UnsupportedFormatError(
            f"this adapter names {config.base!r:.200} as its base, which cannot be opened as a model "
            f"({exc.message:.300})"
            + ("" if is_ours else "; a path in an adapter from the Hub is never opened")
            + "; compare a merged copy, or an adapter whose base_model_name_or_path is a model on the Hub",
            subject=adapter.label,
        ) from exc
    except (RepositoryNotFoundError, FileMissingError) as exc:
        # A path on another machine can look like owner/name/folder.
        exc.message = (
            f"{exc.message}; if this is a local path, or is no longer on the Hub, compare a merged copy of the adapter"
        )
        raise exc.about(config.base) from exc.__cause__
    except HubError as exc:
        raise exc.about(config.base) from exc.__cause__


class BasesAtCommits:
    """Opens the bases of an adapter, those given as ``owner/name@commit`` at that commit.

    Raises:
        InputError: If an entry in ``bases`` is malformed.
    """

    def __init__(self, open_repository: OpenRepository, bases: Sequence[str]) -> None:
        self._open_repository = open_repository
        self._commits: dict[str, str] = {}
        for base in bases:
            repo, _, commit = base.partition("@")
            if not repo or not re.fullmatch("[0-9a-f]{40}", commit):
                raise InputError(f"{base!r} is not a base at a commit; write owner/name@ followed by 40 hex digits")
            self._commits[repo.lower()] = commit
        self._opened: list[str] = []

    def __call__(self, reference: str, *, revision: str | None = None, allow_local: bool = True) -> Repository:
        """Open a base, also if the given name is the present one of a renamed repository."""
        names, commit = [reference], self._commits.get(reference.lower())
        if commit is None:
            repository = self._open_repository(reference, revision=revision, allow_local=allow_local)
            names, commit = [reference, repository.present_name], self._commits.get(repository.present_name.lower())
        self._opened += names
        if commit is None:
            return repository
        return self._open_repository(f"hf://models/{names[-1]}", revision=commit, allow_local=allow_local)

    def expect_all_used(self, label: str) -> None:
        """Raise an error if a given base is none of the model's."""
        opened = {reference.lower() for reference in self._opened}
        for repo in self._commits:
            if repo not in opened:
                has = f"it is an adapter on {self._opened[0]}" if opened else "it is not an adapter"
                raise InputError(f"{repo} is not its base: {has}", subject=label)


def about_model(exc: MdirError, repository: Repository) -> MdirError:
    """Add the model's name to an error, and mark errors about an adapter's base."""
    named = exc.about(repository.label)
    if has_adapter(repository) and not (named.subject or "").startswith(repository.label):
        named.message = f"{named.message} (needed as the base of the adapter {repository.label})"
    return named
