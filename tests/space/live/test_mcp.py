"""Two sessions of an agent with the client of the mcp package: a successful one, and one with errors and a cancel.

Their messages are stored in ``sessions/``. To renew them, run
``MDIR_HF_RENEW_SESSIONS=1 python -m pytest -m slow tests/space/live/test_mcp.py``.
"""

import json
import os
from itertools import pairwise

import anyio
import jsonschema
from mcp import ClientSession, types
from mcp.shared.exceptions import McpError

from mdir_hf import HomologyReport
from mdir_space.routes.answers import WORDS
from tests.loopback.faults import Fault
from tests.space.coroutines import finish
from tests.space.live.steps import is_quiet
from tests.space.live.transcripts import Transcript, compared_with_stored
from tests.space.models import BASE, DECLARED, GATED, LARGE, LARGER, RELATED, STRANGER

RENEWS = "MDIR_HF_RENEW_SESSIONS"


def session(server, use, name):
    """Let an agent use the server, and compare their messages with the stored session."""
    transcript = Transcript()

    async def run():
        async with (
            transcript.connected(f"{server.url}/gradio_api/mcp/") as (read, write),
            ClientSession(read, write) as agent,
        ):
            await agent.initialize()
            return await use(agent)

    used = finish(run())
    assert compared_with_stored(transcript, name, renews=RENEWS in os.environ) == []
    assert transcript.n_progress or name != "answers"
    return used


def test_a_session_that_succeeds(server, live_hub):
    live_hub.faults.append(Fault("slow", origin="cdn", path="large", times=None, delay_s=0.2))

    async def use(agent):
        tools = {tool.name: tool for tool in (await agent.list_tools()).tools}
        planned = await agent.call_tool("plan", {"reference": BASE, "candidate": RELATED})
        compared = await agent.call_tool("compare", {"reference": BASE, "candidate": RELATED})
        heard = []

        async def hear(progress, total, message):
            heard.append((progress, message))

        identified = await agent.call_tool("family", {"model": RELATED})
        verified = await agent.call_tool("verify", {"model": DECLARED})
        surveyed = await agent.call_tool("survey", {"models": [BASE, RELATED, STRANGER]})
        whole = {"reference": LARGE, "candidate": LARGER, "level": "auto", "alpha": 1e-9, "detailed": True}
        detailed = await agent.call_tool("compare", whole, progress_callback=hear)
        return tools, planned, compared, identified, verified, surveyed, detailed, heard

    tools, planned, compared, identified, verified, surveyed, detailed, heard = session(server, use, "answers")

    assert set(tools) == {"compare", "plan", "align", "family", "verify", "survey"}
    results = {"plan": planned, "family": identified, "verify": verified, "survey": surveyed, "compare": detailed}
    for name, result in results.items():
        jsonschema.validate(result.structuredContent, tools[name].outputSchema)
    assert identified.structuredContent["found"] == [BASE]
    assert verified.structuredContent["bases"][0]["outcome"] == "homologous"
    assert [STRANGER] in surveyed.structuredContent["groups"]
    for tool in tools.values():
        jsonschema.Draft202012Validator.check_schema(tool.inputSchema)
        jsonschema.Draft202012Validator.check_schema(tool.outputSchema)
        assert tool.annotations.readOnlyHint and 80 < len(tool.description) < 800
        assert all("description" in taken for taken in tool.inputSchema["properties"].values())
    assert tools["compare"].inputSchema["required"] == ["reference", "candidate"]

    assert planned.structuredContent["steps"][0]["step"] == "near" and planned.structuredContent["fits"]
    answer = compared.structuredContent
    jsonschema.validate(answer, tools["compare"].outputSchema)
    assert json.loads(compared.content[0].text) == answer
    assert answer["verdict"] == "homologous" and answer["sentence"].endswith(f"share weights ({answer['strength']}).")
    assert len(compared.content[0].text) < 8000
    report = {
        name: value for name, value in detailed.structuredContent.items() if name not in (*WORDS, "does_not_mean")
    }
    assert HomologyReport.from_json(json.dumps(report)).verdict.value == "no_evidence"

    assert heard and all(later > earlier for (earlier, _), (later, _) in pairwise(heard))
    assert any("Looking at the embeddings" in message and "read" in message for _, message in heard)


def test_a_session_of_wrong_input_and_a_cancel(server, live_hub):
    wrong = [
        ({"reference": BASE}, "'candidate' is a required property"),
        ({"reference": BASE, "candidate": RELATED, "depth": 3}, "Its arguments are reference, candidate, level"),
        ({"reference": BASE, "candidate": RELATED, "level": "all"}, "level: 'all' is not one of"),
        ({"reference": BASE, "candidate": RELATED, "alpha": "small"}, "alpha: 'small' is not of type 'number'"),
        ({"reference": BASE, "candidate": "x" * 10_000}, "is too long"),
        ({"reference": BASE, "candidate": "owner/absent"}, "was not found on the Hub"),
        ({"reference": BASE, "candidate": GATED}, "is gated"),
        ({"reference": "/etc/passwd", "candidate": BASE}, "not allowed here"),
    ]
    live_hub.faults.append(Fault("slow", origin="cdn", path="large", times=None, delay_s=1.5))

    async def use(agent):
        refused = [await agent.call_tool("compare", arguments) for arguments, _ in wrong]
        unknown = await agent.call_tool("judge", {})
        reading = anyio.Event()
        told = []

        async def hear(progress, total, message):
            told.append(message)
            if "embeddings" in message:
                reading.set()

        async def ask():
            try:
                asked = {"reference": LARGE, "candidate": LARGER, "level": "auto", "alpha": 1e-8}
                await agent.call_tool("compare", asked, progress_callback=hear)
            except McpError as exc:
                told.append(str(exc))

        async with anyio.create_task_group() as tasks:
            number = agent._request_id
            tasks.start_soon(ask)
            await reading.wait()
            cancelled = types.CancelledNotification(params=types.CancelledNotificationParams(requestId=number))
            await agent.send_notification(types.ClientNotification(cancelled))
        after = await agent.call_tool("plan", {"reference": BASE, "candidate": RELATED})
        return refused, unknown, told, after

    refused, unknown, told, after = session(server, use, "refusals")

    for (_, words), result in zip(wrong, refused, strict=True):
        assert result.isError and words in result.content[0].text
        assert len(result.content[0].text) < 900 and "Traceback" not in result.content[0].text
    assert unknown.isError and "The tools are compare, plan, align, family, verify, survey" in unknown.content[0].text
    assert told[-1] == "Request cancelled"
    assert not after.isError
    assert is_quiet(live_hub)
