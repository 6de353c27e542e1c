"""Records for the sections of a report, which all renderers share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from mdir_hf.render.ledger import Shares
from mdir_hf.report.result import HomologyReport
from mdir_hf.report.terms import SettledBy, Term

NAME_LENGTH = 80
"""Maximum length of a model's name in a readable report."""


class SectionKind(Term):
    """The subject of a section; the value is the section's anchor on a page."""

    VERDICT = "verdict"
    NOT_MEANING = "not-meaning"
    CAVEATS = "caveats"
    DIRECTION = "direction"
    EXCLUDES = "excludes"
    MODELS = "models"
    EVIDENCE = "evidence"
    LAYERS = "layers"
    MODULES = "modules"
    REPRODUCE = "reproduce"
    READ = "read"


class FigureName(Term):
    """A figure in a report, with a hint on how to read it."""

    EMBEDDING = (
        "embedding",
        "Each cell is the largest entry of a block of the polar factor. In a copy each channel has one clear "
        "partner. In a copy with rotated channels there is only noise, as in unrelated models.",
    )
    EMBEDDING_MATCHED = (
        "embedding_matched",
        "The polar factor with every channel beside its match: matches are on the diagonal.",
    )
    UNEMBEDDING = "unembedding", "The polar factor on the output side of the model (lm_head)."
    UNEMBEDDING_MATCHED = "unembedding_matched", "The unembeddings with every channel beside its match."
    NEURONS = (
        "neurons",
        "Each cell counts the tested neurons of one pair of layers that are copies of each other, after a rotation "
        "that was fitted on other neurons. Half of them make a match. Pairs that this step did not compare count as 0.",
    )
    LAYERS = (
        "layers",
        "Each cell is the evidence for one pair of layers. Copies in place form a diagonal; inserted or repeated "
        "layers break it.",
    )
    FLOW = (
        "flow",
        "Layers of the reference on the left, layers of the candidate on the right, and a line for each match.",
    )
    DRIFT = (
        "drift",
        "One band for each projection. Cosines of fine-tunes are close to 1; a layer that moved more lies lower.",
    )


class Line(NamedTuple):
    """A line for a terminal: a label (empty on continuation lines) and text."""

    label: str
    text: str


@dataclass(frozen=True, slots=True)
class Fact:
    """A named value and its meaning.

    Decisive facts, such as p and the settling step, are shown next to the verdict.
    """

    name: str
    value: str
    meaning: str
    is_decisive: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of text with column headers; the first cell of each row is its header."""

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Listing:
    """Code to copy, in ``sh`` or ``python``."""

    language: str
    text: str


@dataclass(frozen=True, slots=True)
class Section:
    """One section of a report. Fields are in the order in which a page shows them.

    Attributes:
        brief: Summary in a few lines, the only field that a terminal shows.
        figures: Figures to show if the report has data for them.
        is_detail: Whether the short form omits this section.
    """

    kind: SectionKind
    title: str
    brief: tuple[Line, ...] = ()
    paragraphs: tuple[str, ...] = ()
    bullets: tuple[str, ...] = ()
    facts: tuple[Fact, ...] = ()
    tables: tuple[Table, ...] = ()
    figures: tuple[FigureName, ...] = ()
    code: tuple[Listing, ...] = ()
    ledger: tuple[Shares, ...] = ()
    is_detail: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether the section has only a title."""
        return not (self.brief or self.paragraphs or self.bullets or self.facts or self.tables or self.code)


def number(value: float | None, digits: int = 1) -> str:
    """Format a number, or None as a dash."""
    return "–" if value is None else f"{value + 0.0:.{digits}f}".replace("-0.0", "0.0")


def percent(share: float) -> str:
    """Format a fraction as a percentage with three significant digits."""
    return f"{100.0 * share:.3g}%"


def deciding_kind(report: HomologyReport) -> SectionKind | None:
    """Return the section with the evidence that settled the question, or None."""
    is_shown = report.settled_by not in (None, SettledBy.IDENTICAL_FILES)
    return SectionKind.EVIDENCE if is_shown else None


def deciding_figures(report: HomologyReport) -> tuple[FigureName, ...]:
    """Return the figures of the evidence that settled the question."""
    is_drawn = report.neurons is not None and report.neurons.step is report.settled_by
    return (FigureName.NEURONS,) if is_drawn else ()


def deciding_first(report: HomologyReport, sections: Sequence[Section]) -> tuple[Section, ...]:
    """Move the section with the deciding evidence to the front, and name the step in its title."""
    kind = deciding_kind(report)
    decided = [section for section in sections if section.kind is kind]
    return (
        *(
            replace(section, title=f"What decided: {report.settled_by.words}" if report.settled_by else section.title)
            for section in decided
        ),
        *(section for section in sections if section.kind is not kind),
    )
