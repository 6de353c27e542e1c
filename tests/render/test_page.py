"""The saved page: wording, structure, and escaping of names."""

import html.parser
import re

import pytest

from mdir_hf import Reason, Verdict
from mdir_hf.render.figures.rendering import svg_img
from mdir_hf.render.html import html_page, notebook_html
from mdir_hf.render.text import markdown_text
from mdir_hf.report import SettledBy
from mdir_hf.report.words import MEANING
from tests.render.figures.drawn_reports import (
    HOSTILE_NAMES,
    NO_ARRAYS,
    a_model,
    a_report,
    some_neurons,
    stranger,
)

pytest.importorskip("matplotlib")

VOID = {"meta", "img", "source", "br", "path", "circle"}
USED = {
    *("html", "head", "meta", "title", "style", "body", "header", "main", "footer", "nav", "section", "div", "span"),
    *(
        "p",
        "h1",
        "h2",
        "ul",
        "li",
        "a",
        "strong",
        "sup",
        "bdi",
        "dl",
        "dt",
        "dd",
        "pre",
        "code",
        "svg",
        "circle",
        "path",
        "text",
    ),
    *("table", "caption", "thead", "tbody", "tr", "th", "td", "details", "summary"),
    *("figure", "figcaption", "picture", "source", "img"),
}


class Page(html.parser.HTMLParser):
    """Collects elements with attributes and text, and checks that each is closed."""

    def __init__(self, markup):
        super().__init__()
        self.elements, self.open, self.text = [], [], {}
        self.feed(markup)
        self.close()

    def handle_starttag(self, tag, attrs):
        assert len(dict(attrs)) == len(attrs)
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append((tag, len(self.elements) - 1))

    handle_startendtag = handle_starttag

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop()[0] == tag

    def handle_data(self, data):
        for _, place in self.open:
            self.text[place] = self.text.get(place, "") + data

    def all(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]

    def texts(self, tag):
        return [self.text.get(place, "") for place, (name, _) in enumerate(self.elements) if name == tag]


def page_of(report, *, with_figures=False):
    figures = report.figures() if with_figures else {}
    # Rendering takes most of the time, and tests/render/figures checks the content of figures.
    images = {name: svg_img(figure, b"<svg/>", b"<svg/>") for name, figure in figures.items()}
    return html_page(report, images)


def assert_is_well_built(markup):
    page = Page(markup)
    assert page.open == []
    assert {tag for tag, _ in page.elements} <= USED  # no scripts, forms, frames or links to stylesheets
    attributes = [name for _, given in page.elements for name in given]
    assert not [name for name in attributes if name.startswith("on") or name in ("style", "srcdoc")]
    ids = [given["id"] for _, given in page.elements if "id" in given]
    assert len(set(ids)) == len(ids)
    for _, given in page.elements:
        assert given.get("aria-labelledby", ids[0]) in ids
        address = given.get("href", "#" + ids[0])
        assert address.removeprefix("#") in ids or address.startswith("data:application/json;base64,")
        assert given.get("src", given.get("srcset", "data:image/svg+xml;base64,")).startswith(
            "data:image/svg+xml;base64,"
        )
    return page


def test_landmarks_headings_and_tables_are_in_order():
    page = assert_is_well_built(page_of(a_report(), with_figures=True))

    assert page.all("html") == [{"lang": "en"}]
    for landmark in ("header", "main", "nav", "footer", "h1", "title"):
        assert len(page.all(landmark)) == 1
    assert page.texts("h1") == ["me/tuned and owner/base share weights (p ≤ 10⁻⁶⁰)."]
    assert page.texts("h2") == [
        "What decided: neurons of one or two layers at the same place",
        "What it does not mean",
        "Caveats of this result",
        "The two models",
        "Layers",
        "Modules",
        "Reproduce",
        "Data read",
    ]
    assert [address["href"][1:] for address in page.all("a")[:-1]] == [h["id"] for h in page.all("h2")]
    assert all(header["scope"] in ("row", "col") for header in page.all("th"))
    assert len(page.all("caption")) == len(page.all("table"))


def test_the_verdict_has_an_icon_words_and_numbers():
    page = Page(page_of(a_report()))

    facts = dict(zip(page.texts("dt"), page.texts("dd"), strict=True))
    assert facts == {
        "strength": f"p ≤ 10⁻⁶⁰ {MEANING}",
        "p rests on": "numbering Training does not care how neurons are numbered, and the numbers were not arranged.",
        "settled by": "neurons of one or two layers at the same place This step answered the question.",
        "alpha": "1e-10 The significance level, fixed in advance.",
        "read": "2 MB 0.0125% of the weights.",
    }
    assert page.all("svg")[0]["aria-hidden"] == "true"


@pytest.mark.parametrize("step", [SettledBy.NEAR, SettledBy.EVERY, SettledBy.KEYS])
def test_the_evidence_that_decided_comes_first_with_its_figure(step):
    log10_p = None if step is SettledBy.KEYS else -60.4
    report = a_report(settled_by=step, log10_p=log10_p, neurons=some_neurons(step=step, log10_p=log10_p))
    page = Page(page_of(report, with_figures=True))
    drawn = report.figures()

    assert page.texts("h2")[0] == f"What decided: {step.words}"
    assert page.all("img")[0]["alt"] == drawn["neurons"].get_label()
    rests_on = ["strength", "the verdict rests on" if log10_p is None else "p rests on"]
    assert page.texts("dt")[:3] == [*rests_on, "settled by"]
    markdown = markdown_text(report, {name: drawn[name].get_label() for name in drawn})
    assert re.findall(r"^## (.*)$", markdown, re.MULTILINE)[0] == f"What decided: {step.words}"
    assert re.findall(r"\]\((\w+)\.png\)", markdown)[0] == "neurons"
    assert f"- {rests_on[1]}: numbering. " in markdown
    notebook = notebook_html(report, {name: f'<img alt="{name}">' for name in drawn})
    assert re.findall('<img alt="(.*?)">', notebook)[0] == "neurons"


def test_a_notebook_has_room_for_the_figure_that_decided():
    report = a_report()
    images = {name: f'<img alt="{name}" src="{"x" * 40_000}">' for name in report.figures()}

    assert re.findall('<img alt="(.*?)"', notebook_html(report, images)) == ["neurons"]


def test_the_icon_differs_in_shape_and_not_in_colour_alone():
    drawn = set()
    for verdict, reason in (
        (Verdict.HOMOLOGOUS, None),
        (Verdict.NO_EVIDENCE, None),
        (Verdict.INCONCLUSIVE, Reason.EMBEDDINGS_ONLY),
    ):
        markup = page_of(a_report(verdict=verdict, reason=reason))
        drawn.add(re.search(r'<svg class="icon".*?</svg>', markup, re.DOTALL)[0])
        assert report_words(verdict, reason) <= set(Page(markup).texts("h1"))
    assert len(drawn) == 3


def report_words(verdict, reason):
    return {a_report(verdict=verdict, reason=reason).sentence}


def test_every_part_of_the_report_is_on_the_page():
    text = Page(page_of(a_report())).texts("main")[0]

    for said in (
        *a_report().does_not_mean,
        a_report().means,
        "A caveat.",
        "a1" * 20,
        "b2" * 20,
        "GPTQ, 4 bits in groups of 128",
        "permutation",
        "−700.0",  # the unembedding
        "3 of 3 layers of the candidate agree with layers of the reference",
        "layers were put in another order",
        "The paper's Algorithm 3, as printed",
        "mdir-hf compare",
        "NamedModel('owner/base', revision='" + "a1" * 20,
        "12 requests",
        "owner/base@a1a1:config.json",
    ):
        assert said in text, said


def test_strangers_are_not_given_a_power_of_ten():
    page = assert_is_well_built(page_of(stranger(), with_figures=True))

    assert page.texts("h1") == ["No shared weights were found between me/tuned and owner/base."]
    assert "10⁻" not in page.texts("main")[0]
    assert "−0.0" not in page.texts("main")[0] and "-0.0" not in page.texts("main")[0]


def test_the_page_fetches_and_runs_nothing():
    markup = page_of(a_report(), with_figures=True)
    policy = next(meta["content"] for meta in Page(markup).all("meta") if "http-equiv" in meta)

    assert "http://" not in markup and "https://" not in markup and "@import" not in markup
    assert "default-src 'none'" in policy and "img-src data:" in policy and "script-src" not in policy


ONE_FIGURE = {"arrays": NO_ARRAYS, "unembedding": None, "layers": None, "modules": None, "projections": None}


@pytest.fixture(scope="module")
def n_elements():
    """Number of elements of a page with harmless names."""
    return len(Page(page_of(a_report(**ONE_FIGURE), with_figures=True)).elements)


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_a_name_adds_no_elements_to_the_page(name, n_elements):
    report = a_report(
        reference=a_model(name),
        candidate=a_model(name[::-1], commit=None),
        caveats=(f"The tokenizer of {name} is missing.",),
        **ONE_FIGURE,
    )
    page = assert_is_well_built(page_of(report, with_figures=True))

    assert len(page.elements) == n_elements
