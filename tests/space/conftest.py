import subprocess
import sys
from types import SimpleNamespace

import pytest

from mdir_space import processes
from tests.model.hub.fixtures import hf_home, loopback_hub, waits
from tests.space.forked_nurseries import Forking
from tests.space.models import add_models

__all__ = ["hf_home", "loopback_hub", "waits"]


@pytest.fixture
def hub(loopback_hub, forked_nurseries, tmp_path):
    """A Hub on this machine with the models of tests.space.models, and a Desk whose processes begin at once."""
    add_models(loopback_hub, tmp_path / "models")
    return loopback_hub


@pytest.fixture(scope="session")
def forking():
    started = Forking()
    yield started
    started.close()


@pytest.fixture
def forked_nurseries(request, monkeypatch):
    """What a Desk of this process starts costs no imports. A test may set ``processes.subprocess`` back."""
    if sys.platform != "linux":
        return
    forking = request.getfixturevalue("forking")
    monkeypatch.setattr(processes, "subprocess", SimpleNamespace(**{**vars(subprocess), "Popen": forking.popen}))
