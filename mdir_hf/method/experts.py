"""Mixtures of experts: traces every expert of the candidate to a dense MLP or an expert."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from mdir_hf.method.blocks import FloatArray
from mdir_hf.method.combine import log_p_of_best
from mdir_hf.method.gauge import ResidualBasisMap
from mdir_hf.method.neurons import MlpWeights, NeuronMatching, match_neurons, unit_rows

SHORTLIST = 2
"""How many experts of the reference are matched in full with each of the candidate's.

The true origin came first of 64 in every draw up to the noise at which p is no longer significant; the second is there
as a null."""

N_PROBES = 64
"""How many neurons of a candidate's expert choose the shortlist."""


@dataclass(frozen=True, slots=True, eq=False)
class ExpertMap:
    """Origins of the experts of one layer.

    Attributes:
        origins: For each expert of the candidate the expert of the reference it came from (0 for a dense MLP), or
            None where none is significant. Several may share one, as after upcycling.
        log_p: Natural log of p of each, over all E E' pairs; at most 0.
        matrix: ``(E, E')`` natural log of p of every pair alone, 0 where a pair was not on the shortlist: what is off
            the map is the empirical null.
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
    candidate: Iterable[MlpWeights],
    residual_map: ResidualBasisMap,
    *,
    log_alpha: float,
) -> ExpertMap:
    """Map every expert of a candidate's layer to its origin, in any order and with repeats.

    Args:
        reference: Experts of the reference's layer; one for a dense MLP.
        candidate: Experts of the candidate's layer, shared ones too; widths may differ (finer experts). Each is asked
            for once and let go, so they may be read one by one.
        residual_map: Carries the reference into the candidate's residual basis.
        log_alpha: Natural log of the level at which an origin is named.

    Returns:
        The map; every p pays for all E E' pairs (a union, valid under any dependence and for any shortlist: a pair
        that is left out counts as p = 1). Cost: ``min(E, 2) E'`` neuron matchings, and ``64 m E E'`` products of
        neurons to choose them.

    Raises:
        ValueError: If either side has no expert.
    """
    carried = [expert.carried(residual_map) for expert in reference]
    columns: list[FloatArray] = []
    best: list[tuple[int, NeuronMatching]] = []
    for other in candidate if carried else ():
        pairs = {i: match_neurons(carried[i], other) for i in _shortlist(carried, other)}
        columns.append(np.array([pairs[i].log_p if i in pairs else 0.0 for i in range(len(carried))]))
        best.append(min(pairs.items(), key=lambda pair: pair[1].log_p))
    if not best:
        raise ValueError(f"matching experts needs some on both sides, got {len(reference)} of the reference's")
    n_pairs = len(carried) * len(best)
    log_p = tuple(log_p_of_best(found.log_p, n_pairs) for _, found in best)
    return ExpertMap(
        origins=tuple(i if p < log_alpha else None for (i, _), p in zip(best, log_p, strict=True)),
        log_p=log_p,
        matrix=np.stack(columns, axis=1),
        matchings=tuple(found for _, found in best),
    )


def _shortlist(reference: Sequence[MlpWeights], candidate: MlpWeights) -> list[int]:
    """Choose the experts whose neurons look most like a few of the candidate's."""
    if len(reference) <= SHORTLIST:
        return list(range(len(reference)))
    likeness = [_likeness(expert, candidate) for expert in reference]
    return sorted(range(len(reference)), key=lambda i: -likeness[i])[:SHORTLIST]


def _likeness(reference: MlpWeights, candidate: MlpWeights) -> float:
    """Return the mean over some neurons of the candidate of their best cosine among the reference's."""
    step = max(1, candidate.up.shape[0] // N_PROBES)

    def cosines(rows: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return unit_rows(other[::step]) @ unit_rows(rows).T

    score = (cosines(reference.up, candidate.up) + cosines(reference.down.T, candidate.down.T)).abs()
    if reference.gate is not None and candidate.gate is not None:
        score = score + cosines(reference.gate, candidate.gate)
    return float(score.amax(dim=1).mean())
