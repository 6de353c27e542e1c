"""Attacks on a real model to evade detection: scales, splits, outliers, noise on axes, low-rank changes."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch

from benchmarks.zoo import edits
from benchmarks.zoo.stack import Affine, Stack


@torch.no_grad()
def rescaled(stack: Stack, generator: torch.Generator) -> Stack:
    """Draw anew every scale that cancels in the next matrix.

    The factors exp(N(0, 1)) scale gains against the columns of their readers, V against O by key-value head, Q against
    K by rotary plane, and up against down by neuron.
    """

    def drawn(n: int) -> torch.Tensor:
        return torch.exp(torch.randn(n, generator=generator))

    n, d, n_kv = stack.embedding.shape[1], stack.head_dim, stack.n_kv_heads
    group = stack.n_heads // n_kv
    for block in stack.blocks:
        for norm, readers in block.readers:
            scale = drawn(n)
            norm.weight = norm.weight * scale
            for reader in readers:
                reader.weight = reader.weight / scale
        by_head = drawn(n_kv).repeat_interleave(d)
        _scale_rows(block.v, by_head)
        block.o.weight = block.o.weight / by_head.reshape(n_kv, d).repeat_interleave(group, 0).flatten()
        plane = drawn(n_kv * d // 2).reshape(n_kv, d // 2).repeat(1, 2)
        _scale_rows(block.k, plane.flatten())
        _scale_rows(block.q, 1 / plane.repeat_interleave(group, 0).flatten())
        neurons = drawn(block.up.weight.shape[0])
        _scale_rows(block.up, neurons)
        block.down.weight = block.down.weight / neurons
    return stack


@torch.no_grad()
def split_neurons(stack: Stack, generator: torch.Generator) -> Stack:
    """Add half as many neurons: copies that share the output of their originals in random parts, all shuffled."""
    n = stack.blocks[0].up.weight.shape[0]
    for block in stack.blocks:
        chosen = torch.randperm(n, generator=generator)[: n // 2]
        share = torch.ones(n)
        share[chosen] = torch.rand(n // 2, generator=generator)
        more = block.down.weight[:, chosen] * (1 - share[chosen])
        block.down.weight = torch.cat([block.down.weight * share, more], 1)
        for reader in (block.up, block.gate):
            reader.weight = torch.cat([reader.weight, reader.weight[chosen]])
        edits.shuffle_neurons(block, generator, signed=True)
    return stack


@torch.no_grad()
def split_ups(stack: Stack, generator: torch.Generator) -> Stack:
    """Split 40 % of the neurons in two that share gate and down; random parts of their ups cancel. Shuffle all."""
    n = stack.blocks[0].up.weight.shape[0]
    for block in stack.blocks:
        chosen = torch.randperm(n, generator=generator)[: round(0.4 * n)]
        up, half = block.up.weight, block.up.weight[chosen] / 2
        random_part = up.square().mean().sqrt() * torch.randn(half.shape, generator=generator)
        block.up.weight = torch.cat([up.index_copy(0, chosen, half + random_part), half - random_part])
        block.gate.weight = torch.cat([block.gate.weight, block.gate.weight[chosen]])
        block.down.weight = torch.cat([block.down.weight, block.down.weight[:, chosen]], 1)
        edits.shuffle_neurons(block, generator, signed=True)
    return stack


@torch.no_grad()
def with_decoy(stack: Stack, generator: torch.Generator) -> Stack:
    """Put a layer of random weights in front, whose heads and neurons cancel each other."""
    decoy = copy.deepcopy(stack.blocks[0])
    for affine in (decoy.q, decoy.k, decoy.v, decoy.o, decoy.up, decoy.gate, decoy.down):
        size = affine.weight.square().mean().sqrt()
        affine.weight = size * torch.randn(affine.weight.shape, generator=generator)
    if decoy.q.bias is not None:
        decoy.q.bias = torch.zeros_like(decoy.q.bias)
    n_groups, head_dim = stack.n_kv_heads, stack.head_dim
    queries = decoy.q.weight.view(n_groups, -1, head_dim, decoy.q.weight.shape[1])
    queries[:, 1:] = queries[:, :1]
    outputs = decoy.o.weight.view(decoy.o.weight.shape[0], n_groups, -1, head_dim)
    outputs[:, :, -1] = -outputs[:, :, :-1].sum(dim=2)
    half = decoy.up.weight.shape[0] // 2
    for reader in (decoy.up, decoy.gate):
        reader.weight[half:] = reader.weight[:half]
    decoy.down.weight[:, half:] = -decoy.down.weight[:, :half]
    stack.blocks.insert(0, decoy)
    return stack


@torch.no_grad()
def outliers(stack: Stack, generator: torch.Generator) -> Stack:
    """Set one entry in a thousand of every matrix to 20 times its root mean square, and scale four channels by 30."""
    for matrix in stack.matrices():
        rms = matrix.square().mean().sqrt()
        hit = torch.rand(matrix.shape, generator=generator) < 1e-3
        matrix[hit] = 20 * rms * torch.randn(int(hit.sum()), generator=generator).sign()
    channels = torch.randperm(stack.embedding.shape[1], generator=generator)[:4]
    stack.embedding[:, channels] *= 30
    return stack


@torch.no_grad()
def noisy_axes(stack: Stack, generator: torch.Generator) -> Stack:
    """Add noise of five times the root mean square to half of the channels, in all matrices at the residual stream."""
    n = stack.embedding.shape[1]
    hit = torch.randperm(n, generator=generator)[: n // 2]
    columns = [stack.embedding, *([] if stack.head is None else [stack.head])]
    rows = []
    for block in stack.blocks:
        columns += [reader.weight for _, readers in block.readers for reader in readers]
        rows += [block.o.weight, block.down.weight]
    for matrix in [*columns, *(row.T for row in rows)]:
        size = 5 * matrix.square().mean().sqrt()
        matrix[:, hit] += size * torch.randn(matrix.shape[0], len(hit), generator=generator)
    return stack


def redrawn(*roles: str) -> Callable[[Stack, torch.Generator], Stack]:
    """Draw these matrices of every layer anew, at their previous scale."""

    def edit(stack: Stack, generator: torch.Generator) -> Stack:
        for block in stack.blocks:
            for role in roles:
                affine: Affine = getattr(block, role)
                rms = affine.weight.square().mean().sqrt()
                drawn = torch.randn(affine.weight.shape, generator=generator, dtype=affine.weight.dtype)
                affine.weight = rms * drawn
        return stack

    return edit


def without_top(rank: int) -> Callable[[Stack, torch.Generator], Stack]:
    """Remove the leading singular directions of every matrix."""

    def edit(stack: Stack, generator: torch.Generator) -> Stack:
        for matrix in stack.matrices():
            u, s, v = _leading(matrix, rank, generator)
            matrix -= u * s @ v.T
        return stack

    return edit


def with_low_rank(rank: int) -> Callable[[Stack, torch.Generator], Stack]:
    """Add a random matrix of this rank to every matrix, at the matrix's own scale."""

    def edit(stack: Stack, generator: torch.Generator) -> Stack:
        for matrix in stack.matrices():
            rows, columns = matrix.shape
            more = torch.randn(rows, rank, generator=generator) @ torch.randn(rank, columns, generator=generator)
            matrix += more * matrix.norm() / more.norm()
        return stack

    return edit


def _scale_rows(affine: Affine, scale: torch.Tensor) -> None:
    affine.weight = affine.weight * scale[:, None]
    affine.bias = None if affine.bias is None else affine.bias * scale


def _leading(matrix: torch.Tensor, rank: int, generator: torch.Generator) -> tuple[torch.Tensor, ...]:
    """Return leading singular triplets from a few rounds of subspace iteration, accurate enough to remove them."""
    columns = torch.randn(matrix.shape[1], rank + 8, generator=generator, dtype=matrix.dtype)
    basis = torch.linalg.qr(matrix @ columns).Q
    for _ in range(3):
        basis = torch.linalg.qr(matrix @ (matrix.T @ basis)).Q
    u, s, v = torch.linalg.svd(basis.T @ matrix, full_matrices=False)
    return (basis @ u)[:, :rank], s[:rank], v[:rank].T
