"""Evidence from the numbers of neurons: no vocabulary, no embedding, and a rotation for each layer.

Training does not care how the neurons of an MLP are numbered. So of two independently trained models, given everything
about both but the numbering of one layer's neurons, that numbering is a uniformly random permutation, for each layer an
independent one. Neurons are rows of the matrices that write them (gate, up).

Pair some neurons of two layers by number and fit the rotation between the two residual streams on them. Of other
neurons, partners are those that resemble each other most behind it, found without their numbers. Given the pairs that
the rotation was fitted on, the numbers of the others are still uniformly random. So k of them have a partner of their
own number with probability at most 1 / k!, and k in all of L layers that were chosen beforehand with probability at
most L^k / k!. docs/method/numbering.md has the proofs.

Numbers can be chosen: a person who knows which neurons are tested can renumber a stranger so that all of them have
their own number. So :func:`match_neurons_by_number` also counts those that are *certain*: more alike than the most
alike of all pairs of random neurons of the two layers would be.
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
"""Rows of the matrices that write some neurons, gate and up: each ``(n, width)`` of unit rows, of the same neurons."""


LEAST_DEVIATIONS = 3.0
"""Each matrix of a certain neuron must resemble its partner by itself, by this many standard deviations of the cosine
of two random directions. Otherwise copies of up alone, in neurons that are split so that the model computes the same,
count as copies of gate and up."""


class OwnNumbers(NamedTuple):
    """How many tested neurons have a partner of their own number, and how many of those are certain."""

    own: int
    certain: int


@dataclass(frozen=True, slots=True, eq=False)
class NeuronMatches:
    """Which tested neurons have a partner of their own number.

    Attributes:
        is_own: ``(n_tested,)`` bool on the CPU.
        is_certain: ``(n_tested,)`` bool: those of them that no pair of random neurons would resemble as much.
        shift: Length of the mean difference between the first matrix's unit rows of partners of the same number, behind
            the rotation; 0 without such partners.
        least_z: Mean cosine of all namesakes by the matrix in which it is smallest, in its standard deviations for
            random directions.
    """

    is_own: torch.Tensor
    is_certain: torch.Tensor
    shift: float = 0.0
    least_z: float = 0.0

    @property
    def counts(self) -> OwnNumbers:
        """The number of either."""
        return OwnNumbers(int(self.is_own.sum()), int(self.is_certain.sum()))


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


def in_span(rows: Neurons, n_fitted: int) -> list[torch.Tensor]:
    """Write rows in an orthonormal basis of what the fitted ones span: all that :func:`own_numbers` sees of them.

    Args:
        rows: Rows of some neurons of a layer.
        n_fitted: The first of them span the space.

    Returns:
        Coordinates, each ``(n, min(width, n_fitted * matrices))``. Cosines within the space are as before; a model
        turned as a whole has the same ones, up to signs. Cost O(width f^2 + n width f) for f fitted rows.
    """
    fitted = torch.cat([matrix[:n_fitted] for matrix in rows])
    if len(fitted) >= fitted.shape[1]:
        return list(rows)  # they span the whole space
    basis = torch.linalg.qr(fitted.T).Q
    return [matrix @ basis for matrix in rows]


def match_neurons_by_number(reference: Neurons, candidate: Neurons, *, n_fitted: int, n_neurons: int) -> NeuronMatches:
    """Tell which tested neurons have a partner of their own number, behind a rotation fitted on other neurons.

    Args:
        reference: Neurons of a layer, as :func:`in_span` gives them.
        candidate: Neurons of the same numbers; the widths of the two models may differ.
        n_fitted: The rotation is fitted on the first neurons of this number; the rest is tested.
        n_neurons: Neurons of the layer. A forger may choose among all of them, so the limit of certainty depends on it.

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
    # Equal neurons tie, and their number would break the tie: neither is a partner then.
    is_single = ((cosines == cosines.amax(1, keepdim=True)).sum(1) == 1) & (
        (cosines == cosines.amax(0, keepdim=True)).sum(0) == 1
    )
    is_own = torch.zeros(len(cosines), dtype=torch.bool)
    is_own[torch.from_numpy(rows[rows == columns])] = True
    is_own &= is_single.cpu()
    # Standard deviation of the cosine of two random directions. The largest of N^2 sums of them is about
    # sqrt(2 ln N^2) of its own deviations.
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
    """Count what :func:`match_neurons_by_number` finds; it takes the same arguments."""
    return match_neurons_by_number(reference, candidate, n_fitted=n_fitted, n_neurons=n_neurons).counts


def log_p_own_numbers(n_own: int, n_layers: int = 1) -> float:
    """Natural log of the bound for so many own numbers in all of some layers, ``L^k / k!``; at most 0.

    Args:
        n_own: k, own numbers in all of them.
        n_layers: L, pairs of layers in which no layer stands twice, chosen without a look at numbers.
    """
    return min(0.0, n_own * math.log(max(1, n_layers)) - math.lgamma(n_own + 1))
