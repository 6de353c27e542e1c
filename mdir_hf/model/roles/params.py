"""Converts ``params.json``, which Meta and Mistral write, to the keys of a ``config.json``."""

from __future__ import annotations

from collections.abc import Mapping

_SIZES = {
    "dim": "hidden_size",
    "n_layers": "num_hidden_layers",
    "n_heads": "num_attention_heads",
    "n_kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "vocab_size": "vocab_size",
}


def params_config(params: Mapping[str, object]) -> dict[str, object]:
    """Convert the sizes in a ``params.json`` to the keys of a ``config.json``.

    Args:
        params: The parsed file. Invalid sizes are left out; Llama-2 has -1 for the size of its vocabulary.
    """
    mixture = params.get("moe")
    sizes = {name: params.get(key) for key, name in _SIZES.items()}
    sizes["num_experts"] = mixture.get("num_experts") if isinstance(mixture, Mapping) else None
    return {name: size for name, size in sizes.items() if type(size) is int and size > 0}
