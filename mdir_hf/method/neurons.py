"""Joint matching of the neurons of an MLP, with the sign and scale that a gated unit leaves free.

A neuron of a gated MLP is ``down_j * act(gate_j x) * (up_j x)``. Its position is free, and so is a factor s_j on up_j
that is undone on down_j; gate_j is fixed. The paper sums the polar factors of gate, up and down and matches once
(appendix, "Solving the MLP"). This module computes that sum with a valid bound.

**Bound.** Let ``A = (gate | up | down^T)`` be the neurons of one model, ``(m, 3n)``. Null: ``H A`` and A have the same
distribution for every rotation H of the neuron side, given the rest. H is the same for all three, so nothing is assumed
about their dependence. Each polar factor rotates with it, ``U_X -> U_X H^T``, and so does any fixed combination of
their columns. For a fixed matching P with signs S the trace ``c = <P, U_gate> + <PS, U_updown>`` is ``Tr(X O)`` with O
Haar and ``|X|_F^2 = e = sum_i |U_gate[i] + s_i U_updown[i]|^2`` over the matched neurons i, which that rotation does
not change. By the moment bound of docs/moment-bound.md, and the union over matchings and signs,

    ln p <= ln #(P, S) - m' c^2 / (2 e),   m' the number of rotated neurons.

up and down^T share a sign and are stacked before the polar factor, which then has rank up to min(m, 2n). Rows are
normalized first (the free scale), so the null concerns directions of neurons. The other model's invariance gives the
same bound with columns for rows; the weaker of the two is used.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment

from mdir_hf.method.blocks import FloatArray, IntArray
from mdir_hf.method.gauge import ResidualBasisMap
from mdir_hf.method.polar import polar_factor, polar_factor_of_rows, row_factors
from mdir_hf.method.products import cross_product
from mdir_hf.method.significance import log_n_matchings


@dataclass(frozen=True, slots=True, eq=False)
class MlpWeights:
    """The weights of one MLP or expert, gains folded in.

    Attributes:
        up: ``(m, n)``.
        down: ``(n, m)``.
        gate: ``(m, n)``, or None for an MLP without a gate; then neither signs nor scales are free.
    """

    up: torch.Tensor
    down: torch.Tensor
    gate: torch.Tensor | None = None

    def carried(self, residual_map: ResidualBasisMap) -> MlpWeights:
        """Carry a reference MLP into the candidate's residual basis."""
        gate = None if self.gate is None else residual_map.carry_in(self.gate)
        return MlpWeights(residual_map.carry_in(self.up), residual_map.carry_out(self.down), gate)


@dataclass(frozen=True, slots=True, eq=False)
class NeuronMatching:
    """An injective matching of neurons and its evidence.

    Attributes:
        reference: Matched neurons of the reference, ascending.
        candidate: The matched neuron of the candidate for each.
        entries: Contribution of each to the trace.
        signs: +1 or -1 for up and down of each.
        up_scales: s_j with ``up'_j ~ s_j up_i`` (sign included).
        down_scales: Scales of down; the inverse of ``up_scales`` if only the gauge was used.
        trace: c.
        normalized_trace: c over the ranks of the factors, its maximum; 1 for a copy.
        log_p: Natural log of the bound for this pair alone.
    """

    reference: IntArray
    candidate: IntArray
    entries: FloatArray
    signs: IntArray
    up_scales: FloatArray
    down_scales: FloatArray
    trace: float
    normalized_trace: float
    log_p: float


def unit_rows(rows: torch.Tensor) -> torch.Tensor:
    """Scale rows to unit length; zero rows stay zero."""
    length: torch.Tensor = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    return torch.div(rows, length.clamp(min=torch.finfo(rows.dtype).tiny))


def inner_polar(reference: torch.Tensor, candidate: torch.Tensor) -> torch.Tensor:
    """Return ``Ortho(A A'^T)``, ``(m, m')``, of two stacks of rows over the same features, truncated to its rank.

    Never forms an m x m decomposition of more rows than features, and never completes a rank-deficient factor. Cost O(m
    m' r), r = min(m, m', n): one SVD of m x m' if there are no more rows than features.

    Args:
        reference: A, ``(m, n)``.
        candidate: A', ``(m', n)``.
    """
    if max(len(reference), len(candidate)) <= reference.shape[1]:
        return polar_factor(cross_product(reference.T, candidate.T)).matrix
    return polar_factor_of_rows(row_factors(reference.T), row_factors(candidate.T), whitened=False).matrix


def match_neurons(reference: MlpWeights, candidate: MlpWeights) -> NeuronMatching:
    """Match the neurons of two MLPs by one permutation, from gate, up and down together.

    Args:
        reference: MLP with m neurons, carried into the candidate's residual basis.
        candidate: MLP with any number m' of neurons (it may be pruned or split into experts).

    Returns:
        The matching of the narrower side into the wider. Cost O(m m' n), and O(m^3) at worst for the assignment; memory
        O(m m').
    """
    gated = reference.gate is not None and candidate.gate is not None
    updown = inner_polar(_updown(reference), _updown(candidate)).double()
    if gated:
        assert reference.gate is not None and candidate.gate is not None
        gate = inner_polar(unit_rows(reference.gate), unit_rows(candidate.gate)).double()
        score = gate + updown.abs()
    else:
        gate = torch.zeros_like(updown)
        score = updown
    rows, columns = _assign(score)
    entry = updown[rows, columns]
    signs = torch.where(entry < 0, -1.0, 1.0).to(updown) if gated else torch.ones_like(entry)
    matched = gate[rows, columns] + signs * entry
    trace, log_p = float(matched.sum()), 0.0
    if trace > 0.0:
        by_row = float((gate[rows] + signs[:, None] * updown[rows]).square().sum())
        by_column = float((gate[:, columns] + signs[None, :] * updown[:, columns]).square().sum())
        m, m_other = gate.shape
        narrow, wide = sorted((m, m_other))
        exponent = 0.5 * trace * trace * min(m_other / by_row, m / by_column)
        log_p = min(0.0, log_n_matchings(narrow, wide, narrow, signed=gated) - exponent)
    return NeuronMatching(
        reference=rows.cpu().numpy(),
        candidate=columns.cpu().numpy(),
        entries=matched.cpu().numpy(),
        signs=signs.cpu().numpy().astype(np.int64),
        up_scales=_scales(reference.up[rows], candidate.up[columns]),
        down_scales=_scales(reference.down.T[rows], candidate.down.T[columns]),
        trace=trace,
        normalized_trace=trace / max(1.0, float(gate.square().sum() + updown.square().sum())),
        log_p=log_p,
    )


def _updown(mlp: MlpWeights) -> torch.Tensor:
    # Scales are not free without a gate, but normalizing prevents one large neuron from dominating the factor.
    return torch.cat((unit_rows(mlp.up), unit_rows(mlp.down.T)), dim=1)


def _assign(score: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Match the narrow side into the wide one; injective row maxima are already optimal."""
    transposed = score.shape[0] > score.shape[1]
    narrow = score.T if transposed else score
    columns = narrow.argmax(dim=1)
    if len(torch.unique(columns)) != len(columns):
        _, assigned = linear_sum_assignment(narrow.cpu().numpy(), maximize=True)
        columns = torch.from_numpy(assigned.astype(np.int64)).to(score.device)
    rows = torch.arange(len(columns), device=score.device)
    if not transposed:
        return rows, columns
    order = columns.argsort()
    return columns[order], rows[order]


def _scales(reference: torch.Tensor, candidate: torch.Tensor) -> FloatArray:
    """Return the least-squares factor of each row, from reference to candidate."""
    energy = reference.square().sum(dim=1).clamp(min=torch.finfo(reference.dtype).tiny)
    scales: FloatArray = ((reference * candidate).sum(dim=1) / energy).double().cpu().numpy()
    return scales
