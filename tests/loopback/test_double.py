"""The loopback Hub answers the real client as tests/loopback/README.md says, and is as strict as the Hub."""

import hashlib
from pathlib import Path

import pytest
from huggingface_hub import (
    CommitOperationAdd,
    HfApi,
    get_hf_file_metadata,
    hf_hub_download,
    hf_hub_url,
)
from huggingface_hub.errors import (
    DisabledRepoError,
    GatedRepoError,
    HfHubHTTPError,
    RemoteEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import get_session, parse_ratelimit_headers

from tests.loopback.traffic import LoggedRequest, in_sequence

WEIGHTS = "model.safetensors"
CARD = b"---\nlicense: mit\n---\n# T\n"


@pytest.fixture
def head(loopback_hub, model_folder):
    (model_folder / ".gitignore").write_text("*.tmp\n# a comment\n")
    loopback_hub.add_repository("owner/gated", model_folder, gated=True)
    loopback_hub.add_repository("owner/secret", model_folder, private=True)
    loopback_hub.add_repository("owner/closed", model_folder, disabled=True)
    return loopback_hub.add_repository("owner/name", model_folder)


@pytest.fixture
def api(loopback_hub, head):
    return HfApi(endpoint=loopback_hub.endpoint, token=False)


@pytest.fixture
def owner(loopback_hub, head):
    return HfApi(endpoint=loopback_hub.endpoint, token=loopback_hub.token)


def get(url, **headers):
    return get_session().get(url, headers=headers, follow_redirects=False, timeout=10)


def metadata(hub, path=WEIGHTS):
    return get_hf_file_metadata(
        hf_hub_url("owner/name", path, endpoint=hub.endpoint), token=False, endpoint=hub.endpoint
    )


# --- reading


def test_the_client_knows_each_refusal(loopback_hub, api):
    with pytest.raises(RevisionNotFoundError):
        api.model_info("owner/name", revision="v9")
    with pytest.raises(RepositoryNotFoundError):
        api.model_info("owner/none", token=loopback_hub.token)
    with pytest.raises(RepositoryNotFoundError):
        api.model_info("owner/secret", token=loopback_hub.outsider_token)
    with pytest.raises(DisabledRepoError):
        api.model_info("owner/closed", token=loopback_hub.token)
    for hidden in ("owner/none", "owner/closed"):
        with pytest.raises(HfHubHTTPError, match="401"):
            api.model_info(hidden)
    for token in (False, loopback_hub.outsider_token):
        with pytest.raises(GatedRepoError):
            hf_hub_download("owner/gated", WEIGHTS, endpoint=loopback_hub.endpoint, token=token)
    with pytest.raises(RemoteEntryNotFoundError):
        hf_hub_download("owner/name", "none.json", endpoint=loopback_hub.endpoint)
    with pytest.raises(HfHubHTTPError, match="Invalid credentials"):
        api.model_info("owner/name", token="hf_wrong")


def test_a_large_file_lies_at_another_origin(loopback_hub, head, model_folder):
    content = (model_folder / WEIGHTS).read_bytes()
    found = metadata(loopback_hub)
    assert found.location.startswith(loopback_hub.cdn_endpoint)
    assert (found.etag, found.size) == (hashlib.sha256(content).hexdigest(), 300_000)
    response = get(found.location, Range="bytes=5-9")
    assert (response.status_code, response.content) == (206, content[5:10])
    assert response.headers["Content-Range"] == "bytes 5-9/300000"
    past = get(found.location, Range="bytes=300000-300001")
    assert (past.status_code, past.headers["Content-Range"]) == (416, "bytes */300000")
    several = get(found.location, Range="bytes=0-1,5-6")
    assert (several.status_code, len(several.content)) == (200, 300_000)


def test_the_cdn_refuses_a_token(loopback_hub, head):
    response = get(metadata(loopback_hub).location, Authorization=f"Bearer {loopback_hub.token}")
    assert response.status_code == 400
    assert loopback_hub.requests[-1].had_token


def test_the_cdn_refuses_unsigned_and_expired_urls(loopback_hub, head):
    location = metadata(loopback_hub).location
    changes = (location.split("?")[0], location.replace(WEIGHTS, "config.json"), location.replace("es=1", "es=2"))
    assert [get(changed).status_code for changed in changes] == [403, 403, 403]
    loopback_hub.expire_locations()
    assert get(location).status_code == 403


def test_a_file_of_git_is_redirected_to_the_hubs_cache(loopback_hub, head, model_folder):
    answer = get(hf_hub_url("owner/name", "config.json", endpoint=loopback_hub.endpoint))
    place = answer.headers["Location"]
    assert answer.status_code == 307
    assert place.startswith(f"/api/resolve-cache/models/owner/name/{head}/config.json?%2Fowner%2Fname%2Fresolve%2F")
    content = get(loopback_hub.endpoint + place, **{"Accept-Encoding": "gzip"})
    assert (content.status_code, content.content) == (200, (model_folder / "config.json").read_bytes())
    assert content.headers["ETag"].strip('"') in place and content.headers["Content-Encoding"] == "gzip"
    assert metadata(loopback_hub, "config.json").commit_hash == head


def test_a_renamed_repository_redirects_each_request(loopback_hub, api):
    loopback_hub.rename_repository("owner/name", "other/new")
    file = get(hf_hub_url("owner/name", WEIGHTS, endpoint=loopback_hub.endpoint))
    assert (file.status_code, file.headers["Location"]) == (307, f"/other/new/resolve/main/{WEIGHTS}")
    assert api.model_info("owner/name").id == "other/new"


def test_beyond_the_quota_there_is_429(loopback_hub, head):
    now = [1000.0]
    loopback_hub.limits.clock = lambda: now[0]
    loopback_hub.limits.quotas["anonymous"]["api"] = 2
    url = f"{loopback_hub.endpoint}/api/models/owner/name"
    answers = [get(url) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    said = [parse_ratelimit_headers(answer.headers) for answer in answers]
    assert [(one.resource_type, one.remaining, one.limit) for one in said] == [("api", n, 2) for n in (1, 0, 0)]
    assert get(hf_hub_url("owner/name", WEIGHTS, endpoint=loopback_hub.endpoint)).status_code == 302  # another quota
    now[0] += 200
    assert get(url).status_code == 200


def test_lists_have_pages_and_hide_private_models(loopback_hub, api):
    loopback_hub.largest_page = 1
    found = [model.id for model in api.list_models(search="OWNER", sort="downloads")]
    assert sorted(found) == ["owner/closed", "owner/gated", "owner/name"]
    assert [model.id for model in api.list_models(search="secret", token=loopback_hub.token)] == ["owner/secret"]
    entries = {entry.path for entry in api.list_repo_tree("owner/name", recursive=True)}
    assert entries == {"config.json", WEIGHTS, ".gitignore"}
    assert len(loopback_hub.sent("hub", "/tree/")) == 3


# --- writing


def commit(api, files, **options):
    operations = [CommitOperationAdd(path, content) for path, content in files.items()]
    return api.create_commit("owner/name", operations, commit_message="Add", commit_description="More", **options)


def test_a_pull_request_leaves_the_branch_alone_until_merged(loopback_hub, owner, head):
    info = commit(owner, {"README.md": CARD, "deep/a.json": b"{}"}, create_pr=True, parent_commit=head)
    (request,) = loopback_hub.pull_requests("owner/name")
    assert (info.pr_num, request.title, request.base, request.commit) == (1, "Add", head, info.oid)
    assert owner.model_info("owner/name").sha == head
    place = hf_hub_download("owner/name", "deep/a.json", revision="refs/pr/1", endpoint=loopback_hub.endpoint)
    assert Path(place).read_bytes() == b"{}"
    (listed,) = owner.get_repo_discussions("owner/name", discussion_type="pull_request", discussion_status="open")
    assert (listed.num, listed.url) == (1, info.pr_url)
    assert loopback_hub.merge("owner/name", 1) == info.oid == owner.model_info("owner/name").sha
    assert not list(owner.get_repo_discussions("owner/name", discussion_status="open"))


def test_a_direct_commit_needs_the_head_as_parent(owner, head):
    commit(owner, {"a.txt": b"1", "x.tmp": b"ignored"}, parent_commit=head)
    assert {one.rfilename for one in owner.model_info("owner/name").siblings} >= {"a.txt", "config.json"}
    assert "x.tmp" not in {one.rfilename for one in owner.model_info("owner/name").siblings}
    with pytest.raises(HfHubHTTPError, match="A commit has happened since"):
        commit(owner, {"a.txt": b"2"}, parent_commit=head)
    assert commit(owner, {"a.txt": b"2"}, parent_commit=head, create_pr=True).pr_num == 1


def test_rights_to_propose_and_to_push(loopback_hub, owner, model_folder):
    for create_pr in (False, True):
        with pytest.raises(HfHubHTTPError, match="401"):
            commit(owner, {"a": b"1"}, create_pr=create_pr, token=False)
        with pytest.raises(HfHubHTTPError, match="write token"):
            commit(owner, {"a": b"1"}, create_pr=create_pr, token=loopback_hub.reading_token)
    with pytest.raises(HfHubHTTPError, match="create_pr=1"):
        commit(owner, {"a": b"1"}, token=loopback_hub.outsider_token)
    assert commit(owner, {"a": b"1"}, token=loopback_hub.outsider_token, create_pr=True).pr_num == 1
    loopback_hub.add_repository("owner/name", model_folder, discussions=False)
    with pytest.raises(HfHubHTTPError, match="Discussions are disabled"):
        commit(owner, {"a": b"1"}, create_pr=True)


# --- counting requests


@pytest.mark.parametrize(
    ("times", "expected"), [([(0, 1), (0.1, 1.1), (0.2, 1.2)], 1), ([(0, 1), (1, 2), (0, 2)], 2), ([], 0)]
)
def test_concurrent_requests_count_as_one(times, expected):
    requests = [LoggedRequest("GET", "hub", "/", None, False, began=began, ended=ended) for began, ended in times]
    assert in_sequence(requests) == expected
