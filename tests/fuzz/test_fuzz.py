"""Files like valid ones end in a result or in our error. A short run here; ``make fuzz`` takes an hour."""

from __future__ import annotations

import h11
import pytest
from httpcore._sync.http11 import HTTP11Connection
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz import server
from tests.fuzz.property import FINDINGS, check
from tests.fuzz.targets import TARGETS

SHORT = settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
FOUND = sorted(path for path in FINDINGS.glob("*/*") if path.is_file())


@pytest.mark.parametrize("name", TARGETS)
def test_the_valid_file_that_others_are_made_of_is_read(name: str):
    target = TARGETS[name]
    assert check(target.read, target.valid).startswith("result: ")


@pytest.mark.parametrize("name", TARGETS)
@SHORT
@given(choice=st.data())
def test_a_file_like_a_valid_one_ends_in_a_result_or_in_our_error(name: str, choice):
    check(TARGETS[name].read, choice.draw(TARGETS[name].files))


@pytest.mark.parametrize("path", FOUND, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_what_was_found_once_stays_mended(path):
    check(TARGETS[path.parent.name].read, path.read_bytes())


def test_a_reader_that_breaks_the_property_is_found():
    def careless(data: bytes) -> int:
        return data[0]

    with pytest.raises(IndexError):
        check(careless, b"")
    answers = iter((1, 2))
    with pytest.raises(AssertionError, match="differently"):
        check(lambda data: next(answers), b"")


def _headed(n_bytes: int) -> bytes:
    """An answer without a body, of that length."""
    return server.answer("200 OK", [b"X: " + b"x" * (n_bytes - len(server.answer("200 OK", [b"X: "])))])


def _taken(said: bytes, n_bytes: list[int]) -> bool:
    """Whether the client's parser takes the head of an answer that comes in reads of these sizes."""
    parser = h11.Connection(h11.CLIENT, max_incomplete_event_size=HTTP11Connection.MAX_INCOMPLETE_EVENT_SIZE)
    parser.send(h11.Request(method="GET", target="/", headers=[("Host", "hub.test")]))
    at, sizes = 0, iter(n_bytes)
    try:
        while parser.next_event() is h11.NEED_DATA:
            n_read = next(sizes, server.READ_AT_ONCE)
            parser.receive_data(said[at : at + n_read])
            at += n_read
    except h11.RemoteProtocolError:
        return False
    return True


@pytest.mark.parametrize("more", [-1, 0, 1, 2])
@pytest.mark.parametrize("near", [1000, server.TAKEN_HEAD, 120_000, server.TAKEN_HEAD + server.READ_AT_ONCE, 200_000])
def test_a_head_is_taken_however_the_network_cuts_it(near: int, more: int):
    said = server.settled(_headed(near + more))
    before_the_last = len(said) - server.READ_AT_ONCE
    small = [1000] * (len(said) // 1000)
    large = [before_the_last // 2, before_the_last - before_the_last // 2] if before_the_last > 1 else []
    is_taken = near + more <= server.TAKEN_HEAD
    assert _taken(said, small) is is_taken
    assert _taken(said, large) is is_taken


def test_a_head_that_is_not_settled_is_taken_or_refused():
    assert _taken(_headed(120_000), [60_000, server.READ_AT_ONCE])
    assert not _taken(_headed(120_000), [60_000, 50_000, 10_000])
