"""Arrange a stranger to resemble a victim: basis, neurons and signs, heads, V and O. No weights are copied.

All arrangements preserve the function. The stranger must be folded (:func:`benchmarks.real.framing.turning.folded`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment

from benchmarks.real.framing.turning import Turn, best_turn, has_layer_norm, standard
from benchmarks.zoo.stack import Affine, Block, Stack
from mdir_hf.method.matching import IntArray
from mdir_hf.method.neurons import unit_rows

MlpRows = tuple[torch.Tensor, ...]
"""Unit rows of gate, up and down (columns of down) of a layer; of up and down if there is no gate."""


@dataclass(frozen=True)
class Weighing:
    """Weights of the kinds of rows in the fit of a rotation and the assignment of neurons.

    Attributes:
        tokens: Rows of the embedding.
        head: Rows of the unembedding.
        reads: Rows of gate and up.
        writes: Columns of down.
    """

    tokens: float = 0.0
    head: float = 0.0
    reads: float = 0.0
    writes: float = 0.0


TOKENS_ONLY = Weighing(tokens=1.0)
BOTH_ENDS = Weighing(tokens=1.0, head=1.0)
READS_ONLY = Weighing(reads=1.0)
LAYERS_ONLY = Weighing(reads=1.0, writes=1.0)
EVERYTHING = Weighing(1.0, 1.0, 1.0, 1.0)


@dataclass(frozen=True, eq=False)
class Arrangement:
    """A rotation of the stream, and the order and signs of neurons for each layer of the stranger."""

    turn: Turn
    orders: tuple[torch.Tensor, ...]
    signs: tuple[torch.Tensor, ...]


def layer_pairs(victim: Stack, stranger: Stack) -> list[tuple[int, int]]:
    """Pair each layer of the stranger with the victim's layer at the same relative depth."""
    n, m = len(victim.blocks), len(stranger.blocks)
    return [(round(j * (n - 1) / max(1, m - 1)), j) for j in range(m)]


def mlp_rows(block: Block) -> MlpRows:
    """Return unit rows of the neurons of a layer, with gains folded in."""
    reads = [block.up] if block.gate is None else [block.gate, block.up]
    folded_rows = [each.weight.double() * block.mlp_norm.weight.double() for each in reads]
    return tuple(unit_rows(rows) for rows in (*folded_rows, block.down.weight.T.double()))


def token_cross(victim: Stack, stranger: Stack, ids: tuple[torch.Tensor, torch.Tensor], weighing: Weighing) -> Turn:
    """Return products of common rows of embedding and unembedding, ``(victim's width, stranger's width)``."""
    total = torch.zeros(victim.embedding.shape[1], stranger.embedding.shape[1], dtype=torch.float64)
    heads = [victim.embedding if victim.head is None else victim.head * victim.norm.weight]
    heads += [stranger.embedding if stranger.head is None else stranger.head]
    for weight, x, y in ((weighing.tokens, victim.embedding, stranger.embedding), (weighing.head, *heads)):
        if weight:
            total += weight * standard(x[ids[0]]).T @ standard(y[ids[1]])
    return total


def fitted_turn(
    victim: Stack, stranger: Stack, ids: tuple[torch.Tensor, torch.Tensor], weighing: Weighing, *, seed: int = 0
) -> Turn:
    """Fit a rotation on rows of tokens only."""
    return best_turn(token_cross(victim, stranger, ids, weighing), seed=seed, keeps_mean=has_layer_norm(stranger))


def arranged(
    victim: Stack,
    stranger: Stack,
    ids: tuple[torch.Tensor, torch.Tensor],
    weighing: Weighing,
    *,
    rounds: int = 5,
    places: Sequence[tuple[int, int]] | None = None,
    known: IntArray | None = None,
) -> Arrangement:
    """Fit one rotation and assign the neurons of every layer in turn.

    Args:
        victim: Model that the stranger should resemble.
        stranger: A folded model with at least as many channels and neurons.
        ids: Rows of common tokens in both.
        weighing: Weights of the kinds of rows.
        rounds: Fits of the rotation, each followed by an assignment.
        places: Pairs of layers to arrange; by default, all layers of the stranger.
        known: Numbers of neurons that the framer expects to be sampled: only these count in the fit, and they are
            assigned first.
    """
    places = layer_pairs(victim, stranger) if places is None else places
    rows = {j: (mlp_rows(victim.blocks[i]), mlp_rows(stranger.blocks[j])) for i, j in places}
    from_tokens = token_cross(victim, stranger, ids, weighing)
    keeps_mean = has_layer_norm(stranger)
    start = weighing if weighing.tokens or weighing.head else BOTH_ENDS
    turn = best_turn(token_cross(victim, stranger, ids, start), keeps_mean=keeps_mean)
    chosen: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
    for _ in range(rounds):
        for j, (x, y) in rows.items():
            chosen[j] = _assigned(x, y, turn, weighing, known)
        cross = from_tokens.clone()
        for j, (x, y) in rows.items():
            order, signs = chosen[j]
            of_known = torch.arange(len(order)) if known is None else torch.from_numpy(known)
            for weight, rows_x, rows_y in _weighed(x, y, weighing):
                sign = torch.ones(len(of_known)) if rows_y is y[0] and len(y) == 3 else signs[of_known]
                cross += weight * rows_x[of_known].T @ (rows_y[order[of_known]] * sign[:, None])
        turn = best_turn(cross, keeps_mean=keeps_mean)
    for j, (x, y) in rows.items():
        chosen[j] = _assigned(x, y, turn, weighing, known)
    orders, all_signs = [], []
    for j, block in enumerate(stranger.blocks):
        m = len(block.up.weight)
        order, signs = chosen.get(j, (torch.arange(m), torch.ones(m)))
        rest = np.setdiff1d(np.arange(m), order.numpy())
        orders.append(torch.cat([order, torch.from_numpy(rest)]))
        all_signs.append(torch.cat([signs, torch.ones(len(rest))]))
    return Arrangement(turn, tuple(orders), tuple(all_signs))


def _weighed(x: MlpRows, y: MlpRows, weighing: Weighing) -> list[tuple[float, torch.Tensor, torch.Tensor]]:
    """Return weight, victim's rows and stranger's rows of each weighted matrix; rows with free signs come first."""
    weights = [*[weighing.reads] * (len(x) - 1), weighing.writes]
    return [(w, a, b) for w, a, b in zip(weights, x, y, strict=True) if w]


def _assigned(
    x: MlpRows, y: MlpRows, turn: Turn, weighing: Weighing, known: IntArray | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the best order of the stranger's neurons behind a rotation, and the signs of up and down."""
    n = x[0].shape[1]
    free, bound = torch.zeros(1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    for weight, rows_x, rows_y in _weighed(x, y, weighing):
        cosines = weight * rows_x @ (rows_y @ turn)[:, :n].T
        if len(y) == 3 and rows_y is not y[0]:
            bound = bound + cosines
        else:
            free = free + cosines
    score = free + bound.abs()
    if known is not None:
        score = score.expand(len(x[0]), len(y[0])).clone()
        score[known] *= 100.0
    score = score.expand(len(x[0]), len(y[0]))
    numbers, order = linear_sum_assignment(score.numpy(), maximize=True)
    signs = torch.where(bound.expand_as(score)[numbers, order] < 0.0, -1.0, 1.0)
    return torch.from_numpy(order), signs.double()


@torch.no_grad()
def with_neurons(stack: Stack, arrangement: Arrangement) -> Stack:
    """Renumber the neurons and change the signs of up and down."""
    for block, order, signs in zip(stack.blocks, arrangement.orders, arrangement.signs, strict=True):
        flips = signs if block.gate is not None else torch.ones_like(signs)
        block.up = _rows(block.up, order, flips)
        if block.gate is not None:
            block.gate = _rows(block.gate, order, torch.ones_like(signs))
        block.down = replace(block.down, weight=block.down.weight[:, order] * flips)
    return stack


@torch.no_grad()
def with_heads(victim: Stack, stranger: Stack) -> Stack:
    """Renumber key and value heads by the similarity of their values, and map V to resemble the victim's.

    O compensates for the map. Both models need heads of equal size and number.
    """
    groups, d = stranger.n_kv_heads, stranger.head_dim
    per_group = stranger.n_heads // groups
    if (victim.n_kv_heads, victim.head_dim, victim.n_heads) != (groups, d, stranger.n_heads):
        return stranger
    n = victim.embedding.shape[1]
    for i, j in layer_pairs(victim, stranger):
        block = stranger.blocks[j]
        gain = victim.blocks[i].attention_norm.weight.double()
        x = (victim.blocks[i].v.weight.double() * gain).reshape(groups, d, n)
        y = block.v.weight.reshape(groups, d, -1)
        x_bases, y_bases = (torch.linalg.qr(rows.mT).Q for rows in (x, y[..., :n]))
        overlap = (x_bases.mT[:, None] @ y_bases[None]).square().sum(dim=(2, 3))
        _, order = linear_sum_assignment(overlap.numpy(), maximize=True)
        kv, q = torch.from_numpy(order), _heads_of(torch.from_numpy(order), per_group)
        block.k, block.v = (_heads(part, kv, groups) for part in (block.k, block.v))
        block.q = _heads(block.q, q, stranger.n_heads)
        o = block.o.weight.reshape(-1, stranger.n_heads, d)[:, q]
        y = block.v.weight.reshape(groups, d, -1)
        maps = x @ torch.linalg.pinv(y[..., :n])
        block.v = replace(
            block.v,
            weight=(maps @ y).reshape(groups * d, -1),
            bias=None if block.v.bias is None else (maps @ block.v.bias.reshape(groups, d, 1)).reshape(-1),
        )
        back = torch.linalg.inv(maps).repeat_interleave(per_group, dim=0)
        block.o.weight = torch.einsum("nhd,hde->nhe", o, back).reshape(o.shape[0], -1)
    return stranger


def _heads_of(groups: torch.Tensor, per_group: int) -> torch.Tensor:
    return (groups[:, None] * per_group + torch.arange(per_group)).reshape(-1)


def _heads(affine: Affine, order: torch.Tensor, n_heads: int) -> Affine:
    weight = affine.weight.reshape(n_heads, -1, affine.weight.shape[1])[order].reshape(affine.weight.shape)
    bias = None if affine.bias is None else affine.bias.reshape(n_heads, -1)[order].reshape(-1)
    return Affine(weight, bias)


def _rows(affine: Affine, order: torch.Tensor, signs: torch.Tensor) -> Affine:
    bias = None if affine.bias is None else affine.bias[order] * signs
    return Affine(affine.weight[order] * signs[:, None], bias)
