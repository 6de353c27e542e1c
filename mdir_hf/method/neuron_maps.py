"""Fit the order, signs and scales of neurons (paper, appendix "Solving the MLP") without decomposing an m x m matrix.

Neurons with the same number are compared first, so a fine-tune takes O(m n) time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from mdir_hf.method.assignment import best_assignment
from mdir_hf.method.blocks import IntArray
from mdir_hf.method.inner_maps import EXACT, MUCH_BETTER
from mdir_hf.method.neurons import MlpWeights, unit_rows

SURE = 0.5
"""Minimum similarity (at most 1) at which neurons are accepted as partners without solving the assignment."""

SIGNATURE = 256
"""Number of dimensions of the random projection, after which cosines between unrelated neurons are about 1/16."""

FEW_NEURONS = 2048
"""Up to this many neurons, all pairs are compared in full."""

NeuronKind = Literal["order", "signs", "scales"]


@dataclass(frozen=True, slots=True, eq=False)
class NeuronMap:
    """A map from reference neurons to candidate neurons, with a scale for each pair.

    Attributes:
        kind: ``order`` changes only the order; ``signs`` also changes signs of up and down; ``scales`` also changes
            lengths.
        reference: ``(k,)`` matched neurons, ascending.
        candidate: Partner of each reference neuron.
        scales: ``(k,)`` float64, s in ``up' = s up`` and ``down' = down / s``.
    """

    kind: NeuronKind
    reference: IntArray
    candidate: IntArray
    scales: torch.Tensor


def fit_neurons(reference: MlpWeights, candidate: MlpWeights, *, seed: int = 0) -> NeuronMap:
    """Match the neurons of two MLPs, and fit a sign and a scale for each pair.

    The reference must be in the candidate's residual basis.

    Returns:
        The matching of the narrower MLP into the wider one, with the simplest sufficient scales.
    """
    gated = reference.gate is not None and candidate.gate is not None
    x, y = (_views(mlp, gated=gated) for mlp in (reference, candidate))
    n_x, n_y = len(reference.up), len(candidate.up)
    partner = np.full(n_x, -1, dtype=np.int64)
    if n_x == n_y:
        likeness = _likeness(x, y, None)
        sure = np.flatnonzero((likeness >= SURE).numpy())
        if 2 * len(sure) >= n_x:  # else neurons were shuffled, and a few may resemble the neuron that took their place
            partner[sure] = sure
    if max(n_x, n_y) > FEW_NEURONS:
        _by_signature(x, y, partner, seed)
    _in_full(x, y, partner)
    reference_neurons = np.flatnonzero(partner >= 0).astype(np.int64)
    candidate_neurons = partner[reference_neurons]
    kind, scales = _factors(reference, candidate, reference_neurons, candidate_neurons, gated=gated)
    return NeuronMap(kind, reference_neurons, candidate_neurons, scales)


_Views = tuple[torch.Tensor | None, torch.Tensor, torch.Tensor]


def _views(mlp: MlpWeights, *, gated: bool) -> _Views:
    # float32 is precise enough to identify partners and halves the time.
    gate = unit_rows(mlp.gate.float()) if gated and mlp.gate is not None else None
    return gate, unit_rows(mlp.up.float()), unit_rows(mlp.down.T.float())


def _likeness(x: _Views, y: _Views, pairs: tuple[IntArray, IntArray] | None) -> torch.Tensor:
    """Return the similarity, at most 1, of the given pairs, or of neurons with the same number if ``pairs`` is None."""

    def cosine(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        if pairs is not None:
            a, b = a[torch.from_numpy(pairs[0])], b[torch.from_numpy(pairs[1])]
        products: torch.Tensor = torch.linalg.vecdot(a, b)
        return products

    updown = cosine(x[1], y[1]) + cosine(x[2], y[2])
    if x[0] is None or y[0] is None:
        return updown / 2
    return (cosine(x[0], y[0]) + updown.abs()) / 3


def _scores(x: _Views, y: _Views, rows: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    updown = x[1][rows] @ y[1][columns].T
    updown += x[2][rows] @ y[2][columns].T
    if x[0] is None or y[0] is None:
        return updown / 2
    score = x[0][rows] @ y[0][columns].T
    score += updown.abs_()
    return score / 3


def _unmatched_neurons(partner: IntArray, n_candidate: int) -> tuple[torch.Tensor, torch.Tensor]:
    is_free = np.ones(n_candidate, dtype=bool)
    is_free[partner[partner >= 0]] = False
    return torch.from_numpy(np.flatnonzero(partner < 0)), torch.from_numpy(np.flatnonzero(is_free))


def _by_signature(x: _Views, y: _Views, partner: IntArray, seed: int) -> None:
    """Pair, in place, neurons whose projections are each other's best match and whose full rows are similar."""
    rows, columns = _unmatched_neurons(partner, len(y[1]))
    if not len(rows) or not len(columns):
        return
    n = x[1].shape[1]
    projection = torch.randn(n, SIGNATURE, generator=torch.Generator().manual_seed(seed)).to(x[1]) / n**0.5

    def projected(views: _Views, neurons: torch.Tensor) -> _Views:
        gate = None if views[0] is None else unit_rows(views[0][neurons] @ projection)
        return gate, unit_rows(views[1][neurons] @ projection), unit_rows(views[2][neurons] @ projection)

    reference_signatures, candidate_signatures = projected(x, rows), projected(y, columns)
    score = _scores(reference_signatures, candidate_signatures, torch.arange(len(rows)), torch.arange(len(columns)))
    best, back = score.argmax(dim=1), score.argmax(dim=0)
    mutual = torch.nonzero(back[best] == torch.arange(len(rows))).flatten()
    pairs = rows[mutual].numpy(), columns[best[mutual]].numpy()
    is_sure = (_likeness(x, y, pairs) >= SURE).numpy()
    partner[pairs[0][is_sure]] = pairs[1][is_sure]


def _in_full(x: _Views, y: _Views, partner: IntArray) -> None:
    rows, columns = _unmatched_neurons(partner, len(y[1]))
    if not len(rows) or not len(columns):
        return
    score = _scores(x, y, rows, columns)
    best = score.argmax(dim=1)
    if len(rows) <= len(columns) and len(torch.unique(best)) == len(best):
        partner[rows.numpy()] = columns[best].numpy()
        return
    assigned_rows, assigned_columns = best_assignment(score.double().numpy())
    partner[rows.numpy()[assigned_rows]] = columns.numpy()[assigned_columns]


def _factors(
    reference: MlpWeights,
    candidate: MlpWeights,
    reference_neurons: IntArray,
    candidate_neurons: IntArray,
    *,
    gated: bool,
) -> tuple[NeuronKind, torch.Tensor]:
    a, b = torch.from_numpy(reference_neurons), torch.from_numpy(candidate_neurons)
    up, up_y = reference.up[a].double(), candidate.up[b].double()
    down, down_y = reference.down.T[a].double(), candidate.down.T[b].double()
    ones = torch.ones(len(reference_neurons), dtype=torch.float64)
    if not gated:
        return "order", ones
    tiny = torch.finfo(torch.float64).tiny

    def norms(x: torch.Tensor) -> torch.Tensor:
        lengths: torch.Tensor = torch.linalg.vector_norm(x, dim=1)
        return lengths.clamp(min=tiny)

    inner = (up * up_y).sum(dim=1), (down * down_y).sum(dim=1)
    cosines = inner[0] / (norms(up) * norms(up_y)) + inner[1] / (norms(down) * norms(down_y))
    signs = torch.where(cosines < 0, -ones, ones)
    factor = (0.5 * (norms(up_y).log() - norms(up).log() - norms(down_y).log() + norms(down).log())).exp()

    def squared(s: torch.Tensor) -> float:
        up_error = (up_y / s[:, None] - up).square().sum() / up.square().sum().clamp(min=tiny)
        down_error = (down_y * s[:, None] - down).square().sum() / down.square().sum().clamp(min=tiny)
        return float(up_error + down_error) / 2

    forms: list[tuple[NeuronKind, torch.Tensor]] = [("order", ones), ("signs", signs), ("scales", signs * factor)]
    squares = [squared(s) for _, s in forms]
    index = next(i for i, value in enumerate(squares) if value <= max(EXACT, MUCH_BETTER * min(squares)))
    return forms[index]
