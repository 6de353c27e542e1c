"""Checkpoints with the shape, names and file sizes of DeepSeek-V3: 671B parameters in 163 shards, FP8, MLA, MoE."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch

from tests.large.sparse import TensorShape, fill_shards, write_sparse_checkpoint

VOCABULARY, WIDTH, LAYERS, DENSE_LAYERS = 129_280, 7168, 61, 3
DENSE_MLP, EXPERT_MLP, N_EXPERTS = 18_432, 2048, 256
N_HEADS, NOPE, ROPE, V_DIM, Q_RANK, KV_RANK = 128, 128, 64, 128, 1536, 512
BLOCK = 128
N_SHARDS = 163
SHARD_LIMIT_BYTES = 4_234_000_000
UNIQUE_ROWS = 8192  # the embedding repeats these rows: writing takes a second, not a minute

CONFIG = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "auto_map": {"AutoConfig": "configuration_deepseek.DeepseekV3Config"},
    "first_k_dense_replace": DENSE_LAYERS,
    "hidden_size": WIDTH,
    "intermediate_size": DENSE_MLP,
    "kv_lora_rank": KV_RANK,
    "model_type": "deepseek_v3",
    "moe_intermediate_size": EXPERT_MLP,
    "moe_layer_freq": 1,
    "n_routed_experts": N_EXPERTS,
    "n_shared_experts": 1,
    "num_attention_heads": N_HEADS,
    "num_experts_per_tok": 8,
    "num_hidden_layers": LAYERS,
    "num_key_value_heads": N_HEADS,
    "num_nextn_predict_layers": 1,
    "q_lora_rank": Q_RANK,
    "qk_nope_head_dim": NOPE,
    "qk_rope_head_dim": ROPE,
    "quantization_config": {
        "activation_scheme": "dynamic",
        "fmt": "e4m3",
        "quant_method": "fp8",
        "weight_block_size": [BLOCK, BLOCK],
    },
    "tie_word_embeddings": False,
    "v_head_dim": V_DIM,
    "vocab_size": VOCABULARY,
}


def tensors() -> dict[str, TensorShape]:
    """Every tensor in the order of the published shards: 91,991, including scales and the layer past the last."""
    found: dict[str, TensorShape] = {"model.embed_tokens.weight": ("BF16", (VOCABULARY, WIDTH))}
    for layer in range(LAYERS + 1):
        at = f"model.layers.{layer}."
        found |= {at + name: tensor for name, tensor in _layer(layer)}
    return found | {"model.norm.weight": ("BF16", (WIDTH,)), "lm_head.weight": ("BF16", (VOCABULARY, WIDTH))}


def _layer(layer: int) -> Iterator[tuple[str, TensorShape]]:
    yield "input_layernorm.weight", ("BF16", (WIDTH,))
    yield "post_attention_layernorm.weight", ("BF16", (WIDTH,))
    yield "self_attn.q_a_layernorm.weight", ("BF16", (Q_RANK,))
    yield "self_attn.kv_a_layernorm.weight", ("BF16", (KV_RANK,))
    matrices = {
        "self_attn.q_a_proj": (Q_RANK, WIDTH),
        "self_attn.q_b_proj": (N_HEADS * (NOPE + ROPE), Q_RANK),
        "self_attn.kv_a_proj_with_mqa": (KV_RANK + ROPE, WIDTH),
        "self_attn.kv_b_proj": (N_HEADS * (NOPE + V_DIM), KV_RANK),
        "self_attn.o_proj": (WIDTH, N_HEADS * V_DIM),
    }
    if layer < DENSE_LAYERS:
        matrices |= _mlp("mlp", DENSE_MLP)
    else:
        yield "mlp.gate.weight", ("BF16", (N_EXPERTS, WIDTH))
        yield "mlp.gate.e_score_correction_bias", ("F32", (N_EXPERTS,))
        matrices |= _mlp("mlp.shared_experts", EXPERT_MLP)
        for expert in range(N_EXPERTS):
            matrices |= _mlp(f"mlp.experts.{expert}", EXPERT_MLP)
    for name, (d_out, d_in) in matrices.items():
        yield f"{name}.weight", ("F8_E4M3", (d_out, d_in))
        yield f"{name}.weight_scale_inv", ("F32", (-(-d_out // BLOCK), -(-d_in // BLOCK)))
    if layer == LAYERS:  # multi-token prediction: a second embedding and head
        yield "embed_tokens.weight", ("BF16", (VOCABULARY, WIDTH))
        yield "shared_head.head.weight", ("BF16", (VOCABULARY, WIDTH))
        yield "shared_head.norm.weight", ("BF16", (WIDTH,))
        yield "enorm.weight", ("BF16", (WIDTH,))
        yield "hnorm.weight", ("BF16", (WIDTH,))
        yield "eh_proj.weight", ("BF16", (WIDTH, 2 * WIDTH))


def _mlp(folder: str, d_mlp: int) -> dict[str, tuple[int, int]]:
    return {
        f"{folder}.gate_proj": (d_mlp, WIDTH),
        f"{folder}.up_proj": (d_mlp, WIDTH),
        f"{folder}.down_proj": (WIDTH, d_mlp),
    }


def write_checkpoint(folder: Path, tokenizer: bytes) -> dict[str, str]:
    """Write the checkpoint; its embedding takes 1.9 GB, and every other tensor is a hole.

    Returns:
        An invented SHA-256 for each shard.
    """
    shards = fill_shards(tensors(), SHARD_LIMIT_BYTES)
    repeated_rows = {"model.embed_tokens.weight": embedding_rows}
    return write_sparse_checkpoint(folder, shards, config=CONFIG, tokenizer=tokenizer, repeated_rows=repeated_rows)


def embedding_rows() -> torch.Tensor:
    """Rows, ``(UNIQUE_ROWS, WIDTH)``, that the embedding repeats."""
    return 0.01 * torch.randn(UNIQUE_ROWS, WIDTH, generator=torch.Generator().manual_seed(0))
