"""Tiny base models with PEFT adapters, saved as users save them and merged by PEFT itself."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import peft
import torch
import transformers
from safetensors.torch import load_file, save_file

SIZES = {
    "vocab_size": 40,
    "hidden_size": 24,
    "intermediate_size": 36,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "attention_bias": True,
    "tie_word_embeddings": False,
}
GPT2_SIZES = {"vocab_size": 40, "n_embd": 24, "n_layer": 2, "n_head": 4, "n_positions": 16}


TRAINED = (
    *("lora_", "modules_to_save", "trainable_tokens", "ia3_l", "hada_", "lokr_", "vera_lambda", "oft_R"),
    *("ln_tuning", "fourierft", "hra_u"),
)
"""Words in the names of parameters that an adapter trains."""

MIXTURE_SIZES = {
    "vocab_size": 40,
    "hidden_size": 24,
    "intermediate_size": 36,
    "moe_intermediate_size": 20,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 6,
    "num_experts": 3,
    "num_experts_per_tok": 2,
    "tie_word_embeddings": False,
}


@dataclass(frozen=True)
class Adapted:
    """A base, an adapter on it, and the weights that PEFT merges from both.

    Attributes:
        base: Folder of the base.
        adapter: Folder of the adapter.
        merged: Weights of the merged model, under the names in the base's files.
        expected_base: Weights of the base.
    """

    base: Path
    adapter: Path
    merged: dict[str, torch.Tensor]
    expected_base: dict[str, torch.Tensor]


def make_base(folder: Path, kind: str = "llama", *, seed: int = 0) -> Any:
    """Save a small model in float32 and return it."""
    torch.manual_seed(seed)
    config = transformers.GPT2Config(**GPT2_SIZES) if kind == "gpt2" else transformers.LlamaConfig(**SIZES)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    for parameter in model.parameters():
        parameter.data.normal_(std=0.3)
    model.save_pretrained(folder)
    if kind == "gpt2":
        _rename(folder, lambda name: name.removeprefix("transformer."))
    return model


def make_adapted(
    tmp_path: Path,
    config: Any,
    *,
    kind: str = "llama",
    safe: bool = True,
    change: Callable[[Any], None] | None = None,
    save_embedding_layers: bool | str = "auto",
) -> Adapted:
    """Put an adapter on a small model, fill it with random numbers, save it, and merge it.

    Args:
        tmp_path: Where to save.
        config: A config of PEFT.
        kind: ``llama`` or ``gpt2``.
        safe: Save as safetensors, else as ``adapter_model.bin``.
        change: Applied to the base in memory before the adapter is created.
        save_embedding_layers: Save the embedding itself with the adapter; ``auto``: if it is adapted.
    """
    base, adapter = tmp_path / "base", tmp_path / "adapter"
    model = make_base(base, kind)
    stored = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    if change is not None:
        change(model)
    model.name_or_path = str(base)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        adapted = peft.get_peft_model(model, config)
        for name, parameter in adapted.named_parameters():
            if any(word in name for word in TRAINED):
                parameter.data.normal_(std=0.2)
        # Magnitudes are norms.
        for name, parameter in adapted.named_parameters():
            if "magnitude" in name:
                parameter.data.abs_()
        adapted.save_pretrained(adapter, safe_serialization=safe, save_embedding_layers=save_embedding_layers)
        merged = adapted.merge_and_unload().state_dict()
    names = (lambda name: name.removeprefix("transformer.")) if kind == "gpt2" else (lambda name: name)
    return Adapted(
        base,
        adapter,
        {names(name): tensor.detach().clone() for name, tensor in merged.items()},
        {names(name): tensor for name, tensor in stored.items()},
    )


def make_adapted_mixture(tmp_path: Path, config: Any, *, save_original_format: bool) -> Adapted:
    """Put an adapter on a small mixture of experts and read its merged weights from a file that PEFT wrote.

    Args:
        tmp_path: Where to save.
        config: A config of PEFT.
        save_original_format: Store experts separately, as files on the Hub do, instead of stacked.
    """
    torch.manual_seed(0)
    model = transformers.Qwen3MoeForCausalLM(transformers.Qwen3MoeConfig(**MIXTURE_SIZES))
    for parameter in model.parameters():
        parameter.data.normal_(std=0.3)
    base, adapter, merged = tmp_path / "base", tmp_path / "adapter", tmp_path / "merged"
    model.save_pretrained(base, save_original_format=save_original_format)
    model.name_or_path = str(base)
    adapted = peft.get_peft_model(model, config)
    for name, parameter in adapted.named_parameters():
        if "lora_" in name:
            parameter.data.normal_(std=0.2)
    adapted.save_pretrained(adapter)
    adapted.merge_and_unload().save_pretrained(merged, save_original_format=save_original_format)
    weights = [load_file(folder / "model.safetensors") for folder in (merged, base)]
    return Adapted(base, adapter, *weights)


def edit_config(adapter: Path, **values: object) -> None:
    """Change entries of an ``adapter_config.json``; None removes one."""
    path = adapter / "adapter_config.json"
    config = json.loads(path.read_text())
    for key, value in values.items():
        if value is None:
            config.pop(key, None)
        else:
            config[key] = value
    path.write_text(json.dumps(config))


def write_adapter(folder: Path, tensors: dict[str, torch.Tensor], **config: object) -> Path:
    """Write an adapter without PEFT."""
    folder.mkdir(parents=True)
    whole = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "base_model_name_or_path": "base", **config}
    (folder / "adapter_config.json").write_text(json.dumps(whole))
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "adapter_model.safetensors")
    return folder


def _rename(folder: Path, new_name: Callable[[str], str]) -> None:
    """Name the tensors of GPT-2 as in its repository; transformers writes other names."""
    from safetensors.torch import load_file

    path = folder / "model.safetensors"
    tensors = {new_name(name): tensor for name, tensor in load_file(path).items()}
    save_file(tensors, path, metadata={"format": "pt"})
