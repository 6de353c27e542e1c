"""Answers that are none of the Hub's: every one ends in one of our errors, in one line, or in a result."""

import json

import pytest

from mdir_hf.errors import MdirError
from mdir_hf.hub import models_of_author, models_of_collection, open_repository, resolve_model
from mdir_hf.hub.pull_request import open_pull_request
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
    "an integer of 5,000 digits": listing()[:-1] + b', "downloads": ' + b"9" * 5000 + b"}",
}


@pytest.fixture
def answers(loopback_hub, model_folder):
    """Let the API answer something."""
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
def test_an_answer_that_is_none_says_so_and_where_to_look(answers, loopback_hub, body):
    answers(body)
    for call in (
        lambda: open_repository("owner/name"),
        lambda: resolve_model("owner/name"),
        lambda: models_of_author("owner"),
        lambda: models_of_collection("owner/x-" + "0" * 24),
        lambda: open_pull_request(
            "owner/name", {"a": b""}, parent_commit=None, title="t", description="", token=loopback_hub.token
        ),
    ):
        told(call)
