"""Match neurons between two MLPs, and experts between two models.

A neuron of a gated MLP is ``down_j * act(gate_j x) * (up_j x)``. The paper sums the polar factors of gate, up and down
and matches once (appendix, "Solving the MLP"). This module uses the same sum, but with a valid bound.

**Bound.** Let ``A = (gate | up | down^T)`` be the neurons of one model, ``(m, 3n)``. Null hypothesis: given everything
else, ``H A`` and A have the same distribution for every rotation H of the neuron side; gate, up and down may depend on
each other. Each polar factor rotates with A, ``U_X -> U_X H^T``, and so does any fixed combination of the factors'
columns. For a fixed matching P with signs S, the trace ``c = <P, U_gate> + <PS, U_updown>`` is ``Tr(X O)`` with O Haar
and ``|X|_F^2 = e = sum_i |U_gate[i] + s_i U_updown[i]|^2`` over the matched neurons i, and the rotation leaves e
unchanged. By the moment bound of docs/moment-bound.md, and the union over matchings and signs,

    ln p <= ln #(P, S) - m' c^2 / (2 e),   with m' the number of rotated neurons.

Because up and down^T share a sign, they are stacked and have one polar factor, of rank up to min(m, 2n). Rows are
normalised first. The other model's invariance gives the same bound with rows and columns exchanged; the weaker bound is
used.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment

from mdir_hf.method.blocks import FloatArray, IntArray
from mdir_hf.method.gauge import ResidualBasisMap
from mdir_hf.method.polar import cross_product, polar_factor, polar_factor_of_rows, row_factors
from mdir_hf.method.significance import log_n_matchings, log_p_of_best

TWIN_COSINE = 0.8
"""Minimum cosine between the rows of two neurons of a layer that count as twins. In real layers, fewer than 1% of
neurons have a twin.
"""


@dataclass(frozen=True, slots=True, eq=False)
class MlpWeights:
    """The weights of one MLP or expert, with gains folded in.

    Attributes:
        up: ``(m, n)``.
        down: ``(n, m)``.
        gate: ``(m, n)``; if None, signs and scales are fixed.
    """

    up: torch.Tensor
    down: torch.Tensor
    gate: torch.Tensor | None = None

    def carried(self, residual_map: ResidualBasisMap) -> MlpWeights:
        """Transform a reference MLP into the candidate's residual basis."""
        gate = None if self.gate is None else residual_map.carry_in(self.gate)
        return MlpWeights(residual_map.carry_in(self.up), residual_map.carry_out(self.down), gate)


@dataclass(frozen=True, slots=True, eq=False)
class NeuronMatching:
    """An injective matching of neurons and its evidence.

    Attributes:
        reference: Matched neurons, ascending.
        entries: Contribution of each neuron to the trace.
        signs: Sign of each neuron's up and down, +1 or -1.
        up_scales: s_j, with its sign, in ``up'_j ~ s_j up_i``.
        down_scales: Scales of down; the inverse of ``up_scales`` if the MLPs are equivalent.
        normalized_trace: Trace divided by its maximum, the sum of the factors' ranks; 1 for a copy.
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
    """Return ``Ortho(A A'^T)``, ``(m, m')``, truncated to its rank, for two stacks of rows with n features.

    Takes O(m m' min(m, m', n)) time.
    """
    if max(len(reference), len(candidate)) <= reference.shape[1]:
        return polar_factor(cross_product(reference.T, candidate.T)).matrix
    return polar_factor_of_rows(row_factors(reference.T), row_factors(candidate.T), whitened=False).matrix


def match_neurons(reference: MlpWeights, candidate: MlpWeights) -> NeuronMatching:
    """Match the neurons of two MLPs with one permutation for gate, up and down.

    The reference must be in the candidate's residual basis. The narrower MLP is matched into the wider one. Takes O(m
    m' n) time, and at worst O(m^3) for the assignment.
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
    # Without a gate, scales are not free, but normalising keeps one large neuron from dominating the factor.
    return torch.cat((unit_rows(mlp.up), unit_rows(mlp.down.T)), dim=1)


def _assign(score: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
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
    """Return the least-squares factor from each reference row to its candidate row."""
    energy = reference.square().sum(dim=1).clamp(min=torch.finfo(reference.dtype).tiny)
    scales: FloatArray = ((reference * candidate).sum(dim=1) / energy).double().cpu().numpy()
    return scales


SHORTLIST = 2
"""Number of reference experts that are matched in full to each candidate expert.

In tests with 64 experts, the true origin always ranked first unless noise made p insignificant. The second expert
serves as a control."""

N_PROBES = 64
"""Minimum number of neurons per candidate expert that are used to choose the shortlist."""


@dataclass(frozen=True, slots=True, eq=False)
class ExpertMap:
    """The reference experts from which the experts of one candidate layer descend.

    Attributes:
        origins: Reference expert for each candidate expert, or None if no match is significant.
        log_p: Natural log of p for each candidate expert, corrected for all E E' pairs; at most 0.
        matrix: ``(E, E')`` natural log of p for each pair alone; 0 for pairs that are not on the shortlist.
    """

    origins: tuple[int | None, ...]
    log_p: tuple[float, ...]
    matrix: FloatArray
    matchings: tuple[NeuronMatching, ...]

    @property
    def multiplicity(self) -> dict[int, int]:
        """Number of candidate experts that descend from each reference expert."""
        origins = [origin for origin in self.origins if origin is not None]
        return {origin: origins.count(origin) for origin in sorted(set(origins))}


def match_experts(
    reference: Sequence[MlpWeights],
    candidate: Iterable[MlpWeights],
    residual_map: ResidualBasisMap,
    *,
    log_alpha: float,
) -> ExpertMap:
    """Map each expert in a candidate's layer to the reference expert it came from.

    Experts may be reordered or repeated. If the reference layer is dense, ``reference`` contains one MLP. Computes
    ``min(E, 2) E'`` neuron matchings, and at least ``64 m E E'`` products to choose them.

    Raises:
        ValueError: If either model has no experts.
    """
    carried = [expert.carried(residual_map) for expert in reference]
    columns: list[FloatArray] = []
    best: list[tuple[int, NeuronMatching]] = []
    for expert in candidate if carried else ():
        pairs = {i: match_neurons(carried[i], expert) for i in _shortlist(carried, expert)}
        columns.append(np.array([pairs[i].log_p if i in pairs else 0.0 for i in range(len(carried))]))
        best.append(min(pairs.items(), key=lambda pair: pair[1].log_p))
    if not best:
        raise ValueError(f"matching experts needs some on both sides, got {len(reference)} of the reference's")
    n_pairs = len(carried) * len(best)
    log_p = tuple(log_p_of_best(matching.log_p, n_pairs) for _, matching in best)
    return ExpertMap(
        origins=tuple(i if p < log_alpha else None for (i, _), p in zip(best, log_p, strict=True)),
        log_p=log_p,
        matrix=np.stack(columns, axis=1),
        matchings=tuple(matching for _, matching in best),
    )


def _shortlist(reference: Sequence[MlpWeights], candidate: MlpWeights) -> list[int]:
    """Choose the reference experts most similar to a candidate expert, using a few of its neurons."""
    if len(reference) <= SHORTLIST:
        return list(range(len(reference)))
    likeness = [_likeness(expert, candidate) for expert in reference]
    return sorted(range(len(reference)), key=lambda i: -likeness[i])[:SHORTLIST]


def _likeness(reference: MlpWeights, candidate: MlpWeights) -> float:
    """Return the average similarity of a few candidate neurons to their best match in a reference expert."""
    step = max(1, candidate.up.shape[0] // N_PROBES)

    def cosines(rows: torch.Tensor, probed: torch.Tensor) -> torch.Tensor:
        return unit_rows(probed[::step]) @ unit_rows(rows).T

    score = (cosines(reference.up, candidate.up) + cosines(reference.down.T, candidate.down.T)).abs()
    if reference.gate is not None and candidate.gate is not None:
        score = score + cosines(reference.gate, candidate.gate)
    return float(score.amax(dim=1).mean())


def mean_square_of_outputs(rows: Sequence[torch.Tensor], outputs: torch.Tensor, *, n_neurons: int) -> float:
    """Estimate a layer's mean squared output per neuron, counting the parts of a split neuron as one.

    Splitting a neuron preserves the layer's output, so products of twins (:data:`TWIN_COSINE`) are added to the
    squares. ``rows`` are unit rows of gate and up, or of up alone, each ``(k, width)``, for k neurons drawn uniformly.
    ``outputs``, ``(k, channels)``, are the neurons' columns of down, multiplied by the lengths of their rows.

    Returns:
        The estimate; exact if all neurons are given.
    """
    cosines = [matrix @ matrix.T for matrix in rows]
    is_twin = cosines[0] >= TWIN_COSINE
    is_twin &= cosines[-1].abs() >= TWIN_COSINE
    is_twin.fill_diagonal_(False)
    signs = cosines[-1].sign()
    k = len(outputs)
    of_pairs = float((is_twin * signs * (outputs @ outputs.T)).sum()) / k * (n_neurons - 1) / max(1, k - 1)
    return float(outputs.square().sum()) / k + max(0.0, of_pairs)
