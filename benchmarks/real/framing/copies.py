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


def cancelling(copies: Neurons, own: Neurons, generator: torch.Generator) -> list[Neurons]:
    """Add a second copy with the opposite down to each copy."""
    del generator
    return [copies, own, Neurons(copies.gate, copies.up, -copies.down)]


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


def in_place(copies: Neurons, own: Neurons, generator: torch.Generator) -> list[Neurons]:
    """Replace a share of the neurons by working copies, which changes the function."""
    del generator
    return [copies, own.taken(slice(len(copies), None))]


@torch.no_grad()
def with_quiet_layers(victim: Stack, stranger: Stack, gain: float) -> Stack:
    """Insert a copy of a victim's layer behind each layer of a folded stranger, with a factor for the gains.

    An MLP writes a product of two inputs, so the effect of a small gain is quadratic.
    """
    blocks = []
    for at, own in enumerate(stranger.blocks):
        quiet = copy.deepcopy(victim.blocks[at % len(victim.blocks)])
        for norm, _ in quiet.readers:
            norm.weight = gain * norm.weight.double()
        blocks += [own, quiet]
    stranger.blocks = blocks
    return stranger
