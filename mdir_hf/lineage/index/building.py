"""Builds an index of many base models: few are in memory at a time, and none is read twice."""

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
"""Models read at a time."""

CHOOSING = 32
"""Models whose vocabularies decide on the tokens of a new index. There are few: each takes tens of megabytes."""

SAVED_EVERY = 16
"""Models after which the index is written, so that a killed program loses no more than these."""


@dataclass(frozen=True, slots=True)
class BaseOutcome:
    """What became of a model that should go into an index.

    Attributes:
        name: As it was asked for.
        kind: ``added``, ``known`` at the same commit, ``gated``, ``missing`` (or private), or ``failed``.
        reason: Why it is not in the index; empty where it is.
    """

    name: str
    kind: Literal["added", "known", "gated", "missing", "failed"]
    reason: str = ""

    @property
    def is_held(self) -> bool:
        """Whether the index holds it."""
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
    """Add base models to an index and write it.

    Args:
        index: What is there; None for a new one.
        names: Base models. One that the index holds at the same commit is not read.
        path: Where the index is written, again and again while it grows.
        on_model: Told what became of each model.
        choosing: Models by whose vocabularies a new index chooses its tokens, the first that open; None: ``names``.
        reading: How repositories are opened.
        listeners: Who is told of the bytes.

    Returns:
        The index, and how many models could not be added. Nothing is written where nothing was added.

    Raises:
        InputError: If the index cannot be written, or no model of a new one can be opened.
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
    """Add models and write the index, also where it is interrupted; return how many could not be added."""
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
            found = task.result()
            n_done += 1
            running.extend((name, pool.submit(read, name)) for name in islice(upcoming, 1))
            if found is None:
                on_model(BaseOutcome(name, "known"))
                continue
            if isinstance(found, MdirError):
                n_failed += 1
                on_model(BaseOutcome(name, _KINDS.get(type(found), "failed"), one_line(found)))
                continue
            index.put(found)
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
    found: list[Vocabulary] = []
    for name in names:
        if len(found) == CHOOSING:
            break
        try:
            vocabulary = Model(reading.open(name, ledger=ledger)).vocabulary
        except MdirError:
            continue  # the reason is given when the model should be added
        if vocabulary is not None:
            found.append(vocabulary)
    if not found:
        raise InputError(f"none of the {len(names)} models can be opened with its tokenizer; the index is as it was")
    return found
