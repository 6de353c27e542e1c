"""Open models by name."""

from __future__ import annotations

import os
from collections.abc import Callable, Set
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from mdir_hf.model.bases import open_bases_at
from mdir_hf.model.files import first_files
from mdir_hf.model.hub import IoLedger, Repository, RepositoryOptions, open_repository
from mdir_hf.model.memory.repository import LoadedRepository
from mdir_hf.model.opened import CONFIG, Model
from mdir_hf.model.tokens import Vocabulary, read_vocabulary, vocabulary_files
from mdir_hf.names import WEIGHT_SUFFIXES
from mdir_hf.processor import is_one_of_several_ranks, result_of, run_beside
from mdir_hf.report import Level

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
        *,
        may_read_head: bool = False,
        vocabulary: Future[Vocabulary] | None = None,
    ) -> Model:
        """Open the model in a repository that :meth:`find` returned; see :meth:`open`.

        If ``may_read_head``, also prefetch the unembedding's header. ``vocabulary`` is the model's own vocabulary, if
        it is already being read.
        """
        expect_files(repository, self.variant, may_read_head=may_read_head)
        open_counted = partial(reading.open, ledger=ledger)
        return Model(
            repository,
            variant=self.variant,
            tokenizer=None if self.tokenizer is None else open_counted(self.tokenizer),
            open_other=(
                repository.open_base
                if isinstance(repository, LoadedRepository)
                else open_bases_at(open_counted, self.bases)
            ),
            vocabulary=vocabulary,
        )


def open_both(
    reference: NamedModel, candidate: NamedModel, reading: Reading, ledger: IoLedger, level: Level
) -> tuple[Model, Model]:
    """Open two models concurrently and prefetch the files that a comparison reads next.

    Raises:
        MdirError: If a model cannot be opened; see :meth:`NamedModel.open`. The reference's error takes precedence.
    """
    named_models = (reference, candidate)
    repositories = _both(*(partial(name.find, reading, ledger) for name in named_models))
    prefetched: list[Repository] = []
    if not (level.accepts_equal_files and _list_same_weights(*repositories)):
        prefetched = _expect_vocabularies(
            *(repository for name, repository in zip(named_models, repositories, strict=True) if name.tokenizer is None)
        )
    vocabularies = (
        _vocabulary_of(repository) if repository in prefetched and not repository.is_local else None
        for repository in repositories
    )
    return _both(
        *(
            partial(
                name.open_in,
                repository,
                reading,
                ledger,
                may_read_head=not level.is_screen_only,
                vocabulary=vocabulary,
            )
            for name, repository, vocabulary in zip(named_models, repositories, vocabularies, strict=True)
        )
    )


def expect_files(repository: Repository, variant: str | None = None, *, may_read_head: bool = False) -> None:
    """Prefetch the files needed to open a model: config, index and first header."""
    whole, heads = first_files(repository.files, variant=variant, file=repository.file, may_read_head=may_read_head)
    repository.expect(whole=(CONFIG, *whole), heads=heads)


def open_beside(reference: Model, candidate: NamedModel, reading: Reading, ledger: IoLedger, level: Level) -> Model:
    """Open a candidate to compare with an open reference, and prefetch both vocabularies."""
    repository = candidate.find(reading, ledger)
    if not (level.accepts_equal_files and _list_same_weights(reference.repository, repository)):
        to_read = [reference.repository] if reference.tokenizer is None and not reference.has_read_vocabulary else []
        known_digests = (
            {digest for _, digest in reference.vocabulary_key or ()} if reference.has_read_vocabulary else set()
        )
        _expect_vocabularies(
            *to_read, *([repository] if candidate.tokenizer is None else []), known_digests=known_digests
        )
    return candidate.open_in(repository, reading, ledger, may_read_head=not level.is_screen_only)


def _both(first: Callable[[], T], second: Callable[[], T]) -> tuple[T, T]:
    beside = run_beside(second, name="mdir-hf-candidate", at_once=is_one_of_several_ranks())
    return first(), result_of(beside)


def _list_same_weights(reference: Repository, candidate: Repository) -> bool:
    def digests_of(repository: Repository) -> set[str | None]:
        names = (path for path in repository.files if "/" not in path and not path.endswith(".json"))
        return {repository.files[path].sha256 for path in names if path.endswith(WEIGHT_SUFFIXES)}

    reference_digests = digests_of(reference)
    return bool(reference_digests) and None not in reference_digests and reference_digests == digests_of(candidate)


def _expect_vocabularies(*repositories: Repository, known_digests: Set[str] = frozenset()) -> list[Repository]:
    repositories_to_read = []
    for repository in repositories:
        if any(path.endswith(".gguf") for path in (repository.file or "", *repository.files)):
            continue  # the weight files may contain a vocabulary
        paths = vocabulary_files(repository.files)
        digests = {repository.files[path].sha256 or repository.files[path].blob_id or "" for path in paths}
        if "" in digests or not digests <= known_digests:
            repository.expect(whole=paths)
            repositories_to_read.append(repository)
        known_digests = known_digests | digests
    return repositories_to_read


def _vocabulary_of(repository: Repository) -> Future[Vocabulary]:
    return run_beside(partial(read_vocabulary, repository.files, repository.read), name="mdir-hf-vocabulary")
