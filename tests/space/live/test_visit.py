"""The page in Chromium: keyboard, cancel, addresses, Back, cards, notebooks."""

import base64
import json
import re
from urllib.parse import parse_qs, urlparse

import pytest
from playwright.sync_api import expect

from tests.loopback.faults import Fault
from tests.space.live.steps import compare, is_quiet, open_example, open_tab, settle, verdict
from tests.space.models import BASE, DEEP, DEEP_MOVED, GATED, RELATED, STRANGER


def test_interim_results_stay_after_cancelling(visit, live_hub):
    page = visit()
    live_hub.faults.append(Fault("slow", origin="cdn", path="deep", times=None, delay_s=1.0))
    compare(page, DEEP, DEEP_MOVED)  # whose neurons match only after the keys are read
    expect(page.locator(".so-far")).to_contain_text("is not finished.")
    expect(page.locator("#verdict-words")).to_be_hidden()
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator("#status")).to_contain_text("The results so far are below.")
    expect(page.get_by_role("button", name="Compare", exact=True)).to_be_visible()
    expect(page.locator(".verdict")).to_contain_text("is not finished.", use_inner_text=True)
    assert is_quiet(live_hub)


def test_fields_and_address_fit_the_question_and_back_works(visit, live_hub):
    page = visit()
    compare(page, BASE, RELATED)
    settle(page)
    expect(page).to_have_url(re.compile(f"[?]a={BASE}&b={RELATED}$"))
    live_hub.faults.append(Fault("slow", origin="cdn", path="stranger", times=None, delay_s=1.0))
    compare(page, BASE, STRANGER)  # while the previous answer is still on the page
    for _ in range(2):
        expect(page).to_have_url(re.compile(f"[?]a={BASE}&b={STRANGER}$"))
        page.wait_for_timeout(500)
    page.reload()
    expect(page.locator("#verdict-words")).to_contain_text("No shared weights")
    settle(page)
    open_example(page, "hidden")
    expect(page.locator("#verdict-words")).to_contain_text("share weights (all 64")
    expect(page).to_have_url(re.compile("[?]example="))
    settle(page)
    pair = page.locator(".verdict .pair").inner_text()
    for label in ("One model", "Compare with, optional"):
        assert page.get_by_label(label).input_value() in pair

    page.go_back()
    expect(page.locator("#verdict-words")).to_contain_text("No shared weights")
    expect(page.get_by_label("Compare with, optional")).to_have_value(STRANGER)
    page.go_back()
    expect(page.locator("#verdict-words")).to_contain_text("share weights (p ≤")
    expect(page.get_by_label("Compare with, optional")).to_have_value(RELATED)


def test_a_plan_of_other_names_goes_when_a_name_is_changed(visit):
    page = visit()
    page.get_by_label("One model").fill(BASE)
    page.get_by_label("Compare with, optional").fill(RELATED)
    button = page.get_by_role("button", name="Compare", exact=True)
    place = button.bounding_box()
    page.get_by_label("Compare with, optional").press("Tab")
    expect(page.locator("#plan")).to_contain_text("it fits")
    assert button.bounding_box() == place
    plan = page.locator("#plan .plan").evaluate("element => element.outerHTML")
    page.get_by_label("Compare with, optional").press_sequentially("x")
    expect(page.locator("#plan .plan")).to_be_hidden()
    again = "html => document.querySelector('#plan').insertAdjacentHTML('beforeend', html)"
    page.evaluate(again, plan)  # like the last message of a comparison that is just ending
    expect(page.locator("#plan .plan:visible")).to_have_count(0)


def test_the_address_of_a_result_reads_no_weights(result, visit, live_hub, server):
    link = result.get_by_label("Link to this comparison").input_value()
    query = parse_qs(urlparse(link).query)
    assert query["a"] == [f"{BASE}@{live_hub.find(BASE).revisions['main']}"] and query["v"]

    assert is_quiet(live_hub)
    read = len(live_hub.sent("cdn"))
    again = visit(link.removeprefix(server.url))
    assert verdict(again, verdict(result)) == verdict(result)
    expect(again.locator(".verdict")).to_contain_text("Stored result of an earlier comparison", use_inner_text=True)
    assert len(live_hub.sent("cdn")) == read

    other = visit(link.removeprefix(server.url) + "&alpha=1e-33")
    expect(other.locator("#alert")).to_contain_text("This result is no longer stored here")
    assert other.locator("#verdict-words").count() == 0
    other.get_by_role("button", name="Compare", exact=True).click()
    assert verdict(other, verdict(result)) == verdict(result)


def test_a_card_shows_a_public_result_without_scripts(result, visit, server):
    text = open_tab(result, "Badge")
    assert "<iframe" in text and "A discussion on the Hub" in text
    query = urlparse(result.get_by_label("Link to this comparison").input_value()).query
    card = visit(f"/card?{query}")
    expect(card.get_by_role("heading")).to_contain_text("share weights (p ≤")
    assert card.locator("script").count() == 0
    assert card.evaluate("document.documentElement.scrollWidth <= innerWidth")
    answer = card.request.get(f"{server.url}/card?{query}")
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    for other in (f"a={BASE}&b={GATED}", "a=%3Cscript%3E&b=x", query + "&alpha=1e-34", ""):
        answer = card.request.get(f"{server.url}/card?{other}")
        assert answer.status == 404 and "<script" not in answer.text() and "no longer stored here" in answer.text()


@pytest.mark.parametrize("side", [0, 1])
def test_a_discussion_is_prepared_and_not_sent(result, side):
    open_tab(result, "Badge")
    address = urlparse(result.locator(".discussions a").nth(side).get_attribute("href"))
    assert address.path == f"/{(BASE, RELATED)[side]}/discussions/new"
    fields = parse_qs(address.query)
    assert fields["title"] == [f"Weights compared with {(RELATED, BASE)[side]}"]
    assert "What this does not mean" in fields["description"][0]


def test_a_notebook_computes_the_same_again(result):
    open_tab(result, "Reproduce")
    link = result.get_by_role("link", name="Download a notebook (.ipynb)").get_attribute("href")
    notebook = json.loads(base64.b64decode(link.partition(",")[2]))
    code = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert code[0].startswith("%pip install") and "compare(reference, candidate" in code[1]
    compile(code[1], "cell", "exec")
