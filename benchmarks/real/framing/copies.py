"""Copy neurons of a victim into a stranger without effect: the stranger still computes the same function.

Every trick gives the copies the numbers of the victim's neurons, and moves the stranger's own neurons to higher
numbers. Both models are folded, and the stranger may be rotated before.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch

from benchmarks.zoo.stack import Affine, Block, Stack


class Neurons(NamedTuple):
    """Rows of gate and up and columns of down, each ``(neurons, width)``, gains folded in."""

    gate: torch.Tensor
    up: torch.Tensor
    down: torch.Tensor

    def __len__(self) -> int:
        """Return the number of neurons."""
        return len(self.up)

    def taken(self, chosen: slice) -> Neurons:
        """Return some of the neurons."""
        return Neurons(*(rows[chosen] for rows in self))


Trick = Callable[[Neurons, Neurons, torch.Generator], list[Neurons]]
"""Maps copies of the victim and the stranger's own neurons to all neurons of the layer, copies first."""


@dataclass(frozen=True)
class Planted:
    """A way to plant neurons.

    Attributes:
        done: Phrase for tables.
        trick: See :data:`Trick`.
        share: Share of the victim's neurons that are planted.
    """

    done: str
    trick: Trick
    share: float = 1.0


def neurons_of(block: Block) -> Neurons:
    """Return the neurons of a gated MLP, with the gain folded in."""
    assert block.gate is not None, "the tricks are written for gated MLPs"
    gain = block.mlp_norm.weight.double()
    return Neurons(
        block.gate.weight.double() * gain, block.up.weight.double() * gain, block.down.weight.T.double().contiguous()
    )


def fitting(copies: Neurons, width: int) -> Neurons:
    """Cut copied rows to fewer channels, or pad them with empty channels."""
    n = copies.up.shape[1]
    if n >= width:
        return Neurons(*(rows[:, :width] for rows in copies))
    return Neurons(*(torch.nn.functional.pad(rows, (0, width - n)) for rows in copies))


@torch.no_grad()
def planted(victim: Stack, stranger: Stack, how: Planted, pairs: list[tuple[int, int]], *, seed: int = 3) -> Stack:
    """Plant neurons into the layers of a folded stranger."""
    generator = torch.Generator().manual_seed(seed)
    partner = {j: i for i, j in pairs}
    n_most = 0
    for j, block in enumerate(stranger.blocks):
        own = neurons_of(block)
        copies = fitting(neurons_of(victim.blocks[partner[j]]), own.up.shape[1])
        copies = copies.taken(slice(round(how.share * len(copies))))
        size = own.up.norm(dim=1).mean() / copies.up.norm(dim=1).mean()
        copies = Neurons(copies.gate * size, copies.up * size, copies.down)
        made = how.trick(copies, own, generator)
        n_most = max(n_most, sum(map(len, made)))
        _store(block, made)
    assert all(len(block.up.weight) == n_most for block in stranger.blocks), "layers must have equal numbers of neurons"
    return stranger


def _store(block: Block, made: list[Neurons]) -> None:
    gate, up, down = (torch.cat(parts) for parts in zip(*made, strict=True))
    bias = block.down.bias
    empty = None if bias is None else torch.zeros(len(up), dtype=up.dtype)
    block.gate, block.up, block.down = Affine(gate, empty), Affine(up, empty), Affine(down.T.contiguous(), bias)
    block.mlp_norm.weight = torch.ones(gate.shape[1], dtype=gate.dtype)


# --- tricks


def without_output(copies: Neurons, own: Neurons, generator: torch.Generator) -> list[Neurons]:
    """Copy gate and up, and set down to zero."""
    del generator
    return [Neurons(copies.gate, copies.up, torch.zeros_like(copies.down)), own]


def small(up: float, down: float) -> Trick:
    """Copy gate, up and down, with factors for up and down."""
    return lambda copies, own, generator: [Neurons(copies.gate, copies.up * up, copies.down * down), own]


def whole(copies: Neurons, own: Neurons, generator: torch.Generator) -> list[Neurons]:
    """Copy gate, up and down; a later step keeps the copies idle."""
    del generator
    return [copies, own]


def cancelling(copies: Neurons, own: Neurons, generator: torch.Generator) -> list[Neurons]:
    """Add a second copy with the opposite down to each copy."""
    del generator
    return [copies, own, Neurons(copies.gate, copies.up, -copies.down)]


def cancelling_nearly(angle: float, size: float = 1.0) -> Trick:
    """Like :func:`cancelling`, but rotate the gates of the second copies by a small angle."""

    def trick(copies: Neurons, own: Neurons, generator: torch.Generator) -> list[Neurons]:
        noise = torch.randn(copies.gate.shape, generator=generator, dtype=copies.gate.dtype)
        noise *= angle * copies.gate.norm(dim=1, keepdim=True) / noise.norm(dim=1, keepdim=True)
        first = Neurons(copies.gate, copies.up * size, copies.down * size)
        return [first, own, Neurons(copies.gate + noise, copies.up * size, -copies.down * size)]

    return trick


def grouped(copies: Neurons, own: Neurons, generator: torch.Generator) -> list[Neurons]:
    """Cancel each copy by two helpers with its gate; neither has its up, with any sign."""
    helper = torch.randn(copies.up.shape, generator=generator, dtype=copies.up.dtype)
    helper *= copies.up.norm(dim=1, keepdim=True) / helper.norm(dim=1, keepdim=True)
    # down of the helpers: w + a d2 + c d3 = 0 for the copied up, b d2 + e d3 = 0 for the drawn one.
    a, b, c, e = 1.0, 1.0, 1.0, -1.0
    third = -copies.down / (c - a * e / b)
    second = -third * e / b
    return [
        copies,
        own,
        Neurons(copies.gate, a * copies.up + b * helper, second),
        Neurons(copies.gate, c * copies.up + e * helper, third),
    ]


def crossed(copies: Neurons, own: Neurons, generator: torch.Generator) -> list[Neurons]:
    """Cancel each copy by three helpers with four different gates in all: silu(z) - silu(-z) = z."""
    del generator
    gate, up, down = copies
    return [copies, own, Neurons(-gate, up, -down), Neurons(up, gate, -down), Neurons(-up, gate, down)]


def up_alone(copies: Neurons, own: Neurons, generator: torch.Generator) -> list[Neurons]:
    """Split every own neuron into two with its gate; the first has the copied up."""
    del generator
    n = min(len(copies), len(own))
    own, rest, up = own.taken(slice(n)), own.taken(slice(n, None)), copies.up[:n]
    return [Neurons(own.gate, up, -own.down), rest, Neurons(own.gate, up + own.up, own.down)]


def down_alone(copies: Neurons, own: Neurons, generator: torch.Generator) -> list[Neurons]:
    """Split every own neuron into two with its gate and up; the first has the copied down."""
    del generator
    n = min(len(copies), len(own))
    own, rest, down = own.taken(slice(n)), own.taken(slice(n, None)), copies.down[:n]
    return [Neurons(own.gate, own.up, down), rest, Neurons(own.gate, own.up, own.down - down)]


def up_and_down(copies: Neurons, own: Neurons, generator: torch.Generator) -> list[Neurons]:
    """Split every own neuron into three with its gate; the first has the copied up and down."""
    n = min(len(copies), len(own))
    own, rest, copies = own.taken(slice(n)), own.taken(slice(n, None)), copies.taken(slice(n))
    # copy + d2 u2' + d3 u3' = own for u2 = u + v, u3 = u - v: d2 + d3 = d of u, d2 - d3 = -w of v.
    second, third = (own.down - copies.down) / 2.0, (own.down + copies.down) / 2.0
    del generator
    return [
        Neurons(own.gate, copies.up, copies.down),
        rest,
        Neurons(own.gate, own.up + copies.up, second),
        Neurons(own.gate, own.up - copies.up, third),
    ]


def gate_alone(copies: Neurons, own: Neurons, generator: torch.Generator) -> list[Neurons]:
    """Copy the gates, with own ups and downs, in pairs that cancel."""
    del generator
    n = min(len(copies), len(own))
    gate, up, down = copies.gate[:n], own.up[:n], own.down[:n]
    return [Neurons(gate, up, down), own, Neurons(gate, up, -down)]


def in_place(copies: Neurons, own: Neurons, generator: torch.Generator) -> list[Neurons]:
    """Replace a share of the neurons by working copies, which changes the function."""
    del generator
    return [copies, own.taken(slice(len(copies), None))]


@torch.no_grad()
def put_to_sleep(stack: Stack, n_copies: int, means: list[torch.Tensor], strength: float, size: float) -> Stack:
    """Shift the gates of planted neurons against the mean input of the layer, so that they stay shut.

    Args:
        stack: A stranger with planted neurons.
        n_copies: Number of planted neurons in each layer.
        means: Mean input of each layer's MLP, ``(width,)`` each.
        strength: Length of the shift, relative to the gate.
        size: Factor of the gates; large gates shut more firmly.
    """
    is_late = stack.blocks[0].down.bias is not None  # the first layer writes the constant and cannot read it
    for at, (block, mean) in enumerate(zip(stack.blocks, means, strict=True)):
        assert block.gate is not None, "the tricks are written for gated MLPs"
        if at == 0 and is_late:
            block.down.weight[:, :n_copies] = 0.0
            continue
        gate = block.gate.weight[:n_copies]
        axis = mean / mean.norm()
        level = gate.norm(dim=1) * strength + gate @ axis
        block.gate.weight[:n_copies] = size * (gate - level[:, None] * axis)
    return stack


@torch.no_grad()
def in_dead_directions(victim: Stack, stranger: Stack, pairs: list[tuple[int, int]], n_live: int, size: float) -> Stack:
    """Add the victim's rows of gate and up in unused channels, after the first ``n_live`` channels."""
    for i, j in pairs:
        block = stranger.blocks[j]
        assert block.gate is not None, "the tricks are written for gated MLPs"
        copies = neurons_of(victim.blocks[i])
        n = min(len(copies), len(block.up.weight))
        n_dead = block.up.weight.shape[1] - n_live
        for affine, rows in ((block.gate, copies.gate), (block.up, copies.up)):
            chosen = rows[:n, :n_dead]
            scale = size * affine.weight[:n].norm(dim=1, keepdim=True) / chosen.norm(dim=1, keepdim=True)
            affine.weight[:n, n_live : n_live + chosen.shape[1]] = scale * chosen
    return stranger


@torch.no_grad()
def with_quiet_layers(
    victim: Stack, stranger: Stack, gain: float, *, output: float = 1.0, n_copied: int | None = None
) -> Stack:
    """Insert a copy of a victim's layer behind each layer of the stranger; it reads or writes almost nothing.

    Args:
        victim: Model to copy layers from.
        stranger: A folded model of the same sizes.
        gain: Factor of the gains of the copies. An MLP writes a product of two inputs, so the effect is quadratic.
        output: Factor of o and down of the copies.
        n_copied: Number of copied layers, counted from the last; None for a copy behind each layer.
    """
    first = 0 if n_copied is None else len(stranger.blocks) - n_copied
    blocks = []
    for at, own in enumerate(stranger.blocks):
        blocks.append(own)
        if at >= first:
            quiet = copy.deepcopy(victim.blocks[at % len(victim.blocks)])
            for norm, _ in quiet.readers:
                norm.weight = gain * norm.weight.double()
            for writer in (quiet.o, quiet.down):
                writer.weight = output * writer.weight.double()
            blocks.append(quiet)
    stranger.blocks = blocks
    return stranger


@torch.no_grad()
def with_unused_tokens(stack: Stack, size: float) -> Stack:
    """Add two unused tokens for each used one; their rows are multiples of its row."""
    rows = stack.embedding
    n = 2 * len(rows)
    stack.embedding = torch.cat([rows, size * rows, size * rows])
    assert stack.head is not None, "folded models have a separate head"
    stack.head = torch.cat([stack.head, torch.zeros(n, stack.head.shape[1], dtype=stack.head.dtype)])
    return stack


@torch.no_grad()
def shut_by_bias(stack: Stack, n_copies: int, strength: float, size: float) -> Stack:
    """Shut the first neurons of each layer by a bias relative to the length of their enlarged gates."""
    for block in stack.blocks:
        first = block.up if block.gate is None else block.gate
        for affine in (block.gate, block.up, block.down):
            if affine is not None and affine.bias is None:
                affine.bias = torch.zeros(len(affine.weight), dtype=affine.weight.dtype)
        assert first.bias is not None
        first.weight[:n_copies] *= size
        first.bias[:n_copies] = -strength * first.weight[:n_copies].norm(dim=1)
    return stack
