"""Facts that show which of two relatives came first."""

from __future__ import annotations

from dataclasses import dataclass

from mdir_hf.report.parts import ModelSummary, Part
from mdir_hf.report.terms import Term


class FactKind(Term):
    """A fact that shows a direction, or a date of an upload."""

    ROUNDED = "rounded", "values of one model are values of the other, rounded"
    REPEATED_LAYERS = "repeated_layers", "one model holds layers of the other twice"
    NEW_TOKENS = "new_tokens", "one model has rows for further tokens, at the mean of the others"
    ADAPTER = "adapter", "one model is an adapter on the other"
    ON_RECORD = "on_record_earlier", "the Hub has a record of one model earlier"


def fact_side(model: ModelSummary) -> str:
    """Return the name of a model in a fact: at its commit, with its folder and variant if it has any."""
    return model.pinned + "".join(f" ({part})" for part in (model.subfolder, model.variant) if part)


@dataclass(frozen=True, slots=True)
class DirectionFact(Part):
    """One fact. In JSON ``earlier`` is called ``from``, and ``later`` is called ``to``.

    A fact on weights says that ``later`` was made from ``earlier``, or from a relative of ``earlier`` that has the same
    values, rows or layers.

    Attributes:
        fact: The kind of fact.
        earlier: The model that existed first: ``owner/name@commit``, or a folder.
        later: The model that was made from it.
        evidence: One sentence.
    """

    fact: FactKind
    earlier: str
    later: str
    evidence: str

    @property
    def is_of_weights(self) -> bool:
        """Whether the fact rests on weights; dates of records show no derivation."""
        return self.fact is not FactKind.ON_RECORD

    def to_dict(self) -> dict[str, str]:
        """Return plain containers with the names of the JSON."""
        return {"fact": str(self.fact), "from": self.earlier, "to": self.later, "evidence": self.evidence}
