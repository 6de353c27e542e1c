"""A wrong environment variable raises one error that names the variable, before any request."""

import os
import subprocess
import sys

import pytest

from mdir_hf.errors import InputError
from mdir_hf.model.hub import RepositoryOptions, endpoint, models_of_author, open_repository, resolve_model
from mdir_hf.model.hub.endpoint import current_endpoint
from mdir_hf.model.hub.hub_file import parse_file_url
from mdir_hf.model.hub.range_cache import cache_max_bytes
from tests.loopback.handler import FullHandler

ENTRANCES = [open_repository, resolve_model, lambda name: models_of_author(name.split("/")[0])]


@pytest.mark.parametrize(
    "address",
    [
        "http://[",
        "http://h:99999",
        "http://h:x",
        "http://h h",
        "http://h/\x01",
        "http://h?q",
        "http://u:secret@",
        "ftp://h",
    ],
)
def test_an_invalid_endpoint_is_named(hf_home, monkeypatch, address):
    monkeypatch.setenv("HF_ENDPOINT", address)
    for enter in ENTRANCES:
        with pytest.raises(InputError, match=r"HF_ENDPOINT is .*, expected a URL like https://huggingface.co") as told:
            enter("owner/name")
        assert "secret" not in str(told.value)
        assert str(told.value).isprintable()


@pytest.mark.parametrize("command", ["compare", "survey"])
def test_an_endpoint_that_breaks_the_client_is_named_too(command):
    output = ["--output", "out"] if command == "survey" else []
    arguments = [sys.executable, "-m", "mdir_hf", command, "owner/a", "owner/b", *output]
    ended = subprocess.run(arguments, env={**os.environ, "HF_ENDPOINT": "http://[::1"}, capture_output=True, text=True)
    assert ended.returncode == 1
    assert ended.stderr.startswith("mdir-hf: error: HF_ENDPOINT is 'http://[::1', expected a URL")
    assert ended.stderr.count("\n") == 1


@pytest.mark.parametrize("name", ["HTTP_PROXY", "https_proxy", "ALL_PROXY"])
@pytest.mark.parametrize(
    "proxy", ["socks9://h:1", "ftp://u:secret@h", "http://", "http://[", "http://h:99999", "h:port"]
)
def test_an_unusable_proxy_is_named_without_its_password(loopback_hub, monkeypatch, name, proxy):
    monkeypatch.setenv(name, proxy)
    for enter in ENTRANCES:
        with pytest.raises(InputError, match=f"^{name} is not the URL of a proxy") as told:
            enter("owner/name")
        assert "secret" not in str(told.value)
    assert not loopback_hub.requests


@pytest.mark.parametrize("proxy", ["http://proxy:3128", "proxy:3128", "https://user:word@proxy", "HTTP://[::1]:8080"])
def test_a_proxy_that_can_be_used_is_left_alone(hf_home, monkeypatch, proxy):
    monkeypatch.setenv("https_proxy", proxy)
    assert current_endpoint()


def test_a_socks_proxy_without_its_package_says_how_to_get_it(hf_home, monkeypatch):
    monkeypatch.setenv("ALL_PROXY", "socks5://h:1080")
    monkeypatch.setattr(endpoint.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"ALL_PROXY names a SOCKS proxy.*pip install socksio"):
        current_endpoint()


@pytest.mark.parametrize("token", ["hf_é", "hf_\N{SUPERSCRIPT TWO}", "hf_中"])
def test_a_token_with_an_impossible_letter_is_not_shown(loopback_hub, monkeypatch, token):
    for passed in (token, None):
        monkeypatch.setenv("HF_TOKEN", token)
        for enter in (
            lambda: open_repository("owner/name", RepositoryOptions(token=passed)),  # noqa: B023 - called at once
            lambda: resolve_model("owner/name", token=passed),  # noqa: B023 - called at once
        ):
            with pytest.raises(InputError, match="the token contains invalid characters; check HF_TOKEN") as told:
                enter()
            assert token not in str(told.value)
    with pytest.raises(InputError, match="check HF_TOKEN"):
        models_of_author("owner")


@pytest.mark.parametrize("text", ["²", "9" * 5000, "-1", "1e9", "1.5", "many", "٣"])
def test_an_invalid_cache_size_is_named(monkeypatch, text):
    monkeypatch.setenv("MDIR_HF_CACHE_MAX_BYTES", text)
    with pytest.raises(InputError, match=r"MDIR_HF_CACHE_MAX_BYTES is .*expected a whole number of bytes") as told:
        cache_max_bytes()
    assert len(str(told.value)) < 200


# --- a mirror whose base URL has a path, such as Artifactory's: requests stay below it, and its URLs name repositories


PATH = "/artifactory/api/huggingfaceml/hub"


@pytest.fixture
def mirror(loopback_hub, monkeypatch):
    """Serve the loopback Hub only below a path."""
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
