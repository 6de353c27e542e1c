"""A survey's files: fingerprints, and results that are flushed immediately and validated when read."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Gt, Lt

from mdir_hf.budgets import REPORT_JSON
from mdir_hf.errors import CorruptCheckpointError, InputError
from mdir_hf.lineage.fingerprints.fingerprint import Fingerprint
from mdir_hf.lineage.survey.results import SCHEMA, ModelResult, Pair, PairResult, SurveyReport
from mdir_hf.render.folder import write_file
from mdir_hf.report import SettledBy
from mdir_hf.report.parts import Count
from mdir_hf.validation import AS_WRITTEN, read_json

RESULTS = "results.jsonl"

Alpha = Annotated[float, Gt(0.0), Lt(1.0)]


@dataclass(frozen=True)
class _Line:
    __pydantic_config__: ClassVar[dict[str, Any]] = AS_WRITTEN

    kind: Literal["model", "pair"]


@dataclass(frozen=True)
class _Settings:
    __pydantic_config__: ClassVar[dict[str, Any]] = AS_WRITTEN

    kind: Literal["settings"]
    schema: Literal["mdir-hf/survey/2"]
    names: list[str]
    alpha: Alpha
    alpha_of_pair: Alpha
    seed: int
    sampled_tokens: Count = 0
    sample: str = ""
    shard: list[Count] = field(default_factory=list)
    version: str = ""


_KINDS: Mapping[str, type[ModelResult] | type[PairResult]] = {"model": ModelResult, "pair": PairResult}


class ResultFile:
    """Appends results to a JSON Lines file, flushing them to disk immediately.

    Raises:
        InputError: If the file contains other settings, or is not a survey.
        OSError: If the file cannot be created.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any]) -> None:
        self._path = path
        self.models: dict[str, ModelResult] = {}
        self.pairs: dict[Pair, PairResult] = {}
        first = _line("settings", {"schema": SCHEMA, **settings})
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_file(path, first)  # atomically, because a resumed run needs the whole first line
            return
        stored_settings, self.models, self.pairs, n_whole = _read(path)
        differing_keys = [key for key, value in settings.items() if stored_settings.get(key) != value]
        if differing_keys:
            key = differing_keys[0]
            raise InputError(
                f"it was made with {key} = {stored_settings.get(key)!r}, but {settings[key]!r} is requested now; "
                "name another folder, or use the earlier options",
                subject=str(path),
            )
        # A line that was cut short when the process was killed would corrupt the next one.
        with path.open("r+b") as file:
            file.truncate(n_whole)

    def add_model(self, result: ModelResult) -> None:
        """Write the result of a model."""
        self.models[result.name] = result
        self._append(_line("model", asdict(result)))

    def add_pairs(self, results: Iterable[PairResult]) -> None:
        """Write the results of pairs."""
        new = {(result.reference, result.candidate): result for result in results}
        self.pairs |= new
        self._append(*(_line("pair", asdict(result)) for result in new.values()))

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


def result_lines(report: SurveyReport) -> bytes:
    """Return a survey as the lines of a result file with one shard."""
    settings = {"schema": SCHEMA, "names": list(report.names), **report.settings, "shard": [0, 1]}
    lines = [_line("settings", settings)]
    lines += [_line("model", asdict(report.models[name])) for name in report.names if name in report.models]
    lines += [_line("pair", asdict(result)) for result in report.pairs.values()]
    return b"".join(lines)


def _line(kind: str, body: Mapping[str, Any]) -> bytes:
    return (json.dumps({"kind": kind, **body}, ensure_ascii=False, allow_nan=False) + "\n").encode()


def read_survey(paths: Sequence[Path]) -> SurveyReport:
    """Read a survey, joining its shards' result files.

    Raises:
        InputError: If a file is not a survey, or files belong to different surveys.
    """
    models: dict[str, ModelResult] = {}
    pairs: dict[Pair, PairResult] = {}
    settings: dict[str, Any] | None = None
    for path in paths:
        shard_settings, some_models, some_pairs, _ = _read(path)
        shard_settings.pop("shard", None)
        if settings is not None and shard_settings != settings:
            raise InputError(f"it belongs to another survey than {paths[0]}", subject=str(path))
        settings = shard_settings
        # Another shard may have read a model that one shard could not read.
        models |= {name: result for name, result in some_models.items() if name not in models or models[name].error}
        pairs |= {pair: result for pair, result in some_pairs.items() if pair not in pairs or pairs[pair].error}
    settings = settings or {}
    return SurveyReport(tuple(settings.pop("names", ())), models, pairs, settings)


def _read(path: Path) -> tuple[dict[str, Any], dict[str, ModelResult], dict[Pair, PairResult], int]:
    try:
        content = path.read_bytes()
    except OSError as exc:
        raise InputError(f"cannot read it: {exc.strerror}", subject=str(path)) from exc
    n_whole = content.rfind(b"\n") + 1
    first, *lines = content[:n_whole].split(b"\n")
    read = partial(read_json, label=str(path), budget=REPORT_JSON, error=InputError)
    what = "the first line, with the settings of a survey,"
    header, settings = read(first, _Settings, what=what), read(first, dict[str, object], what=what)
    try:
        json.dumps(settings, allow_nan=False)
    except ValueError as exc:
        raise InputError(f"{what} holds an invalid number ({exc})", subject=str(path)) from exc
    listed_names = set(header.names)
    if len(listed_names) != len(header.names):
        raise InputError("its list names a model twice", subject=str(path))
    models: dict[str, ModelResult] = {}
    pairs: dict[Pair, PairResult] = {}
    for number, line in enumerate(lines, start=2):
        if not line.strip():
            continue
        kind = read(line, _Line, what=f"line {number}").kind
        result = read(line, _KINDS[kind], what=f"line {number}, of a {kind},")
        names = (result.name,) if isinstance(result, ModelResult) else (result.reference, result.candidate)
        absent = next((name for name in names if name not in listed_names), None)
        if absent is not None:
            raise InputError(
                f"line {number} is about {absent!r:.80}, which is not in its list of models", subject=str(path)
            )
        if isinstance(result, ModelResult):
            models[result.name] = result
            continue
        if not _is_consistent(result, header.alpha_of_pair):
            raise InputError(
                f"line {number} contradicts itself: log10 p is {result.log10_p}, alpha of a pair "
                f"{header.alpha_of_pair:g}, the step {result.settled_by}, and the verdict {result.verdict}; a step is "
                "named, and p is below alpha (or null, after a search), if and only if the verdict is homologous",
                subject=str(path),
            )
        pairs[result.reference, result.candidate] = result
    del settings["kind"], settings["schema"]
    return settings, models, pairs, n_whole


_SEARCHES = (SettledBy.KEYS, SettledBy.EMBEDDINGS)
"""Steps that search for the partners of neurons, and therefore give no p."""


def _is_consistent(result: PairResult, alpha: float) -> bool:
    is_found = result.settled_by in _SEARCHES if result.log10_p is None else result.log10_p < math.log10(alpha)
    has_step, is_homologous = result.settled_by is not None, result.verdict == "homologous"
    return is_found == has_step == is_homologous


DEFAULT_CACHE_BYTES = 8 << 30
"""Enough for a thousand models of width 2048 with 2048 rows each."""


class FingerprintStore:
    """A folder of fingerprints for one sample, limited to ``max_bytes``."""

    def __init__(self, folder: Path, sample: str, *, max_bytes: int = DEFAULT_CACHE_BYTES) -> None:
        self._folder = folder
        self._sample = sample
        self._max_bytes = max_bytes

    def get(self, name: str) -> Fingerprint | None:
        """Return the stored fingerprint of a model, or None. Deletes damaged files."""
        path = self._path(name)
        if not path.is_file():
            return None
        try:
            fingerprint = Fingerprint.load(path)
        except CorruptCheckpointError:
            path.unlink(missing_ok=True)
            return None
        os.utime(path)
        return fingerprint

    def __contains__(self, name: str) -> bool:
        return self._path(name).is_file()

    def put(self, name: str, fingerprint: Fingerprint) -> None:
        """Store a fingerprint atomically, deleting the least recently used ones if the folder is full."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            written_path = write_file(self._path(name), fingerprint.to_bytes())
        except OSError as exc:
            raise InputError(f"cannot keep a fingerprint: {exc.strerror}", subject=str(self._folder)) from exc
        self._trim(keep=written_path)

    def _trim(self, keep: Path) -> None:
        files_by_age = sorted((path.stat().st_mtime_ns, path) for path in self._folder.glob("*.safetensors"))
        n_bytes = sum(path.stat().st_size for _, path in files_by_age)
        for _, path in files_by_age:
            if n_bytes <= self._max_bytes:
                return
            if path != keep:
                n_bytes -= path.stat().st_size
                with contextlib.suppress(OSError):  # another process may have deleted it
                    path.unlink()

    def _path(self, name: str) -> Path:
        return self._folder / (hashlib.sha256(f"{self._sample}\0{name}".encode()).hexdigest()[:32] + ".safetensors")
