"""Trace each part of a composite model to a base."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from mdir_hf.render.sentence import experts_text
from mdir_hf.report import HomologyReport, Verdict
from mdir_hf.report.parts import ExpertOrigin, PartCoverage, Treatment

LANGUAGE = "language model"
EXPERTS = f"experts of the {LANGUAGE}"
_NO_PARTS_OF_THEIR_OWN = ("norms, biases and buffers", "storage", "unplaced")


@dataclass(frozen=True, slots=True)
class PartOrigin:
    """A part of a model, and the base that shares weights with it, if any.

    Attributes:
        part: Name as in ``mdir-hf inspect``, or a name such as ``experts of layer 3``.
        experts: The matching experts if the part consists of a layer's experts, else None.
        is_compared: Whether the part was compared with any base.
    """

    part: str
    base: str | None
    part_of_base: str | None = None
    experts: tuple[ExpertOrigin, ...] | None = None
    is_compared: bool = True

    def __str__(self) -> str:
        if self.base is None:
            return f"{self.part}: {'no base that was compared shares it' if self.is_compared else 'not compared'}"
        if self.experts is not None:
            candidate_experts = experts_text(origin.candidate for origin in self.experts)
            reference_experts = experts_text(origin.reference for origin in self.experts)
            return f"{self.part}: {candidate_experts} from {reference_experts} of {self.base}"
        of_its = "" if self.part_of_base in (None, self.part) else f", its {self.part_of_base}"
        return f"{self.part}: {self.base}{of_its}"


def origins_of_parts(reports: Mapping[str, HomologyReport]) -> tuple[PartOrigin, ...]:
    """Collect the origins of a model's parts from its comparisons with bases.

    Parts that match no base come last. The result is empty if the model is a single stack without experts, or if no
    report lists parts.
    """
    parts = _parts_of_model(reports.values())
    origins: list[PartOrigin] = []
    for base, report in reports.items():
        related = [pair for pair in report.parts or () if pair.verdict is Verdict.HOMOLOGOUS]
        alone = {EXPERTS} if any(pair.experts for pair in related) else set()
        if report.verdict is Verdict.HOMOLOGOUS:
            shared = _parts_that(report, lambda entry: entry.is_match is True)
            origins += [PartOrigin(part, base, part) for part in (LANGUAGE, EXPERTS) if part in shared - alone]
        origins += [PartOrigin(pair.candidate, base, pair.reference, pair.experts) for pair in related]
    if len(parts) < 2:
        return ()
    parts_with_base = {origin.part for origin in origins}
    if any(origin.experts for origin in origins):  # a match in some layers accounts for the experts of all layers
        parts_with_base |= {part for part in parts if part.startswith("experts of the")}
    compared_parts = {part for report in reports.values() for part in _parts_that(report, _is_compared)}
    unknown = [
        PartOrigin(part, None, is_compared=part in compared_parts) for part in parts if part not in parts_with_base
    ]
    order = {part: at for at, part in enumerate(parts)}
    return tuple(sorted(origins, key=lambda origin: order.get(origin.part, len(order)))) + tuple(unknown)


def _parts_that(report: HomologyReport, are_so: Callable[[PartCoverage], bool]) -> set[str]:
    """Return the names of the model's parts whose entries in the ledger meet a condition."""
    return set() if report.coverage is None else {entry.part for entry in report.coverage.candidate if are_so(entry)}


def _parts_of_model(reports: Iterable[HomologyReport]) -> tuple[str, ...]:
    ledgers = [report.coverage.candidate for report in reports if report.coverage is not None]
    ledger = max(ledgers, key=len, default=())
    return tuple(dict.fromkeys(entry.part for entry in ledger if _has_layers(entry)))


def _is_compared(entry: PartCoverage) -> bool:
    return entry.treatment is not Treatment.NOT_COMPARED


def _has_layers(entry: PartCoverage) -> bool:
    is_own = not entry.part.startswith(_NO_PARTS_OF_THEIR_OWN)
    return entry.layers > 0 and is_own and (" of the " not in entry.part or entry.part.startswith("experts of the"))
