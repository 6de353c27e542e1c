"""A visitor who is gone frees the place within five seconds, in whichever way it was taken."""

import time

import anyio
import httpx
import pytest
from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client

from mdir_space.jobs.lease import LEASE_S
from mdir_space.routes.mcp import MAX_SESSIONS_OF_ONE
from tests.loopback.faults import Fault
from tests.space.coroutines import finish
from tests.space.live.steps import compare, is_quiet
from tests.space.models import LARGE, LARGER
from tests.space.servers import descendants

SLOW_S = 1.5
"""Delay of every 64 kB; a comparison of the large models would take minutes."""
GONE_S = 5.0
LATE_S = 3.0
"""Time that a busy machine may add to the kill of a process."""
STARTS_S = 60.0
AGENT = {"accept": "application/json, text/event-stream", "x-forwarded-for": "8.8.7.1"}
OPENING = {
    "jsonrpc": "2.0",
    "id": 0,
    "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}},
}


@pytest.fixture
def slow_hub(live_hub):
    live_hub.faults.append(Fault("slow", origin="cdn", path="large", times=None, delay_s=SLOW_S))
    return live_hub


class Jobs:
    """The processes of the jobs of a server that was idle."""

    def __init__(self, server):
        self._pid = server.process.pid
        self._n_idle = len(descendants(self._pid))

    @property
    def n_running(self):
        return len(descendants(self._pid)) - self._n_idle

    def wait_for(self, n_running, seconds):
        deadline = time.monotonic() + seconds
        while self.n_running != n_running:
            assert time.monotonic() < deadline, f"{self.n_running} jobs run after {seconds} s"
            time.sleep(0.05)


@pytest.fixture
def jobs(server, slow_hub):
    assert is_quiet(slow_hub)
    jobs = Jobs(server)
    yield jobs
    jobs.wait_for(0, 30.0)


def question(alpha):
    """Ask for all layers; no other test has left their bytes in the cache."""
    return {"data": [LARGE, LARGER, "layers", alpha]}


def test_a_closed_stream_of_the_api(server, jobs):
    with httpx.Client(base_url=server.url, timeout=60) as client:
        event = client.post("/gradio_api/call/compare", json=question(1e-41)).json()["event_id"]
        with client.stream("GET", f"/gradio_api/call/compare/{event}"):
            jobs.wait_for(1, STARTS_S)
            time.sleep(LEASE_S + 2.0)
            assert jobs.n_running == 1  # an open stream keeps it
    jobs.wait_for(0, GONE_S + LATE_S)


def test_a_call_whose_stream_is_never_opened(server, jobs):
    assert httpx.post(f"{server.url}/gradio_api/call/compare", json=question(1e-42)).status_code == 200
    jobs.wait_for(1, STARTS_S)
    jobs.wait_for(0, GONE_S + LATE_S)


def test_a_closed_tab(visit, jobs):
    page = visit()
    compare(page, LARGE, LARGER)
    jobs.wait_for(1, STARTS_S)
    page.close()
    jobs.wait_for(0, GONE_S + LATE_S)


def test_a_closed_call_of_an_agent(server, jobs):
    arguments = {"reference": LARGE, "candidate": LARGER, "alpha": 1e-43}
    call = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": "compare", "arguments": arguments}}
    with httpx.Client(base_url=server.url, timeout=60, headers=AGENT) as client:
        opened = client.post("/gradio_api/mcp/", json=OPENING)
        headers = {"mcp-session-id": opened.headers["mcp-session-id"]}
        client.post("/gradio_api/mcp/", json={"jsonrpc": "2.0", "method": "notifications/initialized"}, headers=headers)
        with client.stream("POST", "/gradio_api/mcp/", json=call, headers=headers):
            jobs.wait_for(1, STARTS_S)
        jobs.wait_for(0, GONE_S + LATE_S)
        assert client.delete("/gradio_api/mcp/", headers=headers).status_code == 200


def test_one_client_cannot_take_every_session(server):
    with httpx.Client(base_url=server.url, timeout=60, headers=AGENT) as client:
        opened = [client.post("/gradio_api/mcp/", json=OPENING) for _ in range(3 * MAX_SESSIONS_OF_ONE)]
        assert {answer.status_code for answer in opened} == {200, 429}
        assert sum(answer.status_code == 200 for answer in opened) <= 2 * MAX_SESSIONS_OF_ONE
        assert f"You have {MAX_SESSIONS_OF_ONE} open sessions here" in opened[-1].json()["error"]["message"]
        other = {"x-forwarded-for": "8.8.7.2"}
        assert client.post("/gradio_api/mcp/", json=OPENING, headers=other).status_code == 200
        time.sleep(LEASE_S + 0.5)
        again = client.post("/gradio_api/mcp/", json=OPENING)
        assert again.status_code == 200
        # The place came from an unused session of the same client.
        first = {"mcp-session-id": opened[0].headers["mcp-session-id"]}
        ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        assert client.post("/gradio_api/mcp/", json=ping, headers=first).status_code == 404


def test_a_session_with_an_open_stream_outlasts_its_lease(server):
    async def wait_and_list():
        async with (
            streamable_http_client(f"{server.url}/gradio_api/mcp/") as (read, write, _),
            ClientSession(read, write) as agent,
        ):
            await agent.initialize()
            await anyio.sleep(LEASE_S + 1.0)
            with httpx.Client(base_url=server.url, timeout=60) as client:  # from the same address
                for _ in range(MAX_SESSIONS_OF_ONE):
                    client.post("/gradio_api/mcp/", json=OPENING, headers={"accept": AGENT["accept"]})
            return await agent.list_tools()

    assert len(finish(wait_and_list()).tools) == 6


def test_another_host_is_refused(server):
    assert httpx.get(server.url, headers={"host": "evil.example"}).status_code == 421
    with httpx.Client(base_url=server.url, headers={"origin": "http://evil.example"}) as client:
        for path in ("/", "/config", "/gradio_api/mcp/"):
            answer = client.get(path)
            assert answer.status_code == 403
            assert "access-control-allow-origin" not in answer.headers
