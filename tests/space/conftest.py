import sys

import pytest

from mdir_space.jobs import pool
from tests.model.hub.fixtures import hf_home, loopback_hub, waits
from tests.space.job_environment import RunJobInThisEnvironment
from tests.space.models import add_models

__all__ = ["hf_home", "loopback_hub", "waits"]


@pytest.fixture
def hub(loopback_hub, monkeypatch, tmp_path):
    """A Hub on this machine with the models of tests.space.models, which jobs read, too."""
    add_models(loopback_hub, tmp_path / "models")
    if sys.platform == "linux":
        monkeypatch.setattr(pool, "run_job", RunJobInThisEnvironment())
    return loopback_hub
