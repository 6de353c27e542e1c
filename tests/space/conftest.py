import sys

import pytest

from mdir_space.jobs import pool
from tests.space.job_environment import RunJobInThisEnvironment
from tests.space.models import BASE, LARGE, STRANGER, add_models, index_of, write_models


@pytest.fixture(scope="session")
def model_folders(tmp_path_factory):
    """The models of tests.space.models, written once and never changed by tests."""
    return write_models(tmp_path_factory.mktemp("models"))


@pytest.fixture
def hub(loopback_hub, monkeypatch, model_folders):
    """A Hub on this machine with the models of tests.space.models, for jobs as well."""
    add_models(loopback_hub, model_folders)
    if sys.platform == "linux":
        monkeypatch.setattr(pool, "run_job", RunJobInThisEnvironment())
    return loopback_hub


@pytest.fixture
def index(hub, tmp_path):
    """An index of two strangers of one width and a base of another, at their commits on the Hub."""
    return index_of([BASE, STRANGER, LARGE], tmp_path / "bases.safetensors")
