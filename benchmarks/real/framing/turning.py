"""Rotate the residual stream of a stranger without changing its function.

Gains of norms are folded into the matrices that read behind them. A LayerNorm is first turned into a norm without
parameters: the mean of all writes is removed, as the norm would do, and rotations keep that direction.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from benchmarks.zoo.stack import Affine, Stack

Turn = torch.Tensor
"""``(width, width)``, orthogonal: rows that read the stream and columns that write to it are multiplied by it."""


def has_layer_norm(stack: Stack) -> bool:
    """Return whether norms subtract the mean."""
    return stack.norm.bias is not None


@torch.no_grad()
def folded(stack: Stack) -> Stack:
    """Fold gains into the readers behind each norm, in float64, and give the model a separate head."""
    to_float64(stack)
    head = (stack.embedding if stack.head is None else stack.head).clone()
    centred = has_layer_norm(stack)
    if centred:
        for write in _writes(stack):
            write(lambda rows: rows - rows.mean(dim=-1, keepdim=True))
    for block in stack.blocks:
        for norm, readers in block.readers:
            for reader in readers:
                _fold(norm, reader)
            _reset(norm)
    if stack.norm.bias is not None:
        stack.norm.bias = stack.norm.bias / stack.norm.weight
    stack.head = head * stack.norm.weight
    stack.norm.weight = torch.ones_like(stack.norm.weight)
    return stack


@torch.no_grad()
def turned(stack: Stack, turn: Turn) -> Stack:
    """Multiply the residual stream of a folded model by an orthogonal matrix, ``x -> x turn``."""
    for write in _writes(stack):
        write(lambda rows: rows @ turn)
    for block in stack.blocks:
        for _, readers in block.readers:
            for reader in readers:
                reader.weight = reader.weight @ turn
    assert stack.head is not None, "folded models have a head of their own"
    stack.head = stack.head @ turn
    if stack.norm.bias is not None:
        stack.norm.bias = stack.norm.bias @ turn
    return stack


@torch.no_grad()
def widened(stack: Stack, width: int) -> Stack:
    """Add empty channels to a folded model; readers compensate for the larger divisor of norms."""
    n = stack.embedding.shape[1]
    assert not has_layer_norm(stack), "the mean over empty channels would be another one"
    grow = (n / width) ** 0.5

    def padded(rows: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.pad(rows, (0, width - n))

    for write in _writes(stack):
        write(padded)
    for block in stack.blocks:
        for norm, readers in block.readers:
            norm.weight = torch.ones(width, dtype=norm.weight.dtype)
            for reader in readers:
                reader.weight = padded(reader.weight) * grow
    stack.norm.weight = torch.ones(width, dtype=stack.norm.weight.dtype)
    assert stack.head is not None, "folded models have a head of their own"
    stack.head = padded(stack.head) * grow
    return stack


def best_turn(cross: torch.Tensor, *, seed: int = 0, keeps_mean: bool = False) -> Turn:
    """Return the orthogonal matrix that brings the stranger's rows nearest to the victim's.

    Args:
        cross: ``(width of the victim, width of the stranger)``, the victim's rows transposed times the rows of the
            stranger.
        seed: Seed of the completion if the stranger is the wider one.
        keeps_mean: Whether the direction of equal entries stays, which a model with LayerNorm needs.
    """
    n, wide = cross.shape
    assert n <= wide, "widen the stranger first"
    if keeps_mean:
        assert n == wide, "not built for other widths"
        ones = torch.full((n, 1), n**-0.5, dtype=cross.dtype)
        rest = torch.linalg.qr(torch.cat([ones, torch.eye(n, dtype=cross.dtype)[:, 1:]], dim=1)).Q[:, 1:]
        inner = best_turn(rest.T @ cross @ rest)
        return ones @ ones.T + rest @ inner @ rest.T
    u, _, vt = torch.linalg.svd(cross, full_matrices=True)
    drawn = torch.randn(wide - n, wide - n, dtype=cross.dtype, generator=torch.Generator().manual_seed(seed))
    rest = torch.linalg.qr(drawn).Q @ vt[n:] if wide > n else vt[:0]
    return torch.cat([u @ vt[:n], rest]).T


def standard(rows: torch.Tensor) -> torch.Tensor:
    """Centre rows and scale them to unit length."""
    return torch.nn.functional.normalize(rows.double() - rows.double().mean(dim=0), dim=1)


def to_float64(stack: Stack) -> None:
    """Convert all weights to float64, in place."""
    stack.embedding = stack.embedding.double()
    stack.head = None if stack.head is None else stack.head.double()
    stack.positions = None if stack.positions is None else stack.positions.double()
    for affine in affines(stack):
        affine.weight = affine.weight.double()
        affine.bias = None if affine.bias is None else affine.bias.double()


def affines(stack: Stack) -> list[Affine]:
    """Return every map and norm of a model."""
    parts = [part for block in stack.blocks for part in vars(block).values() if isinstance(part, Affine)]
    return [*parts, stack.norm]


def _fold(norm: Affine, reader: Affine) -> None:
    if norm.bias is not None:
        assert reader.bias is not None, "models with LayerNorm have biases here"
        reader.bias = reader.bias + reader.weight @ norm.bias
    reader.weight = reader.weight * norm.weight
    if norm.bias is not None:
        reader.weight = reader.weight - reader.weight.mean(dim=1, keepdim=True)


def _reset(norm: Affine) -> None:
    norm.weight = torch.ones_like(norm.weight)
    norm.bias = None if norm.bias is None else torch.zeros_like(norm.bias)


def _writes(stack: Stack) -> list[Callable[[Callable[[torch.Tensor], torch.Tensor]], None]]:
    """Yield everything that writes into the residual stream, as rows of its width that can be changed."""

    def of_stack(name: str) -> Callable[[Callable[[torch.Tensor], torch.Tensor]], None]:
        return lambda change: setattr(stack, name, change(getattr(stack, name)))

    def of_map(affine: Affine) -> Callable[[Callable[[torch.Tensor], torch.Tensor]], None]:
        def write(change: Callable[[torch.Tensor], torch.Tensor]) -> None:
            affine.weight = change(affine.weight.T).T.contiguous()
            affine.bias = None if affine.bias is None else change(affine.bias)

        return write

    parts = [of_stack("embedding")] + ([] if stack.positions is None else [of_stack("positions")])
    return [*parts, *(of_map(part) for block in stack.blocks for part in (block.o, block.down))]
