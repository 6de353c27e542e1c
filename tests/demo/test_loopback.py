"""The Hub that serves the models of the demo. tests/model/hub tests the code that it shares with the tests' Hub."""

import json

import pytest
from huggingface_hub import CommitOperationAdd, HfApi, snapshot_download
from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.utils import get_session

from mdir_hf.demo.loopback import LoopbackHub
from mdir_hf.model.hub import open_repository


@pytest.fixture
def hub(hf_home, tmp_path, monkeypatch):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps({"model_type": "llama"}))
    (tmp_path / "model" / "model.safetensors").write_bytes(bytes(range(256)) * 1000)
    with LoopbackHub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        hub.add_repository("owner/name", tmp_path / "model")
        yield hub


def test_the_client_downloads_a_snapshot_and_finds_the_name(hub, tmp_path):
    place = snapshot_download("owner/name", endpoint=hub.endpoint, local_dir=tmp_path / "copy")
    for path in (tmp_path / "model").iterdir():
        assert (tmp_path / "copy" / path.name).read_bytes() == path.read_bytes(), place
    api = HfApi(endpoint=hub.endpoint)
    assert [model.id for model in api.list_models(search="NAME", sort="downloads", limit=5)] == ["owner/name"]
    assert list(api.list_models(search="other", limit=5)) == []


def test_ranges_of_weights_come_from_the_cdn(hub):
    repository = open_repository("owner/name")
    assert repository.open("model.safetensors").read(300, 305) == bytes(range(44, 49))
    response = get_session().get(f"{hub.endpoint}/owner/name/resolve/main/model.safetensors", follow_redirects=False)
    assert (response.status_code, response.headers["Location"][: len(hub.cdn_endpoint)]) == (302, hub.cdn_endpoint)
    assert get_session().get(f"{hub.cdn_endpoint}/owner%2Fname/none").status_code == 404


def test_nothing_can_be_written(hub):
    with pytest.raises(HfHubHTTPError):
        HfApi(endpoint=hub.endpoint, token="hf_any").create_commit(
            "owner/name", [CommitOperationAdd("a", b"1")], commit_message="Add"
        )
    assert get_session().put(f"{hub.cdn_endpoint}/x", content=b"x").status_code == 501
