"""Evidence from neuron numbers: needs no vocabulary and no embedding, and allows a rotation for each layer.

Training does not depend on how the neurons of an MLP are numbered. For two independently trained models, given
everything about both except the numbering of one layer's neurons, this numbering is a uniformly random permutation,
independently for each layer. Neurons are rows of the matrices that write them (gate, up).

Pair some neurons of two layers by number and fit the rotation between the two residual streams on them. Partners among
the other neurons are those that resemble each other most after the rotation, found without using their numbers. Given
the fitted pairs, the numbers of the others are still uniformly random. So k of them have a partner with the same number
with probability at most 1 / k!, and k in all of L layers chosen in advance with probability at most L^k / k!.
docs/method/numbering.md has the proofs.

Numbers can be chosen: someone who knows which neurons are tested can renumber an unrelated model so that all of them
have the right number. So :func:`match_neurons_by_number` also counts *certain* neurons: those more similar than the
most similar pair of random neurons of the two layers would be.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from mdir_hf.method.matching import CHANNEL_ALPHA, IntArray
from mdir_hf.method.neurons import unit_rows
from mdir_hf.method.numbering import mutual_partners

Neurons = Sequence[torch.Tensor]
"""Rows of the matrices that write some neurons, gate and up: each ``(n, width)`` of unit rows, for the same neurons."""


LEAST_DEVIATIONS = 3.0
"""Each matrix of a certain neuron must resemble its partner by itself, by this many standard deviations of the cosine
of two random directions. Otherwise, copies of up alone would count as copies of gate and up if neurons were split
without changing the model's output."""


class OwnNumbers(NamedTuple):
    """Number of tested neurons whose partner has the same number, and number of those that are certain."""

    own: int
    certain: int


@dataclass(frozen=True, slots=True, eq=False)
class NeuronMatches:
    """Tested neurons whose partner has the same number.

    Attributes:
        is_own: ``(n_tested,)`` bool on the CPU: whether the partner has the same number.
        is_certain: ``(n_tested,)`` bool: whether it is also more similar than any pair of random neurons would be.
        shift: Length of the mean difference between unit rows of the first matrix over partners with the same number,
            after the rotation; 0 without such partners.
        least_z: Mean cosine of all neurons with the same number, in standard deviations for random directions, for the
            matrix in which it is smallest.
    """

    is_own: torch.Tensor
    is_certain: torch.Tensor
    shift: float = 0.0
    least_z: float = 0.0

    @property
    def counts(self) -> OwnNumbers:
        """Number of neurons of either kind."""
        return OwnNumbers(int(self.is_own.sum()), int(self.is_certain.sum()))


def sample_neurons(n_neurons: int, n: int, *, run: int, seed: int) -> IntArray:
    """Choose neuron numbers in runs of neighbours, in random order of the runs; each run is one read.

    Args:
        n_neurons: Number of neurons in the layer.
        n: Number of neurons to choose; a multiple of ``run``.
        run: Neighbours per run.
        seed: Seed of the choice, which is the same for both models and independent of the weights.

    Returns:
        The numbers, ``(n,)``, or fewer if the layer has fewer whole runs.
    """
    starts = np.random.default_rng(seed).permutation(n_neurons // run)[: n // run] * run
    numbers: IntArray = (starts[:, None] + np.arange(run)).reshape(-1).astype(np.int64)
    return numbers


def in_span(rows: Neurons, n_fitted: int) -> list[torch.Tensor]:
    """Express rows in an orthonormal basis of the span of the fitted ones, which is all that :func:`own_numbers` uses.

    Args:
        rows: Rows of some neurons of a layer.
        n_fitted: Number of leading rows that span the space.

    Returns:
        Coordinates, each ``(n, min(width, n_fitted * matrices))``. Cosines within the space do not change, and a
        rotation of the whole model does not change them either, up to signs. Cost O(width f^2 + n width f) for f fitted
        rows.
    """
    fitted = torch.cat([matrix[:n_fitted] for matrix in rows])
    if len(fitted) >= fitted.shape[1]:
        return list(rows)  # they span the whole space
    basis = torch.linalg.qr(fitted.T).Q
    return [matrix @ basis for matrix in rows]


def match_neurons_by_number(reference: Neurons, candidate: Neurons, *, n_fitted: int, n_neurons: int) -> NeuronMatches:
    """Find the tested neurons whose partner has the same number, after a rotation fitted on other neurons.

    Args:
        reference: Neurons of a layer, from :func:`in_span`.
        candidate: Neurons with the same numbers; the widths of the two models may differ.
        n_fitted: Number of leading neurons to fit the rotation on; the others are tested.
        n_neurons: Number of neurons in the layer. A forger may choose among all of them, so the threshold for certainty
            depends on it.

    Returns:
        The matches. Cost O(n^2 f + f^3) for f fitted rows.
    """
    x, y = (torch.cat([rows[:n_fitted] for rows in model]) for model in (reference, candidate))
    left, _, right = torch.linalg.svd(x.T @ y, full_matrices=False)
    by_matrix = torch.stack(
        [
            unit_rows(reference_rows[n_fitted:] @ left @ right) @ unit_rows(candidate_rows[n_fitted:]).T
            for reference_rows, candidate_rows in zip(reference, candidate, strict=True)
        ]
    )
    cosines = by_matrix.sum(dim=0)
    rows, columns = mutual_partners(cosines.clamp(min=0.0))
    # Equal neurons tie, and their order would break the tie, so neither counts as a partner.
    is_single = ((cosines == cosines.amax(1, keepdim=True)).sum(1) == 1) & (
        (cosines == cosines.amax(0, keepdim=True)).sum(0) == 1
    )
    is_own = torch.zeros(len(cosines), dtype=torch.bool)
    is_own[torch.from_numpy(rows[rows == columns])] = True
    is_own &= is_single.cpu()
    # Standard deviation of the cosine of two random directions. The largest of N^2 such sums is about sqrt(2 ln N^2)
    # standard deviations.
    deviation = math.sqrt(1.0 / y.shape[1])
    least_sum = deviation * math.sqrt(len(reference) * 2.0 * math.log(n_neurons**2 / CHANNEL_ALPHA))
    own_cosines = by_matrix.diagonal(dim1=1, dim2=2).cpu()
    is_large = (own_cosines.sum(dim=0) > least_sum) & (own_cosines.amin(dim=0) > LEAST_DEVIATIONS * deviation)
    shift = 0.0
    if bool(is_own.any()):
        own = is_own.to(x.device)
        carried, partners = unit_rows(reference[0][n_fitted:] @ left @ right), unit_rows(candidate[0][n_fitted:])
        shift = float((partners[own] - carried[own]).mean(dim=0).norm())
    least_z = float(own_cosines.mean(dim=1).min()) / deviation * math.sqrt(own_cosines.shape[1])
    return NeuronMatches(is_own, is_own & is_large, shift, least_z)


def own_numbers(reference: Neurons, candidate: Neurons, *, n_fitted: int, n_neurons: int) -> OwnNumbers:
    """Return the counts of :func:`match_neurons_by_number`, which takes the same arguments."""
    return match_neurons_by_number(reference, candidate, n_fitted=n_fitted, n_neurons=n_neurons).counts


def log_p_own_numbers(n_own: int, n_layers: int = 1) -> float:
    """Return the natural log of the bound for equal numbers in several layers, ``L^k / k!``; at most 0.

    Args:
        n_own: k, number of partners with the same number in all of them.
        n_layers: L, number of pairs of layers, chosen without using numbers and without repeating a layer.
    """
    return min(0.0, n_own * math.log(max(1, n_layers)) - math.lgamma(n_own + 1))
