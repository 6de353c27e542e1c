"""Puts the evidence that settled the question before everything else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mdir_hf.render.sections import FigureName, Section, SectionKind
from mdir_hf.report.result import HomologyReport
from mdir_hf.report.terms import SettledBy

_EMBEDDINGS = (SectionKind.EVIDENCE, (FigureName.EMBEDDING_MATCHED, FigureName.EMBEDDING))

_DECIDING = {
    SettledBy.SCREEN: _EMBEDDINGS,
    SettledBy.EMBEDDING: _EMBEDDINGS,
    SettledBy.UNEMBEDDING: (SectionKind.EVIDENCE, (FigureName.UNEMBEDDING_MATCHED, FigureName.UNEMBEDDING)),
    SettledBy.NEURONS: (SectionKind.LAYERS, (FigureName.NEURONS,)),
    SettledBy.LAYERS: (SectionKind.LAYERS, (FigureName.LAYERS,)),
}
"""The section of each step, and its figures, the most telling first."""


def deciding_kind(report: HomologyReport) -> SectionKind | None:
    """Return the section of the evidence that settled the question, or None."""
    return _DECIDING[report.settled_by][0] if report.settled_by in _DECIDING else None


def deciding_figures(report: HomologyReport) -> tuple[FigureName, ...]:
    """Return figures of the evidence that settled the question, the most telling first."""
    return _DECIDING[report.settled_by][1] if report.settled_by in _DECIDING else ()


def deciding_first(report: HomologyReport, sections: Sequence[Section]) -> tuple[Section, ...]:
    """Move the section that settled the question, and its best figure, to the front."""
    kind, first = deciding_kind(report), deciding_figures(report)
    decided = [section for section in sections if section.kind is kind]
    return (
        *(
            replace(
                section,
                title=f"What decided: {report.settled_by.words}" if report.settled_by else section.title,
                figures=tuple(sorted(section.figures, key=lambda name: _place(name, first))),
            )
            for section in decided
        ),
        *(section for section in sections if section.kind is not kind),
    )


def _place(name: FigureName, first: Sequence[FigureName]) -> int:
    """Return the place of a figure in a list, or after its end."""
    return first.index(name) if name in first else len(first)
