"""Draw a survey's sample: the tokens and neurons whose rows are read, after all models were opened and pinned."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations

import numpy as np

from mdir_hf.comparison.neuron_sample import draw_sample_seed
from mdir_hf.errors import InputError, MdirError, one_line
from mdir_hf.lineage.fingerprints.fingerprint import bytes_of_heads, bytes_of_neurons, sample_name
from mdir_hf.lineage.fingerprints.opening import Pin, open_model, pin_of
from mdir_hf.model.comparable import embedding_spec
from mdir_hf.model.files import TensorSpec
from mdir_hf.model.hub import IoLedger
from mdir_hf.model.open import Reading
from mdir_hf.model.tokens import Vocabulary

WINDOW_ROWS = 64
"""Tokens are chosen in windows of this many adjacent rows of the most common vocabulary, so that one request returns
many rows."""

LEAST_COMMON_SHARE = 0.5
"""If two vocabularies share less than this fraction of the requested tokens, further common tokens are added."""


def choose_tokens(vocabularies: Sequence[Vocabulary], n_tokens: int, *, seed: int = 0) -> tuple[bytes, ...]:
    """Choose the tokens whose rows are read from every model; their order is arbitrary.

    Any two models have at least half of ``n_tokens`` in common if their vocabularies allow it.
    """
    distinct: dict[int, Vocabulary] = {}
    n_models: Counter[int] = Counter()
    for vocabulary in vocabularies:
        same = (
            k
            for k, other_vocabulary in distinct.items()
            if other_vocabulary is vocabulary or other_vocabulary.row_of == vocabulary.row_of
        )
        key = next(same, None)
        if key is None:
            key = len(distinct)
            distinct[key] = vocabulary
        n_models[key] += 1
    if not distinct:
        return ()
    holders: Counter[bytes] = Counter()
    for key, vocabulary in distinct.items():
        for token in vocabulary.row_of:
            holders[token] += n_models[key]
    ranked = [key for key, _ in n_models.most_common()]
    chosen_tokens = dict.fromkeys(_by_windows(distinct[ranked[0]], holders, n_tokens, seed))
    enough = LEAST_COMMON_SHARE * n_tokens
    for first, second in combinations(ranked, 2):
        first_rows, second_rows = distinct[first].row_of, distinct[second].row_of
        if sum(token in first_rows and token in second_rows for token in chosen_tokens) >= enough:
            continue
        shared = Counter(
            {token: holders[token] for token in first_rows if token in second_rows and token not in chosen_tokens}
        )
        chosen_tokens |= dict.fromkeys(_by_windows(distinct[first], shared, n_tokens, seed))
    if len(distinct) > 1:
        # Two models with the same vocabulary share all of it, even if other models share little of it.
        for key in ranked:
            if n_models[key] > 1 and sum(token in distinct[key].row_of for token in chosen_tokens) < enough:
                remaining_tokens = Counter({token: 1 for token in distinct[key].row_of if token not in chosen_tokens})
                chosen_tokens |= dict.fromkeys(_by_windows(distinct[key], remaining_tokens, n_tokens, seed))
    return tuple(chosen_tokens)


def _by_windows(vocabulary: Vocabulary, holders: Counter[bytes], n_tokens: int, seed: int) -> Iterable[bytes]:
    present = [token for token in vocabulary.row_of if holders[token] > 0]
    if not present:
        return ()
    counts = np.array([holders[token] for token in present], dtype=np.int64)
    rows = np.array([vocabulary.row_of[token] for token in present], dtype=np.int64)
    # Require tokens to be in as many models as possible while enough tokens are left.
    least = np.sort(counts)[::-1][min(n_tokens, len(counts)) - 1]
    is_common = counts >= least
    windows, inverse = np.unique(rows[is_common] // WINDOW_ROWS, return_inverse=True)
    worth = np.bincount(inverse, weights=counts[is_common].astype(np.float64))
    order = np.lexsort((np.random.default_rng(seed).permutation(len(windows)), -worth))
    place = np.empty(len(windows), dtype=np.int64)
    place[order] = np.arange(len(windows))
    by_window = np.lexsort((rows[is_common], place[inverse]))[:n_tokens]
    members = np.flatnonzero(is_common)[by_window]
    return [present[at] for at in members]


READERS = 4
"""Number of models opened concurrently."""


OnFailure = Callable[[str, MdirError], None]
"""A function called with each model that cannot be opened, and the error."""


@dataclass(frozen=True)
class Sample:
    """A survey's sampled tokens and neurons, and the files that its names referred to.

    Attributes:
        tokens: Tokens whose rows are read.
        pins: Pins, keyed by model name; models that could not be opened are missing.
        neuron_seed: Seed for choosing neurons, drawn after all models were opened.
    """

    tokens: tuple[bytes, ...]
    pins: Mapping[str, Pin] = field(default_factory=dict)
    neuron_seed: int = 0

    @cached_property
    def key(self) -> str:
        """Key of the sampled tokens and neurons."""
        return f"{sample_name(self.tokens)} {self.neuron_seed}"


def draw_sample(
    names: tuple[str, ...],
    *,
    n_tokens: int,
    seed: int,
    reading: Reading,
    ledger: IoLedger,
    on_failure: OnFailure = lambda name, error: None,
) -> tuple[Sample, dict[str, str]]:
    """Open every model, choose the tokens, and draw the neurons; return the sample, and the failures keyed by name.

    Raises:
        InputError: If no model can be opened.
    """
    opened_models, failures = open_models(names, reading, ledger, on_failure)
    vocabularies = [model.vocabulary for model in opened_models.values() if model.vocabulary]
    tokens = choose_tokens(vocabularies, n_tokens, seed=seed)
    pins = {name: model.pin for name, model in opened_models.items()}
    return Sample(tokens, pins, draw_sample_seed()), failures


@dataclass(frozen=True)
class Opened:
    """An open model whose rows have not been read yet.

    Attributes:
        vocabulary: Shared by all models with identical tokenizer files; None if there is none, or no embedding.
        n_bytes_of_layers: Bytes of neurons and heads that a survey reads.
    """

    vocabulary: Vocabulary | None
    pin: Pin
    embedding: TensorSpec | None
    n_bytes_of_layers: int


def open_models(
    names: tuple[str, ...], reading: Reading, ledger: IoLedger, on_failure: OnFailure = lambda name, error: None
) -> tuple[dict[str, Opened], dict[str, str]]:
    """Open every model and read its tokenizer; return models and failures, both keyed by name.

    Raises:
        InputError: If no model can be opened.
    """
    vocabularies: dict[object, Vocabulary] = {}
    opened_models: dict[str, Opened] = {}
    failures: dict[str, str] = {}

    def read(name: str) -> tuple[object, Opened]:
        model = open_model(name, reading, ledger)
        n_bytes_of_layers = bytes_of_neurons(model) + bytes_of_heads(model)
        if model.anatomy.embedding is None and n_bytes_of_layers:
            return None, Opened(None, pin_of(name, model), None, n_bytes_of_layers)
        embedding = embedding_spec(model)
        key = model.vocabulary_key
        vocabulary = (None if key is None else vocabularies.get(key)) or model.vocabulary
        if vocabulary is None and not n_bytes_of_layers:
            raise InputError(
                "it has no tokenizer files, so its rows cannot be assigned to tokens, and no neurons or heads that a "
                "survey can compare",
                subject=name,
            )
        return key, Opened(vocabulary, pin_of(name, model), embedding, n_bytes_of_layers)

    with ThreadPoolExecutor(READERS) as pool:
        for name, future in [(name, pool.submit(read, name)) for name in names]:
            try:
                key, opened = future.result()
            except MdirError as exc:
                failures[name] = one_line(exc)
                on_failure(name, exc)
                continue
            if key is not None and opened.vocabulary is not None:
                opened = replace(opened, vocabulary=vocabularies.setdefault(key, opened.vocabulary))
            opened_models[name] = opened
    if not opened_models:
        first = next(iter(failures.values()))
        raise InputError(f"none of the {len(names)} models can be opened; the first: {first}")
    return opened_models, failures
