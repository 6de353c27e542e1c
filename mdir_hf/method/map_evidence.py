"""Evaluate a layer map: its p-value, significant cells outside its matches, and placebos."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from mdir_hf.method.gauge import ResidualBasisMap
from mdir_hf.method.layer_map import LayerMap, LayerMatch, Layers, map_layers

TESTS_PER_MAP = 2
"""Number of tests per map: whether half of the layers are related, and whether any are."""

SHARE_OF_FISHER = 1e-3
"""Share of alpha spent on Fisher's sum; the map's other two tests share the rest. Fisher's sum measures the strength of
a verdict but does not decide it."""

N_PLACEBOS = 2
"""Number of times that a significant map is recomputed with one model's residual channels shuffled."""

RIVAL_SHARE = 0.25
"""A significant cell is a rival of a match in its row or column if its log p is at least this share of the match's. A
match is accepted as the same layer if its log p is at least this share of a layer's log p with itself. In MiniLM,
neighbouring layers reach 0.03 of a layer's log p with itself, and 0.7 to 0.9 of each other's log p; rivals of related
layers reach 0.04."""

Carry = Callable[[torch.Tensor], torch.Tensor]
"""A function that maps weights ``(d_out, n_reference)`` to the candidate's residual basis, ``(d_out, n_candidate)``."""


def log_p_of_map(layer_map: LayerMap, *, any_part: bool = True) -> float:
    """Reduce a map to one p-value that is valid under any dependence: the better of two tests.

    Return its natural log, corrected for both tests and for the share of the level that :func:`log_p_of_all_layers`
    spends. If ``any_part`` is False, use only the test of whether half of the layers are related.
    """
    best = min(layer_map.log_p_map, layer_map.log_p_any) if any_part else layer_map.log_p_map
    return min(0.0, best + math.log(TESTS_PER_MAP) - math.log1p(-SHARE_OF_FISHER))


def log_p_of_all_layers(layer_map: LayerMap) -> float:
    """Combine all layers of a map into one p-value using Fisher's sum. Verdicts on layers state this p.

    Return its natural log, at most 0, corrected for the share of the level that :func:`log_p_of_map` spends. It is
    valid if each layer of one model is left-invariant given the others (docs/method/layers.md).
    """
    return min(0.0, layer_map.log_p_fisher - math.log(SHARE_OF_FISHER))


@dataclass(frozen=True, slots=True)
class WeighedMatches:
    """Matches accepted as the same layer, and the share of other cells that are significant.

    Attributes:
        certain: Matches that have no rival, reach :data:`RIVAL_SHARE` of a layer's log p with itself, or agree in most
            neurons.
        off_match_share: Share of unmatched cells that are significant, in [0, 1]; near 0 under the null. In the row
            and column of a match accepted as the same layer, only rivals are counted.
    """

    certain: tuple[LayerMatch, ...]
    off_match_share: float


def weigh_matches(
    layer_map: LayerMap,
    log_alpha: float,
    *,
    log_p_with_itself: Callable[[int, int], float],
    neurons_agree: Callable[[int, int], bool] = lambda i, j: False,
) -> WeighedMatches:
    """Distinguish copies of a layer from similarities between different layers.

    Neighbouring layers are significantly similar, but much less than a layer is to itself.

    Cells with a rival must come from the full test. ``log_alpha`` is the level of the whole map. ``log_p_with_itself``
    tests layer i and layer j, each against itself, and returns the larger natural log of p. ``neurons_agree`` returns
    whether most neurons of a pair agree, for pairs below :data:`RIVAL_SHARE`.
    """
    is_hit = layer_map.log_p < log_alpha - math.log(layer_map.multiplicity)
    certain: list[LayerMatch] = []
    is_counted = is_hit.copy()
    for match in layer_map.matches:
        i, j = match.reference, match.candidate
        log_p_of_match = float(layer_map.log_p[i, j])
        is_rival = is_hit & (layer_map.log_p <= RIVAL_SHARE * log_p_of_match)
        is_alone = _n_beside(is_hit, i, j) == 0
        is_the_same = not is_alone and (log_p_of_match <= RIVAL_SHARE * log_p_with_itself(i, j) or neurons_agree(i, j))
        if _n_beside(is_rival, i, j) == 0 or is_the_same:
            certain.append(match)
        if is_the_same:
            is_counted[i] &= is_rival[i]
            is_counted[:, j] &= is_rival[:, j]
    for match in layer_map.matches:
        is_counted[match.reference, match.candidate] = False
    n_off = is_hit.size - len(layer_map.matches)
    return WeighedMatches(tuple(certain), int(is_counted.sum()) / n_off if n_off else 0.0)


def _n_beside(is_there: npt.NDArray[np.bool_], i: int, j: int) -> int:
    """Count the other marked cells in a cell's row and column."""
    return int(is_there[i].sum()) + int(is_there[:, j].sum()) - 2 * int(is_there[i, j])


def log_p_of_placebos(
    layers: Callable[[Carry], tuple[Layers, Layers]],
    residual_map: ResidualBasisMap,
    *,
    log_alpha: float,
    seed: int,
    device: str | torch.device = "cpu",
) -> float:
    """Recompute a layer map with the reference's residual channels shuffled, which destroys any real relation.

    If a few large entries dominate the rows of both models, cells become significant for any pairing of the channels,
    even in unrelated models. ``layers`` applies its argument to the reference's layers and returns both models' layers.

    Returns:
        Natural log of the smallest p, uncorrected; near 0 if the null holds. Computes :data:`N_PLACEBOS` maps.
    """
    generator = torch.Generator().manual_seed(seed)
    smallest = 0.0
    for _ in range(N_PLACEBOS):
        shuffled = torch.randperm(residual_map.n_candidate, generator=generator)

        def carry(weight: torch.Tensor, shuffled: torch.Tensor = shuffled) -> torch.Tensor:
            return residual_map.carry_in(weight)[:, shuffled]

        (placebo,) = map_layers([layers(carry)], log_alpha=log_alpha, refine="undecided", seed=seed, device=device)
        smallest = min(smallest, float(placebo.log_p.min()))
    return smallest
