import threading
import time

import pytest

from mdir_hf.hub import retry
from mdir_hf.hub.retry import LONGEST_WAIT_S, Patience, asked_wait_s, with_patience


def test_a_wait_ends_when_it_is_cancelled():
    cancelled = threading.Event()
    threading.Timer(0.05, cancelled.set).start()
    begun = time.monotonic()
    retry.pause(30, cancelled)
    assert time.monotonic() - begun < 5


def test_a_wait_lasts_as_long_as_asked():
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
        ({"RateLimit": '"api";r=12;t=55', "Retry-After": "3"}, 4),
        ({"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}, None),
        ({"Retry-After": "-5"}, None),
        ({"Retry-After": "9" * 40}, None),
        ({"RateLimit": "nonsense"}, None),
        ({}, None),
    ],
)
def test_how_long_the_server_asks_to_wait(headers, wait_s):
    assert asked_wait_s(headers) == wait_s


def test_a_window_of_the_hub_is_waited_for_and_more_is_not(waits):
    assert Patience().failed({"Retry-After": "300"})
    assert not Patience().failed({"Retry-After": str(int(LONGEST_WAIT_S))})
    assert waits == [301]


def test_what_will_not_get_better_is_not_tried_again(waits):
    calls = []

    def call():
        calls.append(1)
        raise ValueError("for good")

    with pytest.raises(ValueError, match="for good"):
        with_patience(call)
    assert (len(calls), waits) == (1, [])
