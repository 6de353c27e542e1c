"""Families and surveys in Chromium."""

import base64
import re

from playwright.sync_api import expect

from tests.loopback.faults import Fault
from tests.space.live.steps import focus, is_quiet, overflow, refusal, settle, verdict
from tests.space.live.test_accessibility import PHONE, serious
from tests.space.models import BASE, DECLARED, LARGE, LARGER, RELATED, STRANGER


def answered(page, words=""):
    """Wait for the whole answer with this headline."""
    expect(page.locator("#status .settled")).to_be_attached()
    expect(page.locator("#verdict-words")).to_be_visible()
    expect(page.locator("#verdict-words")).to_contain_text(words, use_inner_text=True)


def name(page, text):
    page.get_by_label("One model, or several").fill(text)


def test_one_name_on_a_phone_gives_a_family(visit, server):
    page = visit("/", **PHONE)
    name(page, DECLARED)
    button = page.get_by_role("button", name="Find its family")
    expect(button).to_be_visible()
    button.tap()

    answered(page, f"It shares weight ancestry with {BASE}.")
    expect(page.locator(".verdict .sentence")).to_have_text(
        re.compile(rf"^\s*{DECLARED} and {BASE} share weights \(p ≤ ")
    )
    expect(page.locator(".declared")).to_contain_text(
        f"Its card declares {BASE} as its base (finetune). Measured: shared weights were found.", use_inner_text=True
    )
    assert overflow(page) == 0
    link = page.get_by_role("link", name=f"Full comparison: {BASE}")
    expect(link).to_be_visible()
    assert link.bounding_box()["x"] + link.bounding_box()["width"] <= 390
    expect(page).to_have_url(f"{server.url}/?a={DECLARED}")
    link.tap()
    verdict(page, "share weights (p ≤")
    expect(page.get_by_label("Compare with, optional")).to_have_value(DECLARED)


def test_a_link_with_one_name_opens_its_family(visit):
    page = visit(f"/?a={LARGER}")
    answered(page, "No base of it was found.")
    expect(page.locator(".verdict .sentence")).to_contain_text(
        "This does not prove that the models are independent.", use_inner_text=True
    )
    below = page.locator(".verdict .meaning")
    expect(below).to_contain_text(
        "compared with 3 base models of the index. One of them is as wide as this model", use_inner_text=True
    )
    expect(below).to_have_text(
        re.compile(r"with noise of up to [\d.]+ times the weights would have been found"), use_inner_text=True
    )
    assert page.locator("#alert [role=alert]").count() == 0


def test_two_names_pasted_into_the_first_field_fill_both(visit, server):
    page = visit(permissions=["clipboard-read", "clipboard-write"])
    first, second = page.get_by_label("One model, or several"), page.get_by_label("Compare with, optional")
    for one, other, between in ((BASE, RELATED, " vs "), (RELATED, STRANGER, "\n")):
        first.fill("")
        second.fill("")
        page.evaluate("words => navigator.clipboard.writeText(words)", f"{one}{between}{other}")
        focus(first)
        page.keyboard.press("Control+V")
        page.get_by_role("button", name="Compare", exact=True).click()
        expect(page).to_have_url(f"{server.url}/?a={one}&b={other}")
        expect(page.locator(".verdict")).to_contain_text(f"{one} and {other}", use_inner_text=True)
        expect(first).to_have_value(one)
        expect(second).to_have_value(other)
        settle(page)


def sorted_and_filtered(page):
    """Check that a click on a heading sorts the pairs, and that part of a name filters them."""
    table = page.locator("table.sortable").first
    strengths = "rows => rows.map(row => parseInt(row.cells[2].innerText.replace(/[^0-9]/g, ' ').trim().split(' ')[1]))"
    for expected in ("descending", "ascending"):  # by exponents: the first click puts the smallest p first
        table.get_by_role("button", name="Measured").click()
        found = table.locator("tbody tr").evaluate_all(strengths)
        assert found == sorted(found, reverse=expected == "descending")
    page.get_by_label("Show pairs with").fill("declared")
    expect(table.locator("tbody tr:visible")).to_have_count(2)
    page.get_by_label("Show pairs with").fill("")


def test_several_names_give_a_survey_with_matrix_and_tree(visit, server, live_hub):
    live_hub.faults.append(Fault("slow", origin="cdn", path="declared", times=None, delay_s=1.0))
    page = visit()
    name(page, f"{BASE}, {RELATED}, {STRANGER}, {DECLARED}, owner/absent")
    page.get_by_role("button", name="Survey 5 models").click()

    expect(page.locator(".verdict .note")).to_contain_text("Still running")
    growing = page.locator('.interim .answers[data-name="matrix"] .cells')
    focus(growing)
    page.keyboard.press("ArrowRight")
    hear = "said => new MutationObserver(() => heard.push(said.textContent)).observe(said, {childList: true})"
    page.evaluate(f"window.heard = []; ({hear})(document.getElementById('said'))")
    expect(page.locator("#status")).to_contain_text(re.compile(r"\d of 5 models"))
    answered(page, "3 of 4 form one family.")
    alone = "The other one: no relative found by neurons of four layers; not compared in full"
    expect(page.locator(".verdict .sentence")).to_have_text(
        re.compile(rf"^\s*{BASE}, {RELATED} and {DECLARED} share weight ancestry\. {alone}")
    )
    further = page.get_by_role("link", name="Compare this one in full")
    expect(further).to_have_attribute("href", re.compile(re.escape(f"?a={BASE}+{RELATED}+") + ".*&level=layers$"))
    expect(page.locator(".survey figure img:visible")).to_have_count(2)
    of_cell = [words for words in page.evaluate("heard") if words.startswith(f"{BASE} and ")]
    assert len(of_cell) == len(set(of_cell)), "the selected cell is announced again at each update"
    matrix = page.locator('.answers[data-name="matrix"]')
    assert matrix.locator(".cells").evaluate("cells => cells === document.activeElement"), "the update lost the focus"
    expect(matrix.locator(".said")).to_have_text(
        re.compile(
            rf"^{BASE} and {RELATED}: they share weight ancestry, p ≤ 10⁻[⁰¹²³⁴-⁹]+, by neurons of four layers\."
        )
    )
    expect(matrix.get_by_role("link", name="Compare the two")).to_have_attribute("href", f"?a={BASE}&b={RELATED}")
    expect(page.locator(".verdict")).to_contain_text("owner/absent was not found", use_inner_text=True)
    expect(page.get_by_role("link", name="Download the survey (JSON)")).to_be_visible()
    expect(page.get_by_role("link", name=f"Full comparison: {BASE} and {RELATED}")).to_be_visible()
    assert overflow(page) == 0
    sorted_and_filtered(page)
    table = page.get_by_role("link", name="Download its pairs (CSV)").get_attribute("href")
    lines = base64.b64decode(table.partition(",")[2]).decode().splitlines()
    assert lines[0].startswith("reference,candidate,verdict,") and len(lines) == 7

    link = page.get_by_label("Link to this survey").input_value()
    assert re.search(r"/\?a=owner/base@[0-9a-f]{40}\+.*owner/absent&v=", link)
    expect(page).to_have_url(re.compile(re.escape(f"{server.url}/?a={BASE}+{RELATED}+{STRANGER}+")))
    tree = page.locator('.answers[data-name="dendrogram"]')
    focus(tree.locator(".cells"))
    expect(tree.locator(".said")).to_contain_text("nearest to it is")
    page.keyboard.press("ArrowRight")
    expect(tree.locator(".said")).to_contain_text(re.compile("joined at an RMS difference of [0-9.e-]+ times"))
    with page.expect_download() as saved:
        tree.get_by_role("button", name="PNG").click()
    assert saved.value.path().read_bytes().startswith(b"\x89PNG")

    again = visit(link.removeprefix(server.url), color_scheme="dark", **PHONE)
    answered(again, "3 of 4 form one family.")
    expect(again.locator(".verdict .note").first).to_contain_text(
        "Stored result of an earlier comparison", use_inner_text=True
    )
    assert overflow(again) == 0
    cells = again.locator('.answers[data-name="matrix"] .cells')
    cells.scroll_into_view_if_needed()
    box = cells.bounding_box()
    cells.tap(position={"x": box["width"] * 1.5 / 4, "y": box["height"] * 0.5 / 4})
    expect(again.locator(".said a").first).to_be_visible()  # the first tap only shows the text
    expect(again).to_have_url(link)

    live_hub.faults.clear()
    further.click()
    answered(page, "3 of 4 form one family.")
    expect(page.locator(".verdict .sentence")).to_contain_text("no relative found by full comparisons")
    expect(page.get_by_role("link", name=re.compile("Compare .* in full"))).to_have_count(0)
    page.go_back()
    answered(page, "3 of 4 form one family.")
    matrix.locator(".cells").click(position={"x": 5, "y": matrix.locator(".cells").bounding_box()["height"] * 0.4})
    expect(page).to_have_url(f"{server.url}/?a={BASE}&b={RELATED}")
    verdict(page, "share weights (p ≤")


def test_cancel_stops_a_survey_and_a_search(visit, live_hub):
    page = visit()
    live_hub.faults.append(Fault("slow", origin="cdn", path="large", times=None, delay_s=1.5))
    for words, button in ((LARGE, "Find its family"), (f"{LARGE} {LARGER} {BASE}", "Survey 3 models")):
        name(page, words)
        page.get_by_role("button", name=button).click()
        expect(page.locator("#status")).to_contain_text(re.compile(r"[1-9][\d.]* (kB|MB) read"))
        page.get_by_role("button", name="Cancel").click()
        expect(page.locator("#status")).to_contain_text("Stopped. Nothing more is read.")
        expect(page.get_by_role("button", name=button)).to_be_visible()
        assert is_quiet(live_hub)


def test_an_empty_author_and_too_many_names_are_refused(visit):
    page = visit("/?a=nobody")
    assert "lists no model" in refusal(page)
    page.goto("/?a=" + "+".join(f"owner/model-{k}" for k in range(21)))
    assert "a survey takes at most 20 here" in refusal(page)


def test_axe_finds_nothing_serious_about_a_family_or_a_survey(visit):
    page = visit(f"/?a={DECLARED}", color_scheme="dark")
    answered(page)
    assert serious(page) == []
    page.goto(f"/?a={BASE}+{RELATED}+{STRANGER}")
    answered(page)
    for summary in page.locator(".survey details summary").all():
        summary.click()
    for cells in page.locator(".survey .cells").all():
        focus(cells)
    assert serious(page) == []
