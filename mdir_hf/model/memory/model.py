"""Wrap an in-memory model or tokenizer in a repository."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from mdir_hf.errors import InputError, naming
from mdir_hf.model.memory.repository import LoadedRepository

if TYPE_CHECKING:
    from mdir_hf.model.memory.saved import PlacedParameter


def active_adapters(model: Any, *, wanted: bool) -> tuple[str, ...]:  # noqa: ANN401 - from PEFT, which is optional
    """Return the names of active adapters in order, or none if they are disabled, merged or not ``wanted``.

    Raises:
        InputError: If the merged adapters differ from the active ones, or any is merged although none is ``wanted``.
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
    """Return an adapter's config file, and its tensors keyed by PEFT's names."""
    from peft import get_peft_model_state_dict

    tensors = get_peft_model_state_dict(model, adapter_name=name, save_embedding_layers=False)
    config = model.peft_config[name].to_dict()
    saved_config = {**config, "base_model_name_or_path": base, "revision": None}
    return {"adapter_config.json": json.dumps(saved_config, default=_as_json).encode()}, tensors


def _as_json(value: object) -> object:
    return sorted(value) if isinstance(value, set | frozenset) else getattr(value, "value", str(value))


MAX_FILE_N_BYTES = 256 << 20
"""Larger files written by ``save_pretrained`` are ignored; no tokenizer file is that large."""


def load_tokenizer(tokenizer: object) -> LoadedRepository:
    """Wrap a ``PreTrainedTokenizerBase``, or a processor's tokenizer, in a repository.

    A slow tokenizer is first saved to a temporary folder.

    Raises:
        InputError: If the object is not a tokenizer.
    """
    unwrapped: Any = getattr(tokenizer, "tokenizer", tokenizer)  # processors contain a tokenizer
    label = f"memory:{type(unwrapped).__name__}"
    backend: Any = getattr(unwrapped, "backend_tokenizer", None)
    if hasattr(backend, "to_str"):
        return LoadedRepository(label, {"tokenizer.json": backend.to_str().encode()})
    if not callable(getattr(unwrapped, "save_vocabulary", None)):
        raise InputError(
            f"tokenizer is a {type(tokenizer).__name__}; expected a tokenizer of transformers, or the name or folder "
            "of one"
        )
    with tempfile.TemporaryDirectory(prefix="mdir-hf-") as folder:
        unwrapped.save_pretrained(folder)
        written = [path for path in sorted(Path(folder).iterdir()) if path.is_file()]
        contents = {path.name: path.read_bytes() for path in written if path.stat().st_size <= MAX_FILE_N_BYTES}
    return LoadedRepository(label, contents)


def load_model(model: object, *, tokenizer: LoadedRepository | None = None, adapter: bool = True) -> LoadedRepository:
    """Wrap a ``PreTrainedModel``, or a PEFT model around one, in a repository without reading its parameters.

    Wrappers added by DistributedDataParallel and ``torch.compile`` are removed.

    Raises:
        InputError: If the object is not a transformers model, or its parameters cannot be read one at a time.
    """
    unwrapped = _without_wrappers(model)
    is_peft = callable(getattr(unwrapped, "get_base_model", None)) and hasattr(unwrapped, "peft_config")
    inner: Any = _without_wrappers(unwrapped.get_base_model()) if is_peft else unwrapped
    if not (callable(getattr(inner, "state_dict", None)) and hasattr(getattr(inner, "config", None), "to_json_string")):
        raise InputError(
            f"cannot compare a {type(model).__name__}; expected a model on the Hub, a folder, a weight file, or a "
            "PreTrainedModel of transformers"
        )
    label = f"memory:{type(inner).__name__.removeprefix('FSDP')}"
    came_from = getattr(inner, "name_or_path", "")
    if came_from:
        label += f"({came_from})"
    vocabulary = {} if tokenizer is None else tokenizer.contents
    with naming(label):
        base = _repository(label, inner, {"config.json": _config(inner), **vocabulary})
        base.came_from = came_from or None
        has_adapter = is_peft or getattr(inner, "_hf_peft_config_loaded", False)
        if not has_adapter:
            return base

        above = base
        for name in active_adapters(inner, wanted=adapter):
            contents, tensors = adapter_files(unwrapped, name, base=above.label)
            above = _with_tensors(
                LoadedRepository(f"{label} with the adapter {name!r}", {**contents, **vocabulary}, base=above), tensors
            )
            above.is_sharded = base.is_sharded
        return above


def _repository(label: str, model: Any, contents: Mapping[str, bytes]) -> LoadedRepository:  # noqa: ANN401
    from mdir_hf.model.memory.saved import SavedParameters

    parameters = _parameters(model)
    is_sharded = any(parameter.is_sharded for parameter in parameters.values())
    return _with_tensors(LoadedRepository(label, contents, is_sharded=is_sharded), SavedParameters(model, parameters))


def _with_tensors(repository: LoadedRepository, tensors: Any) -> LoadedRepository:  # noqa: ANN401
    from mdir_hf.model.files.memory import MemorySource

    repository.tensors = MemorySource(
        tensors, label=repository.label, outlines=getattr(tensors, "outlines", None), on_read=repository.count
    )
    return repository


def _parameters(model: Any) -> dict[str, PlacedParameter]:  # noqa: ANN401
    import torch

    from mdir_hf.model.memory.saved import PlacedParameter

    parameters: dict[str, PlacedParameter] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        plain = name.replace("._orig_mod.", ".").replace("_checkpoint_wrapped_module.", "")
        if "_fsdp_wrapped_module." in plain or "_flat_param" in plain:
            raise InputError(
                "the model is sharded by FullyShardedDataParallel (FSDP1), which flattens its parameters; shard it "
                "with torch.distributed.fsdp.fully_shard (FSDP2), or save it and compare the folder"
            )
        # bitsandbytes also adds strings to the state dict.
        if isinstance(tensor, torch.Tensor) and not _OF_ADAPTER.search(plain):
            parameters[_UNDER_ADAPTER.sub(".", plain)] = PlacedParameter(name, tensor)
    return parameters


# Names of PEFT's own parameters, and of the modules that it wraps.
_OF_ADAPTER = re.compile(
    r"\.(lora_\w+|modules_to_save|token_adapter|trainable_tokens_\w+|ia3_\w+|vera_\w+|oft_\w+|hada_\w+|lokr_\w+|ranknum)"
    r"(\.|$)"
)
_UNDER_ADAPTER = re.compile(r"\.(base_layer|original_module)\.")


def _config(model: Any) -> bytes:  # noqa: ANN401
    config = json.loads(model.config.to_json_string())
    return json.dumps({"architectures": [type(model).__name__.removeprefix("FSDP")], **config}).encode()


def _without_wrappers(model: Any) -> Any:  # noqa: ANN401
    while not hasattr(model, "config"):
        inner = getattr(model, "_orig_mod", None) or getattr(model, "module", None)
        if inner is None:
            break
        model = inner
    while hasattr(model, "_orig_mod"):
        model = model._orig_mod
    return model
