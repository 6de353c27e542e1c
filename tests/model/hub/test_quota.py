"""Requests of all threads slow down before the Hub returns 429."""

import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest

from mdir_hf.model.hub import connection, open_repository, retry
from mdir_hf.model.hub.retry import Quota, bucket_of
from tests.loopback.limits import DOCUMENTED

API, FILE = "https://hub.example/api/models/a/b", "https://hub.example/a/b/resolve/main/c"


@pytest.fixture
def clock():
    """What time it is."""
    return [1000.0]


@pytest.fixture
def known(clock):
    return Quota(clock=lambda: clock[0])


def said(left, reset_s, bucket="api", limit=500):
    return {
        "RateLimit": f'"{bucket}";r={left};t={reset_s}',
        "RateLimit-Policy": f'"fixed window";"{bucket}";q={limit};w=300',
    }


@pytest.mark.parametrize(
    ("url", "bucket"),
    [
        (API, "api"),
        (FILE, "resolvers"),
        ("https://hub.example/api/resolve-cache/models/a/b/0/c", "resolvers"),
        ("https://hub.example/a/b", "pages"),
        ("https://mirror.example/prefix/api/models/a/b", "api"),
    ],
)
def test_the_path_determines_the_class_of_a_request(url, bucket):
    assert bucket_of(url) == bucket


def test_the_documented_limits_match_the_loopback_hub():
    assert dict(retry.ANONYMOUS) == DOCUMENTED["anonymous"]
    assert dict(retry.USER) == DOCUMENTED["free user"]


def test_requests_do_not_wait_while_the_quota_is_large(clock, known, waits):
    known.after(API, "", said(400, 200))
    assert [known.before(API, "") for _ in range(300)] == [0] * 300
    assert waits == []


def test_a_small_quota_is_spread_over_the_rest_of_the_window(clock, known, waits):
    known.after(API, "", said(11, 120))
    slept = [known.before(API, "") for _ in range(11)]
    assert slept == sorted(slept)  # all asked at once, so each waits for the one before it
    assert slept[0] > 0
    assert 100 < slept[-1] < 121
    steps = [later - earlier for earlier, later in pairwise(slept)]
    assert max(steps) < 2 * min(steps)


def test_all_requests_wait_for_the_next_window_if_the_quota_is_used_up(clock, known, waits):
    known.after(API, "", said(0, 42))
    assert known.before(API, "") == 43
    clock[0] += 43
    assert known.before(API, "") == 0


def test_callers_hubs_and_classes_are_counted_apart(clock, known, waits):
    known.after(API, "", said(0, 42))
    assert known.before(API, "Bearer hf_a") == 0
    assert known.before(FILE, "") == 0
    assert known.before(API.replace("hub", "mirror"), "") == 0
    assert known.before(API, "") > 0
    assert "hf_a" not in repr(vars(known))


def test_an_outdated_answer_does_not_raise_the_quota(clock, known, waits):
    known.after(API, "", said(0, 42))
    known.after(API, "", said(300, 42))
    assert known.before(API, "") > 0


@pytest.mark.parametrize("value", ["", "²", '"api";r=x;t=y', '"api";r=0;t=' + "9" * 5000, '"api";r=0;t=99999'])
def test_an_invalid_limit_delays_no_request(known, waits, value):
    known.after(API, "", {"RateLimit": value})
    assert known.before(API, "") == 0


def test_threads_share_the_remaining_quota(clock, known, waits):
    known.after(API, "", said(60, 100))
    with ThreadPoolExecutor(8) as pool:
        slept = list(pool.map(lambda _: known.before(API, ""), range(60)))
    assert sum(wait_s == 0 for wait_s in slept) == 10  # 50 of 500 count as few
    assert len({round(wait_s, 6) for wait_s in slept}) == 51  # no two at the same time
    assert max(slept) < 101


def test_a_wait_ends_when_it_is_cancelled(known):
    known.after(API, "", said(0, 42))
    cancelled = threading.Event()
    cancelled.set()
    known.before(API, "", cancelled)  # returns immediately


def test_many_requests_never_meet_429_and_use_the_window(clock, known, loopback_hub, model_folder, monkeypatch):
    def pause(wait_s, cancelled=None):
        clock[0] += wait_s

    monkeypatch.setattr(retry, "pause", pause)
    monkeypatch.setattr(connection, "QUOTA", known)
    loopback_hub.limits.clock = lambda: clock[0]
    loopback_hub.limits.quotas["anonymous"]["api"] = 20
    loopback_hub.add_repository("owner/name", model_folder)
    for _ in range(50):
        open_repository("owner/name")
    assert {request.status for request in loopback_hub.requests} == {200}
    assert len(loopback_hub.requests) == 50
    # 20 for each window of 300 s: exactly the third window has begun.
    assert 400 <= clock[0] - 1000 <= 900


def test_files_slow_down_as_well(clock, known, loopback_hub, model_folder, monkeypatch):
    slept = []
    monkeypatch.setattr(retry, "pause", lambda wait_s, cancelled=None: slept.append(wait_s))
    monkeypatch.setattr(connection, "QUOTA", known)
    loopback_hub.add_repository("owner/name", model_folder)
    known.after(f"{loopback_hub.endpoint}/o/n/resolve/main/x", "", said(0, 42, "resolvers", 3000))
    repository = open_repository("owner/name")
    assert slept == []
    repository.open("model.safetensors").read(0, 5)
    assert slept == [43]  # only the HEAD is counted, not the CDN's responses
