"""PEFT adapters: the changes that an adapter makes to the weights of its base model."""

from mdir_hf.model.files.adapters.adapted_source import AdaptedSource
from mdir_hf.model.files.adapters.config import (
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
    AdapterConfig,
    has_adapter,
    read_adapter_config,
)

__all__ = [
    "ADAPTER_CONFIG",
    "ADAPTER_WEIGHTS",
    "AdaptedSource",
    "AdapterConfig",
    "has_adapter",
    "read_adapter_config",
]
