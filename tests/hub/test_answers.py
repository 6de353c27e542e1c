"""Which answers of a server are believed, header by header, and where redirects may lead."""

import contextlib
import math
from urllib.parse import quote

import pytest

from mdir_hf.errors import RangeIgnoredError, ServerError, ShortReadError
from mdir_hf.hub import IoLedger, connection, ranges
from mdir_hf.hub.location import HubPlace, Location, Locator, _expires_at
from mdir_hf.hub.range_cache import RangeCache

PLACE = HubPlace("owner/name", "a" * 40, "model.safetensors", "https://hub.example", False, "owner/name@aaaaaaa")
N_BYTES = 1000
CONTENT = bytes(range(250)) * 4


class Answer:
    """One answer of a server, in memory."""

    def __init__(self, status, headers, body):
        self.status_code, self.headers, self._body = status, headers, body

    def iter_raw(self):
        yield self._body


@pytest.fixture
def read(monkeypatch):
    """Reads [start, stop) of a file of 1,000 bytes, of which the server says what it is told to."""

    def read(start, stop, *, status=206, body=None, **headers):
        answer = Answer(
            status,
            {name.replace("_", "-"): value for name, value in headers.items()},
            CONTENT[start:stop] if body is None else body,
        )
        here = Location("https://cdn.example/x", '"etag"', N_BYTES, math.inf)
        monkeypatch.setattr(Locator, "current", lambda self: here)

        class Session:
            def stream(self, *_, **__):
                return contextlib.nullcontext(answer)

        monkeypatch.setattr(connection, "get_session", Session)
        return ranges.HubFile(PLACE, n_bytes=N_BYTES, ledger=IoLedger()).read(start, stop)

    return read


def test_an_answer_that_says_what_was_asked_is_believed(read):
    assert read(100, 200, content_range="bytes 100-199/1000", content_length="100") == CONTENT[100:200]
    assert read(100, 200, content_range=" bytes 100-199/1000 ") == CONTENT[100:200]
    assert read(0, 1000, status=200, content_length="1000") == CONTENT


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
        "bytes 100-199/*",
        "bytes */1000",
        "items 100-199/1000",
        "bytes 100-199/1000, bytes 300-399/1000",
        "",
    ],
)
def test_a_content_range_that_is_wrong_in_any_of_its_numbers_is_refused(read, said):
    with pytest.raises(RangeIgnoredError, match=r"'bytes 100-199/1000' was asked for.*nothing was read"):
        read(100, 200, content_range=said)


def test_an_answer_that_announces_a_byte_too_many_is_refused_and_one_that_announces_fewer_goes_on(read):
    with pytest.raises(RangeIgnoredError, match="announces 101 bytes, not 100"):
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


def test_more_than_was_asked_for_is_cut(read):
    assert read(100, 200, content_range="bytes 100-199/1000", body=CONTENT[100:300]) == CONTENT[100:200]


@pytest.fixture
def honest(monkeypatch):
    """A server that gives each range that it is asked for; returns the list of those."""
    asked = []

    class Session:
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


def test_what_was_fetched_is_kept_counted_as_kept_and_not_fetched_again(honest, tmp_path):
    asked, _ = honest
    ledger = IoLedger()
    for _ in range(2):
        file = ranges.HubFile(PLACE, n_bytes=N_BYTES, ledger=ledger, cache=RangeCache(tmp_path, max_bytes=1 << 20))
        assert file.read(100, 200) == CONTENT[100:200]
    assert asked == [(100, 200)]
    assert (ledger.bytes_read, ledger.bytes_from_cache, ledger.requests) == (100, 100, 1)


def test_a_digest_that_the_listing_gave_names_what_is_kept_without_another_request(honest, tmp_path):
    _, heads = honest
    cache = RangeCache(tmp_path, max_bytes=1 << 20)
    ranges.HubFile(PLACE, n_bytes=N_BYTES, etag="c" * 64, cache=cache).read(0, 10)
    assert len(heads) == 1  # where the content lies
    ranges.HubFile(PLACE, n_bytes=N_BYTES, etag="c" * 64, cache=cache).read(0, 10)
    assert len(heads) == 1
    ranges.HubFile(PLACE, n_bytes=N_BYTES, cache=cache).read(0, 10)
    assert len(heads) == 2  # which content it is


def test_a_file_read_past_what_is_kept_is_kept_anew(honest, tmp_path):
    asked, _ = honest
    cache = RangeCache(tmp_path, max_bytes=1 << 20)
    for use_cached in (True, False, True):
        ranges.HubFile(PLACE, n_bytes=N_BYTES, cache=cache, use_cached=use_cached).read(0, 10)
    assert asked == [(0, 10), (0, 10)]


def test_what_is_begun_is_taken_once_by_who_wants_no_more_than_that(honest, monkeypatch):
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


def test_what_is_begun_is_not_taken_by_who_wants_more(honest, monkeypatch):
    asked, _ = honest
    monkeypatch.setattr(ranges, "FIRST_BYTES", 300)
    file = ranges.HubFile(PLACE, n_bytes=N_BYTES)
    file.begin()
    assert file.read(0, 301) == CONTENT[:301]
    assert file.read(400, 500) == CONTENT[400:500]
    assert file.read(0, 300) == CONTENT[:300]
    assert sorted(asked) == [(0, 300), (0, 301), (400, 500)]


def test_of_a_short_file_all_is_begun(honest):
    asked, _ = honest
    file = ranges.HubFile(PLACE, n_bytes=N_BYTES)
    file.begin()
    assert file.read(0, N_BYTES) == CONTENT
    assert asked == [(0, N_BYTES)]


def test_what_is_distrusted_is_dropped_once_and_its_place_asked_for_again(honest, tmp_path):
    asked, heads = honest
    file = ranges.HubFile(PLACE, n_bytes=N_BYTES, cache=RangeCache(tmp_path, max_bytes=1 << 20))
    file.read(0, 10)
    file.distrust()
    for _ in range(2):
        assert file.read(0, 10) == CONTENT[:10]
    assert asked == [(0, 10), (0, 10)]
    assert len(heads) == 2


def test_no_range_is_asked_for_where_one_of_several_is_none(honest):
    asked, _ = honest
    file = ranges.HubFile(PLACE, n_bytes=N_BYTES)
    with pytest.raises(ShortReadError, match="the file has 1,000"):
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


@pytest.mark.parametrize("lifetime", ["²", "٣", "9" * 5000, "-3", ""])
def test_a_lifetime_that_is_no_number_is_none(lifetime):
    assert _expires_at(f"https://cdn.example/x?X-Amz-Expires={quote(lifetime)}") == float("inf")
