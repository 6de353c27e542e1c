"""The parts of a description: typed text, before it becomes terminal output, Markdown or HTML."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from mdir_hf.report.terms import Term


class SectionKind(Term):
    """What a section is about; its value is its anchor in a page."""

    VERDICT = "verdict"
    NOT_MEANING = "not-meaning"
    CAVEATS = "caveats"
    DIRECTION = "direction"
    EXCLUDES = "excludes"
    SCALE = "scale"
    MODELS = "models"
    EVIDENCE = "evidence"
    CALIBRATION = "calibration"
    LAYERS = "layers"
    MODULES = "modules"
    REPRODUCE = "reproduce"
    READ = "read"


class FigureName(Term):
    """A figure of a report, with what to look for in it; which there are depends on what was run."""

    EMBEDDING = (
        "embedding",
        "Each cell is the largest entry of a block of the polar factor. In relatives each channel stands out with its "
        "one partner; in unrelated models there is only noise.",
    )
    EMBEDDING_MATCHED = (
        "embedding_matched",
        "The same with every channel beside the one that it matches: the diagonal is the match.",
    )
    UNEMBEDDING = "unembedding", "The same test on the output side of the model (lm_head)."
    UNEMBEDDING_MATCHED = "unembedding_matched", "The unembeddings with every channel beside the one that it matches."
    LOOKS = "looks", "Reading stops at the first decisive look. p is corrected for every look."
    NULL = (
        "null",
        "Each bar is a trace over the trace that unrelated models pass once in a thousand (the line). A placebo is the "
        "same test where there is nothing to find.",
    )
    LAYERS = (
        "layers",
        "Each cell is the evidence for one pair of layers, before it is corrected for the number of pairs. Copies in "
        "place are a diagonal; inserted or repeated layers break it.",
    )
    FLOW = (
        "flow",
        "The layers of the reference on the left, those of the candidate on the right, and a line for each match.",
    )
    MODULES = (
        "modules",
        "One column for each matched pair of layers, one row for each part, with its most significant test.",
    )


class Line(NamedTuple):
    """A line for a terminal: a label, empty where it goes on with what stands above, and text."""

    label: str
    text: str


@dataclass(frozen=True, slots=True)
class Fact:
    """A quantity.

    Attributes:
        name: What it is called.
        value: Its value, as text.
        meaning: What it is, as a sentence.
    """

    name: str
    value: str
    meaning: str


@dataclass(frozen=True, slots=True)
class Table:
    """Rows whose first cell is their header.

    Attributes:
        caption: What it holds.
        columns: Headers of the columns, the first of that of the row headers.
        rows: Cells, as text.
    """

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Listing:
    """Lines to copy, in a language: sh, python."""

    language: str
    text: str


@dataclass(frozen=True, slots=True)
class Scale:
    """A p beside measured ones, to be drawn.

    Attributes:
        strangers: log10 p of pairs of unrelated models, ascending.
        relatives: The same of related ones.
        log10_p: That of this pair.
        alpha: The level of significance.
        words: Where it stands, in words.
    """

    strangers: tuple[float, ...]
    relatives: tuple[float, ...]
    log10_p: float
    alpha: float
    words: str


@dataclass(frozen=True, slots=True)
class Section:
    """One section of a description.

    Attributes:
        kind: What it is about.
        title: Heading.
        brief: What it says in a few lines; all that a terminal shows of it, and nothing else does.
        paragraphs: Text.
        bullets: Text, as a list after the paragraphs.
        facts: Quantities, after that.
        tables: After that.
        figures: Figures that belong here, of those that the report has.
        code: Listings.
        scale: A p beside measured ones.
        is_detail: Whether the short form leaves it out.
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
    scale: Scale | None = None
    is_detail: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing but its title."""
        return not (self.brief or self.paragraphs or self.bullets or self.facts or self.tables or self.code)


def number(value: float | None, digits: int = 1) -> str:
    """A number to read; a dash for None."""
    return "–" if value is None else f"{value + 0.0:.{digits}f}".replace("-0.0", "0.0")


def percent(share: float) -> str:
    """A share to read, three digits."""
    return f"{100.0 * share:.3g}%"


def counted(n: int, what: str) -> str:
    """A number of things."""
    return f"{n:,} {what}" if n == 1 else f"{n:,} {what}s"
