from tests.model.hub.fixtures import hf_home, loopback_hub, model_folder, without_xet

__all__ = ["hf_home", "loopback_hub", "model_folder", "without_xet"]
