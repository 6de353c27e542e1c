from tests.model.hub.fixtures import hf_home, loopback_hub, model_folder

__all__ = ["hf_home", "loopback_hub", "model_folder"]
