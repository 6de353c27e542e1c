import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest
from huggingface_hub.utils import get_session

from mdir_hf.errors import (
    ByteBudgetError,
    GatedRepositoryError,
    HubError,
    MdirError,
    RangeIgnoredError,
    RateLimitedError,
    ServerError,
    ShortReadError,
)
from mdir_hf.model.hub import IoLedger, LocalFile, RepositoryOptions, connection, open_repository, ranges
from tests.conformance_bytes import CONTENT, ByteSourceConformance
from tests.loopback.faults import Fault

WEIGHTS = "model.safetensors"


@pytest.fixture(autouse=True)
def without_range_cache(hf_home, monkeypatch):
    monkeypatch.setenv("MDIR_HF_CACHE_MAX_BYTES", "0")


@pytest.fixture
def content(loopback_hub, model_folder):
    loopback_hub.add_repository("owner/name", model_folder)
    return (model_folder / WEIGHTS).read_bytes()


@pytest.fixture
def source(content):
    return open_repository("owner/name").open(WEIGHTS)


def gets(hub, origin="cdn"):
    return [request for request in hub.sent(origin, WEIGHTS) if request.method == "GET"]


# One HEAD, then one GET per range.


def test_content_is_requested_uncompressed(loopback_hub, content):
    # The Hub compresses config.json for clients that accept it; ranged reads must not accept compression.
    source = open_repository("owner/name").open("config.json")
    assert json.loads(source.read(0, source.n_bytes))["hidden_size"] == 64


# The token.


def test_the_token_goes_to_the_hub_and_never_to_the_cdn(loopback_hub, content):
    repository = open_repository("owner/name", RepositoryOptions(token=loopback_hub.token))
    repository.read("config.json")
    list(repository.open(WEIGHTS).read_many([(0, 10), (50, 60)]))
    assert all(request.had_token for request in loopback_hub.sent("hub"))
    assert len(loopback_hub.sent("cdn")) == 2
    assert not any(request.had_token for request in loopback_hub.sent("cdn"))


def test_the_token_is_sent_if_the_hub_itself_has_the_content(loopback_hub, model_folder):
    loopback_hub.add_repository("owner/secret", model_folder, private=True)
    repository = open_repository("owner/secret", RepositoryOptions(token=loopback_hub.token))
    assert repository.open("config.json").read(0, 2) == b'{"'


def test_no_answer_leaves_a_cookie_for_other_requests(loopback_hub, content):
    asked = {"endpoint": loopback_hub.endpoint}
    url = f"{loopback_hub.endpoint}/api/models/owner/name/revision/main"
    loopback_hub.faults.append(Fault("status", status=200, body=b"{}", headers={"Set-Cookie": "token=mine; Path=/"}))
    with connection.get(url, token=loopback_hub.token, **asked) as answer:
        assert answer.headers["set-cookie"].startswith("token=mine")
    with connection.get(url, token=False, **asked) as answer:
        assert "cookie" not in answer.request.headers
    # A proxy may require a cookie that its user gave to the client.
    get_session().cookies.set("proxy", "1")
    try:
        with connection.get(url, token=False, **asked) as answer:
            assert answer.request.headers["cookie"] == "proxy=1"
    finally:
        get_session().cookies.clear()


def test_the_cdn_refuses_a_token(loopback_hub, source, monkeypatch, waits):
    # Check of the test above: if the token were sent, the read would fail.
    monkeypatch.setattr(connection, "may_see_token", lambda url, endpoint: True)
    source._place = type(source._place)(
        *[getattr(source._place, f) for f in ("repo", "commit", "path", "endpoint")], loopback_hub.token, "x"
    )
    with pytest.raises(HubError, match="400"):
        source.read(0, 10)
    assert gets(loopback_hub)[0].had_token


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_from_the_hub_to_another_origin_drops_the_token(loopback_hub, model_folder, status):
    loopback_hub.add_repository("owner/secret", model_folder, private=True)
    repository = open_repository("owner/secret", RepositoryOptions(token=loopback_hub.token))
    elsewhere = loopback_hub.cdn_address(f"/owner%2Fsecret/{repository.commit}/config.json")
    loopback_hub.faults.append(
        Fault("status", origin="hub", method="GET", path="config.json", status=status, headers={"Location": elsewhere})
    )
    assert repository.open("config.json").read(0, 2) == b'{"'
    (at_cdn,) = loopback_hub.sent("cdn", "config.json")
    assert not at_cdn.had_token


def test_a_redirect_back_to_the_hub_carries_the_token_again(loopback_hub, model_folder):
    loopback_hub.add_repository("owner/secret", model_folder, private=True)
    repository = open_repository("owner/secret", RepositoryOptions(token=loopback_hub.token))
    back = f"{loopback_hub.endpoint}/owner/secret/resolve/{repository.commit}/config.json"
    loopback_hub.faults.append(Fault("status", origin="cdn", path=WEIGHTS, status=302, headers={"Location": back}))
    source = repository.open(WEIGHTS)
    with pytest.raises(RangeIgnoredError):  # the length shows that it is another file
        source.read(0, 2)
    assert loopback_hub.requests[-1].had_token


@pytest.mark.parametrize(
    ("url", "endpoint", "may"),
    [
        ("https://huggingface.co/a/b", "https://huggingface.co", True),
        ("https://HUGGINGFACE.CO:443/a/b", "https://huggingface.co", True),
        ("https://hf.co/a/b", "https://huggingface.co", True),
        ("http://huggingface.co/a/b", "https://huggingface.co", False),
        ("https://huggingface.co:8443/a", "https://huggingface.co", False),
        ("https://cdn-lfs.huggingface.co/a", "https://huggingface.co", False),
        ("https://cas-bridge.xethub.hf.co/a", "https://huggingface.co", False),
        ("https://huggingface.co.evil.example/a", "https://huggingface.co", False),
        ("https://huggingface.co@evil.example/a", "https://huggingface.co", False),
        ("https://hub.example/a", "https://hub.example", True),
        ("https://cdn.example/a", "https://hub.example", False),
        ("http://127.0.0.1:1/a", "http://127.0.0.1:2", False),
    ],
)
def test_the_token_belongs_to_the_hubs_own_origin(url, endpoint, may):
    assert ranges.may_see_token(url, endpoint) is may


def test_a_redirect_to_something_that_is_not_http_is_refused(loopback_hub, source):
    loopback_hub.faults.append(Fault("status", origin="cdn", status=302, headers={"Location": "file:///etc/passwd"}))
    with pytest.raises(ServerError, match="away from a secure connection"):
        source.read(0, 10)


def test_redirects_that_never_end_are_refused(loopback_hub, source):
    loopback_hub.faults.append(Fault("status", origin="cdn", status=302, times=None, headers={"Location": "?again"}))
    with pytest.raises(ServerError, match="302"):
        source.read(0, 10)
    assert len(gets(loopback_hub)) == 5


# Responses are accepted only if they match the request.


def test_a_server_that_ignores_the_range_is_detected(loopback_hub, tmp_path):
    folder = tmp_path / "big"
    folder.mkdir()
    with (folder / WEIGHTS).open("wb") as file:
        file.truncate(64 << 20)  # far more than socket buffers hold
    loopback_hub.add_repository("owner/big", folder, sha256={WEIGHTS: "0" * 64})
    loopback_hub.faults.append(Fault("ignore_range", origin="cdn", times=None))
    repository = open_repository("owner/big")
    with pytest.raises(
        RangeIgnoredError, match=r"200 instead of 206 for bytes 10 to 19.*67,108,864 bytes with `hf download`"
    ):
        repository.open(WEIGHTS).read(10, 20)
    assert len(gets(loopback_hub)) == 1
    assert repository.ledger.bytes_read == 0
    time.sleep(0.2)  # the server notices that the client has gone
    assert gets(loopback_hub)[0].bytes_sent < 16 << 20


def test_a_whole_file_may_come_with_200(loopback_hub, source, content):
    loopback_hub.faults.append(Fault("ignore_range", origin="cdn"))
    assert source.read(0, 300_000) == content


def test_a_wrong_content_range_is_refused(loopback_hub, source):
    loopback_hub.faults.append(Fault("wrong_content_range", origin="cdn", times=None))
    with pytest.raises(
        RangeIgnoredError, match=r"'bytes 100-199/300000' was requested, but the server sent 'bytes 101-200/300000'"
    ):
        source.read(100, 200)


def test_a_size_that_is_not_the_listed_one_is_refused(loopback_hub, source):
    loopback_hub.faults.append(Fault("changed_etag", origin="hub", method="HEAD"))
    with pytest.raises(ServerError, match=r"lists this file with 300,000 bytes, but serves 300,001"):
        source.read(0, 10)


def test_416_asks_the_hub_again_and_then_reports_the_servers_size(loopback_hub, source):
    headers = {"Content-Range": "bytes */123"}
    loopback_hub.faults.append(Fault("status", origin="cdn", status=416, times=None, headers=headers))
    with pytest.raises(ServerError, match=r"bytes 0 to 9 of 300,000 were refused \(416\).*bytes \*/123"):
        source.read(0, 10)


# Connections that break.


def test_a_dropped_connection_resumes_where_it_broke(loopback_hub, source, content, waits):
    loopback_hub.faults.append(Fault("drop", origin="cdn", after_bytes=100_000))
    assert source.read(0, 250_000) == content[:250_000]
    assert [request.range for request in gets(loopback_hub)] == ["bytes=0-249999", "bytes=100000-249999"]


def test_a_resumed_read_counts_no_byte_twice(loopback_hub, content, waits):
    repository = open_repository("owner/name")
    loopback_hub.faults.append(Fault("drop", origin="cdn", after_bytes=70_000, times=2))
    repository.open(WEIGHTS).read(0, 250_000)
    assert repository.ledger.bytes_read == 250_000


def test_a_connection_that_always_breaks_is_a_short_read(loopback_hub, source, waits):
    loopback_hub.faults.append(Fault("drop", origin="cdn", after_bytes=10, times=None))
    with pytest.raises(ShortReadError, match=rf"{WEIGHTS}: the connection broke \(\w+\) after 60 of 1,000 bytes"):
        source.read(0, 1000)
    assert len(gets(loopback_hub)) == 6
    assert waits == sorted(waits)
    assert sum(waits) < 25


def test_a_long_read_that_keeps_moving_may_break_often(loopback_hub, tmp_path, waits, monkeypatch):
    monkeypatch.setattr(ranges, "_PROGRESS_BYTES", 50_000)
    folder = tmp_path / "m"
    folder.mkdir()
    (folder / WEIGHTS).write_bytes(bytes(range(256)) * 4000)
    loopback_hub.add_repository("owner/long", folder)
    loopback_hub.faults.append(Fault("drop", origin="cdn", after_bytes=60_000, times=None))
    source = open_repository("owner/long").open(WEIGHTS)
    assert source.read(0, 1_000_000) == (bytes(range(256)) * 4000)[:1_000_000]


def test_a_silent_server_times_out(loopback_hub, source, waits, monkeypatch):
    monkeypatch.setattr(connection, "READ_TIMEOUT_S", 0.05)
    loopback_hub.faults.append(Fault("slow", origin="cdn", times=None, delay_s=0.3))
    with pytest.raises(ShortReadError, match="brought too little data for too long after 0 of 10 bytes"):
        source.read(0, 10)


def test_content_that_changes_within_a_read_is_read_anew(loopback_hub, source, content, waits):
    loopback_hub.faults += [Fault("drop", origin="cdn", after_bytes=10_000), Fault("changed_etag", origin="cdn")]
    assert source.read(0, 50_000) == content[:50_000]
    assert [request.range for request in gets(loopback_hub)] == ["bytes=0-49999", "bytes=10000-49999", "bytes=0-49999"]


# Servers that are busy.


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_a_burst_of_failures_at_the_cdn_is_waited_out(loopback_hub, source, content, waits, status):
    loopback_hub.faults.append(Fault("status", origin="cdn", status=status, times=4))
    assert source.read(0, 10) == content[:10]
    assert len(waits) == 4


@pytest.mark.parametrize("status", [429, 503])
def test_retry_after_is_respected(loopback_hub, source, waits, status):
    loopback_hub.faults.append(Fault("status", origin="cdn", status=status, headers={"Retry-After": "3"}, times=2))
    source.read(0, 10)
    assert waits == [4.0, 4.0]


def test_endless_429_is_rate_limited_within_bounds(loopback_hub, source, waits):
    loopback_hub.faults.append(Fault("status", origin="cdn", status=429, times=None))
    with pytest.raises(RateLimitedError, match=rf"429 .*for '{WEIGHTS}'"):
        source.read(0, 10)
    assert len(gets(loopback_hub)) == 6


def test_endless_500_is_a_server_error_within_bounds(loopback_hub, source, waits):
    loopback_hub.faults.append(Fault("status", origin="cdn", status=500, times=None))
    with pytest.raises(ServerError, match=f"still returned 500 for '{WEIGHTS}' after all retries"):
        source.read(0, 10)
    assert len(gets(loopback_hub)) == 6


# Signed addresses.


def test_an_expired_address_is_renewed(loopback_hub, source, content):
    source.read(0, 10)
    loopback_hub.expire_locations()
    assert source.read(10, 20) == content[10:20]
    assert len(loopback_hub.sent("hub", WEIGHTS)) == 2


@pytest.mark.parametrize("status", [401, 403, 404, 410])
def test_an_expired_address_is_renewed_for_any_cdn_answer(loopback_hub, source, content, status):
    loopback_hub.faults.append(Fault("status", origin="cdn", status=status))
    assert source.read(0, 10) == content[:10]
    assert len(loopback_hub.sent("hub", WEIGHTS)) == 2


def test_an_address_that_is_about_to_expire_is_not_used(loopback_hub, source, content, monkeypatch):
    source.read(0, 10)
    later = time.monotonic() + 3600
    monkeypatch.setattr("mdir_hf.model.hub.location.time.monotonic", lambda: later)
    assert source.read(10, 20) == content[10:20]
    assert len(loopback_hub.sent("hub", WEIGHTS)) == 2
    assert [request.status for request in gets(loopback_hub)] == [206, 206]


def test_many_threads_refresh_an_expired_address_once(loopback_hub, source, content):
    source.read(0, 10)
    loopback_hub.expire_locations()
    spans = [(start, start + 10) for start in range(0, 80_000, 1000)]
    assert list(source.read_many(spans)) == [content[start:stop] for start, stop in spans]
    assert len(loopback_hub.sent("hub", WEIGHTS)) == 2


def test_an_address_refused_for_ever_is_not_shown(loopback_hub, source):
    loopback_hub.faults.append(Fault("status", origin="cdn", status=403, times=None))
    with pytest.raises(ServerError, match=r"storage of the Hub rejects .*\(403\)") as caught:
        source.read(0, 10)
    assert "Signature" not in str(caught.value)
    assert len(gets(loopback_hub)) == 5


def test_different_content_at_a_refreshed_address_is_refused(loopback_hub, source):
    source.read(0, 10)
    loopback_hub.expire_locations()
    source._locator._n_bytes = source._locator._etag = None  # as on a mirror whose listing has neither
    loopback_hub.faults.append(Fault("changed_etag", origin="hub", method="HEAD"))
    with pytest.raises(
        ServerError, match=r"has changed: ETag \w{64}, 300,001 bytes; before it was ETag \w{64}, 300,000"
    ):
        source.read(0, 10)


def test_access_lost_before_a_refresh_is_reported(loopback_hub, source):
    source.read(0, 10)
    loopback_hub.expire_locations()
    loopback_hub._repositories["owner/name"].gated = True
    with pytest.raises(GatedRepositoryError, match="gated"):
        source.read(0, 10)


# Many ranges.


def test_no_more_requests_are_in_flight_than_allowed(loopback_hub, content, monkeypatch):
    running, most, lock = 0, 0, threading.Lock()
    read = ranges.HubFile._read

    def counted(self, span, cancelled):
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        try:
            time.sleep(0.01)
            return read(self, span, cancelled)
        finally:
            with lock:
                running -= 1

    monkeypatch.setattr(ranges.HubFile, "_read", counted)
    source = open_repository("owner/name").open(WEIGHTS)
    list(source.read_many([(start, start + 10) for start in range(0, 60_000, 1000)]))
    assert most == ranges.DEFAULT_IN_FLIGHT == 8


def test_no_more_results_are_held_than_are_in_flight(loopback_hub, source):
    pieces = source.read_many([(start, start + 10) for start in range(0, 200_000, 1000)])
    next(pieces)
    time.sleep(0.3)
    assert len(gets(loopback_hub)) <= ranges.DEFAULT_IN_FLIGHT


def test_the_failure_of_one_range_ends_the_others(loopback_hub, source, waits):
    loopback_hub.faults.append(Fault("status", origin="cdn", status=400, times=1))
    spans = [(start, start + 10) for start in range(0, 200_000, 1000)]
    with pytest.raises(ServerError, match="400"):
        list(source.read_many(spans))
    time.sleep(0.1)
    assert len(gets(loopback_hub)) < 30


def test_threads_end_with_the_read(source):
    list(source.read_many([(start, start + 10) for start in range(0, 20_000, 1000)]))
    deadline = time.monotonic() + 5
    while any("mdir-hf-range" in thread.name for thread in threading.enumerate()):
        assert time.monotonic() < deadline, "threads are left over"
        time.sleep(0.01)


# The cap on bytes.


def test_the_cap_stops_the_read_that_would_pass_it(loopback_hub, content):
    source = open_repository("owner/name", ledger=IoLedger(max_bytes=1500)).open(WEIGHTS)
    source.read(0, 1000)
    with pytest.raises(ByteBudgetError, match=r"needs 501 bytes, but 1,000 of the 1,500 bytes allowed"):
        source.read(1000, 1501)
    assert source.read(1000, 1500) == content[1000:1500]
    assert len(gets(loopback_hub)) == 2


def test_ranges_in_flight_share_the_cap(loopback_hub, content):
    ledger = IoLedger(max_bytes=5000)
    source = open_repository("owner/name", ledger=ledger).open(WEIGHTS)
    with pytest.raises(ByteBudgetError):
        list(source.read_many([(start, start + 1000) for start in range(0, 20_000, 1000)]))
    assert sum(request.bytes_sent for request in gets(loopback_hub)) <= 5000


# Ctrl-C.


@pytest.mark.skipif(sys.platform == "win32", reason="sends a POSIX signal")
def test_ctrl_c_ends_a_read_at_once_without_damage(loopback_hub, content, hf_home, tmp_path):
    loopback_hub.faults.append(Fault("slow", origin="cdn", times=None, delay_s=120))
    script = """
        import signal
        from mdir_hf.model.hub import open_repository
        # A process started from a job in the background ignores Ctrl-C, and so do its children unless they ask for it.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        source = open_repository("owner/name").open("model.safetensors")
        print("reading", flush=True)
        list(source.read_many([(start, start + 100) for start in range(0, 100_000, 1000)]))
    """
    environment = {
        "HF_ENDPOINT": loopback_hub.endpoint,
        "HF_HOME": str(hf_home),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process, contextlib.ExitStack() as at_the_end:
        at_the_end.callback(process.kill)  # leaving the block waits for the process
        assert process.stdout.readline() == "reading\n"
        deadline = time.monotonic() + 60
        while len(gets(loopback_hub)) < 8:
            assert time.monotonic() < deadline, "no request was made"
            time.sleep(0.02)
        begun = time.monotonic()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=90)
    assert time.monotonic() - begun < 60, "a slow server must not block the interpreter"
    assert errors.strip().endswith("KeyboardInterrupt")
    assert [path for path in hf_home.rglob("*") if path.is_file() and "mdir-hf" in str(path)] == []


@pytest.mark.parametrize("method", ["HEAD", "GET"])
@pytest.mark.parametrize("place", ["!\x01", "http://[x", "http://a b:x/", "http://x:99999999/", "mailto:a"])
def test_a_redirect_to_an_invalid_url_is_an_error(loopback_hub, model_folder, waits, method, place):
    loopback_hub.add_repository("owner/name", model_folder)
    source = open_repository("owner/name").open("model.safetensors")
    answer = {"Location": place, "ETag": '"' + "0" * 64 + '"', "X-Repo-Commit": "0" * 40, "X-Linked-Size": "9"}
    loopback_hub.faults.append(Fault("status", method=method, status=302, headers=answer, body=b"", times=None))
    with pytest.raises(MdirError) as caught:
        source.read(0, 9)
    assert str(caught.value).startswith("owner/name@")


# --- byte sources


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "content"
    place.mkdir()
    (place / "model.safetensors").write_bytes(CONTENT)
    (place / "small.json").write_bytes(CONTENT)  # not LFS: the Hub itself sends it
    return place


class TestLocalFile(ByteSourceConformance):
    @pytest.fixture
    def source(self, folder):
        with_file = LocalFile(folder / "model.safetensors")
        yield with_file
        with_file.close()


class TestFileOfALocalRepository(ByteSourceConformance):
    @pytest.fixture
    def source(self, folder):
        return open_repository(folder).open("model.safetensors")


class TestHubFileOnTheCdn(ByteSourceConformance):
    @pytest.fixture
    def source(self, loopback_hub, folder):
        loopback_hub.add_repository("owner/name", folder)
        return open_repository("owner/name").open("model.safetensors")


class TestHubFileOnTheHubItself(ByteSourceConformance):
    @pytest.fixture
    def source(self, loopback_hub, folder):
        loopback_hub.add_repository("owner/name", folder)
        return open_repository("owner/name").open("small.json")


class TestHubFileWithoutOurCache(ByteSourceConformance):
    @pytest.fixture
    def source(self, loopback_hub, folder, monkeypatch):
        monkeypatch.setenv("MDIR_HF_CACHE_MAX_BYTES", "0")
        loopback_hub.add_repository("owner/name", folder)
        return open_repository("owner/name").open("model.safetensors")


class TestDownloadedFile(ByteSourceConformance):
    @pytest.fixture
    def source(self, loopback_hub, folder):
        loopback_hub.add_repository("owner/name", folder)
        repository = open_repository("owner/name")
        repository.read("model.safetensors")
        return repository.open("model.safetensors")
