"""Which part of a composite model (language model, towers, experts) comes from which base, by reports on each base."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from mdir_hf.render.sentence import experts_text
from mdir_hf.report import HomologyReport, Verdict
from mdir_hf.report.coverage import PartCoverage
from mdir_hf.report.parts import ExpertOrigin

LANGUAGE = "language model"
_NO_PARTS_OF_THEIR_OWN = ("norms, biases and buffers", "storage", "unplaced")


@dataclass(frozen=True, slots=True)
class PartOrigin:
    """One part of a model and a base that shares weights with it.

    Attributes:
        part: Name of the part, as ``mdir-hf inspect`` lists it, or ``experts of layer 3``.
        base: The base; None if no base that was compared shares weights with the part.
        part_of_base: Name of the part of the base; None without a base.
        experts: If the part is the experts of a layer: the experts that match. None for other parts.
    """

    part: str
    base: str | None
    part_of_base: str | None = None
    experts: tuple[ExpertOrigin, ...] | None = None

    def __str__(self) -> str:
        if self.base is None:
            return f"{self.part}: not from a base that was compared"
        if self.experts is not None:
            mine = experts_text(origin.candidate for origin in self.experts)
            theirs = experts_text(origin.reference for origin in self.experts)
            return f"{self.part}: {mine} from {theirs} of {self.base}"
        of_its = "" if self.part_of_base in (None, self.part) else f", its {self.part_of_base}"
        return f"{self.part}: {self.base}{of_its}"


def origins_of_parts(reports: Mapping[str, HomologyReport]) -> tuple[PartOrigin, ...]:
    """Collect the origins of the parts of a model.

    Args:
        reports: By base: comparisons of the model, as the candidate, with the base as the reference.

    Returns:
        Each part with each base that shares weights with it, in the order of the inventory, then parts without one.
        Empty if the model has one stack and no experts, or if no ledger tells its parts.
    """
    parts = _parts_of_model(reports.values())
    origins: list[PartOrigin] = []
    for base, report in reports.items():
        if report.verdict is Verdict.HOMOLOGOUS and _shares_language_model(report):
            origins.append(PartOrigin(LANGUAGE, base, LANGUAGE))
        origins += [
            PartOrigin(pair.candidate, base, pair.reference, pair.experts)
            for pair in report.parts or ()
            if pair.verdict is Verdict.HOMOLOGOUS
        ]
    if len(parts) < 2:
        return ()
    told = {origin.part for origin in origins}
    if any(origin.experts for origin in origins):  # of some layers, which stand for the experts of all
        told |= {part for part in parts if part.startswith("experts of the")}
    unknown = [PartOrigin(part, None) for part in parts if part not in told]
    order = {part: at for at, part in enumerate(parts)}
    return tuple(sorted(origins, key=lambda origin: order.get(origin.part, len(order)))) + tuple(unknown)


def _shares_language_model(report: HomologyReport) -> bool:
    """Whether layers of the two language models match, or nothing but their embeddings was needed."""
    has_neurons = report.neurons is not None and bool(report.neurons.matches)
    has_layers = report.layers is not None and bool(report.layers.matches)
    return has_neurons or has_layers or not any(pair.verdict is Verdict.HOMOLOGOUS for pair in report.parts or ())


def _parts_of_model(reports: Iterable[HomologyReport]) -> tuple[str, ...]:
    """Names of the stacks and experts of the model, by the ledger with most parts."""
    ledgers = [report.coverage.candidate for report in reports if report.coverage is not None]
    ledger = max(ledgers, key=len, default=())
    return tuple(entry.part for entry in ledger if _has_layers(entry))


def _has_layers(entry: PartCoverage) -> bool:
    """Whether an entry is a stack or the experts of one, and not a kind of matrices inside of a stack."""
    is_own = not entry.part.startswith(_NO_PARTS_OF_THEIR_OWN)
    return entry.layers > 0 and is_own and (" of the " not in entry.part or entry.part.startswith("experts of the"))
