"""Compute the strongest noise at which a negative result rules out copies."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from mdir_hf.comparison.layer_weights import layers_with, n_channels_of
from mdir_hf.comparison.plan import ReadPlan
from mdir_hf.comparison.row_screen import chosen_layers, is_wide, representatives
from mdir_hf.errors import AnatomyError, UnsupportedFormatError
from mdir_hf.method.embedding import FEW_ROWS, SCREEN_CHANNELS, TESTS_PER_MATRIX
from mdir_hf.method.map_evidence import TESTS_PER_MAP
from mdir_hf.method.matching import REMARKABLE
from mdir_hf.method.power import MatrixSizes, noise_of_looks, strongest_noise, strongest_noise_of_pairs
from mdir_hf.method.screening import SHARED_ROWS, sample_sizes
from mdir_hf.method.significance import log_cost_of_look
from mdir_hf.model.comparable import PlacedTensors
from mdir_hf.model.roles import Role
from mdir_hf.report import Exclusion, MatrixResult

MOST_MAPS = 5
"""Maximum number of residual-basis maps tried on the layers; p is multiplied by this number."""


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
    """Return the strongest noise at which copies of the layers' ``role`` matrices would be significant.

    Set ``every`` if the level tests whole layers, so that wide matrices are not screened.
    """
    n_cells = len(positions[0]) * len(positions[1])
    n_channels = sorted(
        n_channels_of(model, role, next(at for at in of_model if at in layers_with(model, role)))
        for model, of_model in zip((reference, candidate), positions, strict=True)
    )
    is_screened = not every and is_wide(role, n_channels[1])
    # Columns of a layer take the place of an embedding's tokens, but they are not centred.
    n_columns = min(reference.anatomy.hidden_size, candidate.anatomy.hidden_size)
    level = log_alpha - math.log(n_tests) - math.log(n_cells)
    whole = strongest_noise(
        MatrixSizes(n_channels[0], n_channels[1], n_columns + 1), log_level=level, must_be_robust=False
    )
    if not is_screened:
        return whole
    return min(whole, noise_of_row_screen(n_channels[1], n_columns, n_tests=n_tests, n_cells=n_cells))


def _planned_layers_noise(
    reference: PlacedTensors, candidate: PlacedTensors, *, n_looks: int, alpha: float, every: bool
) -> float | None:
    """Predict :func:`layers_noise` from headers; return None if there are no layers to compare."""
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


def noise_of_plan(plan: ReadPlan, alpha: float) -> float:
    """Return the strongest noise at which the planned looks would find a copy."""
    widths, last = (plan.reference.shape[1], plan.candidate.shape[1]), plan.look_rows[-1]
    is_drawn = not plan.runs_full_test and last > FEW_ROWS and max(widths) > FEW_ROWS
    n_narrow = min(*widths, SCREEN_CHANNELS) if is_drawn else min(widths)
    shape = MatrixSizes(n_narrow, max(widths), plan.common_tokens if plan.runs_full_test else last)
    return noise_of_looks(shape, alpha=alpha, n_tests=TESTS_PER_MATRIX, n_looks=plan.n_looks)


def with_noise(plan: ReadPlan, reference: PlacedTensors, candidate: PlacedTensors, alpha: float) -> ReadPlan:
    """Add to a plan the strongest noise at which the matrices and the layers would reveal a copy."""
    plan, level = replace(plan, excluded_noise=noise_of_plan(plan, alpha)), plan.level
    if not level.may_read_layers:
        return plan
    try:
        noise = _planned_layers_noise(
            reference, candidate, n_looks=plan.n_looks, alpha=alpha, every=level.tests_whole_layers
        )
    except (AnatomyError, UnsupportedFormatError):
        return plan  # the comparison itself reports the reason
    return replace(plan, excluded_layers_noise=noise)


def noise_of_row_screen(n_channels: int, n_columns: int, *, n_tests: int, n_cells: int) -> float:
    """Return the strongest noise at which sampled rows of a copied wide matrix would pass the screen.

    ``n_columns`` is the number of channels of the narrower stream, and ``n_cells`` the number of layer pairs.
    """
    few, many = sample_sizes(n_channels)
    # Half of the layers share at least this many rows. Each cell must pass the level of the screen divided by the
    # number of cells.
    level = math.log(REMARKABLE) - math.log(n_tests * n_cells * many.bit_length())
    shape = MatrixSizes(many, few, n_columns + 1)
    return strongest_noise_of_pairs(shape, n_pairs=max(1, int(SHARED_ROWS / 2)), log_level=level)


def exclusion(
    matrices: Mapping[str, MatrixResult],
    *,
    n_tests: int,
    alpha: float,
    noise_of_layers: float | None,
    noise_of_neurons: float | None,
) -> Exclusion:
    """Return the strongest noise at which each test would have found a copy."""
    matrix = next(iter(matrices.values()), None)
    if matrix is None:
        return Exclusion(None, None, layers_noise=noise_of_layers, neurons_noise=noise_of_neurons)
    noise = partial(noise_of_looks, alpha=alpha, n_tests=n_tests, n_looks=len(matrix.looks))
    n_narrow, n_wide = sorted(matrix.widths)
    shape = MatrixSizes(min(n_narrow, matrix.channels), n_wide, matrix.looks[-1].rows)
    return Exclusion(
        embedding_noise=noise(shape),
        embedding_noise_in_order=noise(shape, in_order=True) if matrix.in_order_tested else None,
        layers_noise=noise_of_layers,
        neurons_noise=noise_of_neurons,
    )
