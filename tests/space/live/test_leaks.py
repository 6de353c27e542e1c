"""Visitors leave no object on the server, whether they wait for their answers or not."""

import sys
import time

import httpx
import pytest

from benchmarks.space_visitors import Visitors, ask, page
from mdir_space.jobs.lease import LEASE_S
from tests.space.live.test_leases import AGENT, OPENING
from tests.space.models import BASE, RELATED
from tests.space.servers import ROOT, running

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="it counts files in /proc")

N_ROUNDS = 3
SOON_S = 30.0
"""Longest time until the counts are as before: leases end, and connections close."""


@pytest.fixture
def counting(shared_hub, tmp_path):
    environment = {"HF_ENDPOINT": shared_hub.endpoint, "PYTHONPATH": f"{ROOT}:{ROOT / 'space'}"}
    with running(["-m", "tests.space.live.counting_space"], environment, tmp_path, says="Open ") as server:
        server.url = next(line for line in server.lines if line.startswith("Open ")).split()[1].rstrip("/")
        yield server


def visit_in_all_ways(visitors, number):
    """Ask on the page, through the API and as an agent, wait or leave, and return the outcomes."""
    with visitors.client(f"8.8.{number}.1", timeout_s=60) as client:
        outcomes = [
            page(client, BASE, RELATED, 1e-10),
            page(client, BASE, RELATED, 1e-10, until=lambda: True),
            ask(client, [BASE, RELATED, "auto", 1e-10]),
            visitors.ask_new(client),
            visitors.ask_new(client, stays_s=0.1),
            page(client, "owner/none", RELATED, 1e-10),
        ]
        agent = client.post("/gradio_api/mcp/", json=OPENING, headers=AGENT)
        session = {**AGENT, "mcp-session-id": agent.headers["mcp-session-id"]}
        outcomes.append(client.delete("/gradio_api/mcp/", headers=session).status_code)
    return outcomes


def counts_of(url):
    return httpx.get(f"{url}/counts", timeout=60).json()


def test_visitors_leave_nothing_behind(counting):
    visitors = Visitors(counting.url)
    first = visit_in_all_ways(visitors, 0)
    assert first == ["answered", "closed", "answered", "answered", "has a place", "refused", 200]
    time.sleep(LEASE_S + 3.0)
    httpx.get(counting.url)  # sessions are examined when requests arrive
    before = counts_of(counting.url)
    for number in range(1, N_ROUNDS):
        assert visit_in_all_ways(visitors, number) == first
    deadline = time.monotonic() + SOON_S
    while more := {
        name: (before.get(name, 0), n) for name, n in counts_of(counting.url).items() if n > before.get(name, 0)
    }:
        assert time.monotonic() < deadline, more
        time.sleep(1.0)
