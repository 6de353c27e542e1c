"""Trace every expert of the candidate to a dense MLP or an expert of the reference."""

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
"""Number of reference experts that are matched in full with each candidate expert.

The true origin ranked first of 64 in every draw up to the noise at which p is no longer significant; the second one
serves as a null."""

N_PROBES = 64
"""Number of neurons of a candidate expert used to choose the shortlist."""


@dataclass(frozen=True, slots=True, eq=False)
class ExpertMap:
    """Origins of the experts of one layer.

    Attributes:
        origins: For each expert of the candidate, the expert of the reference it came from (0 for a dense MLP), or None
            if none is significant. Several may share an origin, as after upcycling.
        log_p: Natural log of p of each, over all E E' pairs; at most 0.
        matrix: ``(E, E')`` natural log of p of every pair alone, 0 for pairs not on the shortlist. Pairs off the map
            form the empirical null.
        matchings: Neuron matching of each expert of the candidate with its best reference expert.
    """

    origins: tuple[int | None, ...]
    log_p: tuple[float, ...]
    matrix: FloatArray
    matchings: tuple[NeuronMatching, ...]

    @property
    def multiplicity(self) -> dict[int, int]:
        """Number of candidate experts for each origin."""
        origins = [origin for origin in self.origins if origin is not None]
        return {origin: origins.count(origin) for origin in sorted(set(origins))}


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
        candidate: Experts of the candidate's layer, including shared ones. Widths may differ (finer experts). Each is
            used once and released, so they may be read one at a time.
        residual_map: Carries the reference into the candidate's residual basis.
        log_alpha: Natural log of the level at which an origin is reported.

    Returns:
        The map. Every p is corrected for all E E' pairs (a union, valid under any dependence and for any shortlist,
        since a skipped pair counts as p = 1). Cost: ``min(E, 2) E'`` neuron matchings, and ``64 m E E'`` products of
        neurons to choose them.

    Raises:
        ValueError: If either side has no expert.
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
    """Choose the experts whose neurons are most similar to a few of the candidate's."""
    if len(reference) <= SHORTLIST:
        return list(range(len(reference)))
    likeness = [_likeness(expert, candidate) for expert in reference]
    return sorted(range(len(reference)), key=lambda i: -likeness[i])[:SHORTLIST]


def _likeness(reference: MlpWeights, candidate: MlpWeights) -> float:
    """Return the mean over some candidate neurons of their best cosine among the reference's neurons."""
    step = max(1, candidate.up.shape[0] // N_PROBES)

    def cosines(rows: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return unit_rows(other[::step]) @ unit_rows(rows).T

    score = (cosines(reference.up, candidate.up) + cosines(reference.down.T, candidate.down.T)).abs()
    if reference.gate is not None and candidate.gate is not None:
        score = score + cosines(reference.gate, candidate.gate)
    return float(score.amax(dim=1).mean())
