"""What a survey found, line by line on the disk: nothing that was computed is lost when it is stopped."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

from mdir_hf.errors import InputError
from mdir_hf.report import HomologyReport, ModelSummary

SCHEMA = "mdir-hf/survey/1"
RESULTS = "results.jsonl"


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

    name: str
    model: ModelSummary | None
    error: str | None = None
    bytes_read: int = 0
    declared_bases: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class PairResult:
    """One pair of a survey, in the order of its list of models.

    Attributes:
        reference: Name of the earlier model.
        candidate: Name of the later one.
        verdict: homologous, no_evidence, inconclusive, or None where the pair could not be computed.
        reason: Why it is inconclusive.
        log10_p: Of this pair alone, corrected for its own tests and looks; None where it could not be computed.
        common_tokens: Tokens of the sample that both hold.
        transformation: What was found: identity, permutation, signed_permutation or none.
        error: Why it could not be computed.
    """

    reference: str
    candidate: str
    verdict: str | None
    reason: str | None = None
    log10_p: float | None = None
    common_tokens: int = 0
    transformation: str | None = None
    error: str | None = None

    @classmethod
    def of(cls, reference: str, candidate: str, report: HomologyReport) -> PairResult:
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
    pairs: Mapping[tuple[str, str], PairResult]
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_complete(self) -> bool:
        """Whether every model was tried, and every pair of those that could be read was computed."""
        return len(self.models) == len(self.names) and not self.missing()

    def readable(self) -> tuple[str, ...]:
        """Models that were read."""
        return tuple(name for name in self.names if name in self.models and self.models[name].error is None)

    def missing(self) -> tuple[tuple[str, str], ...]:
        """Pairs of readable models that are not computed yet."""
        return tuple(pair for pair in combinations(self.readable(), 2) if pair not in self.pairs)

    def is_related(self, first: str, second: str) -> bool:
        """Whether a pair was found homologous."""
        found = self.pairs.get((first, second)) or self.pairs.get((second, first))
        return found is not None and found.verdict == "homologous"

    def groups(self) -> tuple[tuple[str, ...], ...]:
        """Models joined by chains of homologous pairs; strangers alone in a group of one. Largest first."""
        group_of = {name: {name} for name in self.names}
        for first, second in self.pairs:
            if self.is_related(first, second) and group_of[first] is not group_of[second]:
                group_of[first] |= group_of[second]
                for name in group_of[second]:
                    group_of[name] = group_of[first]
        place = {name: at for at, name in enumerate(self.names)}
        distinct = {id(group): tuple(sorted(group, key=place.__getitem__)) for group in group_of.values()}
        return tuple(sorted(distinct.values(), key=lambda group: (-len(group), place[group[0]])))

    def contradictions(self) -> tuple[tuple[str, str, str], ...]:
        """Triples in which the middle model is related to both others and those were found not to be.

        Shared ancestry of weights need not be transitive (a merge has two parents that share nothing), and a weak
        relation may be missed on a sample: each is worth a look.
        """
        found = []
        for group in self.groups():
            for middle in group:
                kin = [name for name in group if name != middle and self.is_related(middle, name)]
                for first, second in combinations(kin, 2):
                    if not self.is_related(first, second):
                        found.append((first, middle, second))
        return tuple(found)

    def undeclared(self) -> tuple[tuple[str, str], ...]:
        """Pairs found homologous of which neither declares the other, nor both the same base; few cards say all."""
        bases = {name: set(self.models[name].declared_bases or ()) for name in self.readable()}
        return tuple(
            (a, b)
            for a, b in self.pairs
            if self.is_related(a, b) and a not in bases[b] and b not in bases[a] and not bases[a] & bases[b]
        )

    def unsupported(self) -> tuple[tuple[str, str], ...]:
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


class ResultFile:
    """Appends results to a file, one JSON object a line, each on the disk before the next is computed.

    Args:
        path: The file; made if it is not there. Its first line holds the settings.
        settings: What this survey asks. A file made by other settings is refused: its p-values answer another question.

    Raises:
        InputError: If the file was made by other settings, or is no survey.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any]) -> None:
        self._path = path
        self.models: dict[str, ModelResult] = {}
        self.pairs: dict[tuple[str, str], PairResult] = {}
        is_new = not path.exists() or path.stat().st_size == 0
        if is_new:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._append({"kind": "settings", "schema": SCHEMA, **settings})
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
        self._append({"kind": "model", **asdict(result)})

    def add_pairs(self, results: Iterable[PairResult]) -> None:
        """Record pairs."""
        new = list(results)
        self.pairs |= {(result.reference, result.candidate): result for result in new}
        self._append(*({"kind": "pair", **asdict(result)} for result in new))

    def _append(self, *lines: Mapping[str, Any]) -> None:
        text = "".join(json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n" for line in lines)
        with self._path.open("ab") as file:
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())


def result_lines(report: SurveyReport) -> bytes:
    """A survey as the lines of a result file, of which it is then the only shard."""
    settings = {"kind": "settings", "schema": SCHEMA, "names": list(report.names), **report.settings, "shard": [0, 1]}
    lines = [
        settings,
        *({"kind": "model", **asdict(report.models[name])} for name in report.names if name in report.models),
    ]
    lines += [{"kind": "pair", **asdict(found)} for found in report.pairs.values()]
    return "".join(json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n" for line in lines).encode()


def read_survey(paths: Sequence[Path], names: Sequence[str] | None = None) -> SurveyReport:
    """Read a survey back, or join the parts that several shards of it wrote.

    Args:
        paths: Result files; of shards, all of one survey.
        names: Models in order; None: as the settings have them.

    Raises:
        InputError: If a file is none of a survey, or they are of different ones.
    """
    models: dict[str, ModelResult] = {}
    pairs: dict[tuple[str, str], PairResult] = {}
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
    listed = tuple(settings.pop("names", ())) if names is None else tuple(names)
    return SurveyReport(listed, models, pairs, {k: v for k, v in settings.items() if k not in ("kind", "schema")})


def _read(
    path: Path,
) -> tuple[dict[str, Any], dict[str, ModelResult], dict[tuple[str, str], PairResult], int]:
    """Return settings, models, pairs, and how many bytes of the file are whole lines."""
    try:
        content = path.read_bytes()
    except OSError as exc:
        raise InputError(f"cannot read it: {exc.strerror}", subject=str(path)) from exc
    n_whole = content.rfind(b"\n") + 1
    settings: dict[str, Any] = {}
    models: dict[str, ModelResult] = {}
    pairs: dict[tuple[str, str], PairResult] = {}
    for number, line in enumerate(content[:n_whole].splitlines(), start=1):
        try:
            body = json.loads(line)
            kind = body.pop("kind")
            if kind == "settings":
                if body.get("schema") != SCHEMA:
                    raise ValueError(f"expected {SCHEMA}")
                settings = body
            elif kind == "model":
                summary, declared = body.pop("model"), body.pop("declared_bases")
                model = None if summary is None else ModelSummary(**summary)
                found = ModelResult(model=model, declared_bases=None if declared is None else tuple(declared), **body)
                models[found.name] = found
            else:
                result = PairResult(**body)
                pairs[result.reference, result.candidate] = result
        except (ValueError, KeyError, TypeError, AttributeError) as exc:
            raise InputError(f"line {number} is no result of a survey ({exc})", subject=str(path)) from exc
    if not settings:
        raise InputError("it does not begin with the settings of a survey", subject=str(path))
    return settings, models, pairs, n_whole
