"""Build an index of many base models, and plan a search of it."""

from __future__ import annotations

import hashlib
import math
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Literal

from mdir_hf.comparison.progress import Watch
from mdir_hf.comparison.settings import Listeners
from mdir_hf.errors import GatedRepositoryError, InputError, MdirError, RepositoryNotFoundError, one_line
from mdir_hf.lineage.fingerprints.fingerprint import (
    LEAST_ROWS,
    Fingerprint,
    bytes_of_neurons,
    tokens_with_rows,
    usual_rows_of,
    without_rows,
)
from mdir_hf.lineage.index.base_index import BaseIndex
from mdir_hf.method.embedding import TESTS_PER_MATRIX
from mdir_hf.method.power import noise_of_few_rows
from mdir_hf.method.significance import log_n_matchings
from mdir_hf.model.comparable import embedding_spec
from mdir_hf.model.hub import IoLedger
from mdir_hf.model.open import NamedModel, Reading
from mdir_hf.model.opened import Model
from mdir_hf.model.tokens import Vocabulary
from mdir_hf.report import ModelSummary
from mdir_hf.thresholds import ALPHA
from mdir_hf.writing import locked

READERS = 4
"""Number of models read concurrently."""

CHOOSING = 32
"""Maximum number of vocabularies from which a new index's tokens are chosen; each takes tens of megabytes."""

SAVED_EVERY = 16
"""Number of models between saves of the index."""

QUERY_TOKENS = 96
"""Number of sampled tokens. Wide bases store rows of only the first few."""


def choose_index_tokens(vocabularies: Sequence[Vocabulary], n_tokens: int = QUERY_TOKENS) -> tuple[bytes, ...]:
    """Choose the tokens for an index: those that occur in the most vocabularies.

    Ties are broken by length, up to six bytes, with longer tokens first, and then by a hash of the bytes.
    """
    holders = Counter(token for vocabulary in vocabularies for token in vocabulary.row_of)
    # Long tokens that all vocabularies contain are words, whose rows have been trained.
    ranked = sorted(holders, key=lambda token: (-holders[token], -min(len(token), 6), hashlib.sha256(token).digest()))
    return tuple(ranked[:n_tokens])


@dataclass(frozen=True, slots=True)
class BaseOutcome:
    """The outcome of adding a model to an index.

    Attributes:
        kind: ``known`` if the index already has this commit; ``missing`` includes private models.
    """

    name: str
    kind: Literal["added", "known", "gated", "missing", "failed"]
    reason: str = ""

    @property
    def is_held(self) -> bool:
        """Whether the index contains the model."""
        return self.kind in ("added", "known")


def extend_index(
    names: Sequence[str],
    path: Path,
    *,
    on_model: Callable[[BaseOutcome], None],
    choosing: Sequence[str] | None = None,
    reading: Reading = Reading(),
    listeners: Listeners = Listeners(progress=False),
    restart: bool = False,
) -> tuple[BaseIndex, int]:
    """Add base models to the index in a file, or to a new one, which is saved as it grows.

    Models that are already stored at the same commit are not read. The tokens of a new index are chosen from the
    vocabularies of the first models in ``choosing``; models without one are found by their neurons. With ``restart``, a
    new index replaces an earlier one once it is whole; if the run is killed, the next run without ``restart`` continues
    the new index. Returns the index and the number of failures.

    Raises:
        CorruptCheckpointError: If the file is not an index.
        InputError: If another process extends the index, it cannot be written, or no model for a new index can be
            opened.
    """
    with index_locked(path):
        return extend_locked_index(
            names,
            path,
            on_model=on_model,
            choosing=choosing,
            reading=reading,
            listeners=listeners,
            restart=restart,
        )


def index_locked(path: Path) -> AbstractContextManager[None]:
    """Let no other process write the index during a block."""
    return locked(path.with_name(f".{path.name}.lock"), path)


def extend_locked_index(
    names: Sequence[str],
    path: Path,
    *,
    on_model: Callable[[BaseOutcome], None],
    choosing: Sequence[str] | None,
    reading: Reading,
    listeners: Listeners,
    restart: bool,
) -> tuple[BaseIndex, int]:
    """Extend an index inside :func:`index_locked`; see :func:`extend_index`."""
    ledger = IoLedger()
    watch = Watch(ledger, listeners, from_start=True)
    staged = path.with_name(f".{path.name}.staged")
    if restart:
        staged.unlink(missing_ok=True)
    growing = staged if restart or staged.exists() else path
    with watch.listening():
        watch.enter("opening")
        index = BaseIndex.load(growing) if growing.exists() else BaseIndex(())
        if not index.tokens:
            index = BaseIndex(choose_index_tokens(_vocabularies(choosing or names, reading, ledger)), index.bases)
        n_failed = _add_bases(index, names, growing, on_model, reading, ledger, watch)
    if growing == staged and len(index):
        staged.replace(path)
    return index, n_failed


def _add_bases(
    index: BaseIndex,
    names: Sequence[str],
    path: Path,
    on_model: Callable[[BaseOutcome], None],
    reading: Reading,
    ledger: IoLedger,
    watch: Watch,
) -> int:
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
    reasons: list[str] = []
    for name in names:
        if len(vocabularies) == CHOOSING:
            break
        try:
            vocabulary = Model(reading.open(name, ledger=ledger)).vocabulary
        except MdirError as exc:  # reported when the model itself is added
            reasons.append(one_line(exc))
            continue
        if vocabulary is not None:
            vocabularies.append(vocabulary)
    if not vocabularies and len(reasons) == len(names):
        raise InputError("; ".join(["no base model can be opened", *reasons[:1]]))
    return vocabularies


TESTS_OF_A_BASE = 3
"""Number of tests per base: channels in their stored order, any matching of channels, and neuron numbers."""


@dataclass(frozen=True, slots=True)
class IdentificationPlan:
    """The data that an index search reads from a model.

    Attributes:
        n_bytes: Size of the model's rows in bytes, excluding gaps between them.
        n_bytes_of_neurons: Size of all layers' neurons, which are read only if the rows show no relation.
        n_of_width: See :class:`~mdir_hf.lineage.index.identify.Identification`.
        excluded_noise: See :class:`~mdir_hf.lineage.index.identify.Identification`.
    """

    model: ModelSummary
    n_rows: int
    n_bytes: int
    n_bytes_of_neurons: int
    n_bases: int
    n_of_width: int
    excluded_noise: float | None


def plan_identification(
    model: NamedModel, index: BaseIndex, *, alpha: float = ALPHA, reading: Reading = Reading()
) -> IdentificationPlan:
    """Plan the reads of :func:`~mdir_hf.lineage.index.identify.identify` without reading weights.

    Reads the config, headers and tokenizer, and takes O(r^3) time for each base of the same width with r rows. The plan
    does not include later comparisons with the bases found.

    Raises:
        MdirError: If the model cannot be opened or has neither tokenizer files nor neurons.
        InputError: If the index is empty.
    """
    if not len(index):
        raise InputError("the index holds no base models; add some with `mdir-hf index build`")
    opened_model = model.open(reading)
    vocabulary = None if opened_model.anatomy.embedding is None else opened_model.vocabulary
    tokens = () if vocabulary is None else tokens_with_rows(vocabulary, opened_model.n_rows, index.tokens)
    n_bytes_of_neurons = bytes_of_neurons(opened_model, every=True)
    if not (tokens or n_bytes_of_neurons):
        raise without_rows(opened_model)
    spec = embedding_spec(opened_model) if tokens else None
    numbers_are_free = opened_model.anatomy.channel_numbers is None
    n_of_width, noise = what_is_excluded(index, opened_model.width, tokens, alpha, numbers_are_free=numbers_are_free)
    return IdentificationPlan(
        model=opened_model.summary(),
        n_rows=len(tokens),
        n_bytes=0 if spec is None else len(tokens) * spec.n_bytes // spec.shape[0],
        n_bytes_of_neurons=n_bytes_of_neurons,
        n_bases=len(index),
        n_of_width=n_of_width,
        excluded_noise=noise,
    )


def what_is_excluded(
    index: BaseIndex, width: int, tokens: Sequence[bytes], alpha: float, *, numbers_are_free: bool = True
) -> tuple[int, float | None]:
    """Return the number of bases of a model's width, and the largest noise at which a copy of any would be found.

    The model has rows for ``tokens``. Alpha is shared across all bases. If ``numbers_are_free`` is False, channel
    numbers have a fixed meaning, and a copy must be significant among all matchings of channels.
    """
    log_level = math.log(alpha / (TESTS_OF_A_BASE * len(index)))
    token_set = frozenset(tokens)
    noises = []
    for base in index.bases:
        if base.rows.shape[1] == width:
            rows, _ = usual_rows_of(base, token_set)
            if len(rows) >= LEAST_ROWS:
                is_free = numbers_are_free and base.channel_numbers is None
                log_n_tests = 0.0 if is_free else log_n_matchings(width, width, width) + math.log(TESTS_PER_MATRIX)
                noises.append(noise_of_few_rows(rows, log_level=log_level - log_n_tests))
    return len(noises), min(noises, default=None)
