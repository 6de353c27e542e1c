"""Malformed responses: every one ends in one of our errors, in one line, or in a result."""

import json
from contextlib import suppress
from functools import reduce
from operator import getitem

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mdir_hf.budgets import Budget
from mdir_hf.errors import InputError, InvalidReferenceError, MdirError, ServerError
from mdir_hf.model.hub import connection, models_of_author, models_of_collection, open_repository, resolve_model
from mdir_hf.model.hub.model_info import model_info
from mdir_hf.model.hub.pull_request import ProposedCommit, open_pull_request
from mdir_hf.model.sources import FileEntry
from tests.loopback.faults import Fault

FILES = [{"rfilename": "config.json", "size": 2, "blobId": "0" * 40}]


def listing(**changed):
    return json.dumps({"id": "owner/name", "sha": "0" * 40, "siblings": FILES, **changed}).encode()


NO_ANSWERS = {
    "a login page": b"<html><body>Please log in to the network</body></html>",
    "nothing": b"",
    "bytes": b"\xff\xfe\x00",
    "null": b"null",
    "a list of numbers": b"[1, 2]",
    "a number": b"5",
    "deep": b"[" * 100_000,
    "deep inside": listing(siblings=[])[:-1] + b', "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "millions of values": b"[" + b"[]," * 4_300_000 + b"[]]",
    "an integer of 5,000 digits": listing()[:-1] + b', "downloads": ' + b"9" * 5000 + b"}",
}


@pytest.fixture
def answers(loopback_hub, model_folder):
    """Let the API return a given response."""
    loopback_hub.add_repository("owner/name", model_folder)
    headers = {"Content-Type": "application/json"}

    def answer(body, status=200, **further):
        loopback_hub.faults[:] = [
            Fault("status", status=status, body=body, path="/api/", times=None, headers={**headers, **further})
        ]

    return answer


def told(call, kind=MdirError):
    with pytest.raises(kind) as caught:
        call()
    said = str(caught.value)
    assert "\n" not in said and said.isprintable() and len(said) < 400
    return said


@pytest.mark.parametrize("body", NO_ANSWERS.values(), ids=NO_ANSWERS)
def test_an_invalid_answer_raises_with_a_hint(answers, loopback_hub, body):
    answers(body)
    for call in (
        lambda: open_repository("owner/name"),
        lambda: resolve_model("owner/name"),
        lambda: models_of_author("owner"),
        lambda: models_of_collection("owner/x-" + "0" * 24),
        lambda: open_pull_request("owner/name", ProposedCommit({"a": b""}, "t", ""), token=loopback_hub.token),
    ):
        told(call)


WRONG = {
    "no names": {"siblings": 5},
    "a name that is a number": {"siblings": [{"rfilename": 5}]},
    "a file without a name": {"siblings": [{}]},
    "a file that is nothing": {"siblings": [None]},
    "a size that is a word": {"siblings": [{"rfilename": "a", "lfs": {"size": "x", "sha256": "y", "pointerSize": 1}}]},
    "a size that is a fraction": {"siblings": [{"rfilename": "a", "size": 1.5}]},
    "a size below nothing": {"siblings": [{"rfilename": "a", "size": -5}]},
    "a commit that is a number": {"sha": 5},
    "a commit that is a path": {"sha": ".."},
    "no commit": {"sha": None},
}


@pytest.mark.parametrize("changed", WRONG.values(), ids=WRONG)
def test_a_listing_with_one_thing_wrong_is_refused_with_that_thing(answers, changed):
    answers(listing(**changed))
    told(lambda: open_repository("owner/name"), ServerError)


def test_the_listing_keeps_the_digests_of_each_file(answers, loopback_hub):
    lfs = {"rfilename": "w.bin", "size": 9, "blobId": "2" * 40}
    answers(
        listing(
            siblings=[
                {"rfilename": "empty", "size": 0, "blobId": "1" * 40},
                {"rfilename": "unknown"},
                {**lfs, "lfs": {"size": 8, "sha256": "3" * 64}},
                {**lfs, "lfs": {"sha256": "not one"}},
            ]
        )
    )
    found = model_info("owner/name", revision="main", label="", token=None, with_files=True)
    assert found.files == (
        FileEntry("empty", 0, blob_id="1" * 40),
        FileEntry("unknown", -1),
        FileEntry("w.bin", 8, sha256="3" * 64, blob_id="2" * 40),
        FileEntry("w.bin", 9),  # the blob is a pointer, and its digest is not listed
    )


@pytest.mark.parametrize(
    ("name", "expected"), [("owner/new", "owner/new"), (5, "owner/name"), ("..", "owner/name"), (None, "owner/name")]
)
def test_a_new_name_is_adopted_if_it_is_valid(answers, loopback_hub, name, expected):
    answers(listing(id=name))
    known = {"label": "", "token": None, "with_files": False}
    assert model_info("owner/name", revision="main", **known).repo == expected


def test_an_invalid_repository_name_sends_no_request(loopback_hub):
    known = {"label": "", "token": None, "with_files": False}
    with pytest.raises(InvalidReferenceError):
        model_info("a/b/../c", revision="main", **known)
    assert not loopback_hub.requests


@pytest.mark.parametrize("changed", [{"lastModified": "not a date"}, {"cardData": 5}, {"id": 5}, {"safetensors": 5}])
def test_unused_fields_of_an_answer_may_be_invalid(answers, changed):
    answers(listing(**changed))
    assert sorted(open_repository("owner/name").files) == ["config.json"]


@pytest.mark.parametrize("body", [b"{}", b"[[]]", b"[{}]", b'[{"id": 5}]', b'[{"id": "../../x"}]', b'{"items": 5}'])
def test_an_invalid_list_is_refused(answers, body):
    answers(body)
    told(lambda: models_of_author("owner"), ServerError)
    told(lambda: models_of_collection("owner/x-" + "0" * 24), (ServerError, InputError))


@pytest.mark.parametrize(
    ("budget", "said"),
    [(Budget(100, 10**9), "it is longer than 100 bytes"), (Budget(10**9, 10), "values; the limit is 10")],
)
def test_an_answer_beyond_its_budget_is_refused_before_it_is_parsed(answers, monkeypatch, budget, said):
    answers(listing())
    open_repository("owner/name")
    monkeypatch.setattr(connection, "HUB_ANSWER", budget)
    assert said in told(lambda: open_repository("owner/name"), ServerError)


def test_pages_that_lead_nowhere_end(answers, loopback_hub):
    answers(b"[]", Link=f'<{loopback_hub.endpoint}/api/models?cursor=1>; rel="next"')
    told(lambda: models_of_author("owner"), InputError)
    assert len(loopback_hub.requests) == 1


VALID = {
    "id": "owner/name",
    "sha": "0" * 40,
    "private": False,
    "gated": False,
    "siblings": [
        *FILES,
        {"rfilename": "w.bin", "size": 9, "lfs": {"size": 9, "sha256": "1" * 64, "pointerSize": 3}, "blobId": "2" * 40},
    ],
}
SCALARS = st.none() | st.booleans() | st.integers(-5, 5) | st.just(10**400) | st.floats() | st.text(max_size=5)
VALUES = SCALARS | st.sampled_from(["..", "/x", "a\x00b", "0" * 40, "\u202e"]) | st.lists(SCALARS, max_size=2)
PLACES = [("id",), ("sha",), ("private",), ("gated",), ("siblings",)]
PLACES += [("siblings", at, name) for at in (0, 1) for name in ("rfilename", "size", "lfs", "blobId")]
PLACES += [("siblings", 0), ("siblings", 1), *(("siblings", 1, "lfs", name) for name in ("size", "sha256"))]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes=st.lists(st.tuples(st.sampled_from(PLACES), VALUES | st.just(...)), min_size=1, max_size=3))
def test_a_valid_listing_changed_anywhere_is_read_or_refused(answers, changes):
    said = json.loads(json.dumps(VALID))
    for place, value in changes:
        with suppress(LookupError, TypeError):  # an earlier change removed this place
            holder = reduce(getitem, place[:-1], said)
            if value is ...:
                del holder[place[-1]]
            else:
                holder[place[-1]] = value
    answers(json.dumps(said).encode())
    for call in (lambda: open_repository("owner/name").files, lambda: resolve_model("owner/name")):
        try:
            call()
        except MdirError as exc:
            assert "\n" not in str(exc)


@pytest.mark.parametrize(
    "headers",
    [{"Retry-After": "²³"}, {"RateLimit": '"api";r=0;t=' + "9" * 5000}, {"RateLimit": "²"}, {"Retry-After": "-1"}],
)
def test_an_invalid_wait_is_ignored(answers, waits, headers):
    answers(b"", status=429, **headers)
    for call in (lambda: open_repository("owner/name"), lambda: resolve_model("owner/name")):
        told(call)
    assert all(wait_s < 60 for wait_s in waits)
