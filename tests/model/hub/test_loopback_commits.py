"""The loopback Hub refuses to write what the Hub would refuse. Asked with the real client."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest
from huggingface_hub import CommitOperationAdd, HfApi, hf_hub_download
from huggingface_hub.errors import HfHubHTTPError, RevisionNotFoundError
from huggingface_hub.utils import get_session

CARD = b"---\nlicense: mit\n---\n# T\n"


@pytest.fixture
def head(loopback_hub, model_folder):
    (model_folder / ".gitignore").write_text("*.tmp\n# a comment\n")
    return loopback_hub.add_repository("owner/name", model_folder)


@pytest.fixture
def api(loopback_hub, head):
    return HfApi(endpoint=loopback_hub.endpoint, token=loopback_hub.token)


def commit(api, files, **options):
    operations = [CommitOperationAdd(path, content) for path, content in files.items()]
    return api.create_commit("owner/name", operations, commit_message="Add", commit_description="More", **options)


def test_a_pull_request_is_made_on_its_parent_and_leaves_the_branch_alone(loopback_hub, api, head):
    info = commit(api, {"README.md": CARD, "deep/a.json": b"{}"}, create_pr=True, parent_commit=head)
    assert (info.pr_num, info.pr_revision) == (1, "refs/pr/1")
    (pull_request,) = loopback_hub.pull_requests("owner/name")
    assert (pull_request.title, pull_request.description) == ("Add", "More")
    assert (pull_request.base, pull_request.commit) == (head, info.oid)
    assert api.model_info("owner/name").sha == head
    place = hf_hub_download("owner/name", "deep/a.json", revision="refs/pr/1", endpoint=loopback_hub.endpoint)
    assert Path(place).read_bytes() == b"{}"
    (listed,) = api.get_repo_discussions("owner/name", discussion_type="pull_request", discussion_status="open")
    assert (listed.num, listed.title, listed.url) == (1, "Add", info.pr_url)


def test_merging_moves_the_branch_and_closes_the_pull_request(loopback_hub, api, head):
    info = commit(api, {"README.md": CARD}, create_pr=True)
    assert loopback_hub.merge("owner/name", 1) == info.oid == api.model_info("owner/name").sha
    assert loopback_hub.content("owner/name", "README.md") == CARD
    assert not list(api.get_repo_discussions("owner/name", discussion_status="open"))
    assert {sibling.rfilename for sibling in api.model_info("owner/name").siblings} > {"README.md", "config.json"}


def test_a_direct_commit_needs_the_head_as_parent(api, head):
    moved = commit(api, {"a.txt": b"1"}, parent_commit=head).oid
    assert api.model_info("owner/name").sha == moved
    with pytest.raises(HfHubHTTPError, match="A commit has happened since") as caught:
        commit(api, {"a.txt": b"2"}, parent_commit=head)
    assert caught.value.response.status_code == 412
    assert commit(api, {"a.txt": b"2"}, parent_commit=head, create_pr=True).pr_num == 1


def test_what_has_not_changed_and_what_is_ignored_is_not_committed(loopback_hub, api, head):
    commit(api, {"README.md": CARD, "x.tmp": b"x"})
    assert set(loopback_hub.find("owner/name").commits[api.model_info("owner/name").sha]) == {
        "README.md", "config.json", "model.safetensors", ".gitignore",
    }  # fmt: skip
    before = api.model_info("owner/name").sha
    assert commit(api, {"README.md": CARD}).oid == before


@pytest.mark.parametrize("create_pr", [False, True])
def test_who_may_write(loopback_hub, api, head, create_pr):
    with pytest.raises(HfHubHTTPError) as caught:
        commit(api, {"a": b"1"}, create_pr=create_pr, token=False)
    assert caught.value.response.status_code == 401
    with pytest.raises(HfHubHTTPError, match="write token") as caught:
        commit(api, {"a": b"1"}, create_pr=create_pr, token=loopback_hub.reading_token)
    assert caught.value.response.status_code == 403


def test_anybody_with_a_token_may_propose_and_only_the_owner_may_push(loopback_hub, api, head):
    with pytest.raises(HfHubHTTPError, match="create_pr=1"):
        commit(api, {"a": b"1"}, token=loopback_hub.outsider_token)
    assert commit(api, {"a": b"1"}, token=loopback_hub.outsider_token, create_pr=True).pr_num == 1


def test_disabled_discussions_take_no_pull_request(loopback_hub, model_folder):
    loopback_hub.add_repository("owner/name", model_folder, discussions=False)
    api = HfApi(endpoint=loopback_hub.endpoint, token=loopback_hub.token)
    with pytest.raises(HfHubHTTPError, match="Discussions are disabled"):
        commit(api, {"a": b"1"}, create_pr=True)


def test_a_pull_request_is_for_a_branch_and_not_for_a_commit(api, head):
    with pytest.raises(RevisionNotFoundError):
        commit(api, {"a": b"1"}, create_pr=True, revision=head)


@pytest.mark.parametrize(
    ("card", "said"),
    [
        (b"---\n{a: b\n---\n", "Invalid YAML"),
        (b"---\nbase_model: 5\n---\n", "base_model"),
        (b"---\nbase_model: [a/b, '']\n---\n", "base_model"),
        (b"---\nbase_model_relation: child\n---\n", "base_model_relation"),
        (b"---\n- a\n---\n", "object"),
    ],
)
def test_wrong_metadata_is_refused_before_anything_is_sent(loopback_hub, api, card, said):
    with pytest.raises(ValueError, match=said):
        commit(api, {"README.md": card})
    assert not loopback_hub.sent(path="/commit/")


def test_a_card_without_metadata_is_remarked_upon(api):
    with warnings.catch_warnings(record=True) as remarks:
        warnings.simplefilter("always")
        commit(api, {"README.md": b"# T\n"})
    assert "empty or missing yaml metadata" in str(remarks[0].message)


def send(hub, lines, *, kind="application/x-ndjson", path="commit/main"):
    body = b"\n".join(json.dumps(line).encode() for line in lines)
    headers = {"Authorization": f"Bearer {hub.token}", "Content-Type": kind}
    return get_session().post(f"{hub.endpoint}/api/models/owner/name/{path}", content=body, headers=headers)


HEADER = {"key": "header", "value": {"summary": "Add"}}


def added(path, content="e30="):
    return {"key": "file", "value": {"path": path, "content": content, "encoding": "base64"}}


@pytest.mark.parametrize(
    "lines",
    [
        [],
        [HEADER],
        [added("a")],
        [{"key": "header", "value": {"summary": ""}}, added("a")],
        [HEADER, added("../a")],
        [HEADER, added("/a")],
        [HEADER, added(".git/config")],
        [HEADER, added("a", content="not base64!")],
        [HEADER, {"key": "lfsFile", "value": {"path": "a", "algo": "sha256", "oid": "x", "size": 3}}],
        [HEADER, {"key": "file", "value": {"path": "README.md", "content": "LS0tCi0gYQotLS0K", "encoding": "base64"}}],
    ],
)
def test_a_commit_that_is_none_is_refused(loopback_hub, head, lines):
    assert send(loopback_hub, lines).status_code == 400


def test_a_commit_has_its_own_content_type_and_needs_a_known_parent(loopback_hub, head):
    assert send(loopback_hub, [HEADER, added("a")], kind="application/json").status_code == 400
    unknown = {"key": "header", "value": {"summary": "Add", "parentCommit": "0" * 40}}
    assert send(loopback_hub, [unknown, added("a")]).status_code == 404
    assert send(loopback_hub, [HEADER, added("a")], path="other/main").status_code == 404


def test_the_cdn_takes_nothing(loopback_hub, head):
    assert get_session().post(f"{loopback_hub.cdn_endpoint}/x", content=b"x").status_code == 404


# The client sends large files in a way that its own HTTP library will drop.
OLD_UPLOAD = pytest.mark.filterwarnings("ignore:Use 'content")


@pytest.fixture
def without_xet(monkeypatch):
    """Large files by the older of the client's two ways; the other is a program of its own."""
    monkeypatch.setattr("huggingface_hub._commit_api.is_xet_available", lambda: False)


@OLD_UPLOAD
def test_large_files_are_uploaded_first_and_then_committed(loopback_hub, api, head, without_xet):
    commit(api, {"deep/rows.safetensors": b"x" * 100_000, "a.txt": b"1"}, create_pr=True)
    assert loopback_hub.content("owner/name", "deep/rows.safetensors", "refs/pr/1") == b"x" * 100_000
    (upload,) = [request for request in loopback_hub.requests if request.method == "PUT"]
    assert (upload.origin, upload.had_token, upload.status) == ("cdn", False, 200)


@OLD_UPLOAD
def test_a_data_set_of_the_same_name_is_another_repository(loopback_hub, api, head, tmp_path, without_xet):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.txt").write_text("one")
    loopback_hub.add_repository("owner/name", tmp_path / "data", kind="dataset")
    operations = [CommitOperationAdd("b.txt", b"2"), CommitOperationAdd("c.bin", b"3")]
    made = api.create_commit("owner/name", operations, commit_message="Add", repo_type="dataset", create_pr=True)
    assert made.pr_url == f"{loopback_hub.endpoint}/datasets/owner/name/discussions/1"
    assert loopback_hub.pull_requests("owner/name") == []
    assert [one.title for one in loopback_hub.pull_requests("datasets/owner/name")] == ["Add"]
    for path, content in {"a.txt": b"one", "c.bin": b"3"}.items():
        place = hf_hub_download(
            "owner/name", path, repo_type="dataset", revision="refs/pr/1", endpoint=loopback_hub.endpoint
        )
        assert Path(place).read_bytes() == content
