"""The loopback Hub is strict: what it lets pass, the Hub would let pass. Asked with the real client."""

import hashlib
import time
from pathlib import Path

import pytest
from huggingface_hub import HfApi, get_hf_file_metadata, hf_hub_download, hf_hub_url, snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    RemoteEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import get_session

from tests.loopback.hub import FullHub

WEIGHTS = "model.safetensors"


@pytest.fixture
def api(loopback_hub, model_folder):
    loopback_hub.add_repository("owner/name", model_folder)
    loopback_hub.add_repository("owner/gated", model_folder, gated=True)
    loopback_hub.add_repository("owner/secret", model_folder, private=True)
    return HfApi(endpoint=loopback_hub.endpoint, token=False)


def signed(hub):
    url = hf_hub_url("owner/name", WEIGHTS, endpoint=hub.endpoint)
    return get_hf_file_metadata(url, token=False, endpoint=hub.endpoint)


def test_the_client_downloads_a_whole_snapshot(loopback_hub, api, model_folder):
    place = snapshot_download("owner/name", endpoint=loopback_hub.endpoint)
    for path in model_folder.iterdir():
        assert Path(place, path.name).read_bytes() == path.read_bytes()


def test_the_client_sees_sizes_digests_and_gates(api, model_folder):
    info = api.model_info("owner/gated", files_metadata=True)
    assert info.gated == "auto"
    (weights,) = [sibling for sibling in info.siblings if sibling.rfilename == WEIGHTS]
    assert weights.lfs.sha256 == hashlib.sha256((model_folder / WEIGHTS).read_bytes()).hexdigest()
    assert weights.lfs.size == weights.size == 300_000


def test_without_blobs_only_names_are_listed(api):
    assert all(sibling.size is None for sibling in api.model_info("owner/name").siblings)


def test_the_client_lists_the_tree(api):
    entries = {entry.path: entry for entry in api.list_repo_tree("owner/name", recursive=True)}
    assert entries[WEIGHTS].lfs.size == 300_000


def test_the_client_knows_each_refusal(loopback_hub, api):
    with pytest.raises(RevisionNotFoundError):
        api.model_info("owner/name", revision="v9")
    with pytest.raises(RepositoryNotFoundError):
        api.model_info("owner/none", token=loopback_hub.token)
    with pytest.raises(RepositoryNotFoundError):
        api.model_info("owner/secret", token=loopback_hub.outsider_token)
    with pytest.raises(HfHubHTTPError, match="401"):
        api.model_info("owner/none")
    for token in (False, loopback_hub.outsider_token):
        with pytest.raises(GatedRepoError):
            hf_hub_download("owner/gated", WEIGHTS, endpoint=loopback_hub.endpoint, token=token)
    with pytest.raises(RemoteEntryNotFoundError):
        hf_hub_download("owner/name", "none.json", endpoint=loopback_hub.endpoint)
    with pytest.raises(HfHubHTTPError, match="Invalid credentials"):
        api.model_info("owner/name", token="hf_wrong")


def test_a_large_file_lies_at_another_origin_with_its_digest_and_size(loopback_hub, api, model_folder):
    metadata = signed(loopback_hub)
    assert metadata.location.startswith(loopback_hub.cdn_endpoint)
    assert metadata.etag == hashlib.sha256((model_folder / WEIGHTS).read_bytes()).hexdigest()
    assert metadata.size == 300_000


def get(url, **headers):
    return get_session().get(url, headers=headers, follow_redirects=False, timeout=10)


def test_the_cdn_serves_ranges(loopback_hub, api, model_folder):
    content = (model_folder / WEIGHTS).read_bytes()
    response = get(signed(loopback_hub).location, Range="bytes=5-9")
    assert (response.status_code, response.content) == (206, content[5:10])
    assert response.headers["Content-Range"] == "bytes 5-9/300000"
    assert get(signed(loopback_hub).location, Range="bytes=299990-").content == content[-10:]
    assert (
        get(signed(loopback_hub).location, Range="bytes=299990-999999")
        .headers["Content-Range"]
        .endswith("299999/300000")
    )


def test_the_cdn_refuses_a_range_past_the_end(loopback_hub, api):
    response = get(signed(loopback_hub).location, Range="bytes=300000-300001")
    assert (response.status_code, response.headers["Content-Range"]) == (416, "bytes */300000")


def test_the_cdn_sends_the_whole_file_for_several_ranges(loopback_hub, api):
    response = get(signed(loopback_hub).location, Range="bytes=0-1,5-6")
    assert (response.status_code, len(response.content)) == (200, 300_000)


def test_the_cdn_refuses_tokens_and_says_who_sent_one(loopback_hub, api):
    response = get(signed(loopback_hub).location, Authorization=f"Bearer {loopback_hub.token}")
    assert response.status_code == 400
    assert loopback_hub.requests[-1].had_token


@pytest.mark.parametrize(
    "change",
    [
        lambda url: url.split("?")[0],
        lambda url: url[:-1] + ("0" if url[-1] != "0" else "1"),
        lambda url: url.replace("model.safetensors", "config.json"),
        lambda url: url.replace("Expires=1", "Expires=2"),
    ],
    ids=["no signature", "another signature", "another file", "a longer life"],
)
def test_the_cdn_refuses_what_is_not_signed(loopback_hub, api, change):
    assert get(change(signed(loopback_hub).location)).status_code == 403


def test_the_cdn_refuses_what_has_expired(hf_home, model_folder):
    with FullHub(signature_lifetime_s=0) as hub:
        hub.add_repository("owner/name", model_folder)
        assert get(signed(hub).location).status_code == 403


def test_small_files_are_compressed_for_who_accepts_it(loopback_hub, api):
    loopback_hub.redirects_small_files = False
    url = hf_hub_url("owner/name", "config.json", endpoint=loopback_hub.endpoint)
    assert get(url, **{"Accept-Encoding": "gzip"}).headers["Content-Encoding"] == "gzip"
    assert "Content-Encoding" not in get(url, **{"Accept-Encoding": "identity"}).headers


def test_a_digest_given_is_believed_and_a_huge_file_never_read(loopback_hub, tmp_path):
    folder = tmp_path / "huge"
    folder.mkdir()
    with (folder / WEIGHTS).open("wb") as file:
        file.truncate(1 << 40)
    begun = time.monotonic()
    loopback_hub.add_repository("owner/huge", folder, sha256={WEIGHTS: "ab" * 32})
    info = HfApi(endpoint=loopback_hub.endpoint).model_info("owner/huge", files_metadata=True)
    assert (info.siblings[0].lfs.sha256, info.siblings[0].size) == ("ab" * 32, 1 << 40)
    url = hf_hub_url("owner/huge", WEIGHTS, endpoint=loopback_hub.endpoint)
    location = get_hf_file_metadata(url, token=False, endpoint=loopback_hub.endpoint).location
    assert get(location, Range=f"bytes={(1 << 40) - 3}-{(1 << 40) - 1}").content == b"\0\0\0"
    assert time.monotonic() - begun < 5


def test_other_addresses_are_not_found(loopback_hub):
    assert get(f"{loopback_hub.endpoint}/api/whatever").status_code == 404
    assert get(f"{loopback_hub.endpoint}/").status_code == 404


def test_the_client_searches_names_and_finds_nothing_private(loopback_hub, api):
    found = {model.id for model in api.list_models(search="OWNER", sort="downloads")}
    own = {model.id for model in api.list_models(search="secret", token=loopback_hub.token)}
    assert (found, own) == ({"owner/name", "owner/gated"}, {"owner/secret"})
    assert len(list(api.list_models(search="owner", limit=1))) == 1
    assert list(api.list_models(search="nothing of the kind")) == []
