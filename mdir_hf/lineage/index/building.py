"""Building an index of many base models: few are in memory at a time, and none is read twice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from mdir_hf.comparison.progress import Watch
from mdir_hf.comparison.settings import Listeners
from mdir_hf.errors import InputError, MdirError, one_line
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


def extend_index(
    index: BaseIndex | None,
    names: Sequence[str],
    path: Path,
    *,
    on_model: Callable[[str, str], None],
    reading: Reading = Reading(),
    listeners: Listeners = Listeners(progress=False),
) -> tuple[BaseIndex, int]:
    """Add base models to an index and write it.

    Args:
        index: What is there; None for a new one, whose tokens are chosen by the first models of the list.
        names: Base models. One that the index holds at the same commit is not read.
        path: Where the index is written, again and again while it grows.
        on_model: Told of each model: its name, and ``added``, ``known``, or why it could not be added.
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
            index = BaseIndex(choose_index_tokens(_vocabularies(names, reading, ledger)))
        return index, _add_bases(index, names, path, on_model, reading, ledger, watch)


def _add_bases(
    index: BaseIndex,
    names: Sequence[str],
    path: Path,
    on_model: Callable[[str, str], None],
    reading: Reading,
    ledger: IoLedger,
    watch: Watch,
) -> int:
    """Add models and write the index, also where it is interrupted; return how many could not be added."""
    commits = {base.model.repo: base.model.commit for base in index.bases}
    n_failed = n_new = 0

    def opened(name: str) -> Model | MdirError | None:
        try:
            repository = reading.open(name, ledger=ledger)
            if repository.commit is not None and commits.get(repository.repo) == repository.commit:
                return None
            model = Model(repository)
            _ = model.vocabulary  # read here, several at a time
        except MdirError as exc:
            return exc
        return model

    try:
        with ThreadPoolExecutor(READERS) as pool:
            for start in range(0, len(names), READERS):
                some = names[start : start + READERS]
                for name, found in zip(some, pool.map(opened, some), strict=True):
                    watch.part("rows", n_new + n_failed, len(names))
                    if found is None:
                        on_model(name, "known")
                        continue
                    try:
                        if isinstance(found, MdirError):
                            raise found
                        index.add(found)
                    except MdirError as exc:
                        n_failed += 1
                        on_model(name, one_line(exc))
                        continue
                    on_model(name, "added")
                    n_new += 1
                    if n_new % SAVED_EVERY == 0:
                        index.save(path)
    finally:
        if n_new:
            index.save(path)
    return n_failed


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
