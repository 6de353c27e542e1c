"""What a "no" excludes: the strongest noise under which a copy would have been found on the rows and layers read."""

from __future__ import annotations

import math
from functools import partial

from mdir_hf.comparison.body import BodyEvidence
from mdir_hf.comparison.comparable import PlacedTensors
from mdir_hf.comparison.findings import LayersFound, MatricesFound
from mdir_hf.comparison.layers import RoleReader
from mdir_hf.comparison.row_screen import MANY_CHANNELS
from mdir_hf.homology.matching import REMARKABLE
from mdir_hf.homology.power import Shape, noise_of_looks, strongest_noise, strongest_noise_of_pairs
from mdir_hf.homology.row_screen import SHARED_ROWS, sample_sizes
from mdir_hf.report import Exclusion


def layers_noise(
    reference: PlacedTensors, candidate: PlacedTensors, evidence: BodyEvidence, *, log_alpha: float, every: bool
) -> float:
    """Find the strongest noise on the layers under which the matrix that stands for them would be significant.

    Args:
        reference: One model.
        candidate: The other.
        evidence: What was found on their layers; says which matrix stands for a layer, and how many maps were counted.
        log_alpha: Natural log of the level of significance that was left for the layers.
        every: Whether the level asked for all layers, so that no wide matrix was screened by some of its rows.
    """
    role, n_cells = evidence.role, evidence.layer_map.log_p.size
    n_channels = sorted(
        RoleReader(model, role).n_channels(positions[0])
        for model, positions in zip((reference, candidate), evidence.positions, strict=True)
    )
    is_screened = not every and n_channels[1] > MANY_CHANNELS
    # The columns of a layer are to its channels what tokens are to those of an embedding; nothing is centred.
    n_columns = min(reference.anatomy.hidden_size, candidate.anatomy.hidden_size)
    level = log_alpha - math.log(evidence.n_tests) - math.log(n_cells)
    whole = strongest_noise(Shape(n_channels[0], n_channels[1], n_columns + 1), log_level=level, must_be_robust=False)
    return min(whole, noise_of_row_screen(evidence, n_channels[1], n_columns)) if is_screened else whole


def noise_of_row_screen(evidence: BodyEvidence, n_channels: int, n_columns: int) -> float:
    """Find the strongest noise under which sampled rows of a wide matrix would open its map.

    Args:
        evidence: What was found on the layers.
        n_channels: Rows of the wider matrix.
        n_columns: Channels of the narrower residual stream.
    """
    few, many = sample_sizes(n_channels)
    # Half of the layers have as many pairs at least; each cell is held to the level of the screen over all cells.
    level = math.log(REMARKABLE) - math.log(evidence.n_tests * evidence.layer_map.log_p.size * many.bit_length())
    shape = Shape(many, few, n_columns + 1)
    return strongest_noise_of_pairs(shape, n_pairs=max(1, int(SHARED_ROWS / 2)), log_level=level)


def exclusion(matrices: MatricesFound, layers: LayersFound, *, alpha: float) -> Exclusion:
    """Say what would have been found on what was read.

    Args:
        matrices: What was found on the embeddings.
        layers: What was found on the layers.
        alpha: The level of significance.
    """
    outcome = matrices.outcomes["embedding"]
    noise = partial(noise_of_looks, alpha=alpha, n_tests=matrices.n_tests, n_looks=len(outcome.report.looks))
    n_narrow, n_wide = sorted(outcome.evidence.widths)
    shape = Shape(min(n_narrow, outcome.n_channels), n_wide, outcome.report.looks[-1].rows)
    return Exclusion(
        embedding_noise=noise(shape),
        embedding_noise_in_order=noise(shape, in_order=True) if n_narrow == n_wide else None,
        layers_noise=layers.noise if layers.body is not None else None,
    )
