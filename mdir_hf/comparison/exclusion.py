"""What a "no" excludes: the strongest noise under which a copy would have been found on the rows and layers read."""

from __future__ import annotations

import math
from functools import partial

from mdir_hf.comparison.body import BodyEvidence
from mdir_hf.comparison.comparable import PlacedTensors
from mdir_hf.comparison.findings import LayersFound, MatricesFound
from mdir_hf.comparison.layers import RoleReader
from mdir_hf.homology.power import Shape, noise_of_looks, strongest_noise
from mdir_hf.report import Exclusion


def layers_noise(
    reference: PlacedTensors, candidate: PlacedTensors, evidence: BodyEvidence, *, log_alpha: float
) -> float:
    """Find the strongest noise on the layers under which the matrix that stands for them would be significant.

    Args:
        reference: One model.
        candidate: The other.
        evidence: What was found on their layers; says which matrix stands for a layer, and how many maps were counted.
        log_alpha: Natural log of the level of significance that was left for the layers.
    """
    role, n_cells = evidence.role, evidence.layer_map.log_p.size
    n_channels = sorted(
        RoleReader(model, role).n_channels(positions[0])
        for model, positions in zip((reference, candidate), evidence.positions, strict=True)
    )
    # The columns of a layer are to its channels what tokens are to those of an embedding; nothing is centred.
    n_columns = min(reference.anatomy.hidden_size, candidate.anatomy.hidden_size)
    level = log_alpha - math.log(evidence.n_tests) - math.log(n_cells)
    return strongest_noise(Shape(n_channels[0], n_channels[1], n_columns + 1), log_level=level, must_be_robust=False)


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
