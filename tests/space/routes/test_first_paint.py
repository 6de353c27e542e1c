"""The page before its scripts run: the question, or a cached public result."""

import asyncio
import html
import re
from contextlib import aclosing

import pytest
from starlette.applications import Starlette
from starlette.responses import HTMLResponse, PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from mdir_space.html.links import CARD_PATH, pinned_link
from mdir_space.jobs.question import FamilyQuestion, PairQuestion, SurveyQuestion
from mdir_space.jobs.service import Service, ServiceSettings
from mdir_space.jobs.visitor import Visitor
from mdir_space.page.page import launch_options
from mdir_space.routes import first_paint
from mdir_space.routes.cards import Cards
from mdir_space.routes.first_paint import FirstPaint
from mdir_space.routes.pictures import PICTURES
from tests.space.coroutines import finish
from tests.space.models import BASE, DECLARED, GATED, RELATED, STRANGER

ANYBODY = Visitor("address 1.2.3.4")
GRADIO = (
    "<!doctype html><html><head><meta property='og:title' content='Gradio'></head><body\n\tstyle='x'>APP</body></html>"
)


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    monkeypatch.setattr(first_paint, "MAX_WAIT_S", 60.0)  # a busy machine must not omit a result


def client_of(service):
    options = next(
        m.kwargs for m in launch_options(service, "127.0.0.1")["app_kwargs"]["middleware"] if m.cls is FirstPaint
    )
    routes = [
        Route("/", lambda request: HTMLResponse(GRADIO, headers={"x-of": "gradio"}), methods=["GET", "POST"]),
        Route("/other", lambda request: HTMLResponse(GRADIO)),
        Route("/text", lambda request: PlainTextResponse(GRADIO)),
    ]
    return TestClient(FirstPaint(Starlette(routes=routes), **options))


def kept_queries(service, *, candidate=RELATED, visitor=ANYBODY):
    answered = last_of(service.answer(PairQuestion(BASE, candidate), visitor))
    return answered, pinned_link(answered, None, PairQuestion(BASE, candidate)).partition("?")[2]


def test_the_page_has_the_question_before_its_scripts():
    answer = client_of(Service(ServiceSettings())).get("/")
    assert (answer.status_code, answer.headers["x-of"]) == (200, "gradio")
    assert int(answer.headers["content-length"]) == len(answer.content)
    body = answer.text.partition("<body\n\tstyle='x'>")[2]
    assert body.startswith('<main id="first-paint" data-holds="question">') and body.endswith("APP</body></html>")
    assert "<h1>Do two models share weight ancestry?</h1>" in body
    assert 'id="verdict-words"' not in body
    assert "<title>mdir-hf" in answer.text and "Gradio" not in answer.text


def test_link_previews_name_the_page_and_not_gradio(monkeypatch):
    page = "".join(
        f"<meta\n\t{kind}='{name}'\n\tcontent='Click to try out the app!' />"
        for kind, name in (("property", "og:title"), ("property", "og:url"), ("name", "twitter:creator"))
    )
    monkeypatch.setattr(f"{__name__}.GRADIO", f"<html><head>{page}<meta name='viewport'></head><body></body></html>")
    text = client_of(Service(ServiceSettings())).get("/?reference=a/b&candidate=c/d").text
    tags = dict(re.findall(r'<meta (?:property|name)="([a-z:]+)" content="([^"]*)"', text))
    assert "Click to try" not in text and "name='viewport'" in text
    assert tags["og:url"] == "http://testserver/"
    assert tags["og:title"] == tags["twitter:title"] and "mdir-hf" in tags["og:title"]
    assert tags["og:image"].startswith("http://testserver/pictures/")
    assert (PICTURES / tags["og:image"].rpartition("/")[2]).is_file()
    assert tags["og:description"] == tags["description"] != ""


def test_only_the_page_itself_is_modified():
    client = client_of(Service(ServiceSettings()))
    assert client.get("/other").text == client.get("/text").text == client.post("/").text == GRADIO
    assert client.get("/nothing").status_code == 404


def test_a_cached_result_is_in_the_page_and_its_preview_tags(hub):
    service = Service(ServiceSettings())
    client = client_of(service)
    answered, query = kept_queries(service)
    shown = client.get(f"/?{query}").text
    assert 'data-holds="result"' in shown and "Stored result of an earlier comparison" in shown
    assert shown.count('id="verdict-words"') == 1
    title = re.search(r'og:title" content="([^"]*)"', shown)[1]
    assert title == html.escape(answered.result.sentence)
    assert re.search(r'og:url" content="([^"]*)"', shown)[1].endswith(html.escape(f"?{query}"))
    assert re.search(r'og:image" content="([^"]*)"', shown)[1].endswith("landing-yes-light.webp")


def last_of(stream):
    async def steps():
        async with aclosing(stream) as steps:
            return [step async for step in steps][-1]

    return finish(steps())


def test_cached_families_and_surveys_are_on_page_and_cards(hub):
    service = Service(ServiceSettings())
    client, cards = client_of(service), TestClient(Starlette(routes=[Route(CARD_PATH, Cards(service).show)]))
    of_model, of_several = FamilyQuestion(DECLARED, searches=False), SurveyQuestion((BASE, RELATED, STRANGER))
    for question, answered, said in (
        (of_model, last_of(service.answer(of_model, ANYBODY)), f"It shares weight ancestry with {BASE}."),
        (of_several, last_of(service.answer(of_several, ANYBODY)), "2 of 3 form one family."),
    ):
        query = pinned_link(answered, None, question).partition("?")[2]
        shown = client.get(f"/?{query}").text
        assert 'data-holds="result"' in shown and shown.count('id="verdict-words"') == 1
        assert re.search(r'og:title" content="([^"]*)"', shown)[1] == said
        assert "<svg" not in shown and len(shown) < 60_000
        card = cards.get(f"{CARD_PATH}?{query}")
        assert card.status_code == 200 and f"<h1>{said}</h1>" in card.text and "have no direction" in card.text
        assert cards.get(f"{CARD_PATH}?{query}&alpha=1e-30").status_code == 404


def test_the_first_paint_computes_nothing_and_uses_no_rights(hub):
    service = Service(ServiceSettings())
    client = client_of(service)
    kept_queries(service, candidate=GATED, visitor=Visitor("account reader", hub.token))
    read = len(hub.sent("cdn"))
    for query in (f"a={BASE}&b={GATED}", f"a={BASE}&b={STRANGER}", "a=%3Cscript%3Ealert(1)%3C/script%3E&b=x"):
        shown = client.get(f"/?{query}", headers={"x-hf-token": hub.token})
        assert shown.status_code == 200 and 'data-holds="question"' in shown.text
        assert "alert(1)" not in shown.text
    assert len(hub.sent("cdn")) == read


async def _slow(question, visitor):
    await asyncio.sleep(60)


async def _broken(question, visitor):
    raise ZeroDivisionError


@pytest.mark.parametrize("kept", [_slow, _broken])
def test_the_page_loads_even_if_the_lookup_fails(monkeypatch, kept):
    monkeypatch.setattr(first_paint, "MAX_WAIT_S", 0.05)
    service = Service(ServiceSettings())
    monkeypatch.setattr(service, "kept_answer", kept)
    assert 'data-holds="question"' in client_of(service).get(f"/?a={BASE}&b={RELATED}").text


@pytest.mark.parametrize(("wanted", "has_both"), [("", True), ("light", False), ("dark", False), ("none", True)])
def test_the_requested_theme_is_shown_from_the_beginning(wanted, has_both):
    shown = client_of(Service(ServiceSettings())).get(f"/?__theme={wanted}").text
    style = shown.partition("<style>")[2].partition("</style>")[0]
    assert ("prefers-color-scheme: dark) { #first-paint" in style) is has_both
    assert ("--body-text-color: #1b1f24" in style) is (wanted != "dark")
    used = set(re.findall(r"var\(--([a-z-]+)\)", style))
    assert used <= set(re.findall(r"--([a-z-]+):", style))
