"""Weights of an MLP, and polar factors between rows inside a layer.

A neuron of a gated MLP is ``down_j * act(gate_j x) * (up_j x)``.
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
