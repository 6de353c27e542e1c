"""A survey's results: the models, the pairs, and the report on them."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import Enum
from itertools import combinations
from typing import Any, ClassVar, Literal

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from mdir_hf.report import HomologyReport, LayerDrift, ModelSummary, SettledBy, Transformation
from mdir_hf.report.parts import Count, Log10P
from mdir_hf.report.words import THE_SAME_FILES, probability_text
from mdir_hf.validation import AS_WRITTEN

SCHEMA = "mdir-hf/survey/3"

MOST_COMPARED = 20
"""Largest survey in which all pairs are compared, if the caller does not say which: at most 190 pairs."""

MOST_DESCRIBED = 8
"""Largest group in which all pairs are compared, and their layers described."""

NOT_NOMINATED = "not compared, because no similar neurons or heads were found, or other relatives join the two"
"""Text for pairs that a finished survey did not compare."""

Pair = tuple[str, str]
"""Two model names, in the order of the survey's list."""


class Stage(str, Enum):
    """A part of a survey that is finished."""

    NUMBER = "number"
    """Pairs whose neurons are similar by number were compared."""
    ALL_PAIRS = "all_pairs"
    """All pairs were compared by number."""
    HEADS = "heads"
    """Pairs with similar heads were compared in full."""
    LAYERS = "layers"
    """Layers were compared as ``--layers`` requests."""


@dataclass(frozen=True, slots=True)
class ModelResult:
    """A model in a survey.

    Attributes:
        model: The resolved model, or None if it could not be read.
        declared_bases: Bases that the card declares, or None if cards were not read.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = AS_WRITTEN

    name: str
    model: ModelSummary | None
    error: str | None = None
    bytes_read: Count = 0
    declared_bases: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class PairResult:
    """A pair in a survey; its models are in the order of the survey's list.

    Attributes:
        verdict: None if the pair could not be compared.
        log10_p: log10 p of the step that settled the question; None if the pair was not compared or p is not a bound.
            See :attr:`~mdir_hf.HomologyReport.log10_p`.
        transformation: How the embeddings are related: identity, permutation, signed_permutation or none; None if they
            were not compared.
        settled_by: The step that settled the question, or None.
        agreement: How much agrees, such as ``all 256 tested neurons match``, or None.
        layers_compared: Whether the result comes from a full comparison.
        layer_drift: How much of each layer agrees and how far each layer has moved, or None.
        ledger: Which parts of each model match, match nothing and were not compared, with shares of its bytes; None if
            layers were not compared.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = AS_WRITTEN

    reference: str
    candidate: str
    verdict: Literal["homologous", "no_evidence", "inconclusive"] | None
    reason: str | None = None
    log10_p: Log10P | None = None
    common_tokens: Count = 0
    transformation: Transformation | None = None
    error: str | None = None
    settled_by: SettledBy | None = None
    agreement: str | None = None
    layers_compared: bool = False
    layers_error: str | None = None
    layer_drift: tuple[LayerDrift, ...] | None = None
    ledger: tuple[str, str] | None = None

    @property
    def same_files(self) -> bool:
        """Whether the weight files are equal."""
        return self.settled_by == SettledBy.IDENTICAL_FILES

    @property
    def strength(self) -> str:
        """Short text stating how strongly the models agree; p is rounded up."""
        if self.same_files:
            return THE_SAME_FILES
        if self.log10_p is not None and self.verdict == "homologous":
            return probability_text(self.log10_p)
        return self.agreement or ""

    @property
    def read_of_both(self) -> str:
        """Phrase naming the data behind the result."""
        return "by the full comparison" if self.layers_compared else "by neurons of four layers"

    @property
    def not_found(self) -> str:
        """Text to show if no relation was found."""
        if self.layers_compared:
            return "not found by the full comparison"
        why = f" ({self.layers_error})" if self.layers_error else ""
        return f"not found by neurons of four layers; not compared in full{why}"

    @property
    def found_by(self) -> str:
        """The step that found the relation; empty if the models are not related or have the same files."""
        return "" if self.verdict != "homologous" or self.same_files else self.settled_by or ""

    @classmethod
    def of(cls, reference: str, candidate: str, report: HomologyReport, *, layers_compared: bool = False) -> PairResult:
        """Reduce a report to the fields that a survey stores."""
        from mdir_hf.render.model_words import ledger_texts

        matrix = report.embedding
        return cls(
            reference=reference,
            candidate=candidate,
            verdict=report.verdict.value,
            reason=None if report.reason is None else report.reason.value,
            log10_p=report.log10_p,
            common_tokens=0 if matrix is None else matrix.common_tokens,
            transformation=None if matrix is None else matrix.transformation,
            settled_by=report.settled_by,
            agreement=report.agreement,
            layers_compared=layers_compared,
            layer_drift=None if report.projections is None else report.projections.drift(),
            ledger=ledger_texts(report) if layers_compared else None,
        )


@dataclass(frozen=True, slots=True)
class SurveyReport:
    """A survey, possibly incomplete.

    Attributes:
        names: Model names, in the requested order.
        models: Models tried so far, keyed by name.
        pairs: Compared pairs, keyed by their models' names, in the order of the list.
        settings: Alpha, seed, number of tokens, and versions.
        stages: The parts of the survey that are finished.
    """

    names: tuple[str, ...]
    models: Mapping[str, ModelResult]
    pairs: Mapping[Pair, PairResult]
    settings: Mapping[str, Any] = field(default_factory=dict)
    stages: frozenset[Stage] = frozenset()

    def __str__(self) -> str:
        """Return the survey as text, as the command line prints it."""
        return survey_text(self)

    def readable(self) -> tuple[str, ...]:
        """Return the models that were read."""
        return tuple(name for name in self.names if name in self.models and self.models[name].error is None)

    @property
    def n_possible_pairs(self) -> int:
        """Number of pairs, excluding models that could not be read."""
        unreadable = sum(result.error is not None for result in self.models.values())
        return math.comb(len(self.names) - unreadable, 2)

    @property
    def n_not_compared(self) -> int:
        """Number of pairs that were not compared: because nothing nominated them, or not yet."""
        return self.n_possible_pairs - len(self.pairs)

    @property
    def is_complete(self) -> bool:
        """Whether all models were tried, and all pairs compared that the survey chose."""
        return Stage.HEADS in self.stages and all(name in self.models for name in self.names)

    @property
    def progress_text(self) -> str:
        """Progress as text, such as ``2 of 8 models read, 1 of 28 pairs compared``."""
        n_read, n_pairs = len(self.readable()), len(self.pairs)
        pairs = f"{n_pairs:,} of {self.n_possible_pairs:,} pairs"
        if self.is_complete and not self.n_not_compared:
            pairs = "1 pair" if n_pairs == 1 else f"{n_pairs:,} pairs"
        return f"{n_read:,} of {len(self.names):,} models read, {pairs} compared"

    def n_compared(self) -> Counter[str]:
        """Return with how many others each model was compared."""
        return Counter(name for pair, result in self.pairs.items() if result.verdict is not None for name in pair)

    def pair(self, first: str, second: str) -> PairResult | None:
        """Return the result of two models, in either order, or None if they were not compared."""
        return self.pairs.get((first, second)) or self.pairs.get((second, first))

    def is_related(self, first: str, second: str) -> bool:
        """Return whether a pair is homologous."""
        result = self.pair(first, second)
        return result is not None and result.verdict == "homologous"

    @property
    def compared(self) -> str:
        """The data compared for each pair, as text."""
        n_full = sum(result.layers_compared for result in self.pairs.values())
        which = "neurons of four layers" if not self.n_not_compared else "neurons of four layers, of nominated pairs"
        return f"{which}; {'one pair' if n_full == 1 else f'{n_full:,} pairs'} in full" if n_full else which

    def not_found(self, first: str, second: str) -> str:
        """Return the text to show if no relation was found between two models."""
        result = self.pair(first, second)
        if result is not None:
            return result.not_found
        return NOT_NOMINATED if self.is_complete else "not compared yet"

    def groups(self) -> tuple[tuple[str, ...], ...]:
        """Return groups of models connected by homologous pairs, largest first, including single models."""
        place = {name: at for at, name in enumerate(self.names)}
        related = [
            (place[first], place[second]) for (first, second), at in self.pairs.items() if at.verdict == "homologous"
        ]
        ends = np.array(related, dtype=np.int64).reshape(-1, 2).T
        graph = coo_array((np.ones(len(related), dtype=bool), (ends[0], ends[1])), shape=(len(place), len(place)))
        members: dict[int, list[str]] = {}
        for name, group in zip(self.names, connected_components(graph, directed=False)[1], strict=True):
            members.setdefault(int(group), []).append(name)
        return tuple(sorted(map(tuple, members.values()), key=lambda group: -len(group)))

    def related_by_group(self) -> dict[tuple[str, ...], list[Pair]]:
        """Return the homologous pairs of each group of at least two models."""
        group_of = {name: group for group in self.groups() for name in group if len(group) > 1}
        related: dict[tuple[str, ...], list[Pair]] = {group: [] for group in group_of.values()}
        for pair, result in self.pairs.items():
            if result.verdict == "homologous":
                related[group_of[pair[0]]].append(pair)
        return related

    def without_relatives(self) -> tuple[str, ...]:
        """Return models that were read and have no relative; before the end, only those that were compared."""
        shown = set(self.readable()) if self.is_complete else set(self.n_compared())
        return tuple(group[0] for group in self.groups() if len(group) == 1 and group[0] in shown)

    def layers_to_compare(self) -> tuple[Pair, ...]:
        """Return the pairs of a survey of at most :data:`MOST_COMPARED` models that full comparisons may still settle.

        In larger surveys, only nominated pairs are compared in full.
        """
        readable = self.readable()
        if len(readable) > MOST_COMPARED:
            return ()
        unrelated = (pair for pair in combinations(readable, 2) if not self.is_related(*pair))
        return tuple(pair for pair in unrelated if pair not in self.pairs or not self.pairs[pair].layers_compared)

    def relatives_to_describe(self) -> tuple[Pair, ...]:
        """Return related pairs whose layers are not yet described, excluding pairs with identical files.

        If all pairs of a group of more than :data:`MOST_DESCRIBED` models were compared, only its pairs with the first
        model are returned.
        """
        pairs = []
        for group, of_group in self.related_by_group().items():
            are_few = len(group) <= MOST_DESCRIBED or len(of_group) <= 2 * len(group)
            pairs += [pair for pair in of_group if are_few or group[0] in pair]
        results = ((pair, self.pairs[pair]) for pair in pairs)
        return tuple(pair for pair, result in results if not result.same_files and result.layer_drift is None)

    def contradictions(self) -> tuple[tuple[str, str, str], ...]:
        """Return triples whose outer models are related to the middle one, but were not found related to each other.

        The middle model may merge unrelated parents, or the sample may miss a weak relation.
        """
        kin: dict[str, set[str]] = {}
        for pair, result in self.pairs.items():
            if result.verdict == "homologous":
                for name, other in (pair, pair[::-1]):
                    kin.setdefault(name, set()).add(other)
        return tuple(
            (first, middle, second)
            for (first, second), result in self.pairs.items()
            if result.verdict is not None and result.verdict != "homologous"
            for middle in sorted(kin.get(first, set()) & kin.get(second, set()))
        )

    def undeclared(self) -> tuple[Pair, ...]:
        """Return homologous pairs whose cards declare neither each other nor a common base."""
        bases = {name: set(result.declared_bases or ()) for name, result in self.models.items()}
        bases |= {name: set() for pair in self.pairs for name in pair if name not in bases}
        return tuple(
            (a, b)
            for a, b in self.pairs
            if self.is_related(a, b) and a not in bases[b] and b not in bases[a] and not bases[a] & bases[b]
        )

    def unsupported(self) -> tuple[Pair, ...]:
        """Return pairs of a model and its declared base that were not found to be related.

        A pair that was not compared counts as related if other relatives join the two.
        """
        group_of = {name: at for at, group in enumerate(self.groups()) for name in group}
        declared = (
            (name, base)
            for name in self.readable()
            for base in self.models[name].declared_bases or ()
            if base in self.models and base != name and not self.is_related(name, base)
        )
        return tuple(pair for pair in declared if self.pair(*pair) or group_of[pair[0]] != group_of[pair[1]])

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-serialisable dict."""
        return {
            "schema": SCHEMA,
            **self.settings,
            "compared": self.compared,
            "is_complete": self.is_complete,
            "models": [asdict(self.models[name]) for name in self.names if name in self.models],
            "groups": [list(group) for group in self.groups()],
            "pairs": [asdict(result) for result in self.pairs.values()],
            "not_compared": self.n_not_compared,
            "contradictions": [list(triple) for triple in self.contradictions()],
            "undeclared": [list(pair) for pair in self.undeclared()],
            "unsupported": [list(pair) for pair in self.unsupported()],
        }

    def to_json(self) -> str:
        """Return a JSON object with the schema ``mdir-hf/survey/3``."""
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False, allow_nan=False)


MOST_PAIRS = 15
"""Maximum number of pairs shown per group; the JSON output contains all pairs."""


def survey_text(report: SurveyReport) -> str:
    """Return a survey as text: groups with their weakest pairs, lone models, and the number of compared pairs."""
    lines = [] if report.is_complete else [_unfinished(report)]
    for group, pairs in report.related_by_group().items():
        lines += _group_lines(report, group, pairs)
    n_compared, n_others = report.n_compared(), len(report.names) - 1
    n_others -= sum(result.error is not None for result in report.models.values())
    so_far = "" if report.is_complete else " so far"
    for name in report.without_relatives():
        how_many = f", compared with {n_compared[name]} of {n_others}" if n_compared[name] < n_others else ""
        lines.append(f"no relative found{so_far}{how_many}: {name}")
    if report.is_complete and (open_pairs := report.layers_to_compare()):
        looks = "1 full comparison" if len(open_pairs) == 1 else f"{len(open_pairs)} full comparisons"
        lines.append(f"layers were not compared; add --layers to the same command to compare them: {looks}")
    lines += [f"not read: {name}: {model.error}" for name, model in report.models.items() if model.error]
    lines += [f"not computed: {a} ~ {b}: {pair.error}" for (a, b), pair in report.pairs.items() if pair.error]
    for first, middle, second in report.contradictions():
        not_found = report.not_found(first, second)
        lines.append(f"worth a look: {middle} is related to {first} and to {second}; {first} ~ {second}: {not_found}")
    if any(model.declared_bases is not None for model in report.models.values()):
        lines += [f"related, and declared by neither: {a} ~ {b}" for a, b in report.undeclared()]
        lines += [f"declared, and {report.not_found(*pair)}: {' from '.join(pair)}" for pair in report.unsupported()]
    if report.is_complete:
        lines.append(report.progress_text)
    if report.is_complete and report.n_not_compared:
        lines.append(f"{report.n_not_compared:,} pairs: {NOT_NOMINATED}")
    return "\n".join(lines)


def _unfinished(report: SurveyReport) -> str:
    """Return the line that says how much of a survey is missing."""
    if report.pairs:
        return f"not finished: {report.progress_text}; groups may grow"
    n_read = len(report.readable())
    return f"not finished: {n_read:,} of {len(report.names):,} models read, and no pair compared yet"


def _group_lines(report: SurveyReport, group: tuple[str, ...], related: Sequence[Pair]) -> list[str]:
    from mdir_hf.render.model_words import ledger_sentences
    from mdir_hf.render.projection_words import drift_text

    lines = [f"group: {', '.join(group)}"]
    # In a large group the weakest relations are the interesting ones.
    for pair in sorted(related, key=lambda pair: report.pairs[pair].log10_p or 0.0, reverse=True)[:MOST_PAIRS]:
        result = report.pairs[pair]
        how = f", {result.found_by}" if result.found_by else ""
        drift = f"; {drift_text(result.layer_drift)}" if result.layer_drift else ""
        lines.append(f"  {pair[0]} ~ {pair[1]}: {result.strength}{how}{drift}")
        lines += [f"    compared {text}" for text in ledger_sentences(pair, result.ledger or ("", ""))]
    if len(related) > MOST_PAIRS:
        lines.append(f"  and {len(related) - MOST_PAIRS} more related pairs of this group, which agree more")
    return lines
