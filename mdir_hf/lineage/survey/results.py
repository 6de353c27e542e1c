"""The results of a survey. Each is a line on disk at once, so that a stop loses nothing."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from annotated_types import Gt, Lt
from scipy.sparse.csgraph import connected_components

from mdir_hf.budgets import REPORT_JSON
from mdir_hf.errors import InputError
from mdir_hf.model.files.json_object import AS_WRITTEN, read_json
from mdir_hf.render.folder import write_file
from mdir_hf.report import HomologyReport, ModelSummary, SettledBy, agreement_text
from mdir_hf.report.parts import Count, Log10P
from mdir_hf.report.words import THE_SAME_FILES

SCHEMA = "mdir-hf/survey/1"
RESULTS = "results.jsonl"

Alpha = Annotated[float, Gt(0.0), Lt(1.0)]

Pair = tuple[str, str]
"""Names of two models, in the order of the list."""


@dataclass(frozen=True, slots=True)
class ModelResult:
    """One model of a survey.

    Attributes:
        name: As it was asked for.
        model: What it resolved to; None where it could not be read.
        error: Why it could not be read.
        bytes_read: Bytes read of it.
        declared_bases: Base models that its card declares; None where that was not asked for.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = AS_WRITTEN

    name: str
    model: ModelSummary | None
    error: str | None = None
    bytes_read: Count = 0
    declared_bases: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class PairResult:
    """One pair of a survey, in the order of its list of models.

    Attributes:
        reference: Name of the earlier model.
        candidate: Name of the later one.
        verdict: homologous, no_evidence, inconclusive, or None where the pair could not be computed.
        reason: Why it is inconclusive.
        log10_p: Of this pair alone, corrected for its own tests and looks; None if it could not be computed, or if it
            bounds no probability.
        common_tokens: Tokens of the sample that both hold.
        transformation: What was found on the embeddings: identity, permutation, signed_permutation or none; with
            layers also rotation.
        error: Why it could not be computed.
        p_is_bound: Whether p bounds a chance; a result from before this was kept does not say so.
        channels: How many channels match one by one, and how many the narrower model has; None: not known.
        same_files: Whether the weight files of both are the same.
        by_neurons: Whether the numbers of neurons settled it, and not the embeddings.
        layers_compared: Whether this is the result of a full comparison, which goes on to the layers.
        layers_error: Why the full comparison that was asked for failed; the result is that of the sample then.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = AS_WRITTEN

    reference: str
    candidate: str
    verdict: Literal["homologous", "no_evidence", "inconclusive"] | None
    reason: str | None = None
    log10_p: Log10P | None = None
    common_tokens: Count = 0
    transformation: str | None = None
    error: str | None = None
    p_is_bound: bool = False
    channels: tuple[Count, Count] | None = None
    same_files: bool = False
    by_neurons: bool = False
    layers_compared: bool = False
    layers_error: str | None = None

    @property
    def agreement(self) -> str:
        """What to show in place of a p that bounds nothing: ``576 of 576 channels match``."""
        return agreement_text(self.channels)

    @property
    def strength(self) -> str:
        """How strong the agreement is, in few words; p is rounded up: never more evidence than there is."""
        if self.same_files:
            return THE_SAME_FILES
        return f"log10 p {min(0, math.ceil(self.log10_p or 0.0)):,}" if self.p_is_bound else self.agreement

    @property
    def read_of_both(self) -> str:
        """What the result rests on: ``on 2,048 tokens``."""
        if self.by_neurons:
            return "by a few neurons"
        return "by the full comparison" if self.layers_compared else f"on {self.common_tokens:,} tokens"

    @property
    def not_found(self) -> str:
        """What to say of it where no evidence was found: no more than was looked at."""
        if self.layers_compared:
            return "not found by embeddings, neurons or layers"
        why = f" ({self.layers_error})" if self.layers_error else ""
        return f"not found by embeddings or a few neurons; layers not compared{why}"

    @property
    def found_by(self) -> str:
        """What it was found by, in a word or two; empty where nothing was found."""
        if self.verdict != "homologous" or self.same_files:
            return ""
        if self.by_neurons:
            return "neurons"
        return "layers" if self.layers_compared else self.transformation or ""

    @classmethod
    def of(cls, reference: str, candidate: str, report: HomologyReport, *, layers_compared: bool = False) -> PairResult:
        """Keep of a report what a survey needs."""
        matrix = report.embedding
        return cls(
            reference=reference,
            candidate=candidate,
            verdict=report.verdict.value,
            reason=None if report.reason is None else report.reason.value,
            log10_p=report.log10_p,
            common_tokens=0 if matrix is None else matrix.common_tokens,
            transformation=None if matrix is None else matrix.transformation,
            p_is_bound=report.p_is_bound,
            channels=report.channels,
            same_files=report.settled_by is SettledBy.IDENTICAL_FILES,
            by_neurons=report.settled_by is SettledBy.NEURONS,
            layers_compared=layers_compared,
        )


@dataclass(frozen=True, slots=True)
class SurveyReport:
    """A survey, or as much of it as is done.

    Attributes:
        names: Models in the order asked for.
        models: Those that were tried, by name.
        pairs: Those that were computed, by names in the order of the list.
        settings: What was asked: alpha, seed, tokens of the sample, its name, version.
    """

    names: tuple[str, ...]
    models: Mapping[str, ModelResult]
    pairs: Mapping[Pair, PairResult]
    settings: Mapping[str, Any] = field(default_factory=dict)

    def readable(self) -> tuple[str, ...]:
        """Models that were read."""
        return tuple(name for name in self.names if name in self.models and self.models[name].error is None)

    def missing(self) -> tuple[Pair, ...]:
        """Pairs of readable models that are not computed yet."""
        return tuple(pair for pair in combinations(self.readable(), 2) if pair not in self.pairs)

    @property
    def n_possible_pairs(self) -> int:
        """Pairs of all models that were read or may still be read."""
        unreadable = sum(found.error is not None for found in self.models.values())
        return math.comb(len(self.names) - unreadable, 2)

    @property
    def is_complete(self) -> bool:
        """Whether every model was tried and every pair of readable models was compared."""
        return all(name in self.models for name in self.names) and not self.missing()

    @property
    def progress_text(self) -> str:
        """How far it is: ``2 of 8 models read, 1 of 28 pairs compared``."""
        n_read, n_pairs = len(self.readable()), len(self.pairs)
        pairs = f"{n_pairs} of {self.n_possible_pairs} pairs"
        if self.is_complete:
            pairs = "1 pair" if n_pairs == 1 else f"{n_pairs} pairs"
        return f"{n_read} of {len(self.names)} models read, {pairs} compared"

    def compared_with(self, name: str) -> tuple[int, int]:
        """How many models one was compared with, and with how many it can still be or was compared."""
        n_compared = sum(name in pair and found.verdict is not None for pair, found in self.pairs.items())
        n_others = sum(
            other != name and (other not in self.models or self.models[other].error is None) for other in self.names
        )
        return n_compared, n_others

    def is_related(self, first: str, second: str) -> bool:
        """Whether a pair was found homologous."""
        found = self.pairs.get((first, second)) or self.pairs.get((second, first))
        return found is not None and found.verdict == "homologous"

    @property
    def compared(self) -> str:
        """What was compared of each pair."""
        if any(found.layers_compared for found in self.pairs.values()):
            return "embeddings, and a few neurons by number; the layers of models without a relative"
        return "embeddings, and a few neurons by number"

    def not_found(self, first: str, second: str) -> str:
        """What to say of a pair without evidence, as :attr:`PairResult.not_found`."""
        found = self.pairs.get((first, second)) or self.pairs.get((second, first))
        return "not compared" if found is None else found.not_found

    def groups(self) -> tuple[tuple[str, ...], ...]:
        """Models joined by chains of homologous pairs; those without a relative are groups of one. Largest first."""
        place = {name: at for at, name in enumerate(self.names)}
        related = np.zeros((len(place), len(place)), dtype=bool)
        for first, second in self.pairs:
            related[place[first], place[second]] = self.is_related(first, second)
        members: dict[int, list[str]] = {}
        for name, group in zip(self.names, connected_components(related, directed=False)[1], strict=True):
            members.setdefault(int(group), []).append(name)
        return tuple(sorted(map(tuple, members.values()), key=lambda group: -len(group)))

    def without_relatives(self) -> tuple[str, ...]:
        """Models that were compared and have no relative."""
        compared = {name for pair, found in self.pairs.items() if found.verdict is not None for name in pair}
        return tuple(group[0] for group in self.groups() if len(group) == 1 and group[0] in compared)

    def layers_to_compare(self) -> tuple[Pair, ...]:
        """Pairs whose layers may show what the sample did not: each model without a relative and one of each family.

        Of a family that is its first model, of the list. Pairs whose layers were compared are left out.
        """
        lone, readable = set(self.without_relatives()), set(self.readable())
        firsts = sorted((group[0] for group in self.groups() if group[0] in readable), key=self.names.index)
        pairs = (pair for pair in combinations(firsts, 2) if lone & set(pair) and pair in self.pairs)
        return tuple(pair for pair in pairs if not self.pairs[pair].layers_compared)

    def contradictions(self) -> tuple[tuple[str, str, str], ...]:
        """Triples in which the middle model is related to both others, and no relation was found between those.

        Shared ancestry of weights need not be transitive: the two parents of a merge may share nothing. And a weak
        relation may be missed on a sample. So each triple is worth a look.
        """
        found = []
        for group in self.groups():
            for middle in group:
                kin = [name for name in group if name != middle and self.is_related(middle, name)]
                for first, second in combinations(kin, 2):
                    if not self.is_related(first, second):
                        found.append((first, middle, second))
        return tuple(found)

    def undeclared(self) -> tuple[Pair, ...]:
        """Homologous pairs that declare neither each other nor a common base."""
        bases = {name: set(found.declared_bases or ()) for name, found in self.models.items()}
        bases |= {name: set() for pair in self.pairs for name in pair if name not in bases}
        return tuple(
            (a, b)
            for a, b in self.pairs
            if self.is_related(a, b) and a not in bases[b] and b not in bases[a] and not bases[a] & bases[b]
        )

    def unsupported(self) -> tuple[Pair, ...]:
        """Declared bases (model, base), both surveyed, for which no evidence was found."""
        return tuple(
            (name, base)
            for name in self.readable()
            for base in self.models[name].declared_bases or ()
            if base in self.models and base != name and not self.is_related(name, base)
        )

    def to_dict(self) -> dict[str, Any]:
        """The survey as plain containers."""
        return {
            "schema": SCHEMA,
            **self.settings,
            "compared": self.compared,
            "models": [asdict(self.models[name]) for name in self.names if name in self.models],
            "groups": [list(group) for group in self.groups()],
            "pairs": [asdict(self.pairs[pair]) for pair in combinations(self.names, 2) if pair in self.pairs],
            "missing": [list(pair) for pair in self.missing()],
            "contradictions": [list(triple) for triple in self.contradictions()],
            "undeclared": [list(pair) for pair in self.undeclared()],
            "unsupported": [list(pair) for pair in self.unsupported()],
        }

    def to_json(self) -> str:
        """One JSON object of the schema ``mdir-hf/survey/1``."""
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False, allow_nan=False)


@dataclass(frozen=True)
class _Line:
    """What a line is about."""

    __pydantic_config__: ClassVar[dict[str, Any]] = AS_WRITTEN

    kind: Literal["model", "pair"]


@dataclass(frozen=True)
class _Settings:
    """What the first line of a file holds in any case; who writes one may add what else it was made with."""

    __pydantic_config__: ClassVar[dict[str, Any]] = AS_WRITTEN

    kind: Literal["settings"]
    schema: Literal["mdir-hf/survey/1"]
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
    """Appends results to a file as lines of JSON, each on the disk before the next is computed.

    Args:
        path: The file; made with its first line, which holds the settings, if it is not there.
        settings: What this survey asks. A file of other settings is refused: its p-values answer another question.

    Raises:
        InputError: If the file was made by other settings, or is not a survey.
        OSError: If it cannot be made; then it is not there.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any]) -> None:
        self._path = path
        self.models: dict[str, ModelResult] = {}
        self.pairs: dict[Pair, PairResult] = {}
        first = _line("settings", {"schema": SCHEMA, **settings})
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_file(path, first)  # a resumed run reads the file before this
            return
        known, self.models, self.pairs, n_whole = _read(path)
        differing = [key for key, value in settings.items() if known.get(key) != value]
        if differing:
            key = differing[0]
            raise InputError(
                f"it was made with {key} = {known.get(key)!r}, and {settings[key]!r} is asked for now; name another "
                "folder, or ask as before",
                subject=str(path),
            )
        # A line cut short by a kill would swallow the next one.
        with path.open("r+b") as file:
            file.truncate(n_whole)

    def add_model(self, result: ModelResult) -> None:
        """Record a model."""
        self.models[result.name] = result
        self._append(_line("model", asdict(result)))

    def add_pairs(self, results: Iterable[PairResult]) -> None:
        """Record pairs."""
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
                f"a result cannot be written: {exc.strerror}; what is there stays, the same command goes on from it",
                subject=str(self._path),
            ) from exc


def result_lines(report: SurveyReport) -> bytes:
    """A survey as the lines of a result file with one shard."""
    settings = {"schema": SCHEMA, "names": list(report.names), **report.settings, "shard": [0, 1]}
    lines = [_line("settings", settings)]
    lines += [_line("model", asdict(report.models[name])) for name in report.names if name in report.models]
    lines += [_line("pair", asdict(found)) for found in report.pairs.values()]
    return b"".join(lines)


def _line(kind: str, body: Mapping[str, Any]) -> bytes:
    return (json.dumps({"kind": kind, **body}, ensure_ascii=False, allow_nan=False) + "\n").encode()


def read_survey(paths: Sequence[Path]) -> SurveyReport:
    """Read a survey back, or join the parts that several shards of it wrote.

    Args:
        paths: Result files; of shards, all of one survey.

    Raises:
        InputError: If a file is not one of a survey, or they belong to different ones.
    """
    models: dict[str, ModelResult] = {}
    pairs: dict[Pair, PairResult] = {}
    settings: dict[str, Any] | None = None
    for path in paths:
        known, some_models, some_pairs, _ = _read(path)
        known.pop("shard", None)
        if settings is not None and known != settings:
            raise InputError(f"it belongs to another survey than {paths[0]}", subject=str(path))
        settings = known
        # A model that one shard could not read, another may have.
        models |= {name: found for name, found in some_models.items() if name not in models or models[name].error}
        pairs |= {pair: found for pair, found in some_pairs.items() if pair not in pairs or pairs[pair].error}
    settings = settings or {}
    return SurveyReport(tuple(settings.pop("names", ())), models, pairs, settings)


def _read(path: Path) -> tuple[dict[str, Any], dict[str, ModelResult], dict[Pair, PairResult], int]:
    """Return settings, models, pairs, and how many bytes of the file are whole lines."""
    try:
        content = path.read_bytes()
    except OSError as exc:
        raise InputError(f"cannot read it: {exc.strerror}", subject=str(path)) from exc
    n_whole = content.rfind(b"\n") + 1
    first, *lines = content[:n_whole].split(b"\n")
    read = partial(read_json, label=str(path), budget=REPORT_JSON, error=InputError)
    what = "the first line, with the settings of a survey,"
    asked, settings = read(first, _Settings, what=what), read(first, dict[str, object], what=what)
    try:
        json.dumps(settings, allow_nan=False)
    except ValueError as exc:
        raise InputError(f"{what} holds an invalid number ({exc})", subject=str(path)) from exc
    listed = set(asked.names)
    if len(listed) != len(asked.names):
        raise InputError("its list names a model twice", subject=str(path))
    models: dict[str, ModelResult] = {}
    pairs: dict[Pair, PairResult] = {}
    for number, line in enumerate(lines, start=2):
        if not line.strip():
            continue
        kind = read(line, _Line, what=f"line {number}").kind
        found = read(line, _KINDS[kind], what=f"line {number}, of a {kind},")
        names = (found.name,) if isinstance(found, ModelResult) else (found.reference, found.candidate)
        absent = next((name for name in names if name not in listed), None)
        if absent is not None:
            raise InputError(
                f"line {number} is about {absent!r:.80}, which is not in its list of models", subject=str(path)
            )
        if isinstance(found, ModelResult):
            models[found.name] = found
            continue
        is_homologous = found.verdict == "homologous"
        if found.log10_p is None:
            is_below = is_homologous and not found.p_is_bound
        else:
            is_below = found.log10_p < math.log10(asked.alpha_of_pair)
        if is_below is not is_homologous:
            raise InputError(
                f"line {number} contradicts itself: log10 p is {found.log10_p}, alpha of a pair "
                f"{asked.alpha_of_pair:g}, and the verdict {found.verdict}; p is below alpha, or null, if and only "
                "if the verdict is homologous",
                subject=str(path),
            )
        pairs[found.reference, found.candidate] = found
    del settings["kind"], settings["schema"]
    return settings, models, pairs, n_whole
