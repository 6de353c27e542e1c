"""The repositories that a model's weights come from: its own, and the base models under an adapter."""

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
"""Adapters on adapters that are followed; PEFT makes one."""


class OpenRepository(Protocol):
    """As :func:`~mdir_hf.model.hub.open_repository`, with the token, caches and ledger of a comparison filled in."""

    def __call__(self, reference: str, *, revision: str | None = None, allow_local: bool = True) -> Repository: ...  # noqa: D102


@dataclass(frozen=True, slots=True)
class WeightFiles:
    """The weight files of one repository that take part.

    Attributes:
        repository: Where they are.
        paths: The files.
        recipe: What is done with them, for adapters: equal files make equal weights only by an equal recipe.
    """

    repository: Repository
    paths: tuple[str, ...]
    recipe: str = ""


@dataclass(frozen=True, slots=True)
class Weights:
    """The weights of a model, whatever they are put together from.

    Attributes:
        tensors: Its tensors.
        files: What they come from, the model that was named first, the base that has all weights last.
    """

    tensors: TensorSource
    files: tuple[WeightFiles, ...]

    @property
    def base(self) -> Repository:
        """The repository with all weights, and with the config that describes them."""
        return self.files[-1].repository

    def digests(self) -> dict[str, str] | None:
        """SHA-256 of every weight file and what is done with it, None unless all are known without reading them."""
        known: dict[str, str] = {}
        for files in self.files:
            for path in files.paths:
                entry = files.repository.files.get(path)
                if entry is None or entry.sha256 is None:
                    return None
                known[f"{files.repository.label}:{path}"] = entry.sha256 + files.recipe
        return known

    def identities(self) -> frozenset[str] | None:
        """What tells each weight file from every other, with what is done with it; None unless all are known."""
        entries = [(files.repository.files.get(path), files.recipe) for files in self.files for path in files.paths]
        known = [(entry.sha256 or entry.inode, recipe) for entry, recipe in entries if entry is not None]
        if len(known) < len(entries) or not all(identity for identity, _ in known):
            return None
        return frozenset(f"{identity}{recipe}" for identity, recipe in known)


def open_weights(repository: Repository, *, variant: str | None, open_other: OpenRepository) -> Weights:
    """Open the weights of a model; those of an adapter with those of its base, which is opened for it.

    Args:
        repository: The model that was named.
        variant: As in transformers; of an adapter, that of its base.
        open_other: Opens the base. A base that somebody else's adapter names is looked for on the Hub only: a path in
            a file from the Hub is never opened here.

    Raises:
        CheckpointError: If there are no weights that can be read, or adapters go round in a circle.
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
                f"more than {MAX_ADAPTERS} adapters stand on each other, or they go round in a circle: "
                + " on ".join(link.label for link in chain),
                subject=chain[0].label,
            )
        base = _open_base_repository(repository, config, open_other)
        if any((link.repo, link.commit) == (base.repo, base.commit) for link in chain):
            raise UnsupportedFormatError(
                "adapters go round in a circle: " + " on ".join(link.label for link in (*chain, base)),
                subject=chain[0].label,
            )
        with naming(base.label):
            bases.append(_open(base, variant, open_other, chain))
        recipes.append(config.recipe)
        return bases[0].tensors

    tensors = open_checkpoint(repository, variant=variant, file=repository.file, open_base=open_base)
    if not bases:
        return Weights(tensors, (WeightFiles(repository, tensors.paths),))
    n_base_paths = len(bases[0].tensors.paths)
    own = WeightFiles(repository, tensors.paths[n_base_paths:], recipes[0])
    return Weights(tensors, (own, *bases[0].files))


def _open_base_repository(adapter: Repository, config: AdapterConfig, open_other: OpenRepository) -> Repository:
    # A folder that came from the Hub is somebody else's, wherever it lies on this disk.
    is_ours = adapter.is_local and adapter.commit is None
    if config.base is None:
        raise UnsupportedFormatError(
            "this adapter does not say which base model it was made for (base_model_name_or_path in its "
            "adapter_config.json); compare a merged copy, or write the base there",
            subject=adapter.label,
        )
    try:
        if is_ours:
            return open_other(config.base, revision=config.base_revision)
        return open_other(config.base, revision=config.base_revision, allow_local=False)
    except InputError as exc:
        raise UnsupportedFormatError(
            f"this adapter names {config.base!r:.200} as its base, which is not a model that can be opened "
            f"({exc.message:.300})"
            + ("" if is_ours else "; a path in an adapter from the Hub is never opened")
            + "; compare a merged copy, or an adapter whose base_model_name_or_path is a model on the Hub",
            subject=adapter.label,
        ) from exc
    except (RepositoryNotFoundError, FileMissingError) as exc:
        # A path on somebody's machine may read like owner/name/folder.
        exc.message = f"{exc.message}; if it is a path, or gone from the Hub, compare a merged copy of the adapter"
        raise exc.about(config.base) from exc.__cause__
    except HubError as exc:
        raise exc.about(config.base) from exc.__cause__


def open_bases_at(open_one: OpenRepository, bases: Sequence[str]) -> OpenRepository:
    """Open the base models under an adapter at known commits, whatever their branches stand for now.

    Args:
        open_one: Opens a repository.
        bases: ``owner/name@commit``, as a report has them; others are opened as the adapter asks.

    Raises:
        InputError: If one of them names no base at a commit.
    """
    commits: dict[str, str] = {}
    for base in bases:
        repo, _, commit = base.partition("@")
        if not repo or not re.fullmatch("[0-9a-f]{40}", commit):
            raise InputError(f"{base!r} does not name a base at a commit; write owner/name@ and 40 hex digits")
        commits[repo.lower()] = commit

    def open_base(reference: str, *, revision: str | None = None, allow_local: bool = True) -> Repository:
        commit = commits.get(reference.lower())
        if commit is not None:
            reference, revision = f"hf://models/{reference}", commit
        return open_one(reference, revision=revision, allow_local=allow_local)

    return open_base


def about_model(exc: MdirError, repository: Repository) -> MdirError:
    """Name the model in an error; where it is about the base of an adapter that somebody named, say so."""
    named = exc.about(repository.label)
    if has_adapter(repository) and not (named.subject or "").startswith(repository.label):
        named.message = f"{named.message} (needed as the base of the adapter {repository.label})"
    return named
