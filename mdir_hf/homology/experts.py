"""Mixtures of experts: which dense MLP or which expert every expert of the candidate came from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mdir_hf.homology.blocks import FloatArray
from mdir_hf.homology.combine import log_p_of_best
from mdir_hf.homology.gauge import OuterTransformation
from mdir_hf.homology.neurons import MlpWeights, NeuronMatching, match_neurons


@dataclass(frozen=True, slots=True, eq=False)
class ExpertMap:
    """Origins of the experts of one layer.

    Attributes:
        origins: For each expert of the candidate the expert of the reference it came from (0 for a dense MLP), or
            None where none is significant. Several may share one, as after upcycling.
        log_p: Natural log of p of each, over all E E' pairs; at most 0.
        matrix: ``(E, E')`` natural log of p of every pair alone: what is off the map is the empirical null.
        matchings: Neuron matching of each expert of the candidate with its best reference expert.
    """

    origins: tuple[int | None, ...]
    log_p: tuple[float, ...]
    matrix: FloatArray
    matchings: tuple[NeuronMatching, ...]

    @property
    def multiplicity(self) -> dict[int, int]:
        """How many experts of the candidate each origin has become."""
        found = [origin for origin in self.origins if origin is not None]
        return {origin: found.count(origin) for origin in sorted(set(found))}


def match_experts(
    reference: Sequence[MlpWeights],
    candidate: Sequence[MlpWeights],
    outer: OuterTransformation,
    *,
    log_alpha: float,
) -> ExpertMap:
    """Map every expert of a candidate's layer to its origin, in any order and with repeats.

    Args:
        reference: Experts of the reference's layer; one for a dense MLP.
        candidate: Experts of the candidate's layer, shared ones too; widths may differ (finer experts).
        outer: Carries the reference into the candidate's residual basis.
        log_alpha: Natural log of the level at which an origin is named.

    Returns:
        The map; every p pays for all E E' pairs (a union, valid under any dependence). Cost: E E' neuron matchings.

    Raises:
        ValueError: If either side has no expert.
    """
    if not reference or not candidate:
        raise ValueError(f"matching experts needs some on both sides, got {len(reference)} and {len(candidate)}")
    carried = [expert.carried(outer) for expert in reference]
    pairs = [[match_neurons(expert, other) for other in candidate] for expert in carried]
    matrix: FloatArray = np.array([[pair.log_p for pair in row] for row in pairs])
    best = matrix.argmin(axis=0)
    log_p = tuple(log_p_of_best(float(matrix[i, j]), matrix.size) for j, i in enumerate(best))
    return ExpertMap(
        origins=tuple(int(i) if p < log_alpha else None for i, p in zip(best, log_p, strict=True)),
        log_p=log_p,
        matrix=matrix,
        matchings=tuple(pairs[int(i)][j] for j, i in enumerate(best)),
    )
