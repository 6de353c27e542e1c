"""Slow, faulty or hostile networks give the correct bytes or an error that names the cause."""

import numpy as np
import pytest

from mdir_hf.errors import HubError, RangeIgnoredError, ServerError
from mdir_hf.model.hub import open_repository
from tests.loopback.faults import Fault

WEIGHTS = "model.safetensors"
PORTAL = b"<!DOCTYPE html><html><title>Hotel Wi-Fi</title><body>Please log in</body></html>"


@pytest.fixture(autouse=True)
def without_range_cache(hf_home, monkeypatch):
    monkeypatch.setenv("MDIR_HF_CACHE_MAX_BYTES", "0")


@pytest.fixture
def content(loopback_hub, model_folder):
    loopback_hub.add_repository("owner/name", model_folder)
    return (model_folder / WEIGHTS).read_bytes()


def spans(n_bytes, n):
    edges = np.linspace(0, n_bytes, n + 1).astype(int)
    return list(zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True))


def test_addresses_that_live_for_a_second_are_renewed_while_reading(loopback_hub, content, monkeypatch):
    clock = [1e9]
    monkeypatch.setattr("tests.loopback.hub.time.time", lambda: clock[0])
    loopback_hub.signature_lifetime_s = 1
    source = open_repository("owner/name").open(WEIGHTS)
    parts = []
    for start, stop in spans(len(content), 5):
        parts.append(source.read(start, stop))
        clock[0] += 2
    assert b"".join(parts) == content
    assert len([sent for sent in loopback_hub.sent("hub", WEIGHTS) if sent.method == "HEAD"]) == 5


@pytest.mark.parametrize("kind", ["chunked", "unknown_size", "no_content_length"])
def test_content_is_read_with_any_length_header(loopback_hub, content, kind):
    loopback_hub.faults.append(Fault(kind, origin="cdn", path=WEIGHTS, times=None))
    source = open_repository("owner/name").open(WEIGHTS)
    assert b"".join(source.read_many(spans(len(content), 4))) == content


def test_a_proxy_that_compresses_content_is_named(loopback_hub, content):
    loopback_hub.faults.append(Fault("gzip", origin="cdn", path=WEIGHTS, times=None))
    with pytest.raises(
        RangeIgnoredError, match=r"model\.safetensors: .*sent it compressed \('gzip'\); the response was discarded"
    ):
        open_repository("owner/name").open(WEIGHTS).read(0, 100)


@pytest.mark.parametrize("origin", ["hub", "cdn"])
def test_a_connection_that_closes_early_is_tried_again(loopback_hub, content, origin, waits):
    source = open_repository("owner/name").open(WEIGHTS)
    loopback_hub.faults.append(Fault("hang_up", origin=origin, path=WEIGHTS, times=2))
    assert source.read(5, 900) == content[5:900]


def test_connections_that_always_close_early_end_in_an_error(loopback_hub, content, waits):
    source = open_repository("owner/name").open(WEIGHTS)
    loopback_hub.faults.append(Fault("hang_up", times=None))
    with pytest.raises(HubError, match=r"owner/name@\w+"):
        source.read(5, 900)


@pytest.mark.parametrize("times_before", [0, 1])
def test_a_captive_portal_is_named(loopback_hub, content, times_before, waits):
    """A network that answers every request with its login page, from the start or after the listing."""
    page = {"Content-Type": "text/html; charset=utf-8"}
    repository = open_repository("owner/name") if times_before else None
    loopback_hub.faults.append(Fault("status", status=200, body=PORTAL, headers=page, times=None))
    with pytest.raises((ServerError, RangeIgnoredError), match=r"a web page, perhaps to log in|a network's login page"):
        (repository or open_repository("owner/name")).open(WEIGHTS).read(5, 900)


def test_a_captive_portal_in_front_of_the_storage_is_named(loopback_hub, content, waits):
    page = {"Content-Type": "text/html"}
    source = open_repository("owner/name").open(WEIGHTS)
    loopback_hub.faults.append(Fault("status", origin="cdn", status=200, body=PORTAL, headers=page, times=None))
    with pytest.raises(RangeIgnoredError, match=r"the response is a web page \(text/html\); log in to the network"):
        source.read(5, 900)
