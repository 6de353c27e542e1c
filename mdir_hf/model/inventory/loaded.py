"""Determine which parts in the files a model loads: those that its config declares, or that its class has."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from mdir_hf.model.inventory.by_class import modules_of_class
from mdir_hf.model.inventory.records import BEYOND, EXTRA_EXPERTS, LANGUAGE, ModelInventory, ModelPart
from mdir_hf.model.roles.gguf import GGUF_MARK
from mdir_hf.model.roles.wrappers import without_wrappers

PREDICTED_LAYERS = re.compile(r"num_nextn_predict_layers|nextn_predict_layers|(num_|n_)?mtp_(num_)?(hidden_)?layers")
"""Config keys with the number of layers for multi-token prediction."""

DECLARED_BY: Mapping[str, re.Pattern[str]] = {
    "multi-token prediction": re.compile(rf"{PREDICTED_LAYERS.pattern}|mtp_config"),
    "draft model": re.compile(r"(draft|eagle|medusa)\w*|speculators_config"),
    "talker": re.compile(r"talker_config"),
    "speech decoder": re.compile(r"(token2wav|code2wav|codec|vocoder|depth_decoder|dit)_config"),
    "video tower": re.compile(r"video\w*_config"),
    "audio tower": re.compile(r"(audio|speech|whisper|wav|sound|encoder)\w*_(config|processor)"),
    "vision tower": re.compile(r"(vision|visual|vit|image|clip|siglip)\w*_config|mm_vision_tower"),
    "connector": re.compile(
        r"(vision|audio|speech|image|video|projector|connector|resampler)\w*_config|mm_\w*projector\w*"
    ),
    "cross-attention layers": re.compile(r"cross_attention\w*"),
}
"""Config keys that declare a part."""

LEAST_NAMED_SHARE = 0.5
"""Share of the main stack's tensors that a class must have by name before absent names count as not loaded."""


def n_predicted_layers(config: Mapping[str, object]) -> int:
    """Return the number of layers for multi-token prediction that a config declares."""
    places = [config, *(value for value in config.values() if isinstance(value, Mapping))]
    counts = (value for place in places for key, value in place.items() if PREDICTED_LAYERS.fullmatch(str(key)))
    return next((count for count in counts if type(count) is int and count > 0), 0)


def is_loaded(part: ModelPart, inventory: ModelInventory, config: Mapping[str, object]) -> bool | None:
    """Return whether the model loads a stack or connector; None if that is unknown.

    Builds the transformers class, which takes seconds, only if the config does not settle it.
    """
    if part.name in (LANGUAGE, BEYOND, EXTRA_EXPERTS):
        return part.name == LANGUAGE
    if not config:
        return None
    key = _declaring_key(part.name, config)
    fields = None if GGUF_MARK in config else _fields_of_class(config)
    if key is not None and (fields is None or key in fields):
        return True
    modules = None if fields is None else modules_of_class(config)
    if modules is None:
        return None
    stored = frozenset(name for each in inventory.parts for name in each.tensors)
    if _named_share(part, modules, stored):
        return True
    language = next((each for each in inventory.parts if each.name == LANGUAGE), None)
    is_conclusive = language is not None and _named_share(language, modules, stored) >= LEAST_NAMED_SHARE
    return False if is_conclusive else None


def loaded_names(config: Mapping[str, object], names: Collection[str]) -> frozenset[str] | None:
    """Return the stored names of the tensors that the class of a config loads.

    Returns None if the class is unknown, or if fewer than :data:`LEAST_NAMED_SHARE` of its modules are stored, so that
    the names in the files must be of another kind.
    """
    if _fields_of_class(config) is None:
        return None
    modules = modules_of_class(config)
    plain_names = without_wrappers(names)
    if modules is None:
        return None
    loaded = {plain: stored for plain, stored in plain_names.items() if _has_module(plain.rpartition(".")[0], modules)}
    n_found = len({plain.rpartition(".")[0] for plain in loaded})
    return frozenset(loaded.values()) if n_found >= LEAST_NAMED_SHARE * len(modules) else None


def _declaring_key(label: str, config: Mapping[str, object]) -> str | None:
    """Return the key of the config that declares a part, or None."""
    pattern = DECLARED_BY.get(label)
    if pattern is None:
        return None
    places = [config, *(value for value in config.values() if isinstance(value, Mapping))]
    keys = (str(key) for place in places for key, value in place.items() if value)
    return next((key for key in keys if pattern.fullmatch(key)), None)


def _fields_of_class(config: Mapping[str, object]) -> frozenset[str] | None:
    """Return the names that the transformers config class knows; None if the model's code is not in transformers."""
    try:
        import transformers
        from transformers import CONFIG_MAPPING
    except ImportError:
        return None
    model_type, architectures = config.get("model_type"), config.get("architectures")
    if not isinstance(model_type, str) or model_type not in CONFIG_MAPPING:
        return None
    if isinstance(architectures, list) and architectures and architectures[0] not in dir(transformers):
        return None
    inner_types = (value.get("model_type") for value in config.values() if isinstance(value, Mapping))
    fields: set[str] = set()
    pending: list[Any] = [CONFIG_MAPPING[name] for name in (model_type, *inner_types) if name in CONFIG_MAPPING]
    while pending:
        family = pending.pop()
        fields.update(getattr(family, "__dataclass_fields__", {}), family.__init__.__code__.co_varnames)
        sub_configs = getattr(family, "sub_configs", {})
        fields.update(sub_configs)
        pending += [inner for inner in sub_configs.values() if inner is not family and hasattr(inner, "sub_configs")]
    return frozenset(fields)


def _named_share(part: ModelPart, modules: Collection[str], stored: Collection[str]) -> float:
    """Return the share of a part's tensors that belong to modules of the class.

    A wrapped name does not count if the plain name is stored, too, because a class loads that tensor.
    """
    n_named = sum(
        _has_module(plain.rpartition(".")[0], modules) and (plain == name or plain not in stored)
        for plain, name in without_wrappers(part.tensors).items()
    )
    return n_named / max(1, part.n_tensors)


def _has_module(module: str, modules: Collection[str]) -> bool:
    """Return whether the class has a module, with or without the prefix of its base model."""
    return module in modules or f"model.{module}" in modules or module.removeprefix("model.") in modules
