"""Match stored tensor names with modules of the transformers class named in a config.

The class is built on the meta device, without weights or remote code.
"""

from __future__ import annotations

import importlib.util
import json
import re
import warnings
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import Any

from mdir_hf.model.roles.config import language_config, read_sizes
from mdir_hf.model.roles.layer_names import split_at_layer

MOST_LAYERS = 256
"""Models with more layers than this are not built."""

MOST_EXPERTS = 40_000
"""Models with more experts than this, over all layers, are not built."""

MOST_MODULES = 1024
"""Largest accepted number of layers, blocks, experts or codebooks in a config."""

MOST_ENTRIES = 4096
"""Largest accepted length of a list in a config, such as ``layer_types``."""

_CHOOSES_CODE = re.compile("implementation|use_kernel|kernel_config|auto_map|trust_remote|name_or_path|quantization")
_LOADS_WEIGHTS = re.compile("backbone|pretrained")
_COUNTS_MODULES = re.compile("layers?$|depths?$|blocks?$|stages?$|experts?$|codebooks?$|quantizers?$|streams?$|loops?$")

_EXPERT = re.compile(r"\.(\d{1,4})\.")
_STACKED = re.compile(r"(?P<module>.+\.experts)\.(?P<leaf>gate_up_proj|down_proj)")
_HALVES = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}


def names_by_class(config: Mapping[str, object], names: Collection[str]) -> dict[str, str] | None:
    """Map module names to stored names, using the class named in a config.

    Tensors unknown to the class keep their names, except that layer prefixes are adapted to the class. Returns None if
    transformers or the class is missing, or no name matches. Building the class takes several seconds.
    """
    settings = harmless(config)
    if settings is None or not _is_reasonable(settings) or importlib.util.find_spec("transformers") is None:
        return None
    try:
        saved_names = _saved_names(settings)
    except Exception:  # transformers may raise any error; names and shapes can still be used
        return None
    stored_names = {module: name for name, module in saved_names.items() if name in names}
    if not stored_names:
        return None
    placed_names = set(stored_names.values())
    moved = _moved_prefixes(stored_names)
    for name in names:
        if name not in placed_names:
            split = split_at_layer(name)
            prefix = None if split is None else moved.get(split[0])
            plain = name if split is None or prefix is None else f"{prefix}.{split[1]}.{split[2]}"
            stored_names.setdefault(plain, name)
    return stored_names


def modules_of_class(config: Mapping[str, object]) -> frozenset[str] | None:
    """Return the names of the modules with weights, as saved by the class named in a config; None if it is unknown."""
    return _modules_of_class(json.dumps(config, sort_keys=True, default=str))


@lru_cache(maxsize=16)
def _modules_of_class(config_json: str) -> frozenset[str] | None:
    settings = harmless(json.loads(config_json))
    if settings is None or not _is_reasonable(settings) or importlib.util.find_spec("transformers") is None:
        return None
    try:
        return frozenset(name.rpartition(".")[0] for name in _saved_names(settings))
    except Exception:  # transformers may raise any error
        return None


def _moved_prefixes(stored_names: Mapping[str, str]) -> dict[str, str]:
    prefix_counts: dict[str, Counter[str]] = defaultdict(Counter)
    for module, stored in stored_names.items():
        in_files, in_module = split_at_layer(stored), split_at_layer(module)
        if in_files is not None and in_module is not None and in_files[1] == in_module[1]:
            prefix_counts[in_files[0]][in_module[0]] += 1
    return {prefix: counts.most_common(1)[0][0] for prefix, counts in prefix_counts.items()}


def harmless(config: Mapping[str, object]) -> dict[str, object] | None:
    """Return the config entries from which a model can safely be built.

    A config can make transformers import kernels from the Hub, load weights, or build a million layers. Entries that
    select code are omitted. Returns None if the config names other weights or describes too many modules.
    """
    safe: dict[str, object] = {}
    for key, value in config.items():
        if _CHOOSES_CODE.search(key):
            continue
        if _LOADS_WEIGHTS.search(key) and value:
            return None
        is_count = _COUNTS_MODULES.search(key) is not None
        if is_count and isinstance(value, int | float) and value > MOST_MODULES:
            return None
        if isinstance(value, Mapping):
            inner = harmless(value)
            if inner is None:
                return None
            safe[key] = inner
        elif isinstance(value, list):
            if len(value) > MOST_ENTRIES or (is_count and any(isinstance(n, int | float) and n > 64 for n in value)):
                return None
            safe[key] = value
        else:
            safe[key] = value
    return safe


def _is_reasonable(config: Mapping[str, object]) -> bool:
    sizes = read_sizes(config)
    n_layers, n_experts = sizes.n_layers or 0, sizes.n_experts or 0
    return 0 < n_layers <= MOST_LAYERS and n_layers * n_experts <= MOST_EXPERTS


def _saved_names(config: Mapping[str, object]) -> dict[str, str]:
    import torch
    from transformers.core_model_loading import revert_weight_conversion

    with warnings.catch_warnings(), torch.device("meta"), torch.no_grad():
        warnings.simplefilter("ignore")
        model = _skeleton(config)
        state = {name: tensor for name, tensor in model.state_dict().items() if tensor.ndim}
        whole = {id(tensor): name for name, tensor in state.items()}
        saved_tensors: dict[str, Any] = revert_weight_conversion(model, dict(state))
    same = {name: whole[id(tensor)] for name, tensor in saved_tensors.items() if id(tensor) in whole}
    moved = {name: module for name, module in same.items() if name != module}
    other_names = [name for name in saved_tensors if name not in same]
    return {**{name: name for name in same if name not in moved}, **moved, **_experts(other_names, state)}


def _experts(other_names: list[str], state: Mapping[str, Any]) -> dict[str, str]:
    stacks: dict[str, list[str]] = defaultdict(list)
    for name in state:
        match = _STACKED.fullmatch(name)
        if match:
            layer = _layer_of(name)
            stacks[layer].append(name)
    names_in_module: dict[str, str] = {}
    by_layer: dict[str, dict[int, list[str]]] = defaultdict(lambda: defaultdict(list))
    for name in other_names:
        numbers = _EXPERT.findall(name)
        if len(numbers) >= 2:
            by_layer[numbers[0]][int(numbers[-1])].append(name)
    for layer, experts in by_layer.items():
        parameters = sorted(stacks.get(layer, ()), key=lambda name: name.endswith("down_proj"))
        leaves = [leaf for name in parameters for leaf in _HALVES[name.rpartition(".")[2]]]
        for expert, members in experts.items():
            ordered = _in_order(members)
            if len(ordered) == len(leaves) and parameters:
                module = parameters[0].rpartition(".")[0]
                names_in_module |= {
                    name: f"{module}.{expert}.{leaf}.weight" for name, leaf in zip(ordered, leaves, strict=True)
                }
    return names_in_module


def _in_order(names: list[str]) -> list[str]:
    return sorted(names, key=lambda name: bool(re.search(r"(?:w2|down)[^.]*(?:\.weight)?$", name)))


def _layer_of(name: str) -> str:
    numbers = re.findall(r"\.(\d+)\.", name)
    return numbers[0] if numbers else ""


def _skeleton(config: Mapping[str, object]) -> Any:  # noqa: ANN401 - a transformers class
    import transformers
    from transformers import CONFIG_MAPPING, PreTrainedModel
    from transformers.models.auto import modeling_auto

    known_config = config if config.get("model_type") in CONFIG_MAPPING else language_config(config)
    family = CONFIG_MAPPING[str(known_config["model_type"])]
    settings = family.from_dict(dict(known_config))
    architectures = known_config.get("architectures")
    class_name = architectures[0] if isinstance(architectures, list) and architectures else None
    model_class: Any = getattr(transformers, class_name, None) if isinstance(class_name, str) else None
    if not (isinstance(model_class, type) and issubclass(model_class, PreTrainedModel)):
        mappings = (
            modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING,
            modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
            modeling_auto.MODEL_MAPPING,
        )
        model_class = next(mapping[family] for mapping in mappings if family in mapping)
    return model_class._from_config(settings, attn_implementation="eager")
