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

from dataclasses import dataclass

import torch

from mdir_hf.method.gauge import ResidualBasisMap
from mdir_hf.method.polar import cross_product, polar_factor, polar_factor_of_rows, row_factors


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


N_PROBES = 64
"""Minimum number of neurons per candidate expert that are used to choose the shortlist."""


def _likeness(reference: MlpWeights, candidate: MlpWeights) -> float:
    """Return the average similarity of a few candidate neurons to their best match in a reference expert."""
    step = max(1, candidate.up.shape[0] // N_PROBES)

    def cosines(rows: torch.Tensor, probed: torch.Tensor) -> torch.Tensor:
        return unit_rows(probed[::step]) @ unit_rows(rows).T

    score = (cosines(reference.up, candidate.up) + cosines(reference.down.T, candidate.down.T)).abs()
    if reference.gate is not None and candidate.gate is not None:
        score = score + cosines(reference.gate, candidate.gate)
    return float(score.amax(dim=1).mean())
