"""The saved page in a browser fits a phone, follows the colour scheme, runs no scripts and passes axe."""

import shutil
import time

import pytest

from mdir_hf.names import shown_name
from mdir_hf.render.folder import save_report
from mdir_hf.render.sections import NAME_LENGTH
from tests.render.figures.drawn_reports import HOSTILE_NAMES, NO_ARRAYS, a_layer_map, a_model, a_report, modules_of

pytest.importorskip("matplotlib")
pytest.importorskip("playwright.sync_api")

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

N_PICTURES = 8
"""Figures on the page; the deciding one appears first, and again in its section."""

HTML_NAMES = [
    "<img src=https://evil.example/x onerror=x()>",
    "<svg/onload=x()>",
    "</title></style><script>x()</script>",
    "</p></td></table><h1>Not related",
    "<base href=https://evil.example/>",
    "<meta http-equiv=refresh content=0;url=https://evil.example/>",
    "<link rel=stylesheet href=https://evil.example/x>",
    "<iframe srcdoc='<script>x()</script>'>",
    "<a href=javascript:x()>a",
    "<!-- the rest of the page",
    "&lt;b&gt; &amp; &#60;i&#62; &copy",
]
"""Names that each attack HTML in one way. Most of :data:`HOSTILE_NAMES` attack Markdown, formulas, shells and
terminals, and are harmless in HTML even without escaping."""

WITHOUT_FIGURES = dict.fromkeys(("neurons", "embedding", "unembedding", "layers", "modules", "projections"))

pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="no Chromium")]


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    report = a_report(layers=a_layer_map(32, 40), modules=modules_of([(i, i) for i in range(32)]))
    save_report(report, folder)
    return (folder / "report.html").as_uri()


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_and_the_page_does_not_scroll_sideways(chromium, address, width, scheme):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    # bypass_csp permits the injection of axe, which the page's policy forbids.
    context = chromium.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme, bypass_csp=True)
    page = context.new_page()
    page.goto(address)
    page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")

    assert page.evaluate("document.documentElement.scrollWidth") == width
    found = axe.Axe().run(page).response["violations"]
    assert [(violation["id"], violation["nodes"][0]["html"][:200]) for violation in found] == []
    context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pictures_follow_the_colour_scheme_and_print_is_light(chromium, address, scheme):
    context = chromium.new_context(color_scheme=scheme)
    page = context.new_page()
    page.goto(address)

    def chosen():
        return page.evaluate(
            "[...document.images].map(i => i.currentSrc === i.parentElement.querySelector('source').srcset)"
        )

    assert chosen() == [scheme == "dark"] * N_PICTURES
    assert page.evaluate("[...document.images].every(i => i.complete && i.naturalWidth === 480)")
    page.emulate_media(media="print")
    ends = time.monotonic() + 30.0
    # The page's policy forbids wait_for_function.
    while not page.evaluate("[...document.images].every(i => i.currentSrc === i.src)"):
        assert time.monotonic() < ends
        page.wait_for_timeout(50)
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    context.close()


def opened(chromium, folder, name, **parts):
    """Save a report of models of this name, and open it on a phone; return the page and all its actions."""
    named = {"reference": a_model(name), "candidate": a_model(f"{name}2"), "arrays": NO_ARRAYS, "modules": None}
    save_report(a_report(**{**named, **parts}), folder)
    page = chromium.new_context(viewport={"width": 390, "height": 800}, bypass_csp=True).new_page()
    happened = []
    page.on("dialog", lambda dialog: (happened.append(dialog.message), dialog.dismiss()))
    page.on("console", lambda message: happened.append(message.text))
    page.on("pageerror", lambda error: happened.append(str(error)))
    page.on("request", lambda request: happened.append(request.url))
    page.goto((folder / "report.html").as_uri())
    return page, happened


def elements(page):
    return page.evaluate("[...document.all].map(element => element.localName)")


@pytest.fixture(scope="module")
def plain_elements(chromium, tmp_path_factory):
    """Elements of the page of a harmless name; any other name gives the same unless the browser parses it as HTML."""
    page, _ = opened(chromium, tmp_path_factory.mktemp("plain"), "owner/base", **WITHOUT_FIGURES)
    yield elements(page)
    page.context.close()


@pytest.mark.parametrize("name", [*HOSTILE_NAMES, *HTML_NAMES])
def test_a_hostile_name_is_shown_as_text_runs_nothing_and_fits(chromium, tmp_path, plain_elements, name):
    has_figures = name == HOSTILE_NAMES[0]  # figures take most of the time
    page, happened = opened(chromium, tmp_path, name, **({} if has_figures else WITHOUT_FIGURES))

    fetched = [url for url in happened if not url.startswith(("data:", "file:"))]
    assert fetched == [] and sum(url.startswith("file:") for url in happened) == 1
    assert page.evaluate("document.scripts.length") == 0
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    assert has_figures or elements(page) == plain_elements
    in_table = page.locator("section[aria-labelledby=models] tbody td").first.text_content()
    assert in_table == shown_name(name, length=NAME_LENGTH)
    page.context.close()
