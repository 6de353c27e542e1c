"""Any causal model of transformers: tiny, saved as users save it, opened by our reader and run once."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import CONFIG_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING, PreTrainedModel

from mdir_hf.model.hub import IoLedger, open_repository
from mdir_hf.model.opened import Model
from tests.model.roles.forward_record import ForwardRecord, is_norm, record_forward
from tests.model.roles.tiny_configs import tiny_config

MORE_TOKENS: dict[str, range] = dict.fromkeys(("phimoe", "zaya", "deepseek_v4"), range(20, 28))
"""Further tokens, for routers that always choose only some of the experts."""


def inputs_of(model_type: str) -> dict[str, object]:
    """Inputs that a family needs besides a token: an assistant receives the states of the model that it assists."""
    if model_type != "gemma4_unified_assistant":
        return {}
    draw = torch.Generator().manual_seed(7)
    widths = {"sliding_attention": 32, "full_attention": 512}
    shared = {name: tuple(torch.randn(1, 2, 1, n, generator=draw) for _ in "kv") for name, n in widths.items()}
    return {"inputs_embeds": torch.randn(1, 1, 128, generator=draw), "shared_kv_states": shared}


@dataclass
class SavedModel:
    """A model of transformers and our anatomy of its saved files."""

    module: PreTrainedModel
    ours: Model
    record: ForwardRecord


def build_module(
    model_type: str, *, seed: int = 0, mapping: Mapping[Any, Any] = MODEL_FOR_CAUSAL_LM_MAPPING, **more: object
) -> PreTrainedModel:
    """A random model in which every norm has its own scale and no bias."""
    config = tiny_config(model_type, mapping=mapping, **more)
    config._experts_implementation = "eager"  # one product after the other, so that they can be recorded
    torch.manual_seed(seed)
    family = mapping[CONFIG_MAPPING[model_type]]
    module = family._from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for inner in module.modules():
            if is_norm(inner):
                inner.weight.copy_(torch.rand_like(inner.weight) + 0.5)  # so that norms are distinguishable
        for name, parameter in module.named_parameters():
            if name.endswith("bias"):
                parameter.zero_()
            elif parameter.dim() == 3 or (parameter.dim() == 2 and not _is_drawn(parameter)):
                parameter.normal_(std=0.1)  # some stacks of experts are uninitialised memory
    return module


def save_and_open(module: PreTrainedModel, folder: Path, *, original_format: bool = True) -> Model:
    """Write a model as transformers does, with the names of its files or modules, and open it with our reader."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about generation settings of a handmade config
        module.save_pretrained(folder, save_original_format=original_format)
    return Model(open_repository(str(folder), ledger=IoLedger()))


def build(model_type: str, folder: Path, *, original_format: bool = True, **more: object) -> SavedModel:
    """Build, save and open a model."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = build_module(model_type, **more)
        record = record_forward(module, more_tokens=MORE_TOKENS.get(model_type, ()), **inputs_of(model_type))
    return SavedModel(module, save_and_open(module, folder, original_format=original_format), record)


def _is_drawn(parameter: torch.nn.Parameter) -> bool:
    return bool(torch.isfinite(parameter).all()) and 0 < float(parameter.abs().max()) < 100
