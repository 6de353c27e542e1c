"""An answer without a listener is dropped, and its jobs are stopped."""

import time
from pathlib import Path

import httpx
import pytest

from mdir_space.jobs.lease import LEASE_S
from mdir_space.page.page import MAX_SESSIONS, launch_options
from mdir_space.routes.streams import StreamLeases
from tests.space.jobs.test_service import Service, ServiceSettings
from tests.space.servers import ROOT, running

PAGE = Path(__file__).parent / "counting_page.py"


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    home = tmp_path_factory.mktemp("counting")
    with running([str(PAGE)], {"PYTHONPATH": f"{ROOT}:{ROOT / 'space'}"}, home, says="counting at") as server:
        url = next(line for line in server.lines if "counting at" in line).split()[-1]
        with httpx.Client(base_url=url, timeout=60) as client:
            yield client


def left(client):
    asked = {"data": [], "fn_index": 1, "session_hash": "looking"}
    return client.post("/gradio_api/run/left", json=asked).json()["data"][0]


def test_an_unread_answer_is_dropped_and_its_job_stopped(client):
    ask = {"data": [100_000], "fn_index": 0, "session_hash": "deaf"}
    assert client.post("/gradio_api/queue/join", json=ask).status_code == 200
    is_dropped_in_time(client, "deaf")


def test_a_closed_stream_is_dropped_and_its_job_stopped(client):
    asked = client.post("/gradio_api/call/count", json={"data": [100_000]}).json()["event_id"]
    with client.stream("GET", f"/gradio_api/call/count/{asked}") as answer:
        lines = answer.iter_lines()
        while not next(lines).startswith("data: "):
            pass
        time.sleep(LEASE_S + 2.0)  # an open stream outlasts the lease
        assert left(client) == [[asked], [100_000]]
    is_dropped_in_time(client, asked)


def is_dropped_in_time(client, session):
    for _ in range(60):  # 6 s: the lease, a second until it is seen, and a second on a busy machine
        sessions, at_work = left(client)
        if session not in sessions and not at_work:
            return
        time.sleep(0.1)
    raise AssertionError((sessions, at_work))


def test_a_listening_client_gets_every_update(client):
    asked = client.post("/gradio_api/call/count", json={"data": [60]}).json()["event_id"]
    heard = []
    with client.stream("GET", f"/gradio_api/call/count/{asked}") as answer:
        for line in answer.iter_lines():
            if line.startswith("data: "):
                heard.append(line)
                left(client)
    assert heard[-1] == 'data: ["59"]'


def test_the_page_drops_unread_answers_and_old_sessions():
    options = launch_options(Service(ServiceSettings()), "127.0.0.1")
    assert StreamLeases in [one.cls for one in options["app_kwargs"]["middleware"]]
    assert options["state_session_capacity"] == MAX_SESSIONS <= 64
