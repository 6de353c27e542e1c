"""What a layer map is worth: its one p-value, the hits off its matches, and its placebo.

Pure functions of a :class:`~mdir_hf.homology.layer_map.LayerMap`, or of the layers that it is made of. Natural
logarithms, at most 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from mdir_hf.homology.gauge import OuterTransformation
from mdir_hf.homology.layer_map import LayerMap, Layers, map_layers

TESTS_PER_MAP = 2
"""A map is read twice: as a whole (half of the layers related), and for any part of it."""

N_PLACEBOS = 2
"""A significant map is made again this often, each time with the residual channels of one side shuffled."""

Carry = Callable[[torch.Tensor], torch.Tensor]
"""Takes weights ``(d_out, n_reference)`` into the residual basis of the candidate, ``(d_out, n_candidate)``."""


def log_p_of_map(layer_map: LayerMap, outer: OuterTransformation) -> float:
    """Reduce a map to one p-value: the better of its two readings, corrected for having two.

    A fitted rotation also aligns features that unrelated models learn alike, in a few layers. Behind one only the
    reading of the whole map counts.

    Args:
        layer_map: The map. What it was corrected for already stays in.
        outer: What carried the reference's layers.

    Returns:
        Natural log of p, at most 0, corrected for :data:`TESTS_PER_MAP`.
    """
    of_any_part = 0.0 if outer.kind == "rotation" else layer_map.log_p_any
    return min(0.0, min(layer_map.log_p_map, of_any_part) + math.log(TESTS_PER_MAP))


def off_match_share(layer_map: LayerMap, log_alpha: float) -> float:
    """Return which share of the cells off the matches is significant. Near 0 where the null of the layers holds.

    Args:
        layer_map: The map.
        log_alpha: Natural log of the level of the whole map; a cell is held to its share of it.

    Returns:
        Off-match hits over cells off the matches, in [0, 1]; 0 where every cell is a match.
    """
    is_hit = layer_map.log_p < log_alpha - math.log(layer_map.multiplicity)
    on_match = sum(bool(is_hit[match.reference, match.candidate]) for match in layer_map.matches)
    n_off = is_hit.size - len(layer_map.matches)
    return (int(is_hit.sum()) - on_match) / n_off if n_off else 0.0


def log_p_of_placebos(
    layers: Callable[[Carry], tuple[Layers, Layers]],
    outer: OuterTransformation,
    *,
    log_alpha: float,
    seed: int,
    device: str | torch.device = "cpu",
) -> float:
    """Map the layers again with the residual channels of the reference shuffled, where nothing can be related.

    Rows with few large entries, in both models, make cosines heavy-tailed and cells of strangers significant. They do
    so in any pairing of the channels (measured: on every such pair, and on no relative).

    Args:
        layers: Given how to carry the reference, returns its layers so carried, and those of the candidate. Called
            once for each placebo.
        outer: What carried the reference's layers on the map itself.
        log_alpha: Natural log of the level of the map.
        seed: Seed of the shuffles and of the screened channels.
        device: Where matrix products run.

    Returns:
        Natural log of the smallest p of any cell, not corrected for their number: the bound is so conservative that
        a null that holds leaves it at 0. Cost: :data:`N_PLACEBOS` maps.
    """
    generator = torch.Generator().manual_seed(seed)
    smallest = 0.0
    for _ in range(N_PLACEBOS):
        shuffled = torch.randperm(outer.n_candidate, generator=generator)

        def carry(weight: torch.Tensor, shuffled: torch.Tensor = shuffled) -> torch.Tensor:
            return outer.carry_in(weight)[:, shuffled]

        (placebo,) = map_layers([layers(carry)], log_alpha=log_alpha, refine="undecided", seed=seed, device=device)
        smallest = min(smallest, float(placebo.log_p.min()))
    return smallest
