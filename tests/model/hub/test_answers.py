"""Which server responses are trusted, header by header, and which redirects are followed."""

import contextlib
import math
import threading
import types
from http.cookiejar import CookieJar

import pytest

from mdir_hf.errors import HubError, RangeIgnoredError, ServerError, ShortReadError
from mdir_hf.model.hub import IoLedger, connection, location, ranges
from mdir_hf.model.hub.location import HubPlace, Location, Locator, _expires_at
from mdir_hf.model.hub.range_cache import RangeCache
from mdir_hf.model.hub.retry import StalledError
from tests.model.hub.test_retry import HTTP

PLACE = HubPlace("owner/name", "a" * 40, "model.safetensors", "https://hub.example", False, "owner/name@aaaaaaa")
N_BYTES = 1000
CONTENT = bytes(range(250)) * 4


class Answer:
    """A server response in memory, whose pieces can be taken once.

    Attributes:
        n_taken: Number of pieces taken.
        is_at_end: Whether the reader has reached the end.
    """

    def __init__(self, status, headers, *body):
        self.status_code, self.headers = status, headers
        self.n_taken, self.is_at_end = 0, False
        self._pieces = self._handed_out(body)

    def _handed_out(self, body):
        for piece in body:
            self.n_taken += 1
            yield piece
        self.is_at_end = True

    def iter_raw(self):
        return self._pieces


class Client:
    """The attributes of a session apart from its requests."""

    cookies = types.SimpleNamespace(jar=CookieJar())


class Sequence(Client):
    """A session that gives these answers in order and repeats the last one; exceptions are raised."""

    def __init__(self, *answers):
        self.answers, self.n_asked = answers, 0

    def __call__(self):
        return self

    def stream(self, *_, **__):
        answer = self.answers[min(self.n_asked, len(self.answers) - 1)]
        self.n_asked += 1
        if isinstance(answer, Exception):
            raise answer
        return contextlib.nullcontext(answer() if callable(answer) else answer)


@pytest.fixture
def read(monkeypatch):
    """Read [start, stop) of a file of 1,000 bytes from a server with the given answer."""

    def read(start, stop, *, status=206, body=None, **headers):
        answer = Answer(
            status,
            {name.replace("_", "-"): value for name, value in headers.items()},
            CONTENT[start:stop] if body is None else body,
        )
        here = Location("https://cdn.example/x", '"etag"', N_BYTES, math.inf)
        monkeypatch.setattr(Locator, "current", lambda self: here)

        class Session(Client):
            """A session that gives one answer."""

            def stream(self, *_, **__):
                return contextlib.nullcontext(answer)

        monkeypatch.setattr(connection, "get_session", Session)
        return ranges.HubFile(PLACE, n_bytes=N_BYTES, ledger=IoLedger()).read(start, stop)

    return read


@pytest.mark.parametrize(
    "said",
    [
        "bytes 99-199/1000",
        "bytes 101-199/1000",
        "bytes 0-199/1000",
        "bytes 100-198/1000",
        "bytes 100-200/1000",
        "bytes 100-199/999",
        "bytes 100-199/1001",
        "bytes 99-199/*",
        "bytes 100-199/**",
        "bytes */1000",
        "items 100-199/1000",
        "bytes 100-199/1000, bytes 300-399/1000",
        "bytes 100-199/" + "9" * 5000,
        "",
    ],
)
def test_a_content_range_wrong_in_any_number_is_refused(read, said):
    with pytest.raises(RangeIgnoredError, match=r"'bytes 100-199/1000' was requested.*the response was discarded"):
        read(100, 200, content_range=said)


def test_a_content_range_may_leave_the_size_of_the_file_open(read):
    assert read(100, 200, content_range="bytes 100-199/*") == CONTENT[100:200]


def test_an_answer_that_announces_a_byte_too_many_is_refused(read):
    with pytest.raises(RangeIgnoredError, match="announced 101 bytes, not 100"):
        read(100, 200, content_range="bytes 100-199/1000", content_length="101")
    assert read(100, 200, content_range="bytes 100-199/1000", content_length="99") == CONTENT[100:200]


@pytest.mark.parametrize("length", [{"content_length": "999"}, {"content_length": "1001"}, {}])
def test_a_whole_file_of_another_length_is_refused(read, length):
    with pytest.raises(RangeIgnoredError, match="sent a whole file of"):
        read(0, 1000, status=200, **length)


@pytest.mark.parametrize(("start", "stop"), [(0, 999), (1, 1000)])
def test_a_whole_file_is_not_taken_for_a_part_of_it(read, start, stop):
    with pytest.raises(RangeIgnoredError, match="200 instead of 206"):
        read(start, stop, status=200, content_length="1000")


@pytest.mark.parametrize("encoding", ["gzip", "br", "GZIP", "identity, gzip"])
def test_compressed_content_is_refused(read, encoding):
    with pytest.raises(RangeIgnoredError, match="sent it compressed"):
        read(100, 200, content_range="bytes 100-199/1000", content_encoding=encoding)


def test_content_that_says_that_it_is_not_compressed_is_read(read):
    assert read(100, 200, content_range="bytes 100-199/1000", content_encoding="Identity") == CONTENT[100:200]


def test_surplus_bytes_are_cut(read):
    assert read(100, 200, content_range="bytes 100-199/1000", body=CONTENT[100:300]) == CONTENT[100:200]


@pytest.fixture
def honest(monkeypatch):
    """A server that returns each requested range; also returns the list of requests."""
    asked = []

    class Session(Client):
        """A session that serves every requested range."""

        def stream(self, _, url, *, headers, **__):
            start, last = map(int, headers["Range"].removeprefix("bytes=").split("-"))
            asked.append((start, last + 1))
            said = {"content-range": f"bytes {start}-{last}/{N_BYTES}"}
            return contextlib.nullcontext(Answer(206, said, CONTENT[start : last + 1]))

    monkeypatch.setattr(connection, "get_session", Session)
    heads = []

    def head(self):
        heads.append(1)
        return Location("https://cdn.example/x", "b" * 40, N_BYTES, math.inf)

    monkeypatch.setattr(Locator, "_head", head)
    return asked, heads


def test_fetched_bytes_are_kept_and_not_fetched_again(honest, tmp_path):
    asked, _ = honest
    ledger = IoLedger()
    for _ in range(2):
        file = ranges.HubFile(PLACE, n_bytes=N_BYTES, ledger=ledger, cache=RangeCache(tmp_path, max_bytes=1 << 20))
        assert file.read(100, 200) == CONTENT[100:200]
    assert asked == [(100, 200)]
    assert (ledger.bytes_read, ledger.bytes_from_cache, ledger.requests) == (100, 100, 1)


def test_a_listed_digest_names_what_is_kept(honest, tmp_path):
    _, heads = honest
    cache = RangeCache(tmp_path, max_bytes=1 << 20)
    ranges.HubFile(PLACE, n_bytes=N_BYTES, etag="c" * 64, cache=cache).read(0, 10)
    assert len(heads) == 1  # for the location
    ranges.HubFile(PLACE, n_bytes=N_BYTES, etag="c" * 64, cache=cache).read(0, 10)
    assert len(heads) == 1
    ranges.HubFile(PLACE, n_bytes=N_BYTES, cache=cache).read(0, 10)
    assert len(heads) == 2  # for the content


@pytest.fixture
def file(monkeypatch):
    """A file of 1,000 bytes at one address, and the server's answers in order."""

    def file(*answers, url="https://cdn.example/x"):
        here = Location(url, '"etag"', N_BYTES, math.inf)
        session = Sequence(*answers)
        forgotten = []
        monkeypatch.setattr(Locator, "current", lambda self: here)
        monkeypatch.setattr(Locator, "forget", lambda self, location: forgotten.append(location))
        monkeypatch.setattr(connection, "get_session", session)
        return ranges.HubFile(PLACE, n_bytes=N_BYTES), session, forgotten

    return file


def part(start, stop, *pieces, **headers):
    said = {"content-range": f"bytes {start}-{stop - 1}/{N_BYTES}", **headers}
    return Answer(206, said, *(pieces or (CONTENT[start:stop],)))


def test_a_body_is_read_to_its_end_or_left_when_whole(file):
    for length, is_at_end in (({"content-length": "100"}, True), ({}, False)):
        answer = part(100, 200, CONTENT[100:150], CONTENT[150:200], **length)
        assert file(answer)[0].read(100, 200) == CONTENT[100:200]
        assert (answer.n_taken, answer.is_at_end) == (2, is_at_end)


def test_a_416_of_the_hub_is_retried_with_a_fresh_address(file):
    at_hub = "https://hub.example/x"
    source, session, forgotten = file(Answer(416, {"content-range": "bytes */7"}), url=at_hub)
    with pytest.raises(ServerError, match=r"refused \(416\); the server says 'bytes \*/7'"):
        source.read(0, 10)
    assert len(forgotten) == 4 and session.n_asked == 5
    source, session, forgotten = file(Answer(404, {}), url=at_hub)
    with pytest.raises(HubError):
        source.read(0, 10)
    assert (len(forgotten), session.n_asked) == (0, 1)


def test_other_errors_than_connection_failures_are_not_retried(file, waits):
    source, session, _ = file(HTTP.UnsupportedProtocol("ftp"))
    with pytest.raises(HubError) as raised:
        source.read(0, 10)
    assert isinstance(raised.value.__cause__, HTTP.UnsupportedProtocol)
    source, session, _ = file(ZeroDivisionError("ours"))
    with pytest.raises(ZeroDivisionError, match="ours"):
        source.read(0, 10)
    assert (session.n_asked, waits) == (1, [])


def test_a_read_continues_only_if_it_makes_progress(file, monkeypatch, waits):
    monkeypatch.setattr(ranges, "_PROGRESS_BYTES", 100)
    moving = [part(at, N_BYTES, CONTENT[at : at + 100]) for at in range(0, N_BYTES, 100)]
    assert file(*moving)[0].read(0, N_BYTES) == CONTENT
    source, session, _ = file(part(0, N_BYTES, CONTENT[:900]), lambda: part(900, N_BYTES, b""))
    with pytest.raises(ShortReadError, match="ended after 900 of 1,000 bytes"):
        source.read(0, N_BYTES)
    assert session.n_asked == 1 + 5  # the first read, then five retries; the sixth failure is final


def test_a_started_read_serves_one_read_within_it(honest, monkeypatch):
    asked, _ = honest
    monkeypatch.setattr(ranges, "FIRST_BYTES", 300)
    for start, stop in ((0, 300), (20, 120), (0, 1)):
        asked.clear()
        file = ranges.HubFile(PLACE, n_bytes=N_BYTES)
        file.begin()
        assert file.read(start, stop) == CONTENT[start:stop]
        assert asked == [(0, 300)]
        assert file.read(20, 120) == CONTENT[20:120]
        assert asked == [(0, 300), (20, 120)]


def test_a_started_read_does_not_serve_a_larger_read(honest, monkeypatch):
    asked, _ = honest
    monkeypatch.setattr(ranges, "FIRST_BYTES", 300)
    file = ranges.HubFile(PLACE, n_bytes=N_BYTES)
    file.begin()
    assert file.read(0, 301) == CONTENT[:301]
    assert file.read(400, 500) == CONTENT[400:500]
    assert file.read(0, 300) == CONTENT[:300]
    assert sorted(asked) == [(0, 300), (0, 301), (400, 500)]


def test_distrusted_bytes_are_dropped_once(honest, tmp_path):
    asked, heads = honest
    file = ranges.HubFile(PLACE, n_bytes=N_BYTES, cache=RangeCache(tmp_path, max_bytes=1 << 20))
    file.read(0, 10)
    file.distrust()
    for _ in range(2):
        assert file.read(0, 10) == CONTENT[:10]
    assert asked == [(0, 10), (0, 10)]
    assert len(heads) == 2


def test_a_range_outside_the_file_sends_no_request(honest):
    asked, _ = honest
    file = ranges.HubFile(PLACE, n_bytes=N_BYTES)
    with pytest.raises(ShortReadError, match="a file with 1,000"):
        file.read_many([(0, 10), (990, 1001)])
    assert asked == []
    assert list(file.read_many([(0, 10), (990, 1000)])) == [CONTENT[:10], CONTENT[990:]]


@pytest.mark.parametrize(
    ("here", "target", "leads_to"),
    [
        ("https://a.example/x", "https://b.example/y", "https://b.example/y"),
        ("https://a.example/x", "/y?z", "https://a.example/y?z"),
        ("https://a.example/x", "//b.example/y", "https://b.example/y"),
        ("http://127.0.0.1/x", "http://127.0.0.1:1/y", "http://127.0.0.1:1/y"),
        ("http://127.0.0.1/x", "https://b.example/y", "https://b.example/y"),
        ("https://a.example/x", "http://a.example/x", None),
        ("https://a.example/x", "http://b.example/y", None),
        ("https://a.example/x", "HTTP://b.example/y", None),
        ("http://127.0.0.1/x", "ftp://b.example/y", None),
        ("https://a.example/x", "file:///etc/passwd", None),
    ],
)
def test_a_redirect_never_leaves_a_secure_connection(monkeypatch, here, target, leads_to):
    locator = Locator(PLACE, n_bytes=N_BYTES, etag=None, ledger=IoLedger())
    start = Location(here, "etag", N_BYTES, math.inf)
    monkeypatch.setattr(locator, "_head", lambda: start)
    assert locator.current() is start
    if leads_to is None:
        with pytest.raises(ServerError, match="away from a secure connection"):
            locator.moved(start, target)
        assert locator.current() is start
    else:
        locator.moved(start, target)
        assert locator.current() == Location(leads_to, "etag", N_BYTES, math.inf)


@pytest.mark.parametrize(("lifetime_s", "used_s"), [(60, math.inf), (61, 31), (100, 70)])
def test_an_address_is_used_until_half_a_minute_before_it_expires(monkeypatch, lifetime_s, used_s):
    monkeypatch.setattr(location, "time", types.SimpleNamespace(monotonic=lambda: 5.0, time=lambda: 1e9))
    assert _expires_at(f"https://cdn.example/x?X-Amz-Expires={lifetime_s}") == 5.0 + used_s
    assert _expires_at(f"https://cdn.example/x?Expires={10**9 + lifetime_s}") == 5.0 + used_s


BLOB, SHA, OTHER_SHA = "b" * 40, "c" * 64, "d" * 64


@pytest.fixture
def hub(monkeypatch):
    """The Hub's answers about one file, the last one repeated; returns a function to change them, and the requests."""
    said, asked = [], []

    def head(url, **_):
        asked.append(url)
        etag, n_bytes, commit = said.pop(0) if len(said) > 1 else said[0]
        return types.SimpleNamespace(etag=etag, size=n_bytes, commit_hash=commit, location="https://cdn.example/x")

    monkeypatch.setattr(location, "get_hf_file_metadata", head)

    def says(*answers):
        said[:] = [(*answer, PLACE.commit)[:3] if len(answer) < 3 else answer for answer in answers]
        asked.clear()
        return asked

    return says


def locator(n_bytes=None, etag=None):
    return Locator(PLACE, n_bytes=n_bytes, etag=etag, ledger=IoLedger())


def test_a_head_is_counted(hub):
    hub((SHA, 7))
    one = locator()
    one.current()
    assert one._ledger.requests == 1


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_an_answer_without_commit_etag_or_size_is_refused(hub, missing):
    hub(tuple(None if at == missing else value for at, value in enumerate((SHA, 7, PLACE.commit))))
    with pytest.raises(ServerError, match="no commit, ETag or size"):
        locator().current()


@pytest.mark.parametrize(
    ("listed", "said", "is_refused"),
    [
        ((7, SHA), (SHA, 7), False),
        ((7, SHA), (OTHER_SHA, 7), True),
        ((7, SHA), (SHA, 8), True),
        ((7, SHA), ('W/"mirror"', 7), False),
        ((7, "mirror"), (SHA, 7), False),
        ((None, None), (SHA, 7), False),
        ((7, SHA), (SHA, 7, "b" * 40), True),
    ],
)
def test_the_hub_serves_the_files_that_it_lists(hub, listed, said, is_refused):
    hub(said)
    with pytest.raises(ServerError) if is_refused else contextlib.nullcontext():
        locator(*listed).current()


@pytest.mark.parametrize(
    ("listed", "first", "then", "is_other"),
    [
        ((None, None), (SHA, 7), (SHA, 7), False),
        ((None, None), (SHA, 7), (OTHER_SHA, 7), True),
        ((None, None), (SHA, 7), (SHA, 8), True),
        ((None, None), ('"m1"', 7), ('"m2"', 7), True),  # two answers from one mirror
        ((7, BLOB), None, ('"m1"', 7), False),  # a listing, and a mirror with its own ETags
        ((7, BLOB), None, ("e" * 40, 7), True),
        ((7, BLOB), None, (BLOB, 7), False),
    ],
)
def test_changed_content_is_refused(hub, listed, first, then, is_other):
    hub(*(answer for answer in (first, then) if answer))
    one = locator(*listed)
    one.forget(one.current())
    with pytest.raises(ServerError, match="content on the Hub has changed") if is_other else contextlib.nullcontext():
        one.current()


def test_an_address_is_used_until_it_expires_and_not_any_longer(hub, monkeypatch):
    asked = hub((SHA, 7))
    now = [1000.0]
    monkeypatch.setattr(location, "time", types.SimpleNamespace(monotonic=lambda: now[0], time=lambda: 0.0))
    one = locator()
    one._location = Location("https://cdn.example/x", SHA, 7, 1000.5)
    one.current()
    assert len(asked) == 0
    now[0] = 1000.5
    one.current()
    assert len(asked) == 1


# Response bodies, with a clock that advances while they are read.


@pytest.fixture
def body(monkeypatch):
    """Pieces of a body, each after this many seconds."""
    now = [0.0]
    monkeypatch.setattr(connection, "time", types.SimpleNamespace(monotonic=lambda: now[0]))

    def taken(*lengths_and_seconds, cancelled=None):
        def slowly():
            for n_bytes, wait_s in lengths_and_seconds:
                now[0] += wait_s
                yield b"x" * n_bytes

        answer = types.SimpleNamespace(iter_raw=slowly)
        return [len(piece) for piece in connection.pieces(answer, subject="s", cancelled=cancelled)]

    return taken


def test_a_body_has_thirty_seconds_for_64_kb(body):
    assert body((1, 10), (1, 10), (1, 10)) == [1, 1, 1]
    with pytest.raises(StalledError, match="3 bytes in 31 s"):
        body((1, 10), (1, 10), (1, 11), (1, 0))
    assert body(*[(1 << 16, 29)] * 4) == [1 << 16] * 4
    with pytest.raises(StalledError, match="2 bytes in 31 s"):
        body((1 << 16, 29), (1, 29), (1, 2), (1, 0))


def test_a_body_ends_when_it_is_cancelled(body):
    cancelled = threading.Event()
    assert body((1, 0), cancelled=cancelled) == [1]
    cancelled.set()
    with pytest.raises(ShortReadError, match="cancelled"):
        body((1, 0), cancelled=cancelled)


@pytest.mark.parametrize(
    ("length", "is_read"),
    [
        ("65536", True),
        ("65537", False),
        ("0000100", True),
        ("00000100", False),
        ("", False),
        ("-1", False),
        ("²", False),
    ],
)
def test_only_a_short_unused_body_is_read(length, is_read):
    answer = Answer(503, {"content-length": length}, b"why")
    connection.drain(answer, subject="s")
    assert answer.is_at_end is is_read


def test_a_request_has_the_documented_timeouts(monkeypatch):
    sent = {}

    class Session(Client):
        """A session that records its requests."""

        def stream(self, _, url, **options):
            sent.update(options)
            return contextlib.nullcontext(Answer(200, {}))

    monkeypatch.setattr(connection, "get_session", Session)
    with connection.get("https://hub.example/x", endpoint="https://hub.example", token=None):
        pass
    assert sent["timeout"] == (10.0, 20.0, 20.0, 20.0)  # as documented in docs/attacks.md
