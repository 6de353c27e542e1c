"""Fixes the tokens of a survey and the commit of every model, before any weights are read.

Both are in one file. A part of the survey that runs elsewhere, or next week, then compares the same rows of the same
files.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from mdir_hf.budgets import REPORT_JSON
from mdir_hf.comparison.neuron_sample import draw_sample_seed
from mdir_hf.errors import InputError, MdirError, one_line
from mdir_hf.lineage.fingerprints.fingerprint import bytes_of_neurons
from mdir_hf.lineage.fingerprints.opening import Pin, open_model, pin_of
from mdir_hf.lineage.fingerprints.sample import choose_tokens
from mdir_hf.model.comparable import embedding_spec
from mdir_hf.model.files import TensorSpec
from mdir_hf.model.files.json_object import AS_WRITTEN, read_json
from mdir_hf.model.hub import IoLedger
from mdir_hf.model.open import Reading
from mdir_hf.model.tokens import Vocabulary
from mdir_hf.render.folder import write_file
from mdir_hf.report.parts import Count

SAMPLE = "sample.json"

READERS = 4
"""Models opened at a time."""


OnFailure = Callable[[str, MdirError], None]
"""Hears which model cannot be opened, and why."""


@dataclass(frozen=True)
class Sample:
    """The tokens of a survey and the files of its models.

    Attributes:
        tokens: Those whose rows are read of every model that has them.
        pins: What each name stands for; models that could not be opened are missing.
        names: All models that it was chosen for.
        neuron_seed: Seed of the neurons that are read of every model, drawn after all models were opened.
    """

    tokens: tuple[bytes, ...]
    pins: Mapping[str, Pin] = field(default_factory=dict)
    names: tuple[str, ...] = ()
    neuron_seed: int = 0

    def key(self, name: str) -> str:
        """Name the weights of a model, whatever the name stands for by now."""
        pin = self.pins.get(name)
        return name if pin is None else f"{name}\0{pin.key}"

    def with_pins(self, pins: Iterable[tuple[str, Pin]]) -> Sample:
        """The same with more models pinned; what is pinned stays."""
        return replace(self, pins={**dict(pins), **self.pins})


@dataclass(frozen=True)
class _SampleFile:
    """What the file of a sample holds beside what it was chosen for."""

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
    """Open every model, and choose the tokens by their vocabularies.

    Args:
        names: Models.
        n_tokens: Tokens that each pair should have in common.
        seed: Seed of the choice.
        reading: How repositories are opened.
        ledger: Counts what is read; None: nobody does.
        on_failure: Called with each model that could not be opened, and the error.

    Returns:
        The sample, and the models that could not be opened, with the reason.

    Raises:
        InputError: If none can be opened.
    """
    opened, failures = open_models(names, reading, ledger or IoLedger(), on_failure)
    tokens = choose_tokens([one.vocabulary for one in opened.values() if one.vocabulary], n_tokens, seed=seed)
    pins = {name: one.pin for name, one in opened.items()}
    return Sample(tokens, pins, names, neuron_seed=draw_sample_seed()), failures


def save_sample(sample: Sample, path: Path, asked: Mapping[str, Any]) -> None:
    """Write a sample, whole or not at all."""
    body = {
        **asked,
        "tokens": [base64.b64encode(token).decode() for token in sample.tokens],
        "pins": {name: asdict(pin) for name, pin in sample.pins.items()},
        "neuron_seed": sample.neuron_seed,
    }
    write_file(path, json.dumps(body).encode())


def load_sample(path: Path, asked: Mapping[str, Any] | None = None) -> Sample:
    """Read a sample back.

    Args:
        path: The file.
        asked: What it must have been chosen for; None: anything.

    Raises:
        InputError: If it is not a sample, or a sample for something else.
    """
    try:
        content = path.read_bytes()
    except OSError as exc:
        raise InputError(f"cannot read the sample of a survey: {exc.strerror}", subject=str(path)) from exc
    found = read_json(
        content, _SampleFile, what="this sample of a survey", label=str(path), budget=REPORT_JSON, error=InputError
    )
    try:
        tokens = tuple(base64.b64decode(token, validate=True) for token in found.tokens)
    except ValueError as exc:
        raise InputError(
            f"this sample of a survey cannot be right: a token is not base64 ({exc})", subject=str(path)
        ) from exc
    other = next((name for name, pin in found.pins.items() if not pin.is_of(name)), None)
    if other is not None:
        raise InputError(
            f"this sample of a survey has, for {other!r:.80}, files that this name cannot mean: "
            f"{found.pins[other].reference!r:.80}; make it anew",
            subject=str(path),
        )
    body = json.loads(content)
    known = None if asked is None else {key: body.get(key) for key in asked}
    if known != asked:
        raise InputError("it was made for other models, or other options; name another folder", subject=str(path))
    return Sample(tokens, found.pins, found.names, found.neuron_seed)


def take_sample(path: Path, folder: Path) -> None:
    """Start a survey in a folder from the sample of another one.

    Raises:
        InputError: If it is none, or the folder has begun with another one.
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
    """Make a folder that a survey is written into.

    Raises:
        InputError: If it cannot be made, or what the ``with`` block does in it fails.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as exc:
        raise InputError(f"cannot write a survey there: {exc.strerror}", subject=str(folder)) from exc


@dataclass(frozen=True)
class Opened:
    """What is known of a model before its rows are read.

    Attributes:
        vocabulary: One object for all models whose tokenizer files are the same bytes; None without such files or
            without an embedding: then only neurons are compared.
        pin: The commits that it was opened at.
        embedding: Where its embedding lies; None without one.
        n_bytes_of_neurons: About how many bytes of neurons are read of it.
    """

    vocabulary: Vocabulary | None
    pin: Pin
    embedding: TensorSpec | None
    n_bytes_of_neurons: int


def open_models(
    names: tuple[str, ...], reading: Reading, ledger: IoLedger, on_failure: OnFailure = lambda name, error: None
) -> tuple[dict[str, Opened], dict[str, str]]:
    """Open every model and read its tokenizer.

    Args:
        names: Models.
        reading: How repositories are opened.
        ledger: Counts what is read.
        on_failure: Called with each that could not be opened, and the error.

    Returns:
        Those that could be opened, and why the others could not, by name.

    Raises:
        InputError: If none can be opened.
    """
    known: dict[object, Vocabulary] = {}
    found: dict[str, Opened] = {}
    failures: dict[str, str] = {}

    def read(name: str) -> tuple[object, Opened]:
        model = open_model(name, reading, ledger)
        n_bytes_of_neurons = bytes_of_neurons(model)
        if model.anatomy.embedding is None and n_bytes_of_neurons:
            return None, Opened(None, pin_of(name, model), None, n_bytes_of_neurons)
        embedding = embedding_spec(model)
        key = model.vocabulary_key
        vocabulary = (None if key is None else known.get(key)) or model.vocabulary
        if vocabulary is None and not n_bytes_of_neurons:
            raise InputError(
                "it has no tokenizer files, so nothing says which row belongs to which token, and no neurons that can "
                "be compared by number",
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
                opened = replace(opened, vocabulary=known.setdefault(key, opened.vocabulary))
            found[name] = opened
    if not found:
        first = next(iter(failures.values()))
        raise InputError(f"none of the {len(names)} models can be opened; the first: {first}")
    return found, failures
