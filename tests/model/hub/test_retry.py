import importlib
import threading
import time

import pytest
from huggingface_hub.errors import HfHubHTTPError

from mdir_hf.model.hub import retry
from mdir_hf.model.hub.retry import Patience, StalledError, is_stall, is_transient, requested_wait_s, with_patience

HTTP = importlib.import_module(HfHubHTTPError.__bases__[0].__module__.partition(".")[0])
"""The HTTP library under the Hub client."""


def refused(status, **headers):
    """The exception that the Hub client raises for a response."""
    headers = {name.replace("_", "-"): value for name, value in headers.items()}
    answer = HTTP.Response(status, headers=headers, request=HTTP.Request("GET", "https://hub.example/x"))
    return HfHubHTTPError(f"status {status}", response=answer)


def test_a_wait_ends_when_it_is_cancelled():
    cancelled = threading.Event()
    threading.Timer(0.05, cancelled.set).start()
    begun = time.monotonic()
    retry.pause(30, cancelled)
    assert time.monotonic() - begun < 5


def test_a_wait_lasts_as_long_as_requested():
    begun = time.monotonic()
    retry.pause(0.05)
    assert time.monotonic() - begun >= 0.05


def test_waits_double_and_patience_ends(waits):
    patience = Patience()
    n_tries = 1
    while patience.failed():
        n_tries += 1
    assert n_tries == 6
    for wait_s, at_least in zip(waits, (0.5, 1, 2, 4, 8), strict=True):
        assert at_least <= wait_s <= 1.25 * at_least


def test_progress_restores_patience(waits):
    patience = Patience(attempts=2)
    for _ in range(10):
        assert patience.failed()
        patience.progressed()
    assert patience.failed()
    assert not patience.failed()


@pytest.mark.parametrize(
    ("headers", "wait_s"),
    [
        ({"Retry-After": "120"}, 121),
        ({"retry-after": " 0 "}, 1),
        ({"RateLimit": '"resolvers";r=0;t=55'}, 56),
        ({"ratelimit": '"api";r=0;t=55', "Retry-After": "3"}, 56),
        ({"RateLimit": '"api";r=12;t=55'}, None),
        ({"RateLimit": '"api";r=1;t=55'}, None),
        ({"RateLimit": '"api";r=12;t=55', "Retry-After": "3"}, 4),
        ({"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}, None),
        ({"Retry-After": "-5"}, None),
        ({"Retry-After": "9" * 40}, None),
        ({"Retry-After": "1" * 9}, 111_111_112),
        ({"Retry-After": "1" * 10}, None),
        ({"Retry-After": "\u00b2\u00b3"}, None),
        ({"RateLimit": "nonsense"}, None),
        ({}, None),
    ],
)
def test_how_long_the_server_asks_to_wait(headers, wait_s):
    assert requested_wait_s(headers) == wait_s


def test_a_window_of_the_hub_is_waited_for_and_more_is_not(waits):
    assert Patience().failed({"Retry-After": "309"})
    assert not Patience().failed({"Retry-After": "310"})
    assert waits == [310]


@pytest.mark.parametrize(("luck", "longer"), [(0.0, 1.0), (1.0, 1.25)])
def test_waits_stop_growing_at_eight_seconds_and_differ_by_a_quarter(waits, monkeypatch, luck, longer):
    monkeypatch.setattr(retry.random, "random", lambda: luck)
    patience = Patience(attempts=8)
    while patience.failed():
        pass
    assert waits == [wait_s * longer for wait_s in (0.5, 1, 2, 4, 8, 8, 8)]


def test_three_silences_in_a_row_end_patience(waits):
    patience = Patience()
    silence = StalledError()
    assert patience.failed(cause=silence) and patience.failed(cause=silence)
    patience.progressed()
    assert patience.failed(cause=silence) and patience.failed(cause=ValueError()) and patience.failed(cause=silence)
    assert not patience.failed(cause=silence)


@pytest.mark.parametrize(
    ("name", "may_pass", "is_silence"),
    [
        ("ConnectTimeout", True, True),
        ("ReadTimeout", True, True),
        ("PoolTimeout", True, True),
        ("ConnectError", True, False),
        ("ReadError", True, False),
        ("RemoteProtocolError", True, False),
        ("LocalProtocolError", False, False),
        ("UnsupportedProtocol", False, False),
        ("DecodingError", False, False),
    ],
)
def test_failures_of_a_connection_that_may_pass(name, may_pass, is_silence):
    failure = getattr(HTTP, name)("as it says")
    assert (is_transient(failure), is_stall(failure)) == (may_pass, is_silence)


def test_a_request_is_tried_until_it_succeeds(waits):
    answers = [refused(503), refused(429, retry_after="7"), HTTP.ReadError("gone"), "content"]
    tries = []

    def call():
        answer = answers[len(tries) - 1]
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert with_patience(call, before_each=lambda: tries.append(1)) == "content"
    assert len(tries) == 4
    assert waits[1] == 8 and 0.5 <= waits[0] <= 0.625 and 2 <= waits[2] <= 2.5


def test_when_patience_ends_the_last_failure_is_raised_as_it_is(waits):
    failures = []

    def call():
        failures.append(refused(503))
        raise failures[-1]

    with pytest.raises(HfHubHTTPError) as raised:
        with_patience(call)
    assert raised.value is failures[-1]
    assert (len(failures), len(waits)) == (6, 5)


def test_permanent_errors_are_not_retried(waits):
    calls = []

    def call():
        calls.append(1)
        raise ValueError("for good")

    with pytest.raises(ValueError, match="for good"):
        with_patience(call)
    assert (len(calls), waits) == (1, [])
