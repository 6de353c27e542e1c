from __future__ import annotations

import json

import pytest

from mdir_hf.budgets import ADAPTER_CONFIG
from mdir_hf.errors import UnsupportedFormatError
from mdir_hf.model.files.adapters.config import read_adapter_config
from tests.conformance_tensors import MemoryTree


def config_of(n_rows: int) -> bytes:
    """The config of an adapter that retrained so many tokens."""
    return json.dumps({"peft_type": "LORA", "r": 4, "trainable_token_indices": [0] * n_rows}).encode()


def test_a_config_of_too_many_values_is_refused_unparsed():
    with pytest.raises(UnsupportedFormatError, match=r"adapter_config\.json: the config of the adapter has .* values"):
        read_adapter_config(MemoryTree({"adapter_config.json": config_of(ADAPTER_CONFIG.n_items + 1)}))
    assert read_adapter_config(MemoryTree({"adapter_config.json": config_of(1000)})).token_rows == {"": (0,) * 1000}
