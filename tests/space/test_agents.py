"""The door for agents, and cards: the same desk, the same limits, and nothing that is not for everybody."""

from contextlib import aclosing

import jsonschema
import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from mdir_space.addresses import pinned_link
from mdir_space.agents import ADDRESS, Agents, AgentsDoor, Call
from mdir_space.bodies import MOST_BYTES
from mdir_space.desk import Answered, Desk, Serving
from mdir_space.limits import Limits
from mdir_space.programs import tools_of
from mdir_space.question import LONGEST_NAME, Question, RefusedError
from mdir_space.sharing import CARD, Cards
from mdir_space.visitor import Visitor
from mdir_space.ways import MOST_MODELS
from tests.space.coroutines import finish
from tests.space.models import BASE, GATED, RELATED

ANYBODY = Visitor("address 1.2.3.4")


def tools(limits=Limits()):  # noqa: B008 - frozen
    desk = Desk(Serving(limits))
    return desk, {tool.name: tool for tool in tools_of(desk)}


async def result_of(tool, arguments, visitor=ANYBODY):
    async with aclosing(tool.answer(Call(arguments, visitor, None))) as news:
        return [one async for one in news][-1]


def test_agents_come_to_the_same_desk_with_the_same_limits(hub):
    desk, named = tools(Limits(n_bytes=50_000))
    pair = {"reference": BASE, "candidate": RELATED}
    with pytest.raises(RefusedError, match="more than one may read here"):
        finish(result_of(named["compare"], pair))
    planned = finish(result_of(named["plan"], pair))
    assert (planned["bytes_limit"], planned["fits"]) == (50_000, False)
    for asked, kind in (({"reference": BASE}, "family"), ({"models": [BASE, RELATED]}, "survey"), (pair, "comparison")):
        planned = finish(result_of(named["plan"], asked))
        jsonschema.validate(planned, named["plan"].gives)
        assert planned["kind"] == kind
    with pytest.raises(RefusedError, match="or of a survey"):
        finish(result_of(named["plan"], {**pair, "models": [BASE, RELATED]}))
    with pytest.raises(RefusedError, match="is gated"):
        finish(result_of(named["compare"], {"reference": BASE, "candidate": GATED}))

    desk, named = tools(Limits(n_running=1, n_waiting=5, n_per_visitor=1))
    ticket = desk._room.enter(ANYBODY.key)
    for name, arguments in (("compare", pair), ("identify", {"model": BASE}), ("survey", {"models": [BASE, RELATED]})):
        with pytest.raises(RefusedError, match="comparisons of yours are running"):
            finish(result_of(named[name], arguments))
    ticket.leave()


def test_what_a_tool_takes_is_bounded_and_what_is_wrong_is_said_shortly():
    _, named = tools()
    pair = {"reference": BASE, "candidate": RELATED}
    assert named["compare"].why_not(pair) == ""
    for name, arguments in (
        ("compare", {**pair, "candidate": "x" * (LONGEST_NAME + 1)}),
        ("compare", {**pair, "alpha": 0}),
        ("compare", {**pair, "max_bytes": 10**12}),
        ("survey", {"models": [f"o/{k}" for k in range(MOST_MODELS + 1)]}),
        ("survey", {"models": []}),
        ("verify", {"model": {"a": "b"}}),
        ("identify", {}),
        ("plan", {"candidate": BASE}),
    ):
        assert 20 < len(named[name].why_not(arguments)) < 600
    for tool in named.values():
        for schema in (tool.takes, tool.gives):
            jsonschema.Draft202012Validator.check_schema(schema)


@pytest.fixture
def client():
    agents = Agents(tools()[1].values())
    app = Starlette(routes=[Route("/", lambda request: PlainTextResponse("the page"))], lifespan=agents.lifespan)
    with TestClient(AgentsDoor(app, agents)) as client:
        yield client


def test_the_door_lists_its_tools_and_lets_everything_else_pass(client):
    assert client.get("/").text == "the page"
    assert "compare, plan, identify, verify, survey" in client.get(f"{ADDRESS}/").text
    listed = {tool["name"]: tool for tool in client.get(f"{ADDRESS}/schema").json()}
    assert set(listed) == {"compare", "plan", "identify", "verify", "survey"}
    assert listed["compare"]["outputSchema"]["properties"]["verdict"]


def test_a_body_of_an_agent_is_bounded(client):
    headers = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
    assert client.post(f"{ADDRESS}/", content=b"x" * (MOST_BYTES + 1), headers=headers).status_code == 413


def test_a_card_is_shown_of_what_is_kept_for_everybody_and_computes_nothing(hub):
    desk = Desk(Serving())
    client = TestClient(Starlette(routes=[Route(CARD, Cards(desk).show)]))

    async def answer(visitor=ANYBODY, candidate=RELATED):
        async with aclosing(desk.answer(Question(BASE, candidate), visitor)) as steps:
            return [step async for step in steps][-1]

    answered = finish(answer())
    assert isinstance(answered, Answered)
    query = pinned_link(answered, None, Question(BASE, RELATED)).partition("?")[2]
    shown = client.get(f"{CARD}?{query}")
    assert shown.status_code == 200 and "share weight ancestry" in shown.text
    assert "default-src 'none'" in shown.headers["content-security-policy"]

    reader = Visitor("account reader", hub.token)
    assert pinned_link(finish(answer(reader, GATED)), None, Question(BASE, GATED)) == ""
    read = len(hub.sent("cdn"))
    token = {"x-hf-token": hub.token}
    for other in (f"a={BASE}&b={GATED}", f"{query}&alpha=1e-30", "a=%3Cscript%3E&b=x", ""):
        refused = client.get(f"{CARD}?{other}", headers=token)
        assert refused.status_code == 404 and "<script" not in refused.text
    assert len(hub.sent("cdn")) == read
    assert finish(desk.kept(Question(BASE, RELATED), ANYBODY)).was_kept
