"""Limits of request bodies, pictures, and forged visitor addresses."""

import json
import types

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from mdir_space.jobs.visitor import forwarded_for, visitor_of
from mdir_space.page.page import build_page, launch_options
from mdir_space.routes.body_limit import BodyLimit
from mdir_space.routes.pictures import PICTURES, StaticPictures
from tests.space.coroutines import finish
from tests.space.jobs.test_service import Service, ServiceSettings

VISITOR, PROXY = "8.8.8.8", "1.1.1.1"


@pytest.fixture
def client():
    async def length(request):
        return PlainTextResponse(str(len(await request.body())))

    app = Starlette(routes=[Route("/", length, methods=["POST"])], middleware=[Middleware(BodyLimit, most_bytes=1000)])
    return TestClient(app)


def test_a_short_body_passes_and_a_long_one_is_refused(client):
    assert client.post("/", content=b"x" * 1000).text == "1000"
    assert client.post("/", content=b"x" * 1001).status_code == 413


def test_a_body_in_pieces_is_refused_once_it_is_too_long(client):
    sent = []

    def pieces():
        for _ in range(50):
            sent.append(1)
            yield b"x" * 100

    assert client.post("/", content=pieces()).status_code == 413


@pytest.mark.parametrize("length", ["-1", "1e3", "²", "9" * 400])
def test_an_invalid_length_is_refused(client, length):
    assert client.post("/", content=b"x", headers={"content-length": length.encode()}).status_code == 413


def test_the_page_takes_no_files_and_limits_bodies():
    options = launch_options(Service(ServiceSettings()), "127.0.0.1")
    assert options["enable_monitoring"] is False
    assert options["max_file_size"] <= 1
    assert options["app_kwargs"]["middleware"][1].cls is BodyLimit


def test_the_page_contains_no_server_paths():
    async def build():
        return build_page(Service(ServiceSettings()))

    page = finish(build())  # without a running event loop, gradio creates one and leaves it open
    shown = json.dumps(page.get_config_file(), default=str)
    assert "pictures/relatives-light.svg" in shown
    assert str(PICTURES.parent) not in shown


def test_only_pictures_are_served():
    client = TestClient(StaticPictures(PlainTextResponse("the page")))
    assert client.get("/pictures/relatives-light.svg").headers["content-type"] == "image/svg+xml"
    for address in ("/pictures/../app.py", "/pictures/%2e%2e/app.py", "/pictures//etc/passwd", "/pictures/absent.svg"):
        assert client.get(address).text in ("Not Found", "the page"), address
    assert client.get("/").text == "the page"


@pytest.mark.parametrize(
    ("header", "n_proxies", "address"),
    [
        (VISITOR, 0, ""),
        (VISITOR, 1, VISITOR),
        (f"9.9.9.9, {VISITOR}", 1, VISITOR),
        (f"9.9.9.9, {VISITOR}, 10.16.3.80", 1, VISITOR),
        (f"9.9.9.9, {VISITOR}, {PROXY}", 2, VISITOR),
        ("10.0.0.1", 1, ""),
        ("", 1, ""),
        ("not an address, x" * 50, 1, ""),
        ("2001:4860:4860::8888", 1, "2001:4860:4860::8888"),
    ],
)
def test_only_addresses_from_own_proxies_count(header, n_proxies, address):
    assert forwarded_for(header, n_proxies) == address


def test_forged_addresses_do_not_split_a_visitor():
    def key(header, n_proxies):
        request = types.SimpleNamespace(
            headers={"x-forwarded-for": header}, client=types.SimpleNamespace(host="10.1.2.3")
        )
        return visitor_of(request, n_proxies=n_proxies).key

    assert {key(f"8.8.{k}.1", 0) for k in range(40)} == {"address 10.1.2.3"}
    assert {key(f"8.8.{k}.1, {VISITOR}", 1) for k in range(40)} == {f"address {VISITOR}"}
