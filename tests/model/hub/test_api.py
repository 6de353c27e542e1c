"""A single request to the Hub's API: redirects, retries, refusals and error messages."""

import gzip
import socket

import pytest

from mdir_hf.budgets import HUB_ANSWER
from mdir_hf.errors import GatedRepositoryError, RateLimitedError, ServerError
from mdir_hf.model.hub.connection import RefusalError, ask
from tests.loopback.faults import Fault

PATH = "/api/models/owner/name"


def asked(hub, **options):
    return ask(f"{hub.endpoint}{PATH}", label="owner/name", endpoint=hub.endpoint, token=False, **options)


def answers(hub, body, *, status=200, times=None, **headers):
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    hub.faults.append(Fault("status", path="/api/models", status=status, body=body, headers=named, times=times))


def test_an_unpacked_answer_may_be_as_long_as_is_allowed(loopback_hub, monkeypatch):
    monkeypatch.setattr("mdir_hf.model.hub.connection.HUB_ANSWER", type(HUB_ANSWER)(n_bytes=1000, n_items=100))
    answers(loopback_hub, gzip.compress(b"7" + b" " * 999), times=1, Content_Encoding="gzip")
    assert asked(loopback_hub)[0] == 7
    answers(loopback_hub, gzip.compress(b"7" + b" " * 1000), times=1, Content_Encoding="gzip")
    with pytest.raises(ServerError, match="it is longer than 1,000 bytes"):
        asked(loopback_hub)


@pytest.mark.parametrize("body", [b"", b"{", b"<html>", b"\xff", b"[" * 5000])
def test_an_answer_that_is_not_json_raises(loopback_hub, body):
    answers(loopback_hub, body)
    with pytest.raises(ServerError, match=r"it is (not JSON|a web page, perhaps to log in to the network); check"):
        asked(loopback_hub)


@pytest.mark.parametrize(("n_moves", "is_followed"), [(1, True), (4, True), (5, False)])
def test_the_number_of_redirects_is_limited(loopback_hub, n_moves, is_followed):
    answers(loopback_hub, b"", status=307, times=n_moves, Location=f"{loopback_hub.endpoint}{PATH}/there")
    answers(loopback_hub, b"7")
    if is_followed:
        assert asked(loopback_hub)[0] == 7
        assert loopback_hub.requests[-1].path == f"{PATH}/there"
    else:
        with pytest.raises(ServerError, match="still returned 307"):
            asked(loopback_hub)
    assert len(loopback_hub.requests) == 5 if n_moves > 1 else 2


@pytest.mark.parametrize("place", ["!\x01", "http://[x", "http://a b:x/", "//\x7f/", "http://x:99999999/", "mailto:a"])
def test_an_api_redirect_to_an_invalid_url_is_an_error(loopback_hub, place):
    answers(loopback_hub, b"", status=307, Location=place)
    with pytest.raises(ServerError, match=r"not one that the Hub sends|redirects away|invalid URL|could not be"):
        asked(loopback_hub)


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_a_temporary_server_error_is_retried(loopback_hub, waits, status):
    counted = []
    answers(loopback_hub, b"", status=status, times=3)
    answers(loopback_hub, b"7")
    assert asked(loopback_hub, before_each=lambda: counted.append(1))[0] == 7
    assert len(counted) == len(loopback_hub.requests) == 4
    assert len(waits) == 3


@pytest.mark.parametrize(("status", "kind"), [(429, RateLimitedError), (503, ServerError)])
def test_a_lasting_failure_is_named_by_its_last_response(loopback_hub, waits, status, kind):
    answers(loopback_hub, b"words", status=status, X_Error_Message="of the server")
    with pytest.raises(kind, match=str(status)) as caught:
        asked(loopback_hub)
    cause = caught.value.__cause__
    assert isinstance(cause, RefusalError) and (cause.status, cause.text) == (status, "of the server words")
    assert str(cause) == str(status)  # logs do not show anything that a server wrote
    assert len(loopback_hub.requests) == 6


def test_a_refusal_is_not_retried(loopback_hub):
    answers(loopback_hub, b"x" * 100_000, status=403)
    with pytest.raises(GatedRepositoryError) as caught:
        asked(loopback_hub)
    cause = caught.value.__cause__
    assert isinstance(cause, RefusalError) and cause.text.strip() == ""
    assert len(loopback_hub.requests) == 1


def test_an_unreachable_server_is_retried_and_then_named(hf_home, waits):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        endpoint = f"http://127.0.0.1:{listener.getsockname()[1]}"
    with pytest.raises(ServerError, match=r"127\.0\.0\.1 could not be reached \(ConnectError\)"):
        ask(f"{endpoint}{PATH}", label="owner/name", endpoint=endpoint, token=False)
    assert len(waits) == 2


def test_a_permanent_error_is_not_retried(hf_home, waits):
    with pytest.raises(ServerError, match="could not be reached"):
        ask("http://", label="owner/name", endpoint="http://", token=False)
    assert not waits
