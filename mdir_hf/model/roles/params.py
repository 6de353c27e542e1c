"""The config of a model from ``params.json``, the file that Meta and Mistral write, in the words of ``config.json``."""

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
    """Say in the words of a ``config.json`` what a ``params.json`` says about the language model.

    Args:
        params: Its content. Llama-2 writes -1 for the size of its vocabulary; an invalid size is left out.
    """
    mixture = params.get("moe")
    said = {name: params.get(key) for key, name in _SIZES.items()}
    said["num_experts"] = mixture.get("num_experts") if isinstance(mixture, Mapping) else None
    return {name: size for name, size in said.items() if type(size) is int and size > 0}
