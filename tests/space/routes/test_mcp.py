"""Tools, the MCP server and cards: the same limits as the page, and public results only."""

from contextlib import aclosing

import jsonschema
import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from mdir_space.html.links import CARD_PATH, MCP_PATH, pinned_link
from mdir_space.jobs.limits import Limits
from mdir_space.jobs.question import MAX_MODELS, MAX_NAME_LENGTH, PairQuestion, RefusedError
from mdir_space.jobs.service import Answered, Service, ServiceSettings
from mdir_space.jobs.visitor import Visitor
from mdir_space.routes.body_limit import MAX_BODY_BYTES
from mdir_space.routes.cards import Cards
from mdir_space.routes.mcp import McpMiddleware, McpServer
from mdir_space.routes.tools import TOOLS, Call
from tests.space.coroutines import finish
from tests.space.models import BASE, GATED, RELATED

ANYBODY = Visitor("address 1.2.3.4")


TOOL = {tool.name: tool for tool in TOOLS}


async def result_of(service, name, arguments, visitor=ANYBODY):
    async with aclosing(TOOL[name].answer(service, Call(arguments, visitor, None))) as steps:
        return [step async for step in steps][-1]


def test_tools_have_the_same_limits_and_queue(hub):
    service = Service(ServiceSettings(Limits(n_bytes=50_000)))
    pair = {"reference": BASE, "candidate": RELATED}
    with pytest.raises(RefusedError, match="limit of bytes here"):
        finish(result_of(service, "compare", pair))
    planned = finish(result_of(service, "plan", pair))
    assert (planned["bytes_limit"], planned["fits"]) == (50_000, False)
    for asked, kind in (({"reference": BASE}, "family"), ({"models": [BASE, RELATED]}, "survey"), (pair, "comparison")):
        planned = finish(result_of(service, "plan", asked))
        jsonschema.validate(planned, TOOL["plan"].output_schema)
        assert planned["kind"] == kind
    with pytest.raises(RefusedError, match="or a survey"):
        finish(result_of(service, "plan", {**pair, "models": [BASE, RELATED]}))
    with pytest.raises(RefusedError, match="is gated"):
        finish(result_of(service, "compare", {"reference": BASE, "candidate": GATED}))

    service = Service(ServiceSettings(Limits(n_running=1, n_waiting=5, n_per_visitor=1)))
    entry = service._queue.enter(ANYBODY.key)
    for name, arguments in (("compare", pair), ("family", {"model": BASE}), ("survey", {"models": [BASE, RELATED]})):
        with pytest.raises(RefusedError, match="comparisons of yours are running"):
            finish(result_of(service, name, arguments))
    entry.leave()


def test_wrong_arguments_give_a_short_message():
    pair = {"reference": BASE, "candidate": RELATED}
    assert TOOL["compare"].why_not(pair) == ""
    for name, arguments in (
        ("compare", {**pair, "candidate": "x" * (MAX_NAME_LENGTH + 1)}),
        ("compare", {**pair, "alpha": 0}),
        ("compare", {**pair, "max_bytes": 10**12}),
        ("survey", {"models": [f"o/{k}" for k in range(MAX_MODELS + 1)]}),
        ("survey", {"models": []}),
        ("verify", {"model": {"a": "b"}}),
        ("family", {}),
        ("plan", {"candidate": BASE}),
    ):
        assert 20 < len(TOOL[name].why_not(arguments)) < 600
    for tool in TOOLS:
        for schema in (tool.input_schema, tool.output_schema):
            jsonschema.Draft202012Validator.check_schema(schema)


@pytest.fixture
def client():
    mcp = McpServer(Service(ServiceSettings()))
    app = Starlette(routes=[Route("/", lambda request: PlainTextResponse("the page"))], lifespan=mcp.lifespan)
    with TestClient(McpMiddleware(app, mcp)) as client:
        yield client


def test_the_mcp_server_lists_its_tools_only_at_its_address(client):
    assert client.get("/").text == "the page"
    assert "compare, plan, align, family, verify, survey" in client.get(f"{MCP_PATH}/").text
    listed = {tool["name"]: tool for tool in client.get(f"{MCP_PATH}/schema").json()}
    assert set(listed) == {"compare", "plan", "align", "family", "verify", "survey"}
    assert listed["compare"]["outputSchema"]["properties"]["verdict"]


def test_a_body_of_an_agent_is_bounded(client):
    headers = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
    assert client.post(f"{MCP_PATH}/", content=b"x" * (MAX_BODY_BYTES + 1), headers=headers).status_code == 413


def test_a_card_shows_cached_public_results_only(hub):
    service = Service(ServiceSettings())
    client = TestClient(Starlette(routes=[Route(CARD_PATH, Cards(service).show)]))

    async def answer(visitor=ANYBODY, candidate=RELATED):
        async with aclosing(service.answer(PairQuestion(BASE, candidate), visitor)) as steps:
            return [step async for step in steps][-1]

    answered = finish(answer())
    assert isinstance(answered, Answered)
    query = pinned_link(answered, None, PairQuestion(BASE, RELATED)).partition("?")[2]
    shown = client.get(f"{CARD_PATH}?{query}")
    assert shown.status_code == 200 and "share weights (p ≤" in shown.text
    assert "default-src 'none'" in shown.headers["content-security-policy"]

    reader = Visitor("account reader", hub.token)
    assert pinned_link(finish(answer(reader, GATED)), None, PairQuestion(BASE, GATED)) == ""
    read = len(hub.sent("cdn"))
    token = {"x-hf-token": hub.token}
    for other in (f"a={BASE}&b={GATED}", f"{query}&alpha=1e-30", "a=%3Cscript%3E&b=x", ""):
        refused = client.get(f"{CARD_PATH}?{other}", headers=token)
        assert refused.status_code == 404 and "<script" not in refused.text
    assert len(hub.sent("cdn")) == read
    assert finish(service.kept_answer(PairQuestion(BASE, RELATED), ANYBODY)).was_kept
