"""Convert the weights of four architectures of causal LMs to one common form and back.

In this form, every matrix is (out, in), attention consists of q, k, v and o with heads one after the other, and nothing
is fused, so that each edit needs only one implementation.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
import transformers

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# The usual 0.02 suits widths in the thousands; at small widths it delays learning by a hundred steps.
INITIALIZER_RANGE = 0.06


@dataclass
class Affine:
    """A linear map, ``weight`` (out, in), or a norm, ``weight`` (n,); ``bias`` (out,) or None."""

    weight: torch.Tensor
    bias: torch.Tensor | None = None


@dataclass
class Block:
    """One layer: two norms before attention and MLP; ``gate`` is None if the MLP has none."""

    attention_norm: Affine
    mlp_norm: Affine
    q: Affine
    k: Affine
    v: Affine
    o: Affine
    up: Affine
    down: Affine
    gate: Affine | None = None
    qk_gains: tuple[torch.Tensor, ...] = ()

    @property
    def readers(self) -> tuple[tuple[Affine, tuple[Affine, ...]], ...]:
        """Each norm with the maps that read the residual stream behind it."""
        gate = () if self.gate is None else (self.gate,)
        return (self.attention_norm, (self.q, self.k, self.v)), (self.mlp_norm, (*gate, self.up))


@dataclass
class Stack:
    """A model: its embedding (vocabulary, width), positions (n, width) if learnt, blocks, last norm, head if untied."""

    architecture: str
    n_heads: int
    n_kv_heads: int
    embedding: torch.Tensor
    norm: Affine
    head: torch.Tensor | None
    positions: torch.Tensor | None = None
    blocks: list[Block] = field(default_factory=list)

    @property
    def head_dim(self) -> int:
        """Number of channels of a head."""
        return self.blocks[0].q.weight.shape[0] // self.n_heads

    def matrices(self) -> Iterator[torch.Tensor]:
        """Return embedding, head and the matrices of every block, each once; they can be changed in place."""
        yield self.embedding
        if self.head is not None:
            yield self.head
        for block in self.blocks:
            for part in vars(block).values():
                if isinstance(part, Affine) and part.weight.ndim == 2:
                    yield part.weight


@dataclass(frozen=True)
class Shape:
    """Sizes of a model, with the same names for all architectures."""

    vocabulary: int
    width: int
    n_neurons: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    tied: bool


def new_model(architecture: str, shape: Shape, *, n_experts: int = 4) -> PreTrainedModel:
    """Return a model at initialisation, from torch's global generator, without dropout, for up to 128 tokens."""
    common = {
        "vocab_size": shape.vocabulary,
        "tie_word_embeddings": shape.tied,
        "initializer_range": INITIALIZER_RANGE,
        "bos_token_id": 0,
        "eos_token_id": 1,
    }
    if architecture == "gpt2":
        config = transformers.GPT2Config(
            **common,
            n_embd=shape.width,
            n_layer=shape.n_layers,
            n_head=shape.n_heads,
            n_inner=shape.n_neurons,
            n_positions=128,
            attn_pdrop=0.0,
            embd_pdrop=0.0,
            resid_pdrop=0.0,
        )
        return transformers.GPT2LMHeadModel(config)
    common |= {
        "hidden_size": shape.width,
        "intermediate_size": shape.n_neurons,
        "num_hidden_layers": shape.n_layers,
        "num_attention_heads": shape.n_heads,
        "max_position_embeddings": 128,
    }
    if architecture == "gpt_neox":
        return transformers.GPTNeoXForCausalLM(transformers.GPTNeoXConfig(**common))
    common |= {"num_key_value_heads": shape.n_kv_heads, "head_dim": shape.head_dim}
    # Set explicitly, because the defaults of a Mixtral differ from a Llama's.
    common |= {"rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0}, "rms_norm_eps": 1e-6}
    if architecture == "mixtral":
        return transformers.MixtralForCausalLM(
            transformers.MixtralConfig(**common, num_local_experts=n_experts, num_experts_per_tok=2)
        )
    if architecture == "qwen3_moe":
        mixture = {"num_experts": n_experts, "num_experts_per_tok": 2, "moe_intermediate_size": shape.n_neurons}
        return transformers.Qwen3MoeForCausalLM(
            transformers.Qwen3MoeConfig(**common, **mixture, norm_topk_prob=True, decoder_sparse_step=1)
        )
    if architecture == "qwen3":
        return transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**common))
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**common))


def shape_of(stack: Stack) -> Shape:
    """Return the sizes of a stack."""
    return Shape(
        vocabulary=stack.embedding.shape[0],
        width=stack.embedding.shape[1],
        n_neurons=stack.blocks[0].up.weight.shape[0],
        n_layers=len(stack.blocks),
        n_heads=stack.n_heads,
        n_kv_heads=stack.n_kv_heads,
        head_dim=stack.head_dim,
        tied=stack.head is None,
    )


@torch.no_grad()
def take_apart(model: PreTrainedModel) -> Stack:
    """Copy the weights of a Llama, Qwen2, Qwen3, GPT-NeoX or GPT-2, in the model's dtype."""
    config = model.config
    architecture = config.model_type
    state = {name: weight.detach().clone() for name, weight in model.state_dict().items()}
    tied = bool(config.tie_word_embeddings)
    n_heads = config.num_attention_heads
    n_kv = getattr(config, "num_key_value_heads", None) or n_heads

    def affine(name: str, *, transposed: bool = False) -> Affine:
        weight = state[f"{name}.weight"]
        return Affine(weight.T.contiguous() if transposed else weight, state.get(f"{name}.bias"))

    top, embedding, layers, norm = _TOP[architecture]
    stack = Stack(
        architecture,
        n_heads,
        n_kv,
        state[f"{top}.{embedding}.weight"],
        affine(f"{top}.{norm}"),
        None if tied else state["lm_head.weight"],
        state.get(f"{top}.wpe.weight"),
    )
    for index in range(config.num_hidden_layers):
        at = f"{top}.{layers}.{index}"
        if architecture == "gpt2":
            q, k, v = _split(affine(f"{at}.attn.c_attn", transposed=True), n_heads, by_head=False)
            block = Block(
                *(affine(f"{at}.{name}") for name in ("ln_1", "ln_2")),
                *(q, k, v),
                *(affine(f"{at}.{name}", transposed=True) for name in ("attn.c_proj", "mlp.c_fc", "mlp.c_proj")),
            )
        elif architecture == "gpt_neox":
            q, k, v = _split(affine(f"{at}.attention.query_key_value"), n_heads, by_head=True)
            names = ("attention.dense", "mlp.dense_h_to_4h", "mlp.dense_4h_to_h")
            block = Block(
                *(affine(f"{at}.{name}") for name in ("input_layernorm", "post_attention_layernorm")),
                *(q, k, v),
                *(affine(f"{at}.{name}") for name in names),
            )
        else:
            gains = tuple(state[f"{at}.self_attn.{x}_norm.weight"] for x in "qk" if architecture == "qwen3")
            block = Block(
                *(affine(f"{at}.{name}") for name in ("input_layernorm", "post_attention_layernorm")),
                *(affine(f"{at}.self_attn.{x}_proj") for x in "qkvo"),
                *(affine(f"{at}.mlp.{name}_proj") for name in ("up", "down", "gate")),
                gains,
            )
        stack.blocks.append(block)
    return stack


@torch.no_grad()
def put_together(stack: Stack) -> PreTrainedModel:
    """Return a model with these weights, in float32."""
    model = new_model(stack.architecture, shape_of(stack))
    model.load_state_dict(state_dict(stack))
    return model.float()


def state_dict(stack: Stack) -> dict[str, torch.Tensor]:
    """Return the weights by transformers' names."""
    top, embedding, layers, norm = _TOP[stack.architecture]
    state: dict[str, torch.Tensor] = {f"{top}.{embedding}.weight": stack.embedding}
    state["lm_head.weight"] = stack.embedding if stack.head is None else stack.head
    if stack.positions is not None:
        state[f"{top}.wpe.weight"] = stack.positions

    def put(name: str, affine: Affine, *, transposed: bool = False) -> None:
        state[f"{name}.weight"] = affine.weight.T if transposed else affine.weight
        if affine.bias is not None:
            state[f"{name}.bias"] = affine.bias

    put(f"{top}.{norm}", stack.norm)
    for index, block in enumerate(stack.blocks):
        at = f"{top}.{layers}.{index}"
        if stack.architecture == "gpt2":
            put(f"{at}.ln_1", block.attention_norm)
            put(f"{at}.ln_2", block.mlp_norm)
            put(f"{at}.attn.c_attn", _fuse(block, stack.n_heads, by_head=False), transposed=True)
            put(f"{at}.attn.c_proj", block.o, transposed=True)
            put(f"{at}.mlp.c_fc", block.up, transposed=True)
            put(f"{at}.mlp.c_proj", block.down, transposed=True)
            continue
        put(f"{at}.input_layernorm", block.attention_norm)
        put(f"{at}.post_attention_layernorm", block.mlp_norm)
        if stack.architecture == "gpt_neox":
            put(f"{at}.attention.query_key_value", _fuse(block, stack.n_heads, by_head=True))
            put(f"{at}.attention.dense", block.o)
            put(f"{at}.mlp.dense_h_to_4h", block.up)
            put(f"{at}.mlp.dense_4h_to_h", block.down)
            continue
        for name in "qkvo":
            put(f"{at}.self_attn.{name}_proj", getattr(block, name))
        for name, gain in zip("qk", block.qk_gains, strict=False):
            state[f"{at}.self_attn.{name}_norm.weight"] = gain
        for name in ("gate", "up", "down"):
            put(f"{at}.mlp.{name}_proj", getattr(block, name))
    return state


# Name of the body, and the names of its embedding, layers and last norm.
_TOP = {
    "llama": ("model", "embed_tokens", "layers", "norm"),
    "qwen2": ("model", "embed_tokens", "layers", "norm"),
    "qwen3": ("model", "embed_tokens", "layers", "norm"),
    "gpt_neox": ("gpt_neox", "embed_in", "layers", "final_layer_norm"),
    "gpt2": ("transformer", "wte", "h", "ln_f"),
}


def _split(fused: Affine, n_heads: int, *, by_head: bool) -> list[Affine]:
    """Split q, k and v, which are stored matrix by matrix or head by head."""
    weight, bias = fused.weight, fused.bias
    assert bias is not None, "GPT-2 and GPT-NeoX have biases here"
    if by_head:
        d = weight.shape[0] // (3 * n_heads)
        parts = weight.reshape(n_heads, 3, d, -1), bias.reshape(n_heads, 3, d)
        return [Affine(parts[0][:, i].reshape(n_heads * d, -1), parts[1][:, i].reshape(-1)) for i in range(3)]
    return [Affine(w.clone(), b.clone()) for w, b in zip(weight.chunk(3), bias.chunk(3), strict=True)]


def _fuse(block: Block, n_heads: int, *, by_head: bool) -> Affine:
    each = (block.q, block.k, block.v)
    weights, biases = [part.weight for part in each], [part.bias for part in each]
    if not by_head:
        return Affine(torch.cat(weights), torch.cat(biases))
    width = weights[0].shape[1]
    return Affine(
        torch.stack([w.reshape(n_heads, -1, width) for w in weights], 1).reshape(-1, width),
        torch.stack([b.reshape(n_heads, -1) for b in biases], 1).reshape(-1),
    )
