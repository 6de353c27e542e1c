"""A survey's results: the models, the pairs, and the report on them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from itertools import combinations
from typing import Any, ClassVar, Literal

import numpy as np
from scipy.sparse.csgraph import connected_components

from mdir_hf.report import HomologyReport, LayerDrift, ModelSummary, SettledBy
from mdir_hf.report.parts import Count, Log10P
from mdir_hf.report.words import THE_SAME_FILES
from mdir_hf.validation import AS_WRITTEN

SCHEMA = "mdir-hf/survey/2"

MOST_COMPARED = 16
"""Largest survey in which all pairs that stored neurons do not settle are compared in full: at most 120 pairs."""

MOST_DESCRIBED = 8
"""Largest group in which the layers of all pairs are described."""

Pair = tuple[str, str]
"""Two model names, in the order of the survey's list."""


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
        agreement: How much agrees, such as ``all 256 neurons that were tested in 4 layers match``, or None.
        layers_compared: Whether the result comes from a full comparison.
        layer_drift: How much of each layer agrees and how far each layer has moved, or None.
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
    settled_by: SettledBy | None = None
    agreement: str | None = None
    layers_compared: bool = False
    layers_error: str | None = None
    layer_drift: tuple[LayerDrift, ...] | None = None

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
            return f"log10 p {min(0, math.ceil(self.log10_p)):,}"
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
        )


@dataclass(frozen=True, slots=True)
class SurveyReport:
    """A survey, possibly incomplete.

    Attributes:
        names: Model names, in the requested order.
        models: Models tried so far, keyed by name.
        pairs: Compared pairs, keyed by their models' names in the order of the list.
        settings: Alpha, seed, number of sampled tokens, name of the sample, and version.
    """

    names: tuple[str, ...]
    models: Mapping[str, ModelResult]
    pairs: Mapping[Pair, PairResult]
    settings: Mapping[str, Any] = field(default_factory=dict)

    def readable(self) -> tuple[str, ...]:
        """Return the models that were read."""
        return tuple(name for name in self.names if name in self.models and self.models[name].error is None)

    def missing(self) -> tuple[Pair, ...]:
        """Return pairs of readable models that have not been compared."""
        return tuple(pair for pair in combinations(self.readable(), 2) if pair not in self.pairs)

    @property
    def n_possible_pairs(self) -> int:
        """Number of pairs, excluding models that could not be read."""
        unreadable = sum(result.error is not None for result in self.models.values())
        return math.comb(len(self.names) - unreadable, 2)

    @property
    def is_complete(self) -> bool:
        """Whether all models were tried, and all readable pairs compared."""
        return all(name in self.models for name in self.names) and not self.missing()

    @property
    def progress_text(self) -> str:
        """Progress as text, such as ``2 of 8 models read, 1 of 28 pairs compared``."""
        n_read, n_pairs = len(self.readable()), len(self.pairs)
        pairs = f"{n_pairs} of {self.n_possible_pairs} pairs"
        if self.is_complete:
            pairs = "1 pair" if n_pairs == 1 else f"{n_pairs} pairs"
        return f"{n_read} of {len(self.names)} models read, {pairs} compared"

    def compared_with(self, name: str) -> tuple[int, int]:
        """Return how many models ``name`` was compared with, and how many it can be compared with."""
        n_compared = sum(name in pair and result.verdict is not None for pair, result in self.pairs.items())
        n_others = sum(
            other_name != name and (other_name not in self.models or self.models[other_name].error is None)
            for other_name in self.names
        )
        return n_compared, n_others

    def is_related(self, first: str, second: str) -> bool:
        """Return whether a pair is homologous."""
        result = self.pairs.get((first, second)) or self.pairs.get((second, first))
        return result is not None and result.verdict == "homologous"

    @property
    def compared(self) -> str:
        """The data compared for each pair, as text."""
        if any(result.layers_compared for result in self.pairs.values()):
            return "neurons of four layers; some pairs that these do not settle in full"
        return "neurons of four layers"

    def not_found(self, first: str, second: str) -> str:
        """Return the text to show if no relation was found between two models."""
        result = self.pairs.get((first, second)) or self.pairs.get((second, first))
        return "not compared" if result is None else result.not_found

    def groups(self) -> tuple[tuple[str, ...], ...]:
        """Return groups of models connected by homologous pairs, largest first, including single models."""
        place = {name: at for at, name in enumerate(self.names)}
        related = np.zeros((len(place), len(place)), dtype=bool)
        for first, second in self.pairs:
            related[place[first], place[second]] = self.is_related(first, second)
        members: dict[int, list[str]] = {}
        for name, group in zip(self.names, connected_components(related, directed=False)[1], strict=True):
            members.setdefault(int(group), []).append(name)
        return tuple(sorted(map(tuple, members.values()), key=lambda group: -len(group)))

    def without_relatives(self) -> tuple[str, ...]:
        """Return models that were compared but have no relative."""
        compared_names = {name for pair, result in self.pairs.items() if result.verdict is not None for name in pair}
        return tuple(group[0] for group in self.groups() if len(group) == 1 and group[0] in compared_names)

    def layers_to_compare(self) -> tuple[Pair, ...]:
        """Return pairs for full comparisons: all that are not homologous, or some of them in large surveys.

        If more than :data:`MOST_COMPARED` models were read, each model without a relative is compared with one model of
        every other group.
        """
        readable = self.readable()
        if len(readable) <= MOST_COMPARED:
            pairs = [pair for pair in combinations(readable, 2) if not self.is_related(*pair)]
        else:
            lone = set(self.without_relatives())
            firsts = sorted((group[0] for group in self.groups() if group[0] in readable), key=self.names.index)
            pairs = [pair for pair in combinations(firsts, 2) if lone & set(pair)]
        return tuple(pair for pair in pairs if pair in self.pairs and not self.pairs[pair].layers_compared)

    def relatives_to_describe(self) -> tuple[Pair, ...]:
        """Return related pairs whose layers are not yet described, excluding pairs with identical files.

        If a group has more than :data:`MOST_DESCRIBED` models, only its pairs with the first model are returned.
        """
        pairs = []
        for group in self.groups():
            first = min(group, key=self.names.index)
            are_few = len(group) <= MOST_DESCRIBED
            members = set(group)
            pairs += [
                pair
                for pair, result in self.pairs.items()
                if members.issuperset(pair)
                and (are_few or first in pair)
                and result.verdict == "homologous"
                and not result.same_files
                and result.layer_drift is None
            ]
        return tuple(pairs)

    def contradictions(self) -> tuple[tuple[str, str, str], ...]:
        """Return triples whose outer models are related to the middle one, but were not found related to each other.

        The middle model may merge unrelated parents, or the sample may miss a weak relation.
        """
        triples = []
        for group in self.groups():
            for middle in group:
                kin = [name for name in group if name != middle and self.is_related(middle, name)]
                for first, second in combinations(kin, 2):
                    if not self.is_related(first, second):
                        triples.append((first, middle, second))
        return tuple(triples)

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
        """Return pairs of a model and its declared base that were not found to be related."""
        return tuple(
            (name, base)
            for name in self.readable()
            for base in self.models[name].declared_bases or ()
            if base in self.models and base != name and not self.is_related(name, base)
        )

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-serialisable dict."""
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
        """Return a JSON object with the schema ``mdir-hf/survey/2``."""
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False, allow_nan=False)
