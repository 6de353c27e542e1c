"""PEFT adapters: the changes that an adapter makes to the weights of its base model."""

from mdir_hf.model.files.adapters.config import (
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
    AdapterConfig,
    has_adapter,
    read_adapter_config,
)
from mdir_hf.model.files.adapters.source import AdaptedSource

__all__ = [
    "ADAPTER_CONFIG",
    "ADAPTER_WEIGHTS",
    "AdaptedSource",
    "AdapterConfig",
    "has_adapter",
    "read_adapter_config",
]
