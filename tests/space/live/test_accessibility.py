"""The page on a phone, in dark mode, without a mouse, and checked by axe."""

import re

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

from tests.space.live.steps import TABS, open_example, open_tab, overflow, refusal, settle, verdict, walked
from tests.space.models import BASE, DECLARED, RELATED, STRANGER

PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}

# Rule and part of a selector of violations in gradio, with the reason why we cannot fix them here.
GRADIO_S_OWN = {
    # A toast is a button that contains a button; it vanishes after some seconds, and the page repeats its text.
    ("nested-interactive", ".toast-header"),
    ("color-contrast", ".toast-"),
}


def serious(page):
    """Return violations in our code that axe rates serious or worse."""
    found = Axe().run(page, options={"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]})
    return [
        f"{violation['id']} ({violation['impact']}): {node['target']} {node['html'][:160]}"
        for violation in found.response["violations"]
        if violation["impact"] in ("serious", "critical")
        for node in violation["nodes"]
        if not any(rule == violation["id"] and part in str(node["target"]) for rule, part in GRADIO_S_OWN)
    ]


def test_a_phone_needs_no_sideways_scrolling_and_has_large_buttons(visit):
    page = visit(f"/?a={BASE}&b={RELATED}", **PHONE)
    verdict(page)
    settle(page)
    assert overflow(page) == 0
    for button in page.get_by_role("button").all():
        box = button.bounding_box()
        if box is not None:
            assert min(box["width"], box["height"]) >= 24, button.inner_text()  # WCAG 2.2, 2.5.8
    for name in TABS:
        open_tab(page, name)
        assert overflow(page) == 0, name
    page.goto("/method")
    expect(page.get_by_role("heading", name="How it works")).to_be_visible()
    assert overflow(page) == 0


def test_the_first_paint_is_accessible(visit, server, result):
    kept = result.get_by_label("Link to this comparison").input_value().removeprefix(server.url)
    for scheme in ("light", "dark"):
        check_first_paint(visit(kept, scripts_come=False, color_scheme=scheme, **PHONE))


def check_first_paint(page):
    """Check that the page has the result before its scripts load, and no axe violations."""
    # The result is missing if the Hub takes more than a second to confirm that its models still exist.
    for _ in range(20):
        if page.locator("#first-paint").get_attribute("data-holds") == "result":
            break
        page.reload()
    expect(page.get_by_role("heading", level=2)).to_contain_text("share weights (p ≤")
    expect(page).to_have_title(re.compile(r"share weights \(p ≤"))
    assert serious(page) == []
    assert overflow(page) == 0
    page.goto("/")
    expect(page.get_by_role("heading", level=1)).to_contain_text("Do two models share weight ancestry?")
    assert serious(page) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_page_and_pictures_follow_the_color_scheme(result, scheme):
    result.emulate_media(color_scheme=scheme)
    open_tab(result, "Evidence")
    other = "light" if scheme == "dark" else "dark"
    background = {"light": "rgb(255, 255, 255)", "dark": "rgb(17, 20, 24)"}[scheme]
    expect(result.locator("body")).to_have_css("background-color", background)
    expect(result.locator(f"#panel-evidence .when-{scheme} img").first).to_be_visible()
    expect(result.locator(f"#panel-evidence .when-{other} img").first).to_be_hidden()


def test_a_dark_theme_shows_dark_pictures_on_a_light_system(visit):
    page = visit(f"/?a={BASE}&b={RELATED}&__theme=dark", color_scheme="light")
    verdict(page)
    settle(page)
    expect(page.locator("#panel-evidence .when-dark img").first).to_be_visible()
    expect(page.locator("#panel-evidence .when-light img").first).to_be_hidden()


def test_text_twice_as_large_is_not_cut_off(result):
    size = "parseFloat(getComputedStyle(document.querySelector('#verdict-words')).fontSize)"
    before = result.evaluate(size)
    result.evaluate("document.documentElement.style.fontSize = '200%'")
    assert result.evaluate(size) > 1.5 * before
    for tab in result.get_by_role("tab").all():
        assert tab.bounding_box()["height"] >= 2 * 16 * 1.25, tab.inner_text()
    assert overflow(result) == 0


ANSWERS = {
    "layers": "/?example=upscaled",
    "family": f"/?a={DECLARED}",
    "survey": f"/?a={BASE}+{RELATED}+{STRANGER}",
}


@pytest.mark.parametrize("address", ANSWERS.values(), ids=ANSWERS)
def test_tab_reaches_everything_in_the_order_of_the_page(visit, address):
    page = visit(address)
    expect(page.locator("#status .settled")).to_be_attached()
    missed, places = walked(page)
    assert missed == []
    assert places == sorted(places)
    for width, size in ((820, 100), (820, 200), (390, 100), (390, 200)):
        page.set_viewport_size({"width": width, "height": 900})
        page.add_style_tag(content=f"html {{ font-size: {size}% }}")
        assert overflow(page) == 0, (width, size)


def test_a_figure_on_a_phone_is_shown_whole(visit):
    page = visit(f"/?a={BASE}+{RELATED}+{STRANGER}", **PHONE)
    expect(page.locator("#status .settled")).to_be_attached()
    matrix = page.locator('.answers[data-name="matrix"]')
    view = matrix.locator(".view")
    assert matrix.locator(".sheet").bounding_box()["width"] <= view.bounding_box()["width"] <= 390
    assert view.evaluate("e => e.scrollWidth <= e.clientWidth")
    assert overflow(page) == 0


def focused(page):
    """Return the words of the focused element, or nothing if the page lost the focus."""
    return page.evaluate(
        "(() => { const e = document.activeElement;"
        " if (e === document.body) return '';"
        " return (e.getAttribute('aria-label') || e.innerText || e.placeholder || e.tagName).trim(); })()"
    )


def tab_to(page, words, most=40):
    for _ in range(most):
        page.keyboard.press("Tab")
        if words in focused(page):
            return
    raise AssertionError(f"{words!r} cannot be reached by Tab; now at {focused(page)!r}")


def test_everything_works_without_a_mouse_and_is_announced(visit):
    page = visit()
    expect(page.get_by_role("button", name="Compare", exact=True)).to_be_visible()
    for name, placeholder in ((BASE, "HuggingFaceTB/"), (RELATED, "owner/name")):
        tab_to(page, placeholder)
        page.keyboard.type(name)
    page.wait_for_timeout(1500)  # the plan arrives meanwhile, and does not steal the focus
    expect(page.get_by_label("Compare with, optional")).to_be_focused()
    page.keyboard.press("Enter")
    verdict(page, "share weights (p ≤")
    settle(page)
    check_announced(page)
    tab_to(page, "Copy the link")
    page.keyboard.press("Enter")
    expect(page.locator("#said")).to_have_text("Copied")
    assert focused(page) == "Copy the link"
    expect(page.get_by_role("tab", name="Share")).to_be_visible()  # the strip hides tabs while it is being measured
    tab_to(page, "Evidence")
    tab_to(page, "Layers", most=1)
    page.keyboard.press("Enter")
    expect(page.locator("#panel-layers")).to_be_visible()

    page.keyboard.press("Shift+Tab")
    for _ in range(60):
        if focused(page) == "Compare" and page.evaluate("document.activeElement.matches('a')"):
            break
        page.keyboard.press("Shift+Tab")
    page.keyboard.press("Enter")  # the first view of the page has the stored answers
    expect(page.locator("#examples-head")).to_be_visible()
    tab_to(page, "Is Qwen2.5-Coder-1.5B made from the 0.5B?")
    page.keyboard.press("Enter")
    expect(page.locator("#verdict-words")).to_contain_text("No shared weights")


def test_the_focused_element_is_visible(visit):
    page = visit()
    expect(page.get_by_role("button", name="Compare", exact=True)).to_be_visible()
    seen = set()
    for _ in range(30):
        page.keyboard.press("Tab")
        style = page.evaluate(
            "(() => { const s = getComputedStyle(document.activeElement);"
            " return [s.outlineStyle, parseFloat(s.outlineWidth), s.boxShadow, document.activeElement.tagName]; })()"
        )
        if style[3] == "BODY":  # past the last element, or the page was still being built
            continue
        assert (style[0] != "none" and style[1] >= 1) or style[2] != "none", (style, focused(page))
        seen.add(focused(page))
    assert len(seen) >= 9


def check_announced(page):
    """Check that a screen reader announces the result."""
    said = page.locator("#said")
    assert (said.get_attribute("role"), said.get_attribute("aria-live")) == ("status", "polite")
    # A drawn answer arrives in one update, with the verdict; otherwise the evidence follows it.
    expect(said).to_have_text(re.compile(r"The evidence is complete\.|share weights"))
    expect(page.get_by_role("heading", level=2).first).to_contain_text("share weights (p ≤")
    assert page.locator("html").get_attribute("lang") == "en"


class TestAxe:
    """Each state once, in one of the two schemes, which use the same colour variables."""

    def test_on_arrival_and_with_the_options_open(self, visit):
        page = visit(color_scheme="dark")
        expect(page.get_by_role("button", name="Compare", exact=True)).to_be_visible()
        page.get_by_text("Options").click()
        assert serious(page) == []

    def test_with_a_verdict_on_every_tab(self, result):
        result.emulate_media(color_scheme="dark")
        for name in TABS:
            open_tab(result, name)
            assert serious(result) == [], name

    def test_with_layers_and_modules(self, visit):
        page = visit(color_scheme="light")
        open_example(page, "upscaled")
        expect(page.locator("#verdict-words")).to_contain_text("deeper")
        settle(page)
        for name in ("Layers", "Modules"):
            open_tab(page, name)
            if name == "Modules":
                page.locator("#panel-modules summary").click()
            assert serious(page) == [], name

    def test_with_a_refusal(self, visit):
        page = visit("/?a=owner/base&b=owner/gated", color_scheme="dark")
        refusal(page)
        assert serious(page) == []

    def test_on_the_page_about_the_method(self, visit):
        page = visit("/method", color_scheme="light")
        expect(page.get_by_role("heading", name="How it works")).to_be_visible()
        assert serious(page) == []
