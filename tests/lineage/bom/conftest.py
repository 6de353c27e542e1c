from tests.model.hub.fixtures import hf_home, loopback_hub, model_folder, waits

__all__ = ["hf_home", "loopback_hub", "model_folder", "waits"]
