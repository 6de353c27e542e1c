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

_NO_LAYERS = "The layers were not described: that takes level layers, or one model has none."
INTRODUCTIONS = {
    SectionKind.EVIDENCE: (
        "The verdict rests on a few neurons, compared after a rotation that was fitted on other neurons. The "
        "embeddings only describe the two models."
    ),
    SectionKind.LAYERS: "Sampled rows of every layer of one model were compared with every layer of the other.",
    SectionKind.MODULES: (
        "Sampled rows of every projection were compared, up to changes that do not affect the output of the model: "
        "queries and keys may be rotated inside each pair of rotary dimensions, values and outputs may be changed in "
        "any way inside a head, and neurons may be reordered."
    ),
}
NOT_RUN = {
    SectionKind.EVIDENCE: "No weights were compared: the weight files of both models are the same.",
    SectionKind.LAYERS: _NO_LAYERS,
    SectionKind.MODULES: "No projection was compared: that takes level layers.",
}
NOTHING_COMPARED = "No neurons and no embeddings were compared: the models have none in common."


def tab_html(report: HomologyReport, kind: SectionKind, figures: ReportFigures, link: str = "") -> Markup:
    """Return the content of one tab. ``link`` is the URL of the comparison, or empty."""
    section = next((section for section in deciding_first(report, describe(report)) if section.kind is kind), None)
    if section is not None:
        images = figures.images(section.figures)
        return render("tab", introduction=INTRODUCTIONS[kind], link="", section=section, images=images)
    # The modules are on the same tab, so one link is enough.
    way_on = link_to_layers(link) if kind is SectionKind.LAYERS and report.layers is None else ""
    is_missing = kind is SectionKind.EVIDENCE and report.settled_by is not SettledBy.IDENTICAL_FILES
    return render("tab", introduction=NOTHING_COMPARED if is_missing else NOT_RUN[kind], link=way_on, section=None)
