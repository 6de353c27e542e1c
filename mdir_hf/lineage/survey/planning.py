"""Choose a survey's tokens and pin every model's commit before reading weights.

Tokens and commits are stored in one file, so that all shards compare the same rows.
"""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from itertools import combinations
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from huggingface_hub import get_token

from mdir_hf.budgets import REPORT_JSON
from mdir_hf.comparison.neuron_sample import draw_sample_seed
from mdir_hf.errors import InputError, MdirError, one_line
from mdir_hf.lineage.fingerprints.fingerprint import bytes_of_neurons
from mdir_hf.lineage.fingerprints.opening import Pin, open_model, pin_of
from mdir_hf.model.comparable import embedding_spec
from mdir_hf.model.files import TensorSpec
from mdir_hf.model.hub import IoLedger, parse_reference
from mdir_hf.model.hub.retry import ANONYMOUS, USER, WINDOW_S
from mdir_hf.model.open import Reading
from mdir_hf.model.tokens import Vocabulary
from mdir_hf.render.folder import write_file
from mdir_hf.report.parts import Count
from mdir_hf.validation import AS_WRITTEN, read_json

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


SAMPLE = "sample.json"

READERS = 4
"""Number of models opened concurrently."""


OnFailure = Callable[[str, MdirError], None]
"""A function called with each model that cannot be opened, and the error."""


@dataclass(frozen=True)
class Sample:
    """A survey's sampled tokens and pinned models.

    Attributes:
        pins: Pins, keyed by model name; models that cannot be read are excluded.
        neuron_seed: Seed for choosing neurons, drawn after all models were opened.
    """

    tokens: tuple[bytes, ...]
    pins: Mapping[str, Pin] = field(default_factory=dict)
    names: tuple[str, ...] = ()
    neuron_seed: int = 0

    def key(self, name: str) -> str:
        """Return a key for the pinned weights of a model."""
        pin = self.pins.get(name)
        return name if pin is None else f"{name}\0{pin.key}"

    def with_pins(self, pins: Iterable[tuple[str, Pin]]) -> Sample:
        """Return a copy with more models pinned."""
        return replace(self, pins={**dict(pins), **self.pins})


@dataclass(frozen=True)
class _SampleFile:
    __pydantic_config__: ClassVar[dict[str, Any]] = AS_WRITTEN

    tokens: tuple[str, ...]
    pins: dict[str, Pin]
    names: tuple[str, ...] = ()
    neuron_seed: Count = 0


def choose_sample(
    names: tuple[str, ...],
    *,
    n_tokens: int,
    seed: int,
    reading: Reading,
    ledger: IoLedger | None = None,
    on_failure: OnFailure = lambda name, error: None,
) -> tuple[Sample, dict[str, str]]:
    """Open every model and choose the tokens; return the sample, and the failures keyed by name."""
    opened_models, failures = open_models(names, reading, ledger or IoLedger(), on_failure)
    tokens = choose_tokens(
        [model.vocabulary for model in opened_models.values() if model.vocabulary], n_tokens, seed=seed
    )
    pins = {name: model.pin for name, model in opened_models.items()}
    return Sample(tokens, pins, names, neuron_seed=draw_sample_seed()), failures


def save_sample(sample: Sample, path: Path, options: Mapping[str, Any]) -> None:
    """Write a sample, and the options for which it was chosen, atomically."""
    body = {
        **options,
        "tokens": [base64.b64encode(token).decode() for token in sample.tokens],
        "pins": {name: asdict(pin) for name, pin in sample.pins.items()},
        "neuron_seed": sample.neuron_seed,
    }
    write_file(path, json.dumps(body).encode())


def load_sample(path: Path, options: Mapping[str, Any] | None = None) -> Sample:
    """Read a sample and, if ``options`` is given, check that it was chosen for them.

    Raises:
        InputError: If the file is not a sample, or was chosen for other options.
    """
    try:
        content = path.read_bytes()
    except OSError as exc:
        raise InputError(f"cannot read the sample of a survey: {exc.strerror}", subject=str(path)) from exc
    sample_file = read_json(
        content, _SampleFile, what="this sample of a survey", label=str(path), budget=REPORT_JSON, error=InputError
    )
    try:
        tokens = tuple(base64.b64decode(token, validate=True) for token in sample_file.tokens)
    except ValueError as exc:
        raise InputError(
            f"this sample of a survey cannot be right: a token is not base64 ({exc})", subject=str(path)
        ) from exc
    wrong_name = next((name for name, pin in sample_file.pins.items() if not pin.is_of(name)), None)
    if wrong_name is not None:
        raise InputError(
            f"this sample of a survey has, for {wrong_name!r:.80}, files that this name cannot mean: "
            f"{sample_file.pins[wrong_name].reference!r:.80}; make it anew",
            subject=str(path),
        )
    body = json.loads(content)
    stored_options = None if options is None else {key: body.get(key) for key in options}
    if stored_options != options:
        raise InputError("it was made for other models, or other options; name another folder", subject=str(path))
    return Sample(tokens, sample_file.pins, sample_file.names, sample_file.neuron_seed)


def take_sample(path: Path, folder: Path) -> None:
    """Copy the sample of another survey into a folder, to start a survey there.

    Raises:
        InputError: If the file is not a sample, or the folder contains a different one.
    """
    sample = load_sample(path)
    own = folder / SAMPLE
    if own.exists():
        if load_sample(own).tokens != sample.tokens:
            raise InputError("a survey with another sample was begun there; name another folder", subject=str(folder))
        return
    with writing_into(folder):
        write_file(own, path.read_bytes())


@contextmanager
def writing_into(folder: Path) -> Iterator[None]:
    """Create a survey's folder, and convert write errors in the block to ``InputError``."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as exc:
        raise InputError(f"cannot write a survey there: {exc.strerror}", subject=str(folder)) from exc


@dataclass(frozen=True)
class Opened:
    """An open model whose rows have not been read yet.

    Attributes:
        vocabulary: Shared by all models with identical tokenizer files; None if only neurons are compared.
    """

    vocabulary: Vocabulary | None
    pin: Pin
    embedding: TensorSpec | None
    n_bytes_of_neurons: int


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
        n_bytes_of_neurons = bytes_of_neurons(model)
        if model.anatomy.embedding is None and n_bytes_of_neurons:
            return None, Opened(None, pin_of(name, model), None, n_bytes_of_neurons)
        embedding = embedding_spec(model)
        key = model.vocabulary_key
        vocabulary = (None if key is None else vocabularies.get(key)) or model.vocabulary
        if vocabulary is None and not n_bytes_of_neurons:
            raise InputError(
                "it has no tokenizer files, so its rows cannot be assigned to tokens, and no neurons that can be "
                "compared by number",
                subject=name,
            )
        return key, Opened(vocabulary, pin_of(name, model), embedding, n_bytes_of_neurons)

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


FILE_REQUESTS = 10
"""Upper bound on requests for a typical model's config, index, tokenizer and headers, including redirects."""
CARD_REQUESTS = 2
"""Requests for a model's card and an adapter's config."""


@dataclass(frozen=True)
class PlannedRequests:
    """Hub requests that a survey sends.

    Attributes:
        n_models: Number of models on the Hub.
        files: Number of file requests, excluding those served by a CDN.
        has_token: Whether a token raises the quota.
    """

    n_models: int
    api: int
    files: int
    has_token: bool

    @property
    def at_least_s(self) -> float:
        """Minimum duration of the requests in seconds, a multiple of the quota window."""
        quotas = USER if self.has_token else ANONYMOUS
        n_windows = max(self.api / quotas["api"], self.files / quotas["resolvers"])
        return WINDOW_S * max(0, -(-n_windows // 1) - 1)

    def __str__(self) -> str:
        quotas = USER if self.has_token else ANONYMOUS
        client = "a user" if self.has_token else "an address without a token"
        long = f"; they take {self.at_least_s / 60:.0f} minutes or more" if self.at_least_s else ""
        return (
            f"{self.n_models} models on the Hub: up to {self.api:,} requests to its API and {self.files:,} for files; "
            f"in five minutes it answers {client} {quotas['api']:,} and {quotas['resolvers']:,}{long}"
        )


def planned_requests(
    reading: Reading, *, for_tokens: Iterable[str] = (), for_rows: Iterable[str] = (), for_cards: Iterable[str] = ()
) -> PlannedRequests:
    """Count the requests needed to open models, for tokens and again for rows, and to read cards."""
    is_online = not reading.local_files_only
    tokens, rows, cards = (
        {name for name in names if is_online and parse_reference(name).repo_id is not None}
        for names in (for_tokens, for_rows, for_cards)
    )
    has_token = isinstance(reading.token, str) or (reading.token is not False and get_token() is not None)
    return PlannedRequests(
        n_models=len(tokens | rows | cards),
        api=len(tokens) + len(rows) + len(cards),
        files=FILE_REQUESTS * len(tokens | rows) + CARD_REQUESTS * len(cards),
        has_token=has_token,
    )
