"""The page in Chromium, from two names to a verdict and its evidence."""

import base64
import contextlib
import json
import re
from pathlib import Path

import pytest
from playwright.sync_api import expect

import mdir_space
from mdir_hf import HomologyReport, __version__
from mdir_space.jobs.question import FamilyQuestion, PairQuestion, SurveyQuestion, parse_question
from mdir_space.page.suggestions import MAX_SUGGESTIONS
from tests.loopback.faults import Fault
from tests.space.live.steps import (
    TABS,
    compare,
    fill,
    focus,
    is_quiet,
    next_refusal,
    open_example,
    open_tab,
    overflow,
    refusal,
    settle,
    verdict,
)
from tests.space.models import BASE, DECLARED, FILES, GATED, LARGE, LARGER, PRIVATE, RELATED, STRANGER


def slow(hub, path, delay_s=0.3):
    hub.faults.append(Fault("slow", origin="cdn", path=path, times=None, delay_s=delay_s))


def test_two_names_give_progress_verdict_and_evidence(visit, live_hub):
    slow(live_hub, "base", delay_s=2.0)
    page = visit()
    compare(page, STRANGER, BASE)  # no other test uses this order: a cached result shows no progress

    expect(page.locator("#status progress")).to_be_visible()
    expect(page.locator("#status")).to_contain_text(re.compile(r"[\d.]+ (kB|MB) read"))
    expect(page.get_by_role("button", name="Cancel")).to_be_visible()
    live_hub.faults.clear()  # a slow page shows all of this before the answer comes
    verdict(page, "No shared weights were found")
    settle(page)
    expect(page.locator("#status")).to_have_text(re.compile(r"^\s*$"), use_inner_text=True)
    expect(page.locator(".verdict")).to_contain_text(f"{STRANGER} and {BASE}", use_inner_text=True)
    card = page.locator(".verdict").inner_text()
    assert "No shared weights were found" in card
    assert "This does not prove that the models are independent." in card
    assert "What this excludes" not in card
    page.get_by_text("How do you know?").click()
    expect(page.locator(".verdict")).to_contain_text("What this excludes", use_inner_text=True)
    expect(page.locator("#plan")).to_have_text(re.compile(r"Planned: .* Read: [\d.]+ [kM]B"), use_inner_text=True)


def test_a_plan_never_appears_with_another_question(visit):
    page = visit()
    fill(page, RELATED, BASE)
    page.get_by_label("One model").focus()
    expect(page.locator("#plan")).to_contain_text("Reads ", use_inner_text=True)
    page.locator("#options > button").click()
    page.get_by_label("Alpha").fill("1e-9")
    expect(page.locator("#plan")).to_have_text(re.compile(r"^\s*$"), use_inner_text=True)
    page.get_by_label("Alpha").fill("1e-10")
    expect(page.locator("#plan")).to_contain_text("Reads ", use_inner_text=True)  # the original question

    # However the fields are filled (typing, button, stored answer, link, script), the plan matches its question.
    nothing = re.compile(r"^\s*$")
    page.evaluate(
        """(name) => { const input = document.querySelector("#model-b input, #model-b textarea");
        input.value = name; input.dispatchEvent(new Event("input", { bubbles: true })); }""",
        STRANGER,
    )
    expect(page.locator("#plan")).to_have_text(nothing, use_inner_text=True)
    open_example(page, "permuted")
    expect(page.locator("#plan")).to_contain_text("the stored result", use_inner_text=True)
    page.get_by_label("Compare with, optional").fill(STRANGER)
    expect(page.locator("#plan")).to_have_text(nothing, use_inner_text=True)


def test_an_answer_has_its_tabs_its_report_and_its_pictures(result, live_hub):
    verdict(result, "share weights (p ≤")
    open_tab(result, "Evidence")
    check_pictures(result)
    text = {name: open_tab(result, name) for name in TABS}

    assert "Step near" in text["Evidence"] and "64 tested neurons match, in 1 layer" in text["Evidence"]
    assert "Tokens whose rows were compared" in text["Evidence"] and "1,499" in text["Evidence"]
    assert "The layers were not described" in text["Layers"]
    assert "No projection was compared" in text["Modules"]
    assert "mdir-hf compare" in text["Reproduce"]
    assert "check_report" in text["Reproduce"]
    assert "[![Shared weight ancestry" in text["Badge"]
    check_download(result, open_tab(result, "Reproduce"), live_hub.find(RELATED).revisions["main"])


def test_an_empty_tab_links_to_the_analysis_of_layers(visit):
    page = visit(f"/?a={BASE}&b={RELATED}")
    settle(page)
    expect(page.locator("#panel-evidence")).to_be_visible()
    open_tab(page, "Layers")
    page.get_by_role("link", name="Analyse every layer").click()
    expect(page).to_have_url(re.compile("level=layers"))
    verdict(page)
    settle(page)
    open_tab(page, "Layers")
    expect(page.get_by_role("link", name="Analyse every layer")).to_have_count(0)


def check_download(page, text, commit):
    """Check that the downloaded report has the commits on the page."""
    link = page.get_by_role("link", name="Download the report (JSON)")

    report = HomologyReport.from_json(base64.b64decode(link.get_attribute("href").partition(",")[2]).decode())

    assert report.verdict.value == "homologous"
    assert report.candidate.commit == commit
    assert commit in text
    assert link.get_attribute("download") == "owner_base-owner_related.json"


def check_pictures(page):
    """Check that pictures have alt texts and appear in only one theme."""
    pictures = page.locator("#panel-evidence figure img")
    expect(pictures.nth(1)).to_be_attached()
    assert all(len(pictures.nth(k).get_attribute("alt")) > 40 for k in range(pictures.count()))
    for k in range(pictures.count()):
        expect(pictures.nth(k)).to_have_js_property("complete", True)
        assert pictures.nth(k).evaluate("e => e.naturalWidth") > 100
    expect(page.locator("#panel-evidence .when-dark img").first).to_be_hidden()
    expect(page.locator("#panel-evidence .when-light img").first).to_be_visible()


def test_a_link_opens_its_comparison(visit, server):
    page = visit(f"/?a={BASE}&b=https://huggingface.co/{RELATED}/tree/main&level=layers&alpha=1e-20")
    verdict(page, "share weights (p ≤")
    expect(page.get_by_label("One model")).to_have_value(BASE)
    link = page.get_by_label("Link to this comparison").input_value()
    assert f"a={BASE}@" in link and link.endswith(f"&level=layers&alpha=1e-20&v={__version__}")
    asked = f"{server.url}/?a={BASE}&b=https://huggingface.co/{RELATED}/tree/main&level=layers&alpha=1e-20"
    expect(page).to_have_url(asked)
    expect(page.locator(".verdict")).to_contain_text("@main", use_inner_text=True)
    expect(page.locator(".verdict")).to_contain_text("1e-20")

    again = visit(link.removeprefix(server.url))
    assert verdict(again, verdict(page)) == verdict(page)
    expect(again.locator(".verdict")).to_contain_text("Stored result of an earlier comparison", use_inner_text=True)


def test_leaving_both_fields_shows_the_plan(visit, live_hub):
    page = visit()
    assert is_quiet(live_hub)
    read = sum(request.bytes_sent for request in live_hub.sent("cdn"))
    fill(page, BASE, STRANGER)
    page.get_by_label("Compare with, optional").press("Tab")
    expect(page.locator("#plan")).to_contain_text("it fits")
    expect(page.locator("#plan")).to_have_text(
        re.compile(r"Reads at least [\d.]+ kB.* of it headers and tokenizers; .* of weights\. Takes .* Needs"),
        use_inner_text=True,
    )
    assert sum(request.bytes_sent for request in live_hub.sent("cdn")) - read < 1500 * 96 * 2


def in_the_middle_of_reading(page):
    expect(page.locator("#status")).to_contain_text(re.compile(r"embeddings\s+[1-9][\d.]* (kB|MB) read"))


def test_cancel_stops_the_reading_and_the_next_comparison_works(visit, live_hub):
    slow(live_hub, "large", delay_s=1.5)  # the whole would take more than ten seconds
    page = visit()
    compare(page, LARGE, LARGER)
    in_the_middle_of_reading(page)
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator("#status")).to_contain_text("Stopped. Nothing more is read.")
    expect(page.get_by_role("button", name="Compare", exact=True)).to_be_visible()
    assert is_quiet(live_hub)
    expect(page.get_by_text("The results so far are below.")).to_be_visible()  # neurons come before embeddings
    expect(page.locator(".verdict")).to_contain_text("is not finished.", use_inner_text=True)
    expect(page.locator(".verdict .caveats")).to_contain_text("The embeddings have not been compared yet")

    live_hub.faults.clear()
    compare(page, BASE, RELATED)
    verdict(page, "share weights (p ≤")


def test_closing_the_page_stops_the_reading(visit, live_hub):
    slow(live_hub, "large", delay_s=1.5)  # the whole would take more than ten seconds
    page = visit(f"/?a={LARGE}&b={LARGER}")
    in_the_middle_of_reading(page)
    page.close()
    assert is_quiet(live_hub)


def test_a_wrong_name_gives_a_message_that_stays(visit):
    page = visit()
    sent = []
    page.on("request", lambda request: sent.append(request.url.rpartition("/")[2]))
    compare(page, BASE, "owner/absent")
    message = refusal(page)
    assert "owner/absent was not found on the Hub" in message
    assert "Traceback" not in page.content()
    assert page.get_by_test_id("toast-body").count() == 0

    compare(page, BASE, RELATED)
    verdict(page, "share weights (p ≤")
    assert page.locator("#alert [role=alert]").count() == 0
    assert "cancel" in sent  # a click stops the plan that leaving a field started


@pytest.mark.parametrize("name", [GATED, PRIVATE])
def test_the_servers_token_opens_nothing_on_the_page(visit, live_hub, name):
    page = visit(f"/?a={BASE}&b={name}")
    message = refusal(page)
    assert "is gated" in message if name == GATED else "was not found" in message
    assert page.locator("#verdict-words").count() == 0
    assert not any(request.had_token for request in live_hub.requests)


HOSTILE = {
    "markup": '<img src=x onerror="alert(1)">/<script>alert(2)</script>',
    "closing tags": "</textarea></p></section><b>x",
    "ten thousand": "owner/" + "x" * 10_000,
    "right to left": "owner/\u202egnp.exe\u202c",
    "another alphabet": "владелец/模型-🦙",
    "controls": "owner/a\u0000b\u0007",
    "template": "owner/${7*7}{{7*7}}",
    "quotes": "owner/'\";--",
    "path": "owner/../../etc",
}


def test_folders_are_not_read_and_hostile_names_are_text_and_nothing_else(visit):
    page = visit()
    for name in ("/etc/passwd", "../..", "space"):
        message = next_refusal(page, name, BASE)
        assert "no such folder" not in message, name
        assert "weight file" not in message, name
    for kind, name in HOSTILE.items():
        message = next_refusal(page, name, BASE)
        assert len(message) < 1500, kind
        assert page.locator("#alert img, #alert script, #alert b").count() == 0, kind
        assert overflow(page) == 0, kind


def test_a_hostile_link_is_text_and_nothing_else(visit):
    page = visit(
        "/?a=%3Cimg%20src=x%20onerror=alert(1)%3E&b=%22%3E%3Cscript%3Ealert(2)%3C/script%3E&level=%3Cb%3E&alpha=x"
    )
    assert "Alpha is x" in refusal(page)
    expect(page.get_by_text("using auto")).to_be_visible()
    assert page.locator("#alert img, #alert script, #alert b").count() == 0


def test_concurrent_visitors_see_their_own_results(visit, live_hub):
    slow(live_hub, "related")
    slow(live_hub, "stranger")
    one, other = visit(), visit()
    compare(one, RELATED, DECLARED)
    compare(other, RELATED, STRANGER)

    verdict(one, "share weights (p ≤")
    verdict(other, "No shared weights were found")
    settle(one)
    settle(other)
    assert STRANGER not in one.content()
    assert DECLARED not in other.content()


def test_typing_suggests_names_of_public_models(visit):
    page = visit()
    field = page.get_by_label("One model")
    options = page.locator("#model-a-names option")
    for _ in range(4):  # the shared server pauses requests to the Hub for a minute after many requests or a failure
        field.press_sequentially("owner/", delay=30)
        with contextlib.suppress(AssertionError):
            expect(options).to_have_count(MAX_SUGGESTIONS, timeout=25_000)
            break
        field.fill("")
    expect(options).to_have_count(MAX_SUGGESTIONS)
    expect(field).to_have_attribute("list", "model-a-names")
    shown = options.evaluate_all("all => all.map(one => [one.value, one.label])")  # at once, as they may change
    assert all("downloads a month" in label for _, label in shown)
    assert BASE in dict(shown)
    assert PRIVATE not in dict(shown)
    expect(field).to_have_value("owner/")


def test_stored_results_open_at_once_and_say_what_they_are(visit, live_hub):
    page = visit()
    assert is_quiet(live_hub)  # what earlier visitors left behind has ended
    asked = len(live_hub.requests)
    open_example(page, "hidden")
    verdict(page, "share weights (all 64")
    expect(page.locator(".verdict .note")).to_contain_text("is in no repository", use_inner_text=True)
    settle(page)
    evidence = open_tab(page, "Evidence")
    assert "Step keys" in evidence and "tested neurons match" in evidence
    expect(page.locator("#panel-evidence .answers").first).to_have_attribute("data-name", "neurons")  # the deciding one
    assert "The layers were not described" in open_tab(page, "Layers")  # the keys settled it before them
    assert "make real" in open_tab(page, "Reproduce")

    open_example(page, "upscaled")
    expect(page.locator("#verdict-words")).to_contain_text("deeper")
    settle(page)
    assert "44 of 44 layers" in open_tab(page, "Layers")
    expect(page.locator("#panel-layers figure img")).to_have_count(4)  # the map and the flow, light and dark
    assert "Change of each projection" in open_tab(page, "Modules")
    expect(page.locator("#panel-modules tbody tr").nth(20)).to_be_attached()
    assert [request.path for request in live_hub.requests[asked:]] == []

    open_example(page, "strangers")
    expect(page.locator("#verdict-words")).to_contain_text("No shared weights")


TALLEST_PX = 2_400
"""Maximum height of an answer on a desktop before anything is unfolded."""


@pytest.mark.parametrize(("width", "height"), [(1280, 720), (390, 844)])
@pytest.mark.parametrize("example", ["permuted", "strangers", "hidden", "other-tokenizer"])
def test_the_answer_is_visible_without_scrolling(visit, width, height, example):
    page = visit(f"/?example={example}", viewport={"width": width, "height": height})
    settle(page)
    words = page.locator("#verdict-words").bounding_box()
    assert page.evaluate("scrollY") == 0 and words["y"] + words["height"] < height
    assert [tab.inner_text() for tab in page.get_by_role("tab").all()] == ["Evidence", "Layers", "Share"]
    assert page.locator(".verdict figure").count() <= 1
    if width > height:
        assert page.evaluate("document.documentElement.scrollHeight") <= TALLEST_PX
    assert page.get_by_label("One model").is_visible() and not page.locator(".intro").first.is_visible()


def test_compare_opens_the_stored_result_of_the_fields(visit, server, live_hub):
    page = visit()
    open_example(page, "permuted")
    settle(page)
    expect(page.locator("#plan")).to_contain_text("Compare opens that result again without reading anything.")
    assert is_quiet(live_hub)  # what earlier visitors left behind has ended
    asked = len(live_hub.requests)
    page.locator(".verdict").evaluate("verdict => verdict.classList.add('before')")
    page.get_by_role("button", name="Compare", exact=True).click()
    expect(page.locator(".verdict:not(.before)")).to_be_visible()
    settle(page)
    expect(page.locator("#verdict-words")).to_contain_text("reordered", use_inner_text=True)
    expect(page).to_have_url(f"{server.url}/?example=permuted")

    page.get_by_label("Compare with, optional").fill(BASE)
    page.get_by_role("button", name="Compare", exact=True).click()
    assert "SmolLM2-135M-Instruct is a model of the stored result" in refusal(page)
    assert [request.path for request in live_hub.requests[asked:]] == []


def test_a_tab_that_a_visitor_opens_early_stays_open(visit):
    page = visit()
    open_example(page, "hidden")
    page.get_by_role("tab", name="Share").click()
    settle(page)
    expect(page.get_by_role("tab", name="Share")).to_have_attribute("aria-selected", "true")
    open_example(page, "other-tokenizer")
    expect(page.locator("#verdict-words")).to_contain_text("retokenised")
    expect(page.get_by_role("tab", name="Evidence")).to_have_attribute("aria-selected", "true")


def test_a_click_chooses_one_of_several_files_in_a_repository(visit):
    page = visit(f"/?a={BASE}&b={FILES}")
    assert "2 GGUF models" in refusal(page)
    page.get_by_role("button", name=f"{FILES}/two-Q8_0.gguf").click()
    field = page.get_by_label("Compare with, optional")
    expect(field).to_have_value(f"{FILES}/two-Q8_0.gguf")
    expect(field).to_be_focused()
    expect(page.get_by_label("One model, or several")).to_have_value(BASE)


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        ("", "", "Compare"),
        ("owner/a", "", "Find its family"),
        ("", "owner/a", "Find its family"),
        ("owner/a", "owner/b", "Compare"),
        ("owner/a vs owner/b", "", "Compare"),
        ("owner/a, owner/b\nowner/c", "owner/d", "Survey 4 models"),
        ("owner/a owner/a", "", "Find its family"),
        ("what is my model", "", "Find its family"),
        ("owner/some-0123456789abcdef01234567", "", "Survey this collection"),
        ("huggingface.co/collections/owner/some", "", "Survey this collection"),
        ("https://huggingface.co/owner/some/collections/x", "", "Find its family"),
    ],
)
def test_the_button_names_what_the_server_is_going_to_do(blank, first, second, said):
    assert blank.evaluate("([first, second]) => buttonLabel(first, second, false)", [first, second]) == said
    if first or second:
        kind = {"Find": FamilyQuestion, "Comp": PairQuestion, "Surv": SurveyQuestion}[said[:4]]
        assert isinstance(parse_question(first, second, "auto", "1e-10"), kind)


@pytest.fixture(scope="module")
def blank(chromium):
    """A page with only the script of the page."""
    page = chromium.new_page()
    page.add_init_script(path=str(Path(mdir_space.__file__).parent / "page" / "page.js"))
    page.goto("about:blank")
    yield page
    page.close()


def test_the_button_changes_its_label_without_the_server(visit):
    page = visit()
    expect(page.get_by_role("button", name="Compare", exact=True)).to_be_visible()
    page.context.set_offline(True)
    page.get_by_label("One model, or several").fill(BASE)
    expect(page.locator("#compare")).to_have_text("Find its family", timeout=2000)
    page.context.set_offline(False)


def test_copy_copies(result):
    result.bring_to_front()
    result.get_by_role("button", name="Copy the link").click()
    expect(result.locator("#said")).to_have_text("Copied")
    link = result.get_by_label("Link to this comparison").input_value()
    assert result.evaluate("navigator.clipboard.readText()") == link
    open_tab(result, "Badge")
    result.get_by_role("button", name="Copy: For a badge service (shields endpoint)").click()
    result.wait_for_function("async () => (await navigator.clipboard.readText()).startsWith('{')")
    assert json.loads(result.evaluate("navigator.clipboard.readText()"))["schemaVersion"] == 1


def test_a_refused_copy_keeps_the_focus_unless_the_visitor_must_copy_by_hand(visit):
    page = visit(f"/?a={BASE}&b={RELATED}")
    verdict(page)
    settle(page)
    page.evaluate("() => { navigator.clipboard.writeText = () => new Promise((_, no) => { window.refuse = no; }); }")
    button, link, other = (
        page.get_by_label("Copy the link"),
        page.get_by_label("Link to this comparison"),
        page.get_by_label("One model, or several"),
    )
    for can_copy, words, focused in (("true", "Copied", other), ("false", "Selected; press Ctrl+C", link)):
        page.evaluate(f"() => {{ document.execCommand = () => {can_copy}; }}")
        button.click()
        focus(other)  # before the browser refuses
        page.evaluate("() => window.refuse()")
        expect(page.locator("#said")).to_contain_text(words)
        expect(focused).to_be_focused()


def test_the_method_has_a_page_with_a_picture_for_each_idea(visit):
    page = visit()
    page.get_by_role("link", name="How it works").first.click()
    expect(page.get_by_role("heading", name="How it works")).to_be_visible()
    headings = page.locator("article.method h2")
    expect(headings).to_have_count(6)
    pictures = page.locator("article.method figure img:visible")
    expect(pictures).to_have_count(8)
    for k in range(8):
        pictures.nth(k).scroll_into_view_if_needed()
        expect(pictures.nth(k)).to_have_js_property("complete", True)
        assert pictures.nth(k).evaluate("e => e.naturalWidth") > 100
        assert len(pictures.nth(k).get_attribute("alt")) > 40


def test_nothing_private_reached_the_disk_of_the_server(visit, server, live_hub):
    compare(page := visit(), BASE, GATED)
    refusal(page)
    kept = [path.as_posix() for path in server.home.rglob("*") if path.is_file()]
    assert not any("gated" in path or "private" in path for path in kept)
    tokens = (live_hub.token.encode(), live_hub.outsider_token.encode())
    assert not any(token in path.read_bytes() for path in server.home.rglob("*") if path.is_file() for token in tokens)
