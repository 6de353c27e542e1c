"""Shared fixtures: a Hub on this machine, and a separate home for the Hub client."""

import json
import time
import types

import huggingface_hub.utils._detect_agent as detect_agent
import numpy as np
import pytest
from huggingface_hub import constants

from mdir_hf.model.hub import retry
from tests.loopback.hub import FullHub

_ENVIRONMENT = (
    *("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_ENDPOINT", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_HUB_CACHE"),
    *("MDIR_HF_CACHE", "MDIR_HF_CACHE_MAX_BYTES"),
)


@pytest.fixture
def hf_home(tmp_path, monkeypatch):
    """Redirect all files of the Hub client and of our cache to tmp_path."""
    home = tmp_path / "hf-home"
    for name in _ENVIRONMENT:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(home))
    # The client read its environment at import.
    monkeypatch.setattr(constants, "HF_HOME", str(home))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(home / "hub"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(home / "token"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    # Otherwise the client's first call requests the list of coding agents from the real Hub.
    monkeypatch.setattr(detect_agent, "_registry", {"standardEnvVars": [], "harnesses": {}})
    return home


@pytest.fixture
def waits(monkeypatch):
    """Replace waits, our own and the Hub client's, by a record of their durations."""
    noted = []
    monkeypatch.setattr(retry, "pause", lambda wait_s, cancelled=None: noted.append(wait_s))
    client_time = types.SimpleNamespace(**{**vars(time), "sleep": noted.append})
    monkeypatch.setattr("huggingface_hub.utils._http.time", client_time)
    monkeypatch.setattr("huggingface_hub.file_download.time", client_time)
    return noted


# The client sends large files in a way that its HTTP library will stop supporting.
OLD_UPLOAD = pytest.mark.filterwarnings("ignore:Use 'content")


@pytest.fixture
def without_xet(monkeypatch):
    """Use the older of the client's two ways to fetch large files; the other is a separate program."""
    monkeypatch.setattr("huggingface_hub._commit_api.is_xet_available", lambda: False)


@pytest.fixture
def loopback_hub(hf_home, monkeypatch):
    """A running, empty Hub on this machine; HF_ENDPOINT points to it."""
    with FullHub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        yield hub


@pytest.fixture
def model_folder(tmp_path):
    """A folder with a small config and a 300,000-byte weight file in which no two ranges are equal."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "hidden_size": 64}))
    weights = np.random.default_rng(0).integers(0, 256, 300_000, dtype=np.uint8).tobytes()
    (folder / "model.safetensors").write_bytes(weights)
    return folder
