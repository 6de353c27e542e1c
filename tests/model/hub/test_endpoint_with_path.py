"""A mirror whose base URL has a path, as Artifactory's: requests go below it, and its addresses name repositories."""

import pytest

from mdir_hf.model.hub import open_repository
from mdir_hf.model.hub.hub_file import parse_file_url
from tests.loopback.handler import FullHandler

PATH = "/artifactory/api/huggingfaceml/hub"


@pytest.fixture
def mirror(loopback_hub, monkeypatch):
    """Serve the loopback Hub below a path, and nothing beside it."""
    answer = FullHandler._answer_request

    def below_path(handler):
        if handler.server.origin == "hub":
            if not handler.path.startswith(f"{PATH}/"):
                handler._log = None
                handler._answer(404, b"", {})
                return
            handler.path, handler._path = (part.removeprefix(PATH) for part in (handler.path, handler._path))
        answer(handler)

    monkeypatch.setattr(FullHandler, "_answer_request", below_path)
    base = loopback_hub.endpoint + PATH
    monkeypatch.setenv("HF_ENDPOINT", base)
    return base


def test_a_repository_is_read_below_the_path(mirror, loopback_hub, model_folder, hf_home):
    loopback_hub.add_repository("owner/name", model_folder)
    content = (model_folder / "model.safetensors").read_bytes()
    for name in ("owner/name", f"{mirror}/owner/name", f"{mirror}/owner/name/tree/main"):
        assert open_repository(name).open("model.safetensors").read(7, 400) == content[7:400]


def test_the_address_of_a_file_is_taken_apart_below_the_path(mirror):
    expected = ("model", "o/n", "main", ".lineage/report.json")
    assert parse_file_url(f"{mirror}/o/n/resolve/main/.lineage/report.json") == expected
