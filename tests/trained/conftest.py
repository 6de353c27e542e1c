from tests.model.hub.fixtures import hf_home, loopback_hub

__all__ = ["hf_home", "loopback_hub"]
