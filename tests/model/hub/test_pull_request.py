"""Open one pull request, or report why it cannot be opened."""

import json
from dataclasses import replace

import pytest
from huggingface_hub import HfApi

from mdir_hf.errors import CardError, OfflineError, PullRequestError, RepositoryNotFoundError, ServerError
from mdir_hf.model.hub import pull_request
from mdir_hf.model.hub.pull_request import ProposedCommit, open_pull_request
from tests.loopback.faults import Fault

FILES = {"README.md": b"---\nlicense: mit\n---\n# T\n", ".lineage/report.json": b"{}"}


@pytest.fixture
def head(loopback_hub, model_folder):
    return loopback_hub.add_repository("owner/name", model_folder)


def propose(hub, head, files=FILES, *, token=None, **options):
    return open_pull_request(
        "owner/name",
        ProposedCommit(files, "Add a section", "What it says", parent=head),
        token=hub.token if token is None else token,
        **options,
    )


def test_one_commit_with_every_file_on_top_of_the_head(loopback_hub, head):
    opened = propose(loopback_hub, head)
    assert opened.url == f"{loopback_hub.endpoint}/owner/name/discussions/1"
    assert opened.notes == ()
    (pull_request,) = loopback_hub.pull_requests("owner/name")
    assert (pull_request.base, pull_request.commit, pull_request.branch) == (head, opened.commit, "main")
    assert pull_request.title == "Add a section"
    for path, content in FILES.items():
        assert loopback_hub.content("owner/name", path, "refs/pr/1") == content


def test_the_stored_token_is_used_and_an_outsider_may_propose(loopback_hub, head, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", loopback_hub.outsider_token)
    assert open_pull_request("owner/name", ProposedCommit(FILES, "T", "", parent=head)).url


def refusal(kind, *arguments, **options):
    with pytest.raises(kind) as caught:
        propose(*arguments, **options)
    said = str(caught.value)
    assert said.startswith("owner/name: ") and "http" not in said.replace("127.0.0.1", "")[:30]
    return said


@pytest.mark.parametrize(("token", "stored"), [(False, None), (True, None), (False, "hf_stored")])
def test_without_a_token_no_request_is_sent(loopback_hub, head, monkeypatch, token, stored):
    if stored is not None:
        monkeypatch.setenv("HF_TOKEN", stored)
    assert "hf auth login" in refusal(PullRequestError, loopback_hub, head, token=token)
    assert not loopback_hub.requests


def test_a_token_that_is_not_accepted(loopback_hub, head):
    assert "token" in refusal(RepositoryNotFoundError, loopback_hub, head, token="hf_wrong")


def test_a_token_that_may_only_read(loopback_hub, head):
    said = refusal(PullRequestError, loopback_hub, head, token=loopback_hub.reading_token)
    assert "write access" in said and "fine-grained" in said


def test_disabled_discussions(loopback_hub, model_folder):
    head = loopback_hub.add_repository("owner/name", model_folder, discussions=False)
    assert "disabled" in refusal(PullRequestError, loopback_hub, head)


@pytest.mark.parametrize("status", [400, 403, 404, 409, 410])
@pytest.mark.parametrize("path", ["/discussions", "/commit/"])
def test_disabled_discussions_are_recognised_by_the_message(loopback_hub, head, status, path):
    body = b'{"error": "Pull Requests are disabled here"}'
    loopback_hub.faults.append(Fault("status", path=path, status=status, body=body))
    assert "its owner can enable them" in refusal(PullRequestError, loopback_hub, head)


@pytest.mark.parametrize("words", ["You may not write discussions", "This account is disabled"])
def test_other_messages_do_not_mean_disabled_discussions(loopback_hub, head, words):
    loopback_hub.faults.append(Fault("status", path="/discussions", status=403, headers={"X-Error-Message": words}))
    assert "write access" in refusal(PullRequestError, loopback_hub, head)


def test_a_moved_head_is_detected_before_anything_is_sent(loopback_hub, head):
    api = HfApi(endpoint=loopback_hub.endpoint, token=loopback_hub.token)
    api.upload_file(path_or_fileobj=b"x", path_in_repo="x", repo_id="owner/name")
    loopback_hub.requests.clear()
    said = refusal(PullRequestError, loopback_hub, head)
    assert f"moved from {head[:7]} to {api.model_info('owner/name').sha[:7]}" in said
    assert not loopback_hub.sent(path="/commit/")


def test_a_head_that_moves_in_between(loopback_hub, head):
    loopback_hub.faults.append(Fault("status", path="/commit/", status=412))
    assert "moved on" in refusal(PullRequestError, loopback_hub, head)


def test_the_commit_keeps_its_parent_if_the_head_moves(loopback_hub, head, monkeypatch):
    api = HfApi(endpoint=loopback_hub.endpoint, token=loopback_hub.token)
    seen = pull_request.model_info("owner/name", revision="main", label="", token=api.token, with_files=False)
    api.upload_file(path_or_fileobj=b"x", path_in_repo="x", repo_id="owner/name")
    monkeypatch.setattr(pull_request, "model_info", lambda *_, **__: seen)
    propose(loopback_hub, head)
    assert loopback_hub.pull_requests("owner/name")[0].base == head


def test_a_second_one_of_the_same_title_waits_for_the_first(loopback_hub, head):
    propose(loopback_hub, head)
    with pytest.raises(PullRequestError, match="pull request 1 has the same title"):
        propose(loopback_hub, head)
    loopback_hub.pull_requests("owner/name")[0].status = "closed"
    assert propose(loopback_hub, head).url.endswith("/2")


def test_only_the_newest_hundred_open_pull_requests_are_read(loopback_hub, head):
    propose(loopback_hub, head)
    stored = loopback_hub.pull_requests("owner/name")
    stored += [replace(stored[0], number=number, title=f"Other {number}") for number in range(2, 102)]
    del stored[100:]
    loopback_hub.requests.clear()
    with pytest.raises(PullRequestError, match="pull request 1 has the same title"):
        propose(loopback_hub, head)
    assert len(loopback_hub.sent(path="/discussions")) == 10
    stored += [replace(stored[0], number=number, title=f"Other {number}") for number in range(101, 400)]
    loopback_hub.requests.clear()
    assert propose(loopback_hub, head).url.endswith("/400")
    assert len(loopback_hub.sent(path="/discussions")) == 10


@pytest.mark.parametrize(("on_a_page", "n_asked"), [([], 1), ([{"num": 7, "title": "Other"}], 10)])
def test_an_endless_list_is_read_up_to_the_newest_hundred(loopback_hub, head, on_a_page, n_asked):
    body = json.dumps({"discussions": on_a_page, "count": 10**18, "start": 0}).encode()
    loopback_hub.faults.append(Fault("status", status=200, body=body, path="/discussions", times=None))
    assert propose(loopback_hub, head).url
    assert len(loopback_hub.sent(path="/discussions")) == n_asked


@pytest.mark.parametrize(
    "said",
    [{}, [], None, {"discussions": 5, "count": 1}, {"discussions": [], "count": "1"}, {"discussions": [5], "count": 1}]
    + [{"discussions": [one], "count": 1} for one in ({}, {"num": "7", "title": "T"}, {"num": 7, "title": 5})],
)
def test_an_invalid_list_is_refused_before_anything_is_written(loopback_hub, head, said):
    body = json.dumps(said).encode()
    loopback_hub.faults.append(Fault("status", status=200, body=body, path="/discussions", times=None))
    assert "the response is not from the Hub" in refusal(ServerError, loopback_hub, head)
    assert not loopback_hub.pull_requests("owner/name")


def test_metadata_that_the_hub_does_not_accept(loopback_hub, head):
    files = {"README.md": b"---\nbase_model_relation: child\n---\n"}
    assert "base_model_relation" in refusal(CardError, loopback_hub, head, files)
    assert not loopback_hub.pull_requests("owner/name")


def test_the_message_is_one_line_without_the_address(loopback_hub, head):
    answer = json.dumps({"errors": [{"message": "no\n\u202e'child'"}], "warnings": []}).encode()
    loopback_hub.faults.append(Fault("status", path="validate-yaml", status=400, body=answer))
    said = refusal(CardError, loopback_hub, head)
    assert said == "owner/name: the Hub rejects the metadata of this card: - no \\u202e'child'"


@pytest.mark.parametrize("path", ["preupload", "/commit/"])
def test_an_answer_to_the_commit_that_is_not_json_raises(loopback_hub, head, path):
    loopback_hub.faults.append(Fault("status", path=path, status=200, body=b"<html>"))
    assert "is not JSON" in refusal(ServerError, loopback_hub, head)


def test_our_own_bugs_are_passed_on_unchanged(loopback_hub, head, monkeypatch):
    def mistaken(*_, **__):
        raise ValueError("Invalid something in README.md")

    monkeypatch.setattr(HfApi, "create_commit", mistaken)
    with pytest.raises(ValueError, match="Invalid something"):
        propose(loopback_hub, head)


def test_a_gitignore_that_excludes_files_is_reported(loopback_hub, model_folder):
    (model_folder / ".gitignore").write_text(".lineage\n")
    head = loopback_hub.add_repository("owner/name", model_folder)
    assert any(".lineage/report.json" in note for note in propose(loopback_hub, head).notes)


def test_files_that_are_there_already(loopback_hub, head, model_folder):
    files = {"config.json": (model_folder / "config.json").read_bytes()}
    assert "already" in refusal(PullRequestError, loopback_hub, head, files)


@pytest.mark.parametrize("path", ["discussions", "/api/models/owner/name", "preupload", "/commit/", "validate-yaml"])
def test_a_server_that_fails_is_one_of_our_errors(loopback_hub, head, waits, path):
    loopback_hub.faults.append(Fault("status", path=path, status=500, times=None))
    refusal(ServerError, loopback_hub, head)


def test_no_pull_request_is_sent_offline(loopback_hub, head, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    refusal(OfflineError, loopback_hub, head)
    assert not loopback_hub.requests
