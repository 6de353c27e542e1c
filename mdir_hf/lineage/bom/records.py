"""The bases of a model for its bill of materials: declared or found, and the place of each in a pedigree."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Literal

from mdir_hf.lineage.cards.claim import is_hub_id
from mdir_hf.lineage.cards.verify_lineage import LineageCheck
from mdir_hf.lineage.family import Family, layers_text
from mdir_hf.report import FactKind, HomologyReport, NeuronNumbers, Term, Verdict, fact_side

Place = Literal["ancestors", "variants"]


class Standing(Term):
    """How a base stands after its declaration was set beside its measurement."""

    CONFIRMED = "confirmed", "declared and confirmed"
    FOUND = "found", "found, and not declared"
    NOT_CONFIRMED = "not_confirmed", "declared and not confirmed"
    NOT_MEASURED = "not_measured", "declared and not measured"


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseRecord:
    """One base of a model.

    Attributes:
        name: Its repo id.
        declared_in: The file that declares it; None if it is not declared.
        relation: The relation that is declared, such as ``finetune``.
        report: The comparison with it, the base as the reference; None if there was none.
        why_not: Why there was none.
        found_by: The evidence of the index that found it; None if it did not.
        commit: The commit of the base that was looked at.
        neurons: Which layers match, if they were mapped.
    """

    name: str
    declared_in: str | None = None
    relation: str | None = None
    report: HomologyReport | None = None
    why_not: str | None = None
    found_by: str | None = None
    commit: str | None = None
    neurons: NeuronNumbers | None = None

    @property
    def is_on_hub(self) -> bool:
        """Whether its name is the id of a repository on the Hub."""
        return is_hub_id(self.name) and (self.commit is not None or self.declared_in is not None)

    @property
    def shown(self) -> str:
        """Its name; of a folder the last part, because paths are not published."""
        return self.name if self.is_on_hub else PurePath(self.name).name or "model"

    @property
    def is_related(self) -> bool:
        """Whether the measurement shows shared weight ancestry of the language models."""
        if self.report is not None:
            return self.report.verdict is Verdict.HOMOLOGOUS
        return self.found_by is not None

    @property
    def standing(self) -> Standing | None:
        """How it stands; None if it is neither declared nor found."""
        if self.is_related:
            return Standing.FOUND if self.declared_in is None else Standing.CONFIRMED
        if self.declared_in is None:
            return None
        return Standing.NOT_MEASURED if self.report is None else Standing.NOT_CONFIRMED

    @property
    def place(self) -> Place | None:
        """Its place in a pedigree; None if it has none.

        A base is an ancestor if its declaration is confirmed and no fact speaks for the other direction, or if the
        model is an adapter on it. Other relatives are variants, which CycloneDX defines as related with no known
        direction: a fact on weights may hold for a relative of the base instead.
        """
        if not self.is_related:
            return None
        facts = [] if self.report is None else [fact for fact in self.report.direction if fact.is_of_weights]
        base = None if self.report is None else fact_side(self.report.reference)
        if any(fact.earlier != base for fact in facts):
            return "variants"
        is_under_adapter = any(fact.fact is FactKind.ADAPTER for fact in facts)
        return "ancestors" if self.declared_in is not None or is_under_adapter else "variants"

    @property
    def matched_parts(self) -> tuple[tuple[str, str], ...]:
        """Parts of the model that match the base: name of the part, and which layers match."""
        parts: list[tuple[str, str]] = []
        if self.is_related:
            parts.append(("language model", "" if self.neurons is None else layers_text(self.neurons)))
        for pair in (self.report.parts or ()) if self.report is not None else ():
            if pair.verdict is Verdict.HOMOLOGOUS:
                what, n = ("layer", len(pair.layers)) if pair.experts is None else ("expert", len(pair.experts))
                which = f"{n} {what}{'' if n == 1 else 's'} matched, log10 p = {pair.log10_p:.1f}"
                parts.append((pair.candidate, f"{which}, with {pair.reference} of {self.name}"))
        return tuple(parts)


def records_of_report(report: HomologyReport) -> tuple[BaseRecord, ...]:
    """Return the reference of a report as a base of its candidate; a report knows no declaration."""
    reference = report.reference
    return (BaseRecord(name=reference.repo, report=report, commit=reference.commit),)


def records_of_check(check: LineageCheck) -> tuple[BaseRecord, ...]:
    """Return the bases that a card declares, as ``verify`` measured them."""
    declared = check.declared
    return tuple(
        BaseRecord(
            name=one.base,
            declared_in=declared.source or "README.md",
            relation=declared.relation,
            report=one.report,
            why_not=one.why_not,
            commit=None if one.report is None else one.report.reference.commit,
        )
        for one in check.bases
    )


def records_of_family(family: Family) -> tuple[BaseRecord, ...]:
    """Return the bases that an index found and those that the card declares, each once."""
    records = {} if family.declared is None else {one.name: one for one in records_of_check(family.declared)}
    for found in () if family.found is None else family.found.found:
        name = found.base.repo
        declared = records.get(name)
        report = declared.report if declared is not None and declared.report is not None else found.report
        records[name] = BaseRecord(
            name=name,
            declared_in=None if declared is None else declared.declared_in,
            relation=None if declared is None else declared.relation,
            report=report,
            found_by=found.evidence,
            commit=found.base.commit if report is None else report.reference.commit,
        )
    return tuple(_with_layers(record, family) for record in records.values())


def _with_layers(record: BaseRecord, family: Family) -> BaseRecord:
    return replace(record, neurons=family.layers.get(record.name))
