"""Returns the adapter of a model in memory as the files that PEFT would save."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch

from mdir_hf.errors import InputError


def active_adapters(model: Any, *, wanted: bool) -> tuple[str, ...]:  # noqa: ANN401 - from PEFT, which is optional
    """Return the adapters that are not merged into the weights, in the order in which they are added.

    Returns:
        The active adapters; none if they are disabled, or already merged.

    Raises:
        InputError: If only some are merged, or some are merged but the model is wanted without.
    """
    layers = [module for module in model.modules() if hasattr(module, "merged_adapters") and hasattr(module, "merged")]
    merged = {name for layer in layers for name in layer.merged_adapters}
    if not wanted:
        if merged:
            raise InputError(
                f"adapter {min(merged)!r} is merged into the weights, but the model is requested without it; unmerge "
                "it first (`model.unmerge_adapter()`)"
            )
        return ()
    if any(getattr(layer, "disable_adapters", False) for layer in layers):
        return ()
    active = {name: None for layer in layers for name in layer.active_adapters if name in model.peft_config}
    names = tuple(active) or tuple(name for name in model.peft_config if not layers)
    if not merged:
        return names
    if merged != set(names):
        raise InputError(
            f"of the active adapters {', '.join(names)}, {', '.join(sorted(merged))} are merged into the weights; "
            "merge all of them, or none (`model.unmerge_adapter()`)"
        )
    return ()


def adapter_files(
    model: Any,  # noqa: ANN401
    name: str,
    *,
    base: str,
) -> tuple[Mapping[str, bytes], Mapping[str, torch.Tensor]]:
    """Return the config of an adapter as a file, and its tensors by the names that PEFT saves."""
    from peft import get_peft_model_state_dict

    tensors = get_peft_model_state_dict(model, adapter_name=name, save_embedding_layers=False)
    config = model.peft_config[name].to_dict()
    saved_config = {**config, "base_model_name_or_path": base, "revision": None}
    return {"adapter_config.json": json.dumps(saved_config, default=_as_json).encode()}, tensors


def _as_json(value: object) -> object:
    return sorted(value) if isinstance(value, set | frozenset) else getattr(value, "value", str(value))
