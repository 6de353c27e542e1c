"""Open models by name."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from mdir_hf.background import result_of, run_beside
from mdir_hf.model.bases import BasesAtCommits
from mdir_hf.model.files import first_files
from mdir_hf.model.hub import IoLedger, Repository, RepositoryOptions, open_repository
from mdir_hf.model.memory.repository import LoadedRepository
from mdir_hf.model.opened import CONFIG, Model
from mdir_hf.processor import is_one_of_several_ranks

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Reading(RepositoryOptions):
    """Options for how a comparison opens repositories.

    Attributes:
        token: The token to send; None or True to use the stored token, False to send no token.
        cache_dir: Folder of the Hub's cache; None for the default.
        local_files_only: Never use the network.
        force_download: Download files even if they are cached.
        allow_local: Accept local folders and files.
        use_caches: Read and write caches on the local disk. False prevents other users from reading cached private
            content.
        public_only: Reject repositories that are not public, even if the token allows access.
    """

    allow_local: bool = True

    def open(
        self,
        reference: str | os.PathLike[str] | LoadedRepository,
        *,
        revision: str | None = None,
        subfolder: str = "",
        allow_local: bool = True,
        ledger: IoLedger | None = None,
    ) -> Repository:
        """Open a repository or folder; see :func:`~mdir_hf.model.hub.open_repository`.

        For a model in memory, only its ledger is set.
        """
        if isinstance(reference, LoadedRepository):
            return reference.counted_by(ledger or reference.ledger)
        return open_repository(
            reference,
            self,
            revision=revision,
            subfolder=subfolder,
            allow_local=self.allow_local and allow_local,
            ledger=ledger,
        )


@dataclass(frozen=True, slots=True)
class NamedModel:
    """A model as the user named it.

    Attributes:
        repo_or_folder: ``owner/name``, ``owner/name@revision``, a Hub URL, a local folder or weight file, or a model in
            memory.
        revision: Branch, tag or commit.
        subfolder: Folder of the repository that contains the model.
        variant: Which weight files to read, such as ``fp16`` for ``model.fp16.safetensors``, or ``Q4_K_M`` for one of
            several GGUF files.
        tokenizer: Repository, folder or tokenizer in memory that replaces the model's own tokenizer.
        bases: For an adapter, its base models, each pinned to a commit as ``owner/name@commit``.
    """

    repo_or_folder: str | os.PathLike[str] | LoadedRepository
    revision: str | None = None
    subfolder: str = ""
    variant: str | None = None
    tokenizer: str | os.PathLike[str] | LoadedRepository | None = None
    bases: tuple[str, ...] = ()

    def open(self, reading: Reading, ledger: IoLedger | None = None) -> Model:
        """Open the model, reading its config, weight index and one header but no weights.

        ``ledger`` counts the bytes read; None creates a new one.

        Raises:
            InputError: If the name is invalid.
            HubError: If the model's files cannot be read.
            CheckpointError: If the model has no readable weights.
            AnatomyError: If the model is not a language model.
        """
        ledger = ledger or IoLedger()
        return self.open_in(self.find(reading, ledger), reading, ledger)

    def find(self, reading: Reading, ledger: IoLedger) -> Repository:
        """Find the repository or folder and pin it to a commit."""
        return reading.open(self.repo_or_folder, revision=self.revision, subfolder=self.subfolder, ledger=ledger)

    def open_in(
        self,
        repository: Repository,
        reading: Reading,
        ledger: IoLedger,
    ) -> Model:
        """Open the model in a repository that :meth:`find` returned; see :meth:`open`."""
        expect_files(repository, self.variant)
        open_counted = partial(reading.open, ledger=ledger)
        open_base = BasesAtCommits(open_counted, self.bases)
        model = Model(
            repository,
            variant=self.variant,
            tokenizer=None if self.tokenizer is None else open_counted(self.tokenizer),
            open_other=repository.open_base if isinstance(repository, LoadedRepository) else open_base,
        )
        open_base.expect_all_used(repository.label)
        return model


def open_both(reference: NamedModel, candidate: NamedModel, reading: Reading, ledger: IoLedger) -> tuple[Model, Model]:
    """Open two models concurrently.

    Raises:
        MdirError: If a model cannot be opened; see :meth:`NamedModel.open`. The reference's error takes precedence.
    """
    return _both(*(partial(name.open, reading, ledger) for name in (reference, candidate)))


def expect_files(repository: Repository, variant: str | None = None) -> None:
    """Prefetch the files needed to open a model: config, index and first header."""
    whole, heads = first_files(repository.files, variant=variant, file=repository.file)
    repository.expect(whole=(CONFIG, *whole), heads=heads)


def _both(first: Callable[[], T], second: Callable[[], T]) -> tuple[T, T]:
    beside = run_beside(second, name="mdir-hf-candidate", at_once=is_one_of_several_ranks())
    return first(), result_of(beside)
