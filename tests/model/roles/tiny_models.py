"""Tiny models of real families, saved as users save them, with a record of one forward pass.

The record is how a test knows what a weight does without believing its name: what attention was given, what the MLP
made of its input, which norm stood where.
"""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass, field
from pathlib import Path

import torch
import transformers
from transformers import AttentionInterface

from mdir_hf.model.files import open_checkpoint
from mdir_hf.model.files.sources import TensorSource
from mdir_hf.model.roles import Anatomy, read_config, resolve_anatomy
from tests.conformance_tensors import MemoryTree

SIZES = {
    "vocab_size": 40,
    "hidden_size": 24,
    "intermediate_size": 36,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_ONE_WIDTH = {"head_dim": 6}  # families that take the width of a head from the width of the model
_GPT2 = {
    "vocab_size": 40,
    "n_embd": 24,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 16,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
FULL_ATTENTION = {"layer_types": ["full_attention", "full_attention"]}

FAMILIES: dict[str, dict[str, object]] = {
    "llama": SIZES,
    "mistral": SIZES,
    "qwen2": SIZES | _ONE_WIDTH,
    "qwen3": SIZES,
    "qwen3_5_text": SIZES | FULL_ATTENTION,
    "gemma": SIZES,
    "gemma2": SIZES | FULL_ATTENTION,
    "gemma3_text": SIZES | FULL_ATTENTION,
    "phi3": SIZES | _ONE_WIDTH,
    "glm": SIZES,
    "glm4": SIZES,
    "olmo": SIZES | _ONE_WIDTH,
    "olmo2": SIZES | _ONE_WIDTH,
    "stablelm": SIZES | _ONE_WIDTH | {"partial_rotary_factor": 1.0},  # a quarter of 6 is odd
    "smollm3": SIZES | _ONE_WIDTH,
    "granite": SIZES | _ONE_WIDTH,
    "gpt2": _GPT2,
    "openai-gpt": _GPT2,
    "gpt_neox": SIZES | _ONE_WIDTH,
}


@dataclass
class LayerRecord:
    """What happened in one layer on one token at position 0, where a rotary embedding turns nothing."""

    attention_input: torch.Tensor | None = None
    q: torch.Tensor | None = None
    k: torch.Tensor | None = None
    v: torch.Tensor | None = None
    heads: torch.Tensor | None = None
    """What attention would have returned per head; replaced by noise, so that the output projection shows."""
    attention_output: torch.Tensor | None = None
    mlp_input: torch.Tensor | None = None
    mlp_output: torch.Tensor | None = None
    norms: list[tuple[str, torch.Tensor, torch.Tensor]] = field(default_factory=list)
    """Name, scale and output of every norm in it."""


@dataclass
class TinyModel:
    """A saved model, its record, and how our reader sees it."""

    family: str
    model: torch.nn.Module
    config: dict[str, object]
    source: TensorSource
    anatomy: Anatomy
    layers: list[LayerRecord]
    head_input: torch.Tensor
    final_norm: list[tuple[str, torch.Tensor, torch.Tensor]]

    def parameter(self, name: str) -> torch.Tensor:
        return self.model.get_parameter(name).detach()


def build(family: str, folder: Path, **more: object) -> TinyModel:
    torch.manual_seed(0)
    config = transformers.CONFIG_MAPPING[family](**(FAMILIES[family] | more))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about generation settings of a config made by hand
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name.endswith("bias"):
                    parameter.zero_()
                elif parameter.dim() == 1:
                    parameter.copy_(torch.rand_like(parameter) + 0.5)  # so that one norm cannot pass for another
        model.save_pretrained(folder)
    tree = MemoryTree.from_folder(folder)
    source = open_checkpoint(tree)
    raw = read_config(tree.read("config.json"))
    anatomy = resolve_anatomy(raw, source.names(), lambda name: source.spec(name).shape)
    records = [LayerRecord() for _ in range(2)]
    head_input, final_norm = _record(model, records)
    return TinyModel(family, model, raw, source, anatomy, records, head_input, final_norm)


def _record(model: torch.nn.Module, records: list[LayerRecord]):
    rng = torch.Generator().manual_seed(3)

    def attention(module, query, key, value, *_, **__):
        record = records[module.layer_idx]
        record.q, record.k, record.v = (heads[0, :, 0].reshape(-1) for heads in (query, key, value))
        record.heads = torch.randn(query.shape[1] * value.shape[-1], generator=rng)
        return record.heads.reshape(1, 1, query.shape[1], value.shape[-1]), None

    handles = []
    head: list[torch.Tensor] = []
    final_norm: list[tuple[str, torch.Tensor, torch.Tensor]] = []
    for name, module in model.named_modules():
        found = re.search(r"\.(\d)\.(.+)$", name)
        if found is None:
            if "norm" in name or name.endswith("ln_f"):
                handles.append(module.register_forward_hook(_store_norm(final_norm, name)))
            continue
        record, rest = records[int(found[1])], found[2]
        if rest in ("self_attn", "attn", "attention"):
            handles.append(module.register_forward_hook(_store_attention(record), with_kwargs=True))
        elif rest == "mlp":
            handles.append(module.register_forward_hook(_store_mlp(record)))
        elif re.search(r"norm|ln_\d", rest) and "." not in rest:
            handles.append(module.register_forward_hook(_store_norm(record.norms, name)))
    handles.append(model.get_output_embeddings().register_forward_pre_hook(lambda _, args: head.append(args[0])))
    if model.config.model_type == "openai-gpt":
        # The one family here that has not moved to the attention interface.
        for number, block in enumerate(model.transformer.h):
            block.attn.layer_idx = number
            block.attn._attn = lambda q, k, v, *_, module=block.attn: [
                attention(module, q, k.transpose(-1, -2), v)[0].transpose(1, 2)
            ]
    else:
        AttentionInterface.register("recording", attention)
        model.config._attn_implementation = "recording"
    with torch.no_grad():
        model(torch.tensor([[5]]))
    for handle in handles:
        handle.remove()
    return head[0].reshape(-1), final_norm


def _store_attention(record: LayerRecord):
    def store(module, args, kwargs, output):
        hidden = args[0] if args else kwargs["hidden_states"]
        record.attention_input = hidden.reshape(-1)
        record.attention_output = (output if isinstance(output, torch.Tensor) else output[0]).reshape(-1)

    return store


def _store_mlp(record: LayerRecord):
    def store(module, args, output):
        record.mlp_input, record.mlp_output = args[0].reshape(-1), output.reshape(-1)

    return store


def _store_norm(norms: list[tuple[str, torch.Tensor, torch.Tensor]], name: str):
    def store(module, args, output):
        weight = getattr(module, "weight", None)
        if weight is not None:
            norms.append((f"{name}.weight", weight.detach(), output.reshape(-1)))

    return store
