"""The loopback Hub behaves on the wire as docs/hub-behaviour.md says. Asked with the real client."""

import time
from contextlib import ExitStack

import pytest
from huggingface_hub import HfApi, get_hf_file_metadata, hf_hub_url
from huggingface_hub.errors import DisabledRepoError, HfHubHTTPError
from huggingface_hub.utils import get_session, parse_ratelimit_headers
from huggingface_hub.utils._xet import refresh_xet_connection_info

from tests.loopback.limits import DOCUMENTED
from tests.loopback.traffic import LoggedRequest, in_sequence

WEIGHTS = "model.safetensors"


@pytest.fixture
def commit(loopback_hub, model_folder):
    return loopback_hub.add_repository("owner/name", model_folder)


def get(url, **headers):
    return get_session().get(url, headers=headers, follow_redirects=False, timeout=10)


def head(hub, path):
    url = hf_hub_url("owner/name", path, endpoint=hub.endpoint)
    return get_hf_file_metadata(url, token=False, endpoint=hub.endpoint)


def test_a_file_of_git_is_redirected_to_the_cache_of_the_hub(loopback_hub, commit, model_folder):
    answer = get(hf_hub_url("owner/name", "config.json", endpoint=loopback_hub.endpoint))
    place = answer.headers["Location"]
    assert answer.status_code == 307
    assert place.startswith(f"/api/resolve-cache/models/owner/name/{commit}/config.json?%2Fowner%2Fname%2Fresolve%2F")
    assert answer.headers["X-Repo-Commit"] == commit
    content = get(loopback_hub.endpoint + place)
    assert (content.status_code, content.content) == (200, (model_folder / "config.json").read_bytes())
    assert content.headers["ETag"].strip('"') in place


def test_the_client_follows_it_and_knows_size_commit_and_etag(loopback_hub, commit, model_folder):
    metadata = head(loopback_hub, "config.json")
    assert (metadata.size, metadata.commit_hash) == ((model_folder / "config.json").stat().st_size, commit)
    assert len(loopback_hub.sent("hub", "config.json")) == 2


def test_a_branch_with_a_slash_is_redirected_to_its_commit(loopback_hub, model_folder):
    loopback_hub.add_repository("owner/name", model_folder, revisions={"refs/pr/1": model_folder})
    url = hf_hub_url("owner/name", "config.json", revision="refs/pr/1", endpoint=loopback_hub.endpoint)
    assert get_session().get(url, follow_redirects=True).content == (model_folder / "config.json").read_bytes()


def test_a_file_in_xet_storage_names_its_hash_and_where_tokens_are_given(loopback_hub, commit, model_folder):
    loopback_hub.stores_in_xet = True
    metadata = head(loopback_hub, WEIGHTS)
    assert metadata.location.startswith(loopback_hub.cdn_endpoint)
    info = refresh_xet_connection_info(file_data=metadata.xet_file_data, headers={})
    assert info.endpoint == loopback_hub.cas_endpoint
    assert info.expiration_unix_epoch > time.time()
    entries = HfApi(endpoint=loopback_hub.endpoint).list_repo_tree("owner/name", recursive=True)
    assert metadata.xet_file_data.file_hash in {getattr(entry, "xet_hash", None) for entry in entries}


@pytest.mark.parametrize("state", ["unreachable", "failing"])
def test_the_storage_behind_it_cannot_be_asked(loopback_hub, state):
    loopback_hub.cas = state
    try:
        answered = get_session().get(f"{loopback_hub.cas_endpoint}/v1/reconstructions/{'0' * 64}", timeout=5)
    except Exception as exc:
        assert state == "unreachable"
        assert "Connect" in type(exc).__name__
    else:
        assert (state, answered.status_code) == ("failing", 500)


def test_a_renamed_repository_redirects_each_request(loopback_hub, commit):
    loopback_hub.rename_repository("owner/name", "other/new")
    api = get(f"{loopback_hub.endpoint}/api/models/owner/name/revision/main")
    file = get(hf_hub_url("owner/name", WEIGHTS, endpoint=loopback_hub.endpoint))
    assert (api.status_code, api.headers["Location"]) == (307, "/api/models/other/new/revision/main")
    assert (file.status_code, file.headers["Location"]) == (307, f"/other/new/resolve/main/{WEIGHTS}")
    assert HfApi(endpoint=loopback_hub.endpoint).model_info("owner/name").id == "other/new"


def test_a_disabled_repository_is_closed_to_everybody_and_hidden_from_strangers(loopback_hub, model_folder):
    loopback_hub.add_repository("owner/closed", model_folder, disabled=True)
    api = HfApi(endpoint=loopback_hub.endpoint)
    with pytest.raises(DisabledRepoError):
        api.model_info("owner/closed", token=loopback_hub.token)
    with pytest.raises(HfHubHTTPError, match="401"):
        api.model_info("owner/closed", token=False)


def test_every_answer_of_the_hub_says_what_is_left(loopback_hub, commit):
    url = f"{loopback_hub.endpoint}/api/models/owner/name"
    said = [parse_ratelimit_headers(get(url).headers) for _ in range(2)]
    assert [(one.resource_type, one.remaining, one.limit, one.window_seconds) for one in said] == [
        ("api", 499, 500, 300),
        ("api", 498, 500, 300),
    ]
    resolved = parse_ratelimit_headers(get(hf_hub_url("owner/name", WEIGHTS, endpoint=loopback_hub.endpoint)).headers)
    assert (resolved.resource_type, resolved.remaining, resolved.limit) == ("resolvers", 2999, 3000)
    own = get(url, Authorization=f"Bearer {loopback_hub.token}")
    assert parse_ratelimit_headers(own.headers).limit == DOCUMENTED["free user"]["api"]


def test_beyond_the_quota_there_is_429_until_the_window_ends(loopback_hub, commit):
    now = [1000.0]
    loopback_hub.limits.clock = lambda: now[0]
    loopback_hub.limits.quotas["anonymous"]["api"] = 2
    url = f"{loopback_hub.endpoint}/api/models/owner/name"
    answers = [get(url) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert answers[-1].headers["RateLimit"] == '"api";r=0;t=200'
    now[0] += 200
    assert get(url).status_code == 200


def test_the_files_of_a_commit_come_in_pages(loopback_hub, commit):
    loopback_hub.largest_page = 1
    entries = list(HfApi(endpoint=loopback_hub.endpoint).list_repo_tree("owner/name", recursive=True))
    assert {entry.path for entry in entries} == {"config.json", WEIGHTS}
    assert len(loopback_hub.sent("hub", "/tree/")) == 2


def test_connections_are_counted_and_used_again(loopback_hub, commit):
    url = f"{loopback_hub.endpoint}/api/models/owner/name"
    with ExitStack() as answers:
        for _ in range(3):  # three at once need three
            answers.enter_context(get_session().stream("GET", url))
    get(url)
    assert len(loopback_hub.connections) in (3, 4)  # the last one may find them closed: nothing of them was read
    assert sum(connection.n_requests for connection in loopback_hub.connections) == 4
    connections = len(loopback_hub.connections)
    for _ in range(3):
        get(url)
    assert len(loopback_hub.connections) == connections


def test_requests_one_after_another_are_counted(loopback_hub, commit):
    loopback_hub.network.round_trip_s = 0.02
    for _ in range(3):
        get(f"{loopback_hub.endpoint}/api/models/owner/name")
    assert in_sequence(loopback_hub.requests) == 3


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ([(0, 1), (0.1, 1.1), (0.2, 1.2)], 1),
        ([(0, 1), (1, 2), (0, 2)], 2),
        ([(0, 5), (1, 2), (3, 4)], 2),
        ([], 0),
    ],
)
def test_requests_under_way_at_once_count_as_one(times, expected):
    requests = [LoggedRequest("GET", "hub", "/", None, False, began=began, ended=ended) for began, ended in times]
    assert in_sequence(requests) == expected


def test_distance_and_bandwidth_take_their_time(loopback_hub, commit):
    loopback_hub.network.round_trip_s = 0.05
    loopback_hub.network.bytes_per_s = 3_000_000
    begun = time.monotonic()
    location = head(loopback_hub, WEIGHTS).location
    get(location)
    # Two connections of two round trips, two requests; 300,000 bytes at 3 MB/s.
    assert time.monotonic() - begun >= 0.05 * 6 + 0.1
