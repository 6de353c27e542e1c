"""Build an index of many base models, keeping few in memory and reading none twice."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Literal

from mdir_hf.comparison.progress import Watch
from mdir_hf.comparison.settings import Listeners
from mdir_hf.errors import GatedRepositoryError, InputError, MdirError, RepositoryNotFoundError, one_line
from mdir_hf.lineage.fingerprints.fingerprint import Fingerprint
from mdir_hf.lineage.index.base_index import BaseIndex, choose_index_tokens
from mdir_hf.model.hub import IoLedger
from mdir_hf.model.open import Reading
from mdir_hf.model.opened import Model
from mdir_hf.model.tokens import Vocabulary

READERS = 4
"""Number of models read concurrently."""

CHOOSING = 32
"""Maximum number of models whose vocabularies determine the tokens of a new index; each takes tens of megabytes."""

SAVED_EVERY = 16
"""The index is saved after this many models, to limit the loss if the process is killed."""


@dataclass(frozen=True, slots=True)
class BaseOutcome:
    """The outcome for a model that was to be added to an index.

    Attributes:
        name: Name of the model, as given.
        kind: ``added``, ``known`` at the same commit, ``gated``, ``missing`` (or private), or ``failed``.
        reason: Why it is not in the index, or an empty string.
    """

    name: str
    kind: Literal["added", "known", "gated", "missing", "failed"]
    reason: str = ""

    @property
    def is_held(self) -> bool:
        """Whether the index contains it."""
        return self.kind in ("added", "known")


def extend_index(
    index: BaseIndex | None,
    names: Sequence[str],
    path: Path,
    *,
    on_model: Callable[[BaseOutcome], None],
    choosing: Sequence[str] | None = None,
    reading: Reading = Reading(),
    listeners: Listeners = Listeners(progress=False),
) -> tuple[BaseIndex, int]:
    """Add base models to an index and save it.

    Args:
        index: Existing index. None: create one.
        names: Base models. Models that the index contains at the same commit are not read.
        path: Output file, saved repeatedly while the index grows.
        on_model: Called with the outcome for each model.
        choosing: Models whose vocabularies determine the tokens of a new index; the first ones that can be opened are
            used. None: ``names``.
        reading: How repositories are opened.
        listeners: Callbacks that receive the bytes read.

    Returns:
        The index, and the number of models that could not be added. If none was added, nothing is written.

    Raises:
        InputError: If the index cannot be written, or no model for a new index can be opened.
    """
    ledger = IoLedger()
    watch = Watch(ledger, listeners, from_start=True)
    with watch.listening():
        watch.enter("opening")
        if index is None:
            index = BaseIndex(choose_index_tokens(_vocabularies(choosing or names, reading, ledger)))
        return index, _add_bases(index, names, path, on_model, reading, ledger, watch)


def _add_bases(
    index: BaseIndex,
    names: Sequence[str],
    path: Path,
    on_model: Callable[[BaseOutcome], None],
    reading: Reading,
    ledger: IoLedger,
    watch: Watch,
) -> int:
    """Add models and save the index, even if interrupted; return the number of failures."""
    commits = {base.model.repo: base.model.commit for base in index.bases}
    n_done = n_failed = n_new = 0

    def read(name: str) -> Fingerprint | MdirError | None:
        try:
            repository = reading.open(name, ledger=ledger)
            if repository.commit is not None and commits.get(repository.repo) == repository.commit:
                return None
            return index.read(Model(repository))
        except MdirError as exc:
            return exc

    pool = ThreadPoolExecutor(READERS)
    try:
        upcoming = iter(names)
        running = deque((name, pool.submit(read, name)) for name in islice(upcoming, READERS))
        while running:
            watch.part("rows", n_done, len(names))
            name, task = running.popleft()
            outcome = task.result()
            n_done += 1
            running.extend((name, pool.submit(read, name)) for name in islice(upcoming, 1))
            if outcome is None:
                on_model(BaseOutcome(name, "known"))
                continue
            if isinstance(outcome, MdirError):
                n_failed += 1
                on_model(BaseOutcome(name, _KINDS.get(type(outcome), "failed"), one_line(outcome)))
                continue
            index.put(outcome)
            on_model(BaseOutcome(name, "added"))
            n_new += 1
            if n_new % SAVED_EVERY == 0:
                index.save(path)
    finally:
        pool.shutdown(cancel_futures=True)
        if n_new:
            index.save(path)
    return n_failed


_KINDS: Mapping[type[MdirError], Literal["gated", "missing"]] = {
    GatedRepositoryError: "gated",
    RepositoryNotFoundError: "missing",
}


def _vocabularies(names: Sequence[str], reading: Reading, ledger: IoLedger) -> list[Vocabulary]:
    vocabularies: list[Vocabulary] = []
    for name in names:
        if len(vocabularies) == CHOOSING:
            break
        try:
            vocabulary = Model(reading.open(name, ledger=ledger)).vocabulary
        except MdirError:
            continue  # the reason is reported when the model itself is added
        if vocabulary is not None:
            vocabularies.append(vocabulary)
    if not vocabularies:
        raise InputError(f"none of the {len(names)} models can be opened with its tokenizer; the index is unchanged")
    return vocabularies
