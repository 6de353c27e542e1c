"""Opens models: names, reading options, and the opened model."""

from __future__ import annotations

import os
from collections.abc import Callable, Set
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from mdir_hf.local_paths import WEIGHT_SUFFIXES
from mdir_hf.model.bases import open_bases_at
from mdir_hf.model.files import first_files
from mdir_hf.model.hub import IoLedger, Repository, open_repository
from mdir_hf.model.hub.in_order import result_of, run_beside
from mdir_hf.model.memory.repository import LoadedRepository
from mdir_hf.model.opened import CONFIG, Model
from mdir_hf.model.tokens import Vocabulary, read_vocabulary, vocabulary_files
from mdir_hf.processor import is_one_of_several_ranks
from mdir_hf.report import Level

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Reading:
    """How repositories are opened, the same for all of one comparison.

    Attributes:
        token: Token for gated and private models; None or True: the stored one, False: none.
        cache_dir: The Hub cache to use; None: the standard one.
        local_files_only: Use no network.
        force_download: Do not use what is cached.
        allow_local: False: models must be on the Hub.
        use_caches: False: no cache on this disk is read or written.
        public_only: Refuse what not everybody may read, whatever the token may.
    """

    token: str | bool | None = None
    cache_dir: str | os.PathLike[str] | None = None
    local_files_only: bool = False
    force_download: bool = False
    allow_local: bool = True
    use_caches: bool = True
    public_only: bool = False

    def open(
        self,
        reference: str | os.PathLike[str] | LoadedRepository,
        *,
        revision: str | None = None,
        subfolder: str = "",
        allow_local: bool = True,
        ledger: IoLedger | None = None,
    ) -> Repository:
        """Open a repository or folder; see :func:`~mdir_hf.model.hub.open_repository`. What is in memory is open."""
        if isinstance(reference, LoadedRepository):
            return reference.counted_by(ledger or reference.ledger)
        return open_repository(
            reference,
            revision=revision,
            subfolder=subfolder,
            token=self.token,
            cache_dir=self.cache_dir,
            local_files_only=self.local_files_only,
            force_download=self.force_download,
            allow_local=self.allow_local and allow_local,
            use_caches=self.use_caches,
            public_only=self.public_only,
            ledger=ledger,
        )


@dataclass(frozen=True, slots=True)
class NamedModel:
    """A model as somebody names it.

    Attributes:
        repo_or_folder: ``owner/name``, ``owner/name@revision``, a Hub URL, a local folder or weight file; or a model in
            memory.
        revision: Branch, tag or commit.
        subfolder: Folder of the repository that holds the model.
        variant: ``fp16`` reads ``model.fp16.safetensors``, ``Q4_K_M`` of several GGUF files the one of that name.
        tokenizer: Repository or folder to read its vocabulary from, where its own has none or another one; or a
            tokenizer in memory.
        bases: Of an adapter: commits at which to read what lies under it, each ``owner/name@commit``.
    """

    repo_or_folder: str | os.PathLike[str] | LoadedRepository
    revision: str | None = None
    subfolder: str = ""
    variant: str | None = None
    tokenizer: str | os.PathLike[str] | LoadedRepository | None = None
    bases: tuple[str, ...] = ()

    def open(self, reading: Reading, ledger: IoLedger | None = None) -> Model:
        """Open it. Reads its config, the index of its weights and one header; no weights.

        Args:
            reading: How repositories are opened.
            ledger: Counts what is read; None: a new one.

        Raises:
            InputError: If what names the model cannot be used.
            HubError: If the model's files cannot be read.
            CheckpointError: If it has no weights that can be read.
            AnatomyError: If they are not those of a language model.
        """
        ledger = ledger or IoLedger()
        return self.open_in(self.find(reading, ledger), reading, ledger)

    def find(self, reading: Reading, ledger: IoLedger) -> Repository:
        """Find the repository or folder, pinned to a commit; nothing in it is read."""
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
        """Open it where it was found; as :meth:`open` otherwise.

        Args:
            repository: Where it is.
            reading: How repositories are opened.
            ledger: Counts what is read.
            may_read_head: Whether its output embeddings may be asked for next, whose shard has a header of its own.
            vocabulary: The vocabulary of its own tokenizer files, where it is being read already.
        """
        expect_files(repository, self.variant, may_read_head=may_read_head)
        open_one = partial(reading.open, ledger=ledger)
        return Model(
            repository,
            variant=self.variant,
            tokenizer=None if self.tokenizer is None else open_one(self.tokenizer),
            open_other=(
                repository.open_base
                if isinstance(repository, LoadedRepository)
                else open_bases_at(open_one, self.bases)
            ),
            vocabulary=vocabulary,
        )


def open_both(
    reference: NamedModel, candidate: NamedModel, reading: Reading, ledger: IoLedger, level: Level
) -> tuple[Model, Model]:
    """Open two models at once, and begin to read what a comparison of them wants next.

    Args:
        reference: One.
        candidate: The other.
        reading: How repositories are opened.
        ledger: Counts what is read.
        level: How far the comparison goes.

    Raises:
        MdirError: As :meth:`NamedModel.open`; where both cannot be opened, that of the reference.
    """
    named = (reference, candidate)
    found = _both(*(partial(one.find, reading, ledger) for one in named))
    read: list[Repository] = []
    if not (level.accepts_equal_files and _list_same_weights(*found)):
        read = _expect_vocabularies(*(place for one, place in zip(named, found, strict=True) if one.tokenizer is None))
    vocabularies = (_vocabulary_of(place) if place in read and not place.is_local else None for place in found)
    return _both(
        *(
            partial(one.open_in, place, reading, ledger, may_read_head=not level.is_screen_only, vocabulary=vocabulary)
            for one, place, vocabulary in zip(named, found, vocabularies, strict=True)
        )
    )


def expect_files(repository: Repository, variant: str | None = None, *, may_read_head: bool = False) -> None:
    """Begin to read what opening a model most probably wants: its config, its index and its first header, at once.

    Args:
        repository: Where it is.
        variant: Which one.
        may_read_head: As for :meth:`NamedModel.open_in`.
    """
    first = first_files(repository.files, variant=variant, file=repository.file)
    heads = (*first.heads, *first.last) if may_read_head else first.heads
    repository.expect(whole=(CONFIG, *first.whole), heads=heads)


def open_beside(reference: Model, candidate: NamedModel, reading: Reading, ledger: IoLedger, level: Level) -> Model:
    """Open a candidate for a comparison with a model that is open, and begin to read both vocabularies."""
    found = candidate.find(reading, ledger)
    if not (level.accepts_equal_files and _list_same_weights(reference.repository, found)):
        own = [reference.repository] if reference.tokenizer is None and not reference.has_read_vocabulary else []
        known = {digest for _, digest in reference.vocabulary_key or ()} if reference.has_read_vocabulary else set()
        _expect_vocabularies(*own, *([found] if candidate.tokenizer is None else []), known=known)
    return candidate.open_in(found, reading, ledger, may_read_head=not level.is_screen_only)


def _both(mine: Callable[[], T], other: Callable[[], T]) -> tuple[T, T]:
    beside = run_beside(other, name="mdir-hf-candidate", at_once=is_one_of_several_ranks())
    return mine(), result_of(beside)


def _list_same_weights(mine: Repository, other: Repository) -> bool:
    """Tell whether two listings give the same digests of weight files: no tokenizer is asked for then."""

    def digests_of(found: Repository) -> set[str | None]:
        names = (path for path in found.files if "/" not in path and not path.endswith(".json"))
        return {found.files[path].sha256 for path in names if path.endswith(WEIGHT_SUFFIXES)}

    known = digests_of(mine)
    return bool(known) and None not in known and known == digests_of(other)


def _expect_vocabularies(*repositories: Repository, known: Set[str] = frozenset()) -> list[Repository]:
    """Begin to read tokenizer files, those of the same content once, and return whose."""
    read = []
    for repository in repositories:
        if any(path.endswith(".gguf") for path in (repository.file or "", *repository.files)):
            continue  # the weights may bring their own
        paths = vocabulary_files(repository.files)
        digests = {repository.files[path].sha256 or repository.files[path].blob_id or "" for path in paths}
        if "" in digests or not digests <= known:  # files of the same content are read once
            repository.expect(whole=paths)
            read.append(repository)
        known = known | digests
    return read


def _vocabulary_of(repository: Repository) -> Future[Vocabulary]:
    """Take a vocabulary apart while the headers of the weights are on their way."""
    return run_beside(partial(read_vocabulary, repository.files, repository.read), name="mdir-hf-vocabulary")
