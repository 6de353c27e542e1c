"""The tabs under a verdict: the sections of the report's description, each with what to look for and its pictures."""

from __future__ import annotations

from mdir_hf import HomologyReport, SectionKind, describe, section_html
from mdir_space.markup import prose
from mdir_space.pictures import Pictures

_NO_LAYERS = (
    "The layers were not compared: the question was settled before, or the level does not reach them. The level “body” "
    "maps and analyses every layer."
)
INTRODUCTIONS = {
    SectionKind.EVIDENCE: (
        "Both models have one row of weights per token. On the tokens that both know, the rows of one are multiplied "
        "with those of the other. The polar factor of that product is the rotation that fits best (Procrustes). In "
        "relatives it is close to a permutation of the channels. In unrelated models it is noise."
    ),
    SectionKind.LAYERS: "Every layer of one model was tested against every layer of the other.",
    SectionKind.MODULES: (
        "Each matrix of each matched pair of layers was tested by itself: queries and keys up to rotations of their "
        "position planes, values and outputs up to any change inside a head, MLPs up to a reordering of neurons."
    ),
    SectionKind.CALIBRATION: (
        "A p-value is worth what its assumptions are worth, so the same test is run where there is nothing to find. "
        "It must not be significant there. If it is, the verdict is inconclusive and says so."
    ),
}
NOT_RUN = {
    SectionKind.EVIDENCE: "No weights were compared: the files of both models have the same digests.",
    SectionKind.LAYERS: _NO_LAYERS,
    SectionKind.MODULES: "No module was tested. The layers were not compared, or none of them has an ancestor.",
    SectionKind.CALIBRATION: "No placebo was run: no weights were compared, or too few rows to tell.",
}


def panel(report: HomologyReport, kind: SectionKind, pictures: Pictures) -> str:
    """Return one tab.

    Args:
        report: The report.
        kind: Which section of its description.
        pictures: Its figures.
    """
    section = next((section for section in describe(report) if section.kind is kind), None)
    if section is None:
        return prose(NOT_RUN[kind])
    return prose(INTRODUCTIONS[kind]) + section_html(section, pictures.images(section.figures))
