"""Convert a transformers checkpoint to GGUF by the rules of llama.cpp's converter, as a second implementation.

It shares nothing with the code under test: names come from the ``gguf`` package, and the conversion of tensors is
written as views and transposes, whereas the code under test uses row numbers.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import gguf
import torch
from gguf import MODEL_ARCH as Arch
from gguf import MODEL_TENSOR as Name
from gguf import TokenType as Kind

from tests.gguf_quantise import quantised
from tests.gguf_writer import gguf_bytes

ARCHITECTURES: dict[str, Arch] = {
    "afmoe": Arch.AFMOE,
    "apertus": Arch.APERTUS,
    "arcee": Arch.ARCEE,
    "bamba": Arch.GRANITE_HYBRID,
    "bloom": Arch.BLOOM,
    "cohere": Arch.COMMAND_R,
    "cohere2": Arch.COHERE2,
    "deepseek_v2": Arch.DEEPSEEK2,
    "deepseek_v3": Arch.DEEPSEEK2,
    "dots1": Arch.DOTS1,
    "ernie4_5": Arch.ERNIE4_5,
    "ernie4_5_moe": Arch.ERNIE4_5_MOE,
    "exaone4": Arch.EXAONE4,
    "falcon": Arch.FALCON,
    "falcon_h1": Arch.FALCON_H1,
    "falcon_mamba": Arch.MAMBA,
    "gemma": Arch.GEMMA,
    "gemma2": Arch.GEMMA2,
    "gemma3_text": Arch.GEMMA3,
    "glm": Arch.CHATGLM,
    "glm4": Arch.GLM4,
    "glm4_moe": Arch.GLM4_MOE,
    "gpt2": Arch.GPT2,
    "gpt_bigcode": Arch.STARCODER,
    "gpt_neox": Arch.GPTNEOX,
    "gpt_oss": Arch.GPT_OSS,
    "gptj": Arch.GPTJ,
    "granite": Arch.GRANITE,
    "granitemoe": Arch.GRANITE_MOE,
    "granitemoehybrid": Arch.GRANITE_HYBRID,
    "hunyuan_v1_dense": Arch.HUNYUAN_DENSE,
    "hunyuan_v1_moe": Arch.HUNYUAN_MOE,
    "jamba": Arch.JAMBA,
    "lfm2": Arch.LFM2,
    "lfm2_moe": Arch.LFM2MOE,
    "llama": Arch.LLAMA,
    "llama4_text": Arch.LLAMA4,
    "mamba": Arch.MAMBA,
    "mamba2": Arch.MAMBA2,
    "minicpm3": Arch.MINICPM3,
    "ministral3": Arch.MISTRAL3,
    "minimax_m2": Arch.MINIMAXM2,
    "mistral": Arch.LLAMA,
    "mixtral": Arch.LLAMA,
    "mpt": Arch.MPT,
    "nemotron": Arch.NEMOTRON,
    "nemotron_h": Arch.NEMOTRON_H_MOE,
    "olmo": Arch.OLMO,
    "olmo2": Arch.OLMO2,
    "olmo3": Arch.OLMO2,
    "olmoe": Arch.OLMOE,
    "phi": Arch.PHI2,
    "phi3": Arch.PHI3,
    "phimoe": Arch.PHIMOE,
    "qwen2": Arch.QWEN2,
    "qwen2_moe": Arch.QWEN2MOE,
    "qwen3": Arch.QWEN3,
    "qwen3_5_text": Arch.QWEN35,
    "qwen3_5_moe_text": Arch.QWEN35MOE,
    "qwen3_moe": Arch.QWEN3MOE,
    "qwen3_next": Arch.QWEN3NEXT,
    "seed_oss": Arch.SEED_OSS,
    "smollm3": Arch.SMOLLM3,
    "stablelm": Arch.STABLELM,
    "starcoder2": Arch.STARCODER2,
}
"""Causal models that both transformers and the converter know."""

OTHERS: dict[str, Arch] = {
    "bert": Arch.BERT,
    "distilbert": Arch.BERT,
    "modernbert": Arch.MODERN_BERT,
    "mt5": Arch.T5,
    "t5": Arch.T5,
}
"""Masked language models, and encoder-decoders."""

Tensors = dict[str, torch.Tensor]
_MERGED = re.compile(r"(?P<head>.*\.experts)\.(?P<number>\d+)\.(?P<tail>.*)")


def to_gguf(model_type: str, config: Mapping[str, Any], state: Tensors, *, kind: str = "F32", **more: Any) -> bytes:
    """Convert the tensors of a saved model.

    Args:
        model_type: One of :data:`ARCHITECTURES` or :data:`OTHERS`.
        config: The model's config.json.
        state: The model's tensors, under the names in its files.
        kind: Type of the stored matrices, if their rows fill its blocks.
        more: Further keys and values.
    """
    architecture = (ARCHITECTURES | OTHERS)[model_type]
    n_layers = _first(config, "num_hidden_layers", "n_layer", "n_layers", "num_layers")
    n_layers = n_layers or len(config["layers_block_type"])
    names = gguf.get_tensor_name_map(architecture, n_layers)
    tensors: Tensors = {}
    for name, tensor in merge_experts(model_type, state).items():
        for made, value in _changed(model_type, name, tensor.float(), config):
            if model_type in OTHERS:
                made = made.removeprefix("bert.").removeprefix("distilbert.").removeprefix("model.")
            mapped = made if made.startswith(("blk.", "token_embd", "output")) else _mapped(names, made)
            if mapped is not None:
                tensors[mapped] = value
    if model_type == "mamba" and torch.equal(
        tensors.get("output.weight", torch.empty(0)), tensors["token_embd.weight"]
    ):
        del tensors["output.weight"]
    prefix = gguf.MODEL_ARCH_NAMES[architecture]
    metadata = {f"{prefix}.{key}": value for key, value in _keys(model_type, config, n_layers).items()}
    stored = {name: quantised(tensor, kind) for name, tensor in tensors.items()}
    return gguf_bytes(stored, metadata | more, architecture=prefix)


def vocabulary_keys(tokenizer: Mapping[str, Any], n_rows: int) -> dict[str, Any]:
    """The keys of a byte-level vocabulary, padded to the rows of the embedding, from a tokenizer.json."""
    tokens = {row: (token, Kind.NORMAL) for token, row in tokenizer["model"]["vocab"].items()}
    for added in tokenizer["added_tokens"]:
        tokens[added["id"]] = (added["content"], Kind.CONTROL if added["special"] else Kind.USER_DEFINED)
    padding = {row: (f"[PAD{row}]", Kind.UNUSED) for row in range(n_rows) if row not in tokens}
    by_row = tokens | padding
    listed = [by_row[row] for row in range(n_rows)]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": [token for token, _ in listed],
        "tokenizer.ggml.token_type": [int(kind) for _, kind in listed],
        "tokenizer.ggml.merges": [" ".join(merge) for merge in tokenizer["model"].get("merges", ())] or ["a b"],
    }


def merge_experts(model_type: str, state: Tensors) -> Tensors:
    """Stack experts that are separate tensors, under the name that the converter looks up."""
    merged: Tensors = {}
    stacks: dict[str, dict[int, torch.Tensor]] = defaultdict(dict)
    for name, tensor in state.items():
        match = _MERGED.fullmatch(name)
        if match is None:
            merged[name] = tensor
            continue
        head = match["head"]
        if model_type in ("mixtral", "minimax_m2", "phimoe", "lfm2_moe"):
            head = re.sub(r"^model\.layers\.(\d+)\.\w+", r"layers.\1.feed_forward", head)
        if model_type in ("jamba", "nemotron_h"):
            head = re.sub(r"^(?:model|backbone)\.layers\.(\d+)\.\w+", r"model.layers.\1.mlp", head)
        stacks[f"{head}.{match['tail']}"][int(match["number"])] = tensor
    return merged | {name: torch.stack([found[i] for i in range(len(found))]) for name, found in stacks.items()}


def _mapped(names: gguf.TensorNameMap, name: str) -> str | None:
    for wanted in (name, name + ".weight"):
        found = names.get_name(wanted, try_suffixes=(".weight", ".bias"))
        if found is not None:
            return found
    return None


def _first(config: Mapping[str, Any], *keys: str, default: Any = None) -> Any:
    return next((config[key] for key in keys if config.get(key) is not None), default)


def _heads(config: Mapping[str, Any]) -> tuple[int, int, int]:
    n_heads = _first(config, "num_attention_heads", "n_head", "n_heads", "num_heads")
    n_kv = _first(config, "num_key_value_heads", "num_kv_heads", default=n_heads)
    return n_heads, n_kv, _first(config, "hidden_size", "n_embd", "d_model", "dim")


def paired(weight: torch.Tensor, n_heads: int) -> torch.Tensor:
    """The order in which rows that are rotated together are neighbours."""
    halves = weight.reshape(n_heads, 2, weight.shape[0] // n_heads // 2, *weight.shape[1:])
    return halves.swapaxes(1, 2).reshape(weight.shape)


_PAIRED = {
    *("llama", "mistral", "mixtral", "arcee", "smollm3", "granite", "granitemoe", "granitemoehybrid", "ministral3"),
    *("olmo", "bamba", "nemotron_h"),
}
_ADDING_ONE = {"gemma", "gemma2", "gemma3_text", "nemotron", "qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"}


def _changed(
    model_type: str, name: str, tensor: torch.Tensor, config: Mapping[str, Any]
) -> Iterator[tuple[str, torch.Tensor]]:
    """Convert one tensor."""
    n_heads, n_kv, _ = _heads(config)
    found = re.search(r"\.(\d+)\.", name)
    layer = int(found[1]) if found else None

    def called(tensor_name: Name) -> str:
        return gguf.TENSOR_NAMES[tensor_name].format(bid=layer) + ".weight"

    if model_type in _ADDING_ONE and name.endswith("norm.weight") and not name.endswith("linear_attn.norm.weight"):
        tensor = tensor + 1
    if name.endswith(".A_log"):
        tensor = -torch.exp(tensor)
    if model_type in _PAIRED:
        if name.endswith("q_proj.weight"):
            tensor = paired(tensor, n_heads)
        if name.endswith("k_proj.weight"):
            tensor = paired(tensor, n_kv)
    change = _CHANGES.get(model_type)
    if change is not None:
        made = list(change(name, tensor, config, called))
        if made:
            yield from made
            return
    if "conv1d" in name or name.endswith("conv.conv.weight"):
        tensor = tensor.squeeze()
    if name.endswith(".dt_bias"):
        name = name.replace(".dt_bias", ".dt_proj.bias")
    yield name, tensor


Called = Callable[[Name], str]
Made = Iterator[tuple[str, torch.Tensor]]


def _gpt2(name: str, tensor: torch.Tensor, config: Mapping[str, Any], called: Called) -> Made:
    if name.endswith((".c_attn.weight", ".c_proj.weight", ".c_fc.weight")):
        yield name, tensor.T


def _per_head(name: str, tensor: torch.Tensor, config: Mapping[str, Any], called: Called) -> Made:
    """BLOOM and GPT-NeoX: reorder q|k|v of each head to all q, all k, all v."""
    n_heads, _, width = _heads(config)
    if name.endswith("query_key_value.weight"):
        by_head = tensor.reshape(n_heads, 3, width // n_heads, width)
        name = name.removeprefix("transformer.")
        yield name, torch.cat([by_head[:, at].reshape(-1, width) for at in range(3)])
    else:
        yield name.removeprefix("transformer."), tensor


def _neox(name: str, tensor: torch.Tensor, config: Mapping[str, Any], called: Called) -> Made:
    if name.endswith("query_key_value.weight"):
        yield from _per_head(name, tensor, config, called)


def _falcon(name: str, tensor: torch.Tensor, config: Mapping[str, Any], called: Called) -> Made:
    if name.endswith("query_key_value.weight"):
        n_heads, n_kv, width = _heads(config)
        n_kv = n_kv if config.get("new_decoder_architecture") else 1
        groups = tensor.view(n_kv, n_heads // n_kv + 2, width // n_heads, width)
        parts = (groups[:, :-2], groups[:, [-2]], groups[:, [-1]])
        yield name, torch.cat([part.reshape(-1, width) for part in parts])


def _latent(name: str, tensor: torch.Tensor, config: Mapping[str, Any], called: Called) -> Made:
    if name.endswith("kv_b_proj.weight"):
        n_heads, nope, value = (config[key] for key in ("num_attention_heads", "qk_nope_head_dim", "v_head_dim"))
        by_head = tensor.view(n_heads, nope + value, -1)
        yield name.replace("kv_b_proj", "k_b_proj"), by_head[:, :nope].transpose(1, 2).contiguous()
        yield name.replace("kv_b_proj", "v_b_proj"), by_head[:, nope:].contiguous()


def _granite(name: str, tensor: torch.Tensor, config: Mapping[str, Any], called: Called) -> Made:
    has_experts = bool(config.get("num_local_experts"))
    if name.endswith("block_sparse_moe.input_linear.weight"):
        gate, up = tensor.chunk(2, dim=-2)
        yield called(Name.FFN_GATE_EXP), gate.contiguous()
        yield called(Name.FFN_UP_EXP), up.contiguous()
    elif name.endswith("shared_mlp.input_linear.weight"):
        gate, up = tensor.chunk(2, dim=-2)
        yield called(Name.FFN_GATE_SHEXP if has_experts else Name.FFN_GATE), gate.contiguous()
        yield called(Name.FFN_UP_SHEXP if has_experts else Name.FFN_UP), up.contiguous()
    elif name.endswith("shared_mlp.output_linear.weight") and not has_experts:
        yield called(Name.FFN_DOWN), tensor


def _gpt_oss(name: str, tensor: torch.Tensor, config: Mapping[str, Any], called: Called) -> Made:
    if name.endswith("experts.down_proj"):
        yield called(Name.FFN_DOWN_EXP), tensor.transpose(-1, -2).contiguous()
    elif name.endswith("experts.gate_up_proj"):
        both = tensor.transpose(-1, -2)
        yield called(Name.FFN_GATE_EXP), both[:, ::2].contiguous()
        yield called(Name.FFN_UP_EXP), both[:, 1::2].contiguous()
    elif name.endswith("sinks"):
        yield called(Name.ATTN_SINKS), tensor


def _llama4(name: str, tensor: torch.Tensor, config: Mapping[str, Any], called: Called) -> Made:
    if name.endswith("gate_up_proj"):
        gate, up = tensor.transpose(-1, -2).chunk(2, dim=-2)
        yield called(Name.FFN_GATE_EXP), gate.contiguous()
        yield called(Name.FFN_UP_EXP), up.contiguous()
    elif name.endswith("experts.down_proj"):
        yield called(Name.FFN_DOWN_EXP), tensor.transpose(-1, -2).contiguous()


def _qwen_linear(name: str, tensor: torch.Tensor, config: Mapping[str, Any], called: Called) -> Made:
    n_keys, n_values = config["linear_num_key_heads"], config["linear_num_value_heads"]
    d_key, d_value = config["linear_key_head_dim"], config["linear_value_head_dim"]
    if name.endswith("in_proj_qkvz.weight"):
        sizes = [d_key, d_key, n_values // n_keys * d_value, n_values // n_keys * d_value]
        q, k, v, z = (
            part.reshape(-1, tensor.shape[1]) for part in tensor.view(n_keys, -1, tensor.shape[1]).split(sizes, 1)
        )
        yield called(Name.ATTN_QKV), torch.cat([q, k, v])
        yield called(Name.ATTN_GATE), z


def _qwen_tiled(name: str, tensor: torch.Tensor, config: Mapping[str, Any], called: Called) -> Made:
    """Separate the value heads of each key head: the first value head of every key head comes first."""
    n_keys, n_values = config["linear_num_key_heads"], config["linear_num_value_heads"]
    n_qk = 2 * n_keys * config["linear_key_head_dim"]

    def tiled(rows: torch.Tensor) -> torch.Tensor:
        return rows.reshape(n_keys, n_values // n_keys, -1, rows.shape[1]).transpose(0, 1).reshape(rows.shape)

    if name.endswith("linear_attn.in_proj_qkv.weight"):
        yield name, torch.cat([tensor[:n_qk], tiled(tensor[n_qk:])])
    elif name.endswith("linear_attn.in_proj_z.weight"):
        yield name, tiled(tensor)
    elif name.endswith("linear_attn.out_proj.weight"):
        yield name, tiled(tensor.T.contiguous()).T.contiguous()


_CHANGES: dict[str, Callable[[str, torch.Tensor, Mapping[str, Any], Called], Made]] = {
    "gpt2": _gpt2,
    "bloom": _per_head,
    "gpt_neox": _neox,
    "falcon": _falcon,
    **dict.fromkeys(("deepseek_v2", "deepseek_v3"), _latent),
    **dict.fromkeys(("granitemoe", "granitemoehybrid"), _granite),
    "gpt_oss": _gpt_oss,
    "llama4_text": _llama4,
    "qwen3_next": _qwen_linear,
    **dict.fromkeys(("qwen3_5_text", "qwen3_5_moe_text"), _qwen_tiled),
}


def _keys(model_type: str, config: Mapping[str, Any], n_layers: int) -> dict[str, Any]:
    n_heads, n_kv, width = _heads(config)
    keys: dict[str, Any] = {"block_count": n_layers, "embedding_length": width, "attention.head_count": n_heads}
    if model_type not in ("gpt2", "gpt_neox", "gptj"):
        keys["attention.head_count_kv"] = n_kv
    if model_type in ("gpt_bigcode",) or (model_type == "falcon" and not config.get("new_decoder_architecture")):
        keys["attention.head_count_kv"] = 1
    head_dim = _first(config, "head_dim", "d_kv")
    if model_type in ("t5", "mt5"):
        keys["decoder_block_count"] = _first(config, "num_decoder_layers", default=n_layers)
    if head_dim is not None and model_type not in ("granite", "granitemoe", "phi3", "mamba2"):
        keys["attention.key_length"] = keys["attention.value_length"] = head_dim
    n_experts = _first(config, "num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
    if n_experts:
        keys["expert_count"] = n_experts
    share = _first(config, "partial_rotary_factor", "rotary_pct")
    share = _first(config.get("rope_parameters") or {}, "partial_rotary_factor", default=share)
    if share is not None:
        keys["rope.dimension_count"] = int(share * (head_dim or width // n_heads))
    if model_type == "bamba":
        keys["rope.scaling.finetuned"] = True
    elif model_type == "granitemoehybrid":
        keys["rope.scaling.finetuned"] = config.get("position_embedding_type") == "rope"
    if model_type == "exaone4":
        keys["attention.sliding_window_pattern"] = [kind == "sliding_attention" for kind in config["layer_types"]]
    if "kv_lora_rank" in config:
        nope, rope, rank, value = (
            config[key] for key in ("qk_nope_head_dim", "qk_rope_head_dim", "kv_lora_rank", "v_head_dim")
        )
        keys |= {"rope.dimension_count": rope, "attention.kv_lora_rank": rank}
        keys |= {"attention.key_length": nope + rope}
        keys.pop("attention.value_length", None)
        if model_type != "minicpm3":
            keys |= {"attention.head_count_kv": 1, "attention.key_length": rank + rope, "attention.value_length": rank}
            keys |= {"attention.key_length_mla": nope + rope, "attention.value_length_mla": value}
            keys["expert_gating_func"] = 2 if model_type == "deepseek_v3" else 1
    if "linear_num_key_heads" in config:
        keys |= {
            "ssm.state_size": config["linear_key_head_dim"],
            "ssm.group_count": config["linear_num_key_heads"],
            "ssm.time_step_rank": config["linear_num_value_heads"],
            "ssm.inner_size": config["linear_value_head_dim"] * config["linear_num_value_heads"],
        }
    if model_type in ("bamba", "granitemoehybrid", "falcon_h1", "nemotron_h", "mamba2"):
        n_mixer_heads = _first(config, "mamba_n_heads", "mamba_num_heads", "num_heads")
        d_mixer_head = _first(config, "mamba_d_head", "mamba_head_dim", "head_dim")
        keys |= {
            "ssm.inner_size": _first(config, "mamba_d_ssm", default=n_mixer_heads * d_mixer_head),
            "ssm.state_size": _first(config, "mamba_d_state", "ssm_state_size", "state_size"),
            "ssm.group_count": _first(config, "mamba_n_groups", "n_groups"),
            "ssm.time_step_rank": n_mixer_heads,
        }
    if model_type in ("mamba", "mamba2", "falcon_mamba"):
        keys["attention.head_count"] = 0
        keys.pop("attention.head_count_kv", None)
    if model_type == "jamba":
        keys["attention.head_count_kv"] = [0] * (n_layers - 1) + [n_kv]
    return keys
