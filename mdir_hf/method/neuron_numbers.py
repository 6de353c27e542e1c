"""Evidence from the numbers of neurons: no vocabulary, no embedding, and a rotation for each layer if need be.

Training does not care how the neurons of an MLP are numbered. So of two independently trained models, given everything
about both but the numbering of one layer's neurons, that numbering is a uniformly random permutation, for each layer an
independent one. Neurons are rows of the matrices that write them (gate, up), compared by their cosines.

*Same basis.* Partners are neurons that resemble each other most, found without their numbers. *Behind a rotation.* Pair
some neurons by number, fit the rotation between the two residual streams on them, and find partners among the other
neurons behind it. Given the pairs it was fitted on, the numbers of the others are still uniformly random.

Either way k of n tested neurons have a partner of their own number with probability at most 1 / k!, and so in all of L
layers that were chosen beforehand with probability at most L^k / k!. docs/method/numbering.md has the proofs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from mdir_hf.method.matching import IntArray
from mdir_hf.method.neurons import unit_rows
from mdir_hf.method.numbering import mutual_partners

Neurons = Sequence[torch.Tensor]
"""Rows of the matrices that write some neurons, gate and up: each ``(n, width)`` of unit rows, of the same neurons."""


def sample_neurons(n_neurons: int, n: int, *, run: int, seed: int) -> IntArray:
    """Choose numbers of neurons in runs of neighbours, which are one read each, in random order of the runs.

    Args:
        n_neurons: Neurons of the layer.
        n: How many are wanted; a multiple of ``run``.
        run: Neighbours in a run.
        seed: Seed of the choice. It is the same for both models, and sees no weight.

    Returns:
        The numbers, ``(n,)``; fewer where the layer has fewer whole runs.
    """
    starts = np.random.default_rng(seed).permutation(n_neurons // run)[: n // run] * run
    numbers: IntArray = (starts[:, None] + np.arange(run)).reshape(-1).astype(np.int64)
    return numbers


def own_numbers(reference: Neurons, candidate: Neurons, *, n_fitted: int = 0) -> int:
    """Count the tested neurons whose partner has their own number.

    Args:
        reference: Rows of some neurons of a layer.
        candidate: Rows of the neurons of the same numbers; any width where a rotation is fitted.
        n_fitted: The rotation is fitted on the first of them, and the others are tested; 0: the bases are the same, and
            all are tested.

    Returns:
        How many. Cost O(n² width + f² width + f³) for f fitted rows; no matrix of width x width is made.
    """
    if n_fitted:
        reference, candidate = _behind_rotation(reference, candidate, n_fitted)
    cosines = sum(x @ y.T for x, y in zip(reference, candidate, strict=True))
    assert isinstance(cosines, torch.Tensor)
    rows, columns = mutual_partners(cosines.clamp(min=0.0))
    return int((rows == columns).sum())


def _behind_rotation(
    reference: Neurons, candidate: Neurons, n_fitted: int
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Coordinates of the tested rows of both models in the span of the fitted ones, the reference's rotated."""
    x, y = (torch.cat([rows[:n_fitted] for rows in model]) for model in (reference, candidate))
    (q_x, r_x), (q_y, r_y) = (torch.linalg.qr(rows.T) for rows in (x, y))
    left, _, right = torch.linalg.svd(r_x @ r_y.T, full_matrices=False)
    carried = [unit_rows(rows[n_fitted:] @ q_x @ left @ right) for rows in reference]
    return carried, [unit_rows(rows[n_fitted:] @ q_y) for rows in candidate]


def log_p_own_numbers(n_own: int, n_layers: int = 1) -> float:
    """Natural log of the bound for so many own numbers in all of some layers, ``L^k / k!``; at most 0.

    Args:
        n_own: k, own numbers in all of them.
        n_layers: L, pairs of layers in which no layer stands twice, chosen without a look at numbers.
    """
    return min(0.0, n_own * math.log(max(1, n_layers)) - math.lgamma(n_own + 1))
