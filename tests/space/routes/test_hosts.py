"""Requests to other hosts, or from pages of other origins, are refused on loopback and in a Space."""

import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from mdir_space.jobs.service import Service, ServiceSettings
from mdir_space.page.page import launch_options
from mdir_space.routes.hosts import LOOPBACK, KnownHosts, known_hosts

SPACE = "owner-mdir-hf.hf.space"


def status(hosts, host, origin=None):
    app = KnownHosts(Starlette(routes=[Route("/", lambda request: PlainTextResponse("the page"))]), hosts)
    headers = {"host": host} | ({} if origin is None else {"origin": origin})
    return TestClient(app).get("/", headers=headers).status_code


@pytest.mark.parametrize(
    ("host", "origin", "expected"),
    [
        ("127.0.0.1:7860", None, 200),
        ("localhost:7860", "http://localhost:7860", 200),
        ("LOCALHOST:7860", "http://localhost:7860", 200),
        ("[::1]:7860", "http://[::1]:7860", 200),
        ("evil.example", None, 421),
        ("evil.example:7860", "http://evil.example:7860", 421),
        ("localhost.evil.example", None, 421),
        ("127.0.0.1.evil.example", None, 421),
        ("", None, 421),
        ("[", None, 421),
        ("127.0.0.1:7860", "http://evil.example", 403),
        ("127.0.0.1:7860", "http://127.0.0.1:9999", 403),
        ("127.0.0.1:7860", "null", 403),
        ("127.0.0.1:7860", "", 403),
    ],
)
def test_loopback_takes_its_own_names_and_origins(host, origin, expected):
    assert status(LOOPBACK, host, origin) == expected


def test_a_space_takes_its_name_and_the_addresses_of_probes(monkeypatch):
    monkeypatch.setenv("SPACE_HOST", SPACE)
    hosts = known_hosts("0.0.0.0")
    assert status(hosts, SPACE, f"https://{SPACE}") == 200
    assert status(hosts, "10.16.3.80:7860") == 200
    assert status(hosts, "evil.example") == 421
    assert status(hosts, SPACE, "https://evil.example") == 403
    monkeypatch.setenv("MDIR_SPACE_HOSTS", "models.example, other.example")
    hosts = known_hosts("0.0.0.0")
    assert status(hosts, "models.example") == 200
    assert status(hosts, SPACE, "https://other.example") == 200
    assert status(hosts, SPACE, "https://evil.example") == 403


def test_a_server_in_a_network_takes_every_name(monkeypatch):
    monkeypatch.delenv("SPACE_HOST", raising=False)
    monkeypatch.delenv("MDIR_SPACE_HOSTS", raising=False)
    assert known_hosts("0.0.0.0") is None
    assert status(None, "machine.lab", "http://elsewhere.lab") == 200
    assert all(known_hosts(host) == LOOPBACK for host in ("127.0.0.1", "127.0.0.2", "localhost", "::1"))


def test_the_page_checks_hosts_before_anything_else():
    first = launch_options(Service(ServiceSettings()), "127.0.0.1")["app_kwargs"]["middleware"][0]
    assert first.cls is KnownHosts and first.kwargs == {"hosts": LOOPBACK}
