"""The folder of a survey: its sample, its results line by line, and the rows of its models.

Every line has a checksum, and every result a digest of all that determines it: a line that is damaged, or that belongs
to another sample or another commit, is ignored, and the result is computed again.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import os
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Gt, Lt

from mdir_hf.budgets import REPORT_JSON
from mdir_hf.errors import CorruptCheckpointError, InputError
from mdir_hf.lineage.fingerprints.fingerprint import FORMAT, Fingerprint
from mdir_hf.lineage.fingerprints.opening import Pin, pin_of_summary
from mdir_hf.lineage.survey import RESULTS, expect_survey
from mdir_hf.lineage.survey.results import SCHEMA, ModelResult, Pair, PairResult, Stage, SurveyReport
from mdir_hf.lineage.survey.sample import Sample
from mdir_hf.report import SettledBy
from mdir_hf.report.parts import Count
from mdir_hf.validation import AS_WRITTEN, read_json
from mdir_hf.writing import write_file, writing_into

ROWS = "rows"
LOCK = ".lock"

DEFAULT_CACHE_BYTES = 8 << 30
"""Enough for 800 models of width 2048 with 2048 rows each."""

LEAST_FREE = 0.9
"""If the rows exceed the limit, the least recently used ones are deleted until they take this share of it."""


@dataclass(frozen=True)
class _Settings:
    __pydantic_config__: ClassVar[dict[str, Any]] = AS_WRITTEN

    kind: Literal["settings"]
    schema: Literal["mdir-hf/survey/3"]
    names: list[str]
    alpha: Annotated[float, Gt(0.0), Lt(1.0)]
    alpha_of_pair: Annotated[float, Gt(0.0), Lt(1.0)]
    seed: int
    version: str = ""


@dataclass(frozen=True)
class _Line:
    __pydantic_config__: ClassVar[dict[str, Any]] = AS_WRITTEN

    kind: Literal["sample", "model", "pair", "stages"]
    inputs: str = ""


@dataclass(frozen=True)
class _SampleLine:
    __pydantic_config__: ClassVar[dict[str, Any]] = AS_WRITTEN

    tokens: tuple[str, ...]
    pins: dict[str, Pin]
    neuron_seed: Count


@dataclass(frozen=True)
class _Rows:
    """The pin of a model that was read, and the SHA-256 of its stored rows."""

    __pydantic_config__: ClassVar[dict[str, Any]] = AS_WRITTEN

    pin: Pin | None = None
    rows: str | None = None


@dataclass(frozen=True)
class _Stages:
    """The finished stages, and the number of pairs that were compared by then."""

    __pydantic_config__: ClassVar[dict[str, Any]] = AS_WRITTEN

    stages: list[Stage]
    n_pairs: Count


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


class SurveyState:
    """Results, sample and rows of a survey, in memory or in a folder.

    Attributes:
        settings: Settings that determine the results.
        sample: The sample; None until it is drawn.
        models: Models tried so far, keyed by name.
        pairs: Compared pairs.
        stages: The parts that are finished.
        earlier_groups: Groups of the earlier survey that this one continues without its rows, or None.
    """

    def __init__(self, names: Sequence[str], settings: Mapping[str, Any]) -> None:
        self.names, self.settings = tuple(names), dict(settings)
        self.sample: Sample | None = None
        self.models: dict[str, ModelResult] = {}
        self.pairs: dict[Pair, PairResult] = {}
        self.stages: frozenset[Stage] = frozenset()
        self.earlier_groups: tuple[tuple[str, ...], ...] | None = None
        self._rows: dict[str, Fingerprint] = {}

    @classmethod
    def of(cls, report: SurveyReport) -> SurveyState:
        """Return the state of an earlier survey, in memory and without rows, pinned to the commits that it names."""
        pins = {name: pin_of_summary(name, result.model) for name, result in report.models.items() if result.model}
        state = cls(report.names, report.settings)
        state.models, state.pairs, state.stages = dict(report.models), dict(report.pairs), report.stages
        state.sample, state.earlier_groups = Sample((), pins), report.groups()
        return state

    @property
    def report(self) -> SurveyReport:
        """The results so far, in the order of the list, whatever the order in which they arrived."""
        place = {name: at for at, name in enumerate(self.names)}
        models = {name: self.models[name] for name in self.names if name in self.models}
        pairs = sorted(self.pairs.items(), key=lambda item: (place[item[0][0]], place[item[0][1]]))
        return SurveyReport(self.names, models, dict(pairs), self.settings, self.stages)

    def begin(self, sample: Sample) -> None:
        """Store the sample, before any row is read."""
        self.sample = sample

    def add_model(self, result: ModelResult, pin: Pin | None = None, fingerprint: Fingerprint | None = None) -> None:
        """Store the result of a model and its rows."""
        if pin is not None:
            self.pin(result.name, pin)
        self.models[result.name] = result
        self.stages = frozenset()
        if fingerprint is not None:
            self.keep_rows(result.name, fingerprint)

    def pin(self, name: str, pin: Pin) -> None:
        """Pin a model; if its files changed, forget the results of the earlier ones."""
        sample = self.sample or Sample(())
        earlier = sample.pins.get(name)
        if earlier == pin:
            return
        self.sample = replace(sample, pins={**sample.pins, name: pin})
        if earlier is not None:
            self.models.pop(name, None)
            self.pairs = {pair: result for pair, result in self.pairs.items() if name not in pair}
            self.stages = frozenset()

    def keep_rows(self, name: str, fingerprint: Fingerprint) -> None:
        """Keep the rows of a model."""
        self._rows[name] = fingerprint

    def add_pairs(self, results: Iterable[PairResult]) -> None:
        """Store the results of pairs."""
        self.pairs |= {(result.reference, result.candidate): result for result in results}

    def finish(self, stage: Stage) -> None:
        """Store that a part of the survey is finished."""
        self.stages |= {stage}

    def rows(self, name: str) -> Fingerprint | None:
        """Return the rows of a model, or None if they were not stored, or are damaged."""
        return self._rows.get(name)

    def has_rows(self, name: str) -> bool:
        """Return whether rows of a model are stored, without checking them."""
        return name in self._rows

    def all_rows(self) -> dict[str, Fingerprint]:
        """Return all rows that are stored, keyed by model."""
        rows = ((name, self.rows(name)) for name in self.report.readable())
        return {name: fingerprint for name, fingerprint in rows if fingerprint is not None}


class SurveyFolder(SurveyState):
    """The state of a survey in a folder. Each result is flushed to the disk before the next is computed.

    Raises:
        InputError: If the folder contains a survey with other settings, or is not the folder of a survey.
    """

    def __init__(
        self,
        folder: Path,
        names: Sequence[str] | None = None,
        settings: Mapping[str, Any] | None = None,
        *,
        cache_bytes: int = DEFAULT_CACHE_BYTES,
    ) -> None:
        super().__init__(names or (), settings or {})
        self._folder, self._path, self._cache_bytes = folder, folder / RESULTS, cache_bytes
        self._sums: dict[str, str] = {}
        self._stored_bytes: int | None = None
        self.n_ignored = 0
        if names is None:
            expect_survey(folder)
        elif not self._path.exists():
            with writing_into(folder):
                # Atomically, because a resumed survey needs the whole line.
                write_file(self._path, _line("settings", {"schema": SCHEMA, "names": list(names), **self.settings}))
        self._read(is_new=names is not None)

    def begin(self, sample: Sample) -> None:
        """Store the sample, before any row is read."""
        super().begin(sample)
        tokens = [base64.b64encode(token).decode() for token in sample.tokens]
        pins = {name: asdict(pin) for name, pin in sample.pins.items()}
        self._append(_line("sample", {"tokens": tokens, "pins": pins, "neuron_seed": sample.neuron_seed}))

    def add_model(self, result: ModelResult, pin: Pin | None = None, fingerprint: Fingerprint | None = None) -> None:
        """Store the result of a model and its rows."""
        super().add_model(result, pin, fingerprint)
        place = {"pin": None if pin is None else asdict(pin), "rows": self._sums.get(result.name)}
        self._append(_line("model", {**asdict(result), **place, "inputs": self._inputs(result.name)}))

    def add_pairs(self, results: Iterable[PairResult]) -> None:
        """Store the results of pairs."""
        results = list(results)
        super().add_pairs(results)
        lines = [
            _line("pair", {**asdict(result), "inputs": self._inputs(result.reference, result.candidate)})
            for result in results
        ]
        if lines:
            self._append(*lines)

    def finish(self, stage: Stage) -> None:
        """Store that a part of the survey is finished."""
        super().finish(stage)
        self._append(_line("stages", {"stages": sorted(self.stages), "n_pairs": len(self.pairs)}))

    def rows(self, name: str) -> Fingerprint | None:
        """Return the rows of a model, or None if they were not stored, or are damaged."""
        path = self._rows_path(name)
        try:
            if hashlib.sha256(path.read_bytes()).hexdigest() == self._sums.get(name):
                os.utime(path)
                return Fingerprint.load(path)
        except (FileNotFoundError, CorruptCheckpointError):
            pass
        except OSError as exc:
            raise InputError(f"cannot read it: {exc.strerror}", subject=str(path)) from exc
        return None

    def has_rows(self, name: str) -> bool:
        """Return whether rows of a model are stored, without checking them."""
        return name in self._sums and self._rows_path(name).is_file()

    def take_over(self, earlier: SurveyFolder) -> None:
        """Add the results and rows of another folder, of the same sample, that are missing here.

        Raises:
            InputError: If it holds another survey.
        """
        different = [key for key in self.settings if self.settings[key] != earlier.settings.get(key)]
        if different or earlier.names != self.names or earlier.sample is None:
            raise InputError("it belongs to another survey", subject=str(earlier._folder))
        if self.sample is None:
            self.begin(earlier.sample)
        sample = earlier.sample
        if self.sample is None or (self.sample.tokens, self.sample.neuron_seed) != (sample.tokens, sample.neuron_seed):
            raise InputError(
                "it read other tokens or neurons; start all parts from one --sample", subject=str(earlier._folder)
            )
        for name, result in earlier.models.items():
            if name not in self.models or (self.models[name].error is not None and result.error is None):
                self.add_model(result, sample.pins.get(name), earlier.rows(name))
        known = (result for pair, result in earlier.pairs.items() if pair not in self.pairs or self.pairs[pair].error)
        self.add_pairs([at for at in known if not {at.reference, at.candidate} - self.models.keys()])

    def _inputs(self, *names: str, pin: Pin | None = None) -> str:
        """Return a digest of everything that determines the result of a model or a pair, beside the settings."""
        sample = self.sample or Sample(())
        pins = [pin or sample.pins.get(name) for name in names]
        return _digest(FORMAT, sample.key, *names, *("" if each is None else each.key for each in pins))

    def _rows_path(self, name: str) -> Path:
        return self._folder / ROWS / f"{self._inputs(name)}.safetensors"

    def keep_rows(self, name: str, fingerprint: Fingerprint) -> None:
        """Store the rows of a model atomically, deleting the least recently used ones if the folder is full."""
        path, content = self._rows_path(name), fingerprint.to_bytes()
        self._sums[name] = hashlib.sha256(content).hexdigest()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if self._stored_bytes is None:
                self._stored_bytes = sum(stored.stat().st_size for stored in path.parent.iterdir())
            write_file(path, content)
        except OSError as exc:
            raise InputError(f"cannot keep rows: {exc.strerror}", subject=str(path.parent)) from exc
        self._stored_bytes += len(content)
        if self._stored_bytes > self._cache_bytes:
            self._trim(keep=path)

    def _trim(self, keep: Path) -> None:
        files_by_age = sorted((stored.stat().st_mtime_ns, stored) for stored in keep.parent.glob("*.safetensors"))
        n_bytes = sum(stored.stat().st_size for _, stored in files_by_age)
        for _, stored in files_by_age:
            # A little more than needed, so that the next rows fit.
            if n_bytes > LEAST_FREE * self._cache_bytes and stored != keep:
                n_bytes -= stored.stat().st_size
                stored.unlink(missing_ok=True)
        self._stored_bytes = n_bytes

    def _append(self, *lines: bytes) -> None:
        try:
            with self._path.open("ab") as file:
                file.write(b"".join(lines))
                file.flush()
                os.fsync(file.fileno())
        except OSError as exc:
            raise InputError(
                f"a result cannot be written: {exc.strerror}; earlier results are kept, run the same command to resume",
                subject=str(self._path),
            ) from exc

    def _read(self, *, is_new: bool) -> None:
        try:
            content = self._path.read_bytes()
            n_whole = content.rfind(b"\n") + 1
            if is_new and n_whole < len(content):  # a line that a kill cut short would corrupt the next one
                os.truncate(self._path, n_whole)
        except OSError as exc:
            raise InputError(f"cannot read it: {exc.strerror}", subject=str(self._path)) from exc
        first, *lines = content[:n_whole].splitlines() or [b""]
        names, settings = _read_settings(first, str(self._path))
        self._listed = frozenset(names)
        if is_new:
            differing = [key for key, value in self.settings.items() if settings.get(key) != value]
            if differing or names != self.names:
                key = differing[0] if differing else "models"
                what = f"{key} = {settings.get(key)!r}" if differing else "other models"
                raise InputError(
                    f"it was made with {what}; name another folder, use the earlier options, or start again "
                    "with --restart",
                    subject=str(self._path),
                )
        self.names, self.settings = names, settings
        whole = [(number, _checked(line)) for number, line in enumerate(lines, start=2)]
        self.n_ignored = sum(line is None for _, line in whole)
        for number, line in whole:
            if line is not None:
                self._add_line(line, number)
        if self.n_ignored:
            self.stages = frozenset()

    def _add_line(self, line: bytes, number: int) -> None:
        read = partial(read_json, label=str(self._path), budget=REPORT_JSON, error=InputError)
        header = read(line, _Line, what=f"line {number}")
        what = f"line {number}, of a {header.kind},"
        if header.kind == "sample":
            self.sample = _sample_of(read(line, _SampleLine, what=what), str(self._path))
        elif header.kind == "stages":
            finished = read(line, _Stages, what=what)
            # If lines of pairs are missing, the stages find and compare these pairs again.
            self.stages = frozenset(finished.stages if len(self.pairs) >= finished.n_pairs else ())
        elif header.kind == "model":
            result, stored = read(line, ModelResult, what=what), read(line, _Rows, what=what)
            self._expect_listed(number, result.name)
            if stored.pin is not None:
                _expect_own(result.name, stored.pin, str(self._path))
            if header.inputs == self._inputs(result.name, pin=stored.pin):
                SurveyState.add_model(self, result, stored.pin)
                self._sums.update({} if stored.rows is None else {result.name: stored.rows})
            else:
                self.n_ignored += 1
        else:
            pair = read(line, PairResult, what=what)
            self._expect_listed(number, pair.reference, pair.candidate)
            if not _is_consistent(pair, self.settings["alpha_of_pair"]):
                raise InputError(
                    f"line {number} contradicts itself: log10 p is {pair.log10_p}, alpha of a pair "
                    f"{self.settings['alpha_of_pair']:g}, the step {pair.settled_by}, and the verdict {pair.verdict}; "
                    "a step is named, and p is below alpha (or null, after a search), if and only if the verdict is "
                    "homologous",
                    subject=str(self._path),
                )
            if header.inputs == self._inputs(pair.reference, pair.candidate):
                SurveyState.add_pairs(self, [pair])
            else:
                self.n_ignored += 1

    def _expect_listed(self, number: int, *names: str) -> None:
        absent = next((name for name in names if name not in self._listed), None)
        if absent is not None:
            raise InputError(
                f"line {number} is about {absent!r:.80}, which is not in its list of models", subject=str(self._path)
            )


def remove_survey(folder: Path) -> None:
    """Remove the results and rows of a survey from its folder.

    Raises:
        InputError: If they cannot be removed.
    """
    try:
        (folder / RESULTS).unlink(missing_ok=True)
        if (folder / ROWS).exists():
            shutil.rmtree(folder / ROWS)
    except OSError as exc:
        raise InputError(f"cannot remove the earlier survey: {exc.strerror}", subject=str(folder)) from exc


def read_survey(folder: Path) -> SurveyReport:
    """Read the results in the folder of a survey.

    Raises:
        InputError: If it is not the folder of a survey.
    """
    return SurveyFolder(folder).report


def _line(kind: str, body: Mapping[str, Any]) -> bytes:
    text = json.dumps({"kind": kind, **body}, ensure_ascii=False, allow_nan=False).encode()
    return text[:-1] + f', "sum": "{hashlib.sha256(text).hexdigest()[:16]}"}}\n'.encode()


_SUM = re.compile(rb', "sum": "([0-9a-f]{16})"\}\Z')


def _checked(line: bytes) -> bytes | None:
    """Return a line without its checksum, or None if the two do not fit."""
    found = _SUM.search(line)
    text = line[: found.start()] + b"}" if found else b""
    return text if found and hashlib.sha256(text).hexdigest()[:16].encode() == found[1] else None


def _read_settings(line: bytes, label: str) -> tuple[tuple[str, ...], dict[str, Any]]:
    read = partial(read_json, label=label, budget=REPORT_JSON, error=InputError)
    what = "the first line, with the settings of a survey,"
    header, settings = read(line, _Settings, what=what), read(line, dict[str, Any], what=what)
    try:
        json.dumps(settings, allow_nan=False)
    except ValueError as exc:
        raise InputError(f"{what} holds an invalid number ({exc})", subject=label) from exc
    if _checked(line) is None:
        raise InputError(f"{what} is damaged; name another folder", subject=label)
    if len(set(header.names)) != len(header.names):
        raise InputError("its list names a model twice", subject=label)
    return tuple(header.names), {
        key: value for key, value in settings.items() if key not in ("kind", "schema", "names", "sum")
    }


def _sample_of(line: _SampleLine, label: str) -> Sample:
    try:
        tokens = tuple(base64.b64decode(token, validate=True) for token in line.tokens)
    except ValueError as exc:
        raise InputError(f"the sample of this survey is invalid: a token is not base64 ({exc})", subject=label) from exc
    for name, pin in line.pins.items():
        _expect_own(name, pin, label)
    return Sample(tokens, line.pins, line.neuron_seed)


def _expect_own(name: str, pin: Pin, label: str) -> None:
    if not pin.is_of(name):
        raise InputError(
            f"this survey has, for {name!r:.80}, files that this name cannot mean: {pin.reference!r:.80}; make it anew",
            subject=label,
        )


_SEARCHES = (SettledBy.KEYS, SettledBy.EMBEDDINGS)
"""Steps that search for the partners of neurons, and therefore give no p."""


def _is_consistent(result: PairResult, alpha: float) -> bool:
    is_found = result.settled_by in _SEARCHES if result.log10_p is None else result.log10_p < math.log10(alpha)
    has_step, is_homologous = result.settled_by is not None, result.verdict == "homologous"
    return is_found == has_step == is_homologous
