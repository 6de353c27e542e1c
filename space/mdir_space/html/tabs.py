"""The tabs below a verdict: sections of the report, each with an introduction and its figures."""

from __future__ import annotations

from markupsafe import Markup

from mdir_hf import HomologyReport
from mdir_hf.render.description import describe
from mdir_hf.render.sections import SectionKind, deciding_first
from mdir_hf.report import SettledBy
from mdir_space.html.figures import ReportFigures
from mdir_space.html.links import link_to_layers
from mdir_space.html.templates import render

_NO_LAYERS = (
    "The layers were not compared: an earlier step settled the question, the level excludes them, or a model has none."
)
_BY_NEURONS = "Some layers of one model were tested against some of the other, by a few neurons of each."
INTRODUCTIONS = {
    SectionKind.EVIDENCE: (
        "Both models have one row of weights per token. On the shared tokens, the rows of one model are multiplied "
        "with the rows of the other. The polar factor of that product is the best-fitting rotation (Procrustes). In "
        "related models each channel has one counterpart, which looks like a shuffled diagonal. In unrelated models "
        "there is only noise."
    ),
    SectionKind.LAYERS: "Layers of one model were tested against layers of the other; level layers tests all.",
    SectionKind.MODULES: (
        "Matrices of matched layers were tested one by one, up to changes that do not affect the output of the model: "
        "queries and keys may be rotated inside each pair of rotary dimensions, values and outputs may be changed in "
        "any way inside a head, and neurons may be reordered."
    ),
    SectionKind.CALIBRATION: (
        "A p-value is only as good as its assumptions, so the same test is also run on data without a relation. "
        "A matrix is disregarded if its placebo with re-paired tokens is significant."
    ),
}
NOT_RUN = {
    SectionKind.EVIDENCE: "No weights were compared: the weight files of both models are the same.",
    SectionKind.LAYERS: _NO_LAYERS,
    SectionKind.MODULES: "No part of a layer was tested: the layers were not compared, or none has a partner.",
    SectionKind.CALIBRATION: "No placebo was run: no embeddings were compared, or there were too few rows.",
}
WITHOUT_EMBEDDINGS = (
    "No embeddings were compared: one model has none of its own. The layers tab shows the compared parts."
)


def tab_html(report: HomologyReport, kind: SectionKind, figures: ReportFigures, link: str = "") -> Markup:
    """Return the content of one tab. ``link`` is the URL of the comparison, or empty."""
    to_layers = link_to_layers(link) if report.layers is None else ""
    section = next((section for section in deciding_first(report, describe(report)) if section.kind is kind), None)
    if section is not None:
        images = figures.images(section.figures)
        by_neurons = kind is SectionKind.LAYERS and report.layers is None
        introduction = _BY_NEURONS if by_neurons else INTRODUCTIONS[kind]
        way_on = to_layers if by_neurons else ""
        return render("tab", introduction=introduction, link=way_on, section=section, images=images)
    way_on = to_layers if kind in (SectionKind.LAYERS, SectionKind.MODULES) else ""
    is_missing = kind is SectionKind.EVIDENCE and report.settled_by is not SettledBy.IDENTICAL_FILES
    return render("tab", introduction=WITHOUT_EMBEDDINGS if is_missing else NOT_RUN[kind], link=way_on, section=None)
