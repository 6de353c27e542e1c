import pytest

from tests.hub.fixtures import hf_home, loopback_hub, waits
from tests.space.models import add_models

__all__ = ["hf_home", "loopback_hub", "waits"]


@pytest.fixture
def hub(loopback_hub, tmp_path):
    """A Hub on this machine with the models of tests.space.models."""
    add_models(loopback_hub, tmp_path / "models")
    return loopback_hub
