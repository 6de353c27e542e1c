"""The strongest noise that a "no" excludes: a copy under less would have been found on the rows and layers read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial

from mdir_hf.comparison.layer_weights import RoleReader, layers_with
from mdir_hf.comparison.layers import representatives
from mdir_hf.comparison.row_screen import chosen_layers, is_wide
from mdir_hf.method.map_evidence import TESTS_PER_MAP
from mdir_hf.method.matching import REMARKABLE
from mdir_hf.method.power import Shape, noise_of_looks, strongest_noise, strongest_noise_of_pairs
from mdir_hf.method.row_screen import SHARED_ROWS, sample_sizes
from mdir_hf.method.significance import log_cost_of_look
from mdir_hf.model.comparable import PlacedTensors
from mdir_hf.model.roles import Role
from mdir_hf.report import Exclusion, MatrixResult

MOST_MAPS = 5
"""Residual-basis maps behind which layers are looked at, at most: each stands for a factor of its number on p."""


def layers_noise(
    reference: PlacedTensors,
    candidate: PlacedTensors,
    role: Role,
    positions: tuple[tuple[int, ...], ...],
    *,
    n_tests: int,
    log_alpha: float,
    every: bool,
) -> float:
    """Find the strongest noise on the layers under which the matrix that stands for them would be significant.

    Args:
        reference: One model.
        candidate: The other.
        role: Which matrix stands for a layer.
        positions: Which layers of either model are compared.
        n_tests: Tests that a map of them is corrected for.
        log_alpha: Natural log of the level of significance that was left for the layers.
        every: Whether the level asked for all layers, so that no wide matrix was screened by some of its rows.
    """
    n_cells = len(positions[0]) * len(positions[1])
    n_channels = sorted(
        RoleReader(model, role).n_channels(next(at for at in of_model if at in layers_with(model, role)))
        for model, of_model in zip((reference, candidate), positions, strict=True)
    )
    is_screened = not every and is_wide(role, n_channels[1])
    # The columns of a layer are to its channels what tokens are to those of an embedding; nothing is centred.
    n_columns = min(reference.anatomy.hidden_size, candidate.anatomy.hidden_size)
    level = log_alpha - math.log(n_tests) - math.log(n_cells)
    whole = strongest_noise(Shape(n_channels[0], n_channels[1], n_columns + 1), log_level=level, must_be_robust=False)
    if not is_screened:
        return whole
    return min(whole, noise_of_row_screen(n_channels[1], n_columns, n_tests=n_tests, n_cells=n_cells))


def planned_layers_noise(
    reference: PlacedTensors, candidate: PlacedTensors, *, n_looks: int, alpha: float, every: bool
) -> float | None:
    """Say before anything is read what the layers are going to exclude, for the matrix that stands for them first.

    Args:
        reference: One model.
        candidate: The other.
        n_looks: Looks at the embeddings, which take their share of ``alpha``.
        alpha: The level of significance.
        every: Whether the level asks for all layers.

    Returns:
        The strongest noise, as of :func:`layers_noise`, or a little less: as many maps are counted as there may be.
        None where the models have no layers to compare. Reads the header of the shard that the first layer is in.
    """
    roles = representatives(reference, candidate, every=every)
    if not roles:
        return None
    return layers_noise(
        reference,
        candidate,
        roles[0],
        chosen_layers(reference, candidate, roles[0], every=every),
        n_tests=TESTS_PER_MAP * MOST_MAPS * len(roles),
        log_alpha=math.log(alpha) - log_cost_of_look(n_looks + 1),
        every=every,
    )


def noise_of_row_screen(n_channels: int, n_columns: int, *, n_tests: int, n_cells: int) -> float:
    """Find the strongest noise under which sampled rows of a wide matrix would open its map.

    Args:
        n_channels: Rows of the wider matrix.
        n_columns: Channels of the narrower residual stream.
        n_tests: Tests that a map of the layers is corrected for.
        n_cells: Pairs of layers.
    """
    few, many = sample_sizes(n_channels)
    # Half of the layers have as many pairs at least; each cell is held to the level of the screen over all cells.
    level = math.log(REMARKABLE) - math.log(n_tests * n_cells * many.bit_length())
    shape = Shape(many, few, n_columns + 1)
    return strongest_noise_of_pairs(shape, n_pairs=max(1, int(SHARED_ROWS / 2)), log_level=level)


def exclusion(
    matrices: Mapping[str, MatrixResult],
    *,
    n_tests: int,
    alpha: float,
    noise_of_layers: float | None,
    noise_of_neurons: float | None,
) -> Exclusion:
    """Say what would have been found on what was read.

    Args:
        matrices: What was found on each pair of matrices.
        n_tests: How many tests they are corrected for.
        alpha: The level of significance.
        noise_of_layers: As of :func:`layers_noise`; None where the layers were not compared.
        noise_of_neurons: As of :func:`~mdir_hf.comparison.neurons.excluded_noise`; None where they were not compared.
    """
    found = next(iter(matrices.values()), None)
    if found is None:
        return Exclusion(None, None, layers_noise=noise_of_layers, neurons_noise=noise_of_neurons)
    noise = partial(noise_of_looks, alpha=alpha, n_tests=n_tests, n_looks=len(found.looks))
    n_narrow, n_wide = sorted(found.widths)
    shape = Shape(min(n_narrow, found.channels), n_wide, found.looks[-1].rows)
    return Exclusion(
        embedding_noise=noise(shape),
        embedding_noise_in_order=noise(shape, in_order=True) if found.in_order_tested else None,
        layers_noise=noise_of_layers,
        neurons_noise=noise_of_neurons,
    )
