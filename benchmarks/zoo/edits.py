"""Edits of a model's weights without training: pruning, deepening, upcycling, averaging, noise, obfuscation."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from benchmarks.zoo.stack import INITIALIZER_RANGE, Affine, Block, Stack, new_model, put_together, shape_of, state_dict

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def cut_width(stack: Stack, *, n_channels: int, n_heads: int, n_neurons: int) -> Stack:
    """Return a narrower copy that keeps the channels, query heads and neurons with the largest weights, in order.

    Heads are removed only if every head has its own keys and values.
    """
    made = copy.deepcopy(stack)
    d = made.head_dim
    channels = _largest(made.embedding.norm(dim=0), n_channels)
    made.embedding = made.embedding[:, channels]
    made.head = None if made.head is None else made.head[:, channels]
    made.positions = None if made.positions is None else made.positions[:, channels]
    made.norm = take_rows(made.norm, channels)
    for block in made.blocks:
        heads = _largest(block.o.weight.reshape(-1, made.n_heads, d).square().sum((0, 2)), n_heads)
        rows = (d * heads[:, None] + torch.arange(d)).flatten()
        neurons = _largest(block.down.weight.norm(dim=0), n_neurons)
        block.attention_norm, block.mlp_norm = (take_rows(x, channels) for x in (block.attention_norm, block.mlp_norm))
        block.q = take_columns(take_rows(block.q, rows), channels)
        kv = rows if made.n_kv_heads == made.n_heads else torch.arange(block.k.weight.shape[0])
        block.k, block.v = (take_columns(take_rows(x, kv), channels) for x in (block.k, block.v))
        block.o = take_rows(take_columns(block.o, rows), channels)
        block.up = take_columns(take_rows(block.up, neurons), channels)
        block.gate = None if block.gate is None else take_columns(take_rows(block.gate, neurons), channels)
        block.down = take_rows(take_columns(block.down, neurons), channels)
    if made.n_kv_heads == made.n_heads:
        made.n_kv_heads = n_heads
    elif n_heads != made.n_heads:
        raise ValueError("heads that share keys and values cannot be removed")
    made.n_heads = n_heads
    return made


def take_layers(stack: Stack, layers: Sequence[int]) -> Stack:
    """Return a copy that consists of copies of the given layers."""
    made = copy.deepcopy(stack)
    made.blocks = [copy.deepcopy(stack.blocks[layer]) for layer in layers]
    return made


@torch.no_grad()
def upcycle(stack: Stack, architecture: str, *, n_experts: int = 4) -> PreTrainedModel:
    """Return a mixture in which every expert is the dense model's MLP; routers come from torch's global generator."""
    mixture = new_model(architecture, shape_of(stack), n_experts=n_experts)
    dense = {name: weight for name, weight in state_dict(stack).items() if ".mlp." not in name}
    for index, block in enumerate(stack.blocks):
        at = f"model.layers.{index}.mlp.experts"
        both = torch.cat([block.gate.weight, block.up.weight])
        dense[f"{at}.gate_up_proj"] = both.expand(n_experts, -1, -1).clone()
        dense[f"{at}.down_proj"] = block.down.weight.expand(n_experts, -1, -1).clone()
    missing = mixture.load_state_dict(dense, strict=False)
    assert not missing.unexpected_keys, missing.unexpected_keys
    assert all(name.endswith("mlp.gate.weight") for name in missing.missing_keys), missing.missing_keys
    return mixture


@torch.no_grad()
def average(first: PreTrainedModel, second: PreTrainedModel) -> PreTrainedModel:
    """Return a model with the mean of every weight of two models."""
    made = copy.deepcopy(first)
    second_weights = second.state_dict()
    made.load_state_dict({name: (weight + second_weights[name]) / 2 for name, weight in first.state_dict().items()})
    return made


@torch.no_grad()
def disturb(model: PreTrainedModel, generator: torch.Generator, *, size: float = 1.0) -> PreTrainedModel:
    """Return a copy with Gaussian noise on every entry of each matrix, ``size`` times its root mean square."""
    made = copy.deepcopy(model)
    for weight in made.parameters():  # a tied matrix occurs once
        if weight.ndim >= 2:
            weight += size * weight.square().mean().sqrt() * torch.randn(weight.shape, generator=generator)
    return made


def draw_embeddings(stack: Stack, vocabulary: int, generator: torch.Generator) -> Stack:
    """Return a copy for another vocabulary, with all rows of embedding and head drawn as at initialisation."""
    made = copy.deepcopy(stack)
    width = made.embedding.shape[1]

    def drawn() -> torch.Tensor:
        return INITIALIZER_RANGE * torch.randn(vocabulary, width, generator=generator)

    made.embedding = drawn()
    made.head = None if made.head is None else drawn()
    return made


@torch.no_grad()
def obfuscate(stack: Stack, generator: torch.Generator) -> Stack:
    """Return a copy in float64 with the same function and different numbers everywhere; a tied head is untied.

    The residual stream is rotated, see :func:`turn_stream`. In every layer heads are shuffled and values rotated, Q and
    K are rotated in the planes that rotary positions in halves leave free, and neurons are shuffled with signs.
    """
    made = turn_stream(stack, generator)
    for block in made.blocks:
        shuffle_heads(made, block, generator)
        turn_values(made, block, generator)
        turn_planes(made, block, generator)
        shuffle_neurons(block, generator, signed=True)
    return made


@torch.no_grad()
def turn_stream(stack: Stack, generator: torch.Generator) -> Stack:
    """Return a copy in float64 whose residual stream is randomly rotated, with the gains folded; a head is untied.

    If norms subtract the mean, the rotation keeps the all-ones direction.
    """
    n = stack.embedding.shape[1]
    mean_subtracted = stack.norm.bias is not None
    turn = rotation(n, generator, fixed=torch.ones(n, dtype=torch.float64) if mean_subtracted else None)
    return turn_stream_by(stack, turn)


@torch.no_grad()
def turn_stream_by(stack: Stack, turn: torch.Tensor) -> Stack:
    """Return a float64 copy with the residual stream transformed by an orthogonal (n, n), and gains folded."""
    made = _map(copy.deepcopy(stack), lambda tensor: tensor.double())
    head = made.embedding if made.head is None else made.head
    made.head = (head * made.norm.weight) @ turn
    made.embedding = made.embedding @ turn
    made.positions = None if made.positions is None else made.positions @ turn
    _fold(made.norm, turn)
    for block in made.blocks:
        for norm, readers in block.readers:
            for reader in readers:
                reader.weight = (reader.weight * norm.weight) @ turn
            _fold(norm, turn)
        for writer in (block.o, block.down):
            writer.weight = turn.T @ writer.weight
            writer.bias = None if writer.bias is None else writer.bias @ turn
    return made


@torch.no_grad()
def shuffle_heads(stack: Stack, block: Block, generator: torch.Generator) -> None:
    """Reorder the key-value groups of a layer of ``stack``, and the queries in each, in place."""
    d, n_kv = stack.head_dim, stack.n_kv_heads
    group = stack.n_heads // n_kv
    kv = torch.randperm(n_kv, generator=generator)
    queries = torch.cat([group * g + torch.randperm(group, generator=generator) for g in kv])
    kv_rows, query_rows = ((d * heads[:, None] + torch.arange(d)).flatten() for heads in (kv, queries))
    block.q, block.o = take_rows(block.q, query_rows), take_columns(block.o, query_rows)
    block.k, block.v = take_rows(block.k, kv_rows), take_rows(block.v, kv_rows)


@torch.no_grad()
def turn_values(stack: Stack, block: Block, generator: torch.Generator) -> None:
    """Rotate V and O of a layer of ``stack`` at random inside each key-value head, in place."""
    d, n_kv = stack.head_dim, stack.n_kv_heads
    values = torch.stack([rotation(d, generator) for _ in range(n_kv)]).to(block.v.weight.dtype)
    _turn_rows(block.v, values)
    by_head = block.o.weight.T.reshape(stack.n_heads, d, -1)
    turned = values.repeat_interleave(stack.n_heads // n_kv, 0) @ by_head
    block.o.weight = turned.reshape(stack.n_heads * d, -1).T


@torch.no_grad()
def turn_planes(stack: Stack, block: Block, generator: torch.Generator) -> None:
    """Rotate Q and K of a layer of ``stack`` alike in every rotary plane, in place, if that is free."""
    if stack.architecture not in ("llama", "qwen2"):
        return
    d, n_kv = stack.head_dim, stack.n_kv_heads
    angle = 2 * torch.pi * torch.rand(n_kv, d // 2, dtype=torch.float64, generator=generator)
    a, b = torch.diag_embed(angle.cos()), torch.diag_embed(angle.sin())
    planes = torch.cat((torch.cat((a, -b), 2), torch.cat((b, a), 2)), 1).to(block.k.weight.dtype)
    _turn_rows(block.k, planes)
    _turn_rows(block.q, planes.repeat_interleave(stack.n_heads // n_kv, 0))


@torch.no_grad()
def shuffle_neurons(block: Block, generator: torch.Generator, *, signed: bool) -> None:
    """Reorder the neurons of a layer in place, with random signs if ``signed`` and a gate allows them."""
    neurons = torch.randperm(block.up.weight.shape[0], generator=generator)
    block.up, block.down = take_rows(block.up, neurons), take_columns(block.down, neurons)
    if block.gate is None:
        return
    block.gate = take_rows(block.gate, neurons)
    if signed:
        signs = (torch.randint(2, (len(neurons),), generator=generator) * 2 - 1).to(block.up.weight.dtype)
        block.up.weight = block.up.weight * signs[:, None]
        block.down.weight = block.down.weight * signs


def rebuilt(stack: Stack) -> PreTrainedModel:
    """Return the model of an edited stack, in float32."""
    return put_together(_map(stack, lambda tensor: tensor.float()))


def _turn_rows(affine: Affine, turns: torch.Tensor) -> None:
    """Multiply the rows of each head by its matrix, (heads, d, d)."""
    n_heads, d, _ = turns.shape
    affine.weight = (turns @ affine.weight.reshape(n_heads, d, -1)).reshape(n_heads * d, -1)
    if affine.bias is not None:
        affine.bias = (turns @ affine.bias.reshape(n_heads, d, 1)).flatten()


def _fold(norm: Affine, turn: torch.Tensor) -> None:
    # The gain is folded into the readers, which see gain * (x + bias / gain).
    if norm.bias is not None:
        norm.bias = (norm.bias / norm.weight) @ turn
    norm.weight = torch.ones_like(norm.weight)


def rotation(n: int, generator: torch.Generator, *, fixed: torch.Tensor | None = None) -> torch.Tensor:
    """Return a Haar rotation or reflection, (n, n), float64, that optionally keeps a vector (n,)."""
    if fixed is not None:
        basis = torch.linalg.qr(torch.cat([fixed[:, None], torch.eye(n, dtype=torch.float64)[:, 1:]], 1)).Q
        inner = torch.eye(n, dtype=torch.float64)
        inner[1:, 1:] = rotation(n - 1, generator)
        return basis @ inner @ basis.T
    q, r = torch.linalg.qr(torch.randn(n, n, dtype=torch.float64, generator=generator))
    return q * r.diagonal().sign()


def _largest(sizes: torch.Tensor, count: int) -> torch.Tensor:
    return sizes.topk(count).indices.sort().values


def take_rows(affine: Affine, chosen: torch.Tensor) -> Affine:
    """Select rows of a map or entries of a norm, with their biases."""
    return Affine(affine.weight[chosen], None if affine.bias is None else affine.bias[chosen])


def take_columns(affine: Affine, chosen: torch.Tensor) -> Affine:
    """Select columns of a map."""
    return Affine(affine.weight[:, chosen], affine.bias)


def _map(stack: Stack, change: Callable[[torch.Tensor], torch.Tensor]) -> Stack:
    """Change every tensor, in place if possible, and return the stack."""
    for affine in _affines(stack):
        affine.weight = change(affine.weight)
        affine.bias = None if affine.bias is None else change(affine.bias)
    blocks = [replace(block, qk_gains=tuple(map(change, block.qk_gains))) for block in stack.blocks]
    return replace(
        stack,
        embedding=change(stack.embedding),
        head=None if stack.head is None else change(stack.head),
        positions=None if stack.positions is None else change(stack.positions),
        blocks=blocks,
    )


def _affines(stack: Stack) -> Iterator[Affine]:
    yield stack.norm
    for block in stack.blocks:
        for value in vars(block).values():
            if isinstance(value, Affine):
                yield value
