"""Test whether neurons keep their numbers. Exact even if unrelated models share features or axes.

If models are independent, their numberings of neurons differ by a uniformly random permutation. Partners are found
without using numbers, after a rotation fitted on other neurons. In L layers chosen in advance, k neurons have their own
number with probability at most ``L^k / k!``, given the other neurons. Because numbers can be forged, *certain* neurons,
more similar than any random pair would be, are also counted. docs/method/numbering.md gives the proofs. Zhu et al.,
arXiv:2502.12292 (2025), use the same symmetry to test ranks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from mdir_hf.method.matching import ROWS_AT_ONCE, IntArray
from mdir_hf.method.neurons import unit_rows
from mdir_hf.thresholds import CHANNEL_ALPHA, LEAST_DEVIATIONS


def mutual_partners(polar: torch.Tensor) -> tuple[IntArray, IntArray]:
    """Return the rows and columns whose common entry has the largest absolute value in both."""
    partner = torch.empty(len(polar), dtype=torch.long, device=polar.device)  # for each row
    size = polar.new_zeros(len(polar))
    best = polar.new_zeros(polar.shape[1])  # for each column, so far
    best_row = torch.full((polar.shape[1],), -1, dtype=torch.long, device=polar.device)
    for start in range(0, len(polar), ROWS_AT_ONCE):
        block = polar[start : start + ROWS_AT_ONCE].abs()
        size[start : start + ROWS_AT_ONCE], partner[start : start + ROWS_AT_ONCE] = block.max(dim=1)
        largest, where = block.max(dim=0)
        is_better = largest > best
        best[is_better], best_row[is_better] = largest[is_better], where[is_better] + start
    rows = torch.arange(len(polar), device=polar.device)
    is_mutual = (best_row[partner] == rows) & (size > 0.0)
    reference, candidate = rows[is_mutual], partner[is_mutual]
    return reference.cpu().numpy().astype(np.int64), candidate.cpu().numpy().astype(np.int64)


Neurons = Sequence[torch.Tensor]
"""Unit rows of gate and up, or of up alone, for the same neurons; each matrix is ``(n, width)``."""


WHITENING_RIDGE = 1.0
"""Ridge of the whitening, in units of the mean second moment per channel. Without it, noise of the weak directions of
real weights would count as much as their strong directions."""


class OwnNumbers(NamedTuple):
    """Number of tested neurons whose partner has the same number, and how many of them are certain."""

    own: int
    certain: int


@dataclass(frozen=True, slots=True, eq=False)
class NeuronMatches:
    """The result of :func:`match_neurons_by_number`.

    Attributes:
        is_own: ``(n_tested,)`` bool on the CPU, whether each neuron's partner has the same number.
        is_certain: ``(n_tested,)`` bool, whether the two neurons are also more similar than any random pair would be.
    """

    is_own: torch.Tensor
    is_certain: torch.Tensor

    @property
    def counts(self) -> OwnNumbers:
        """Number of pairs with equal numbers, and how many of them are certain."""
        return OwnNumbers(int(self.is_own.sum()), int(self.is_certain.sum()))


def sample_neurons(n_neurons: int, n: int, *, run: int, seed: int) -> IntArray:
    """Choose n neurons at random, in runs of neighbours that need only one read each.

    Layers with too few whole runs yield fewer neurons.
    """
    starts = np.random.default_rng(seed).permutation(n_neurons // run)[: n // run] * run
    numbers: IntArray = (starts[:, None] + np.arange(run)).reshape(-1).astype(np.int64)
    return numbers


def in_span(rows: Neurons, n_fitted: int) -> list[torch.Tensor]:
    """Express rows in an orthonormal basis of the span of the first ``n_fitted`` rows of all matrices.

    This preserves the cosines that :func:`match_neurons_by_number` uses.

    Returns:
        Coordinates, each ``(n, min(width, n_fitted * matrices))``.
    """
    fitted = torch.cat([matrix[:n_fitted] for matrix in rows])
    if len(fitted) >= fitted.shape[1]:
        return list(rows)  # they span the whole space
    basis = torch.linalg.qr(fitted.T).Q
    return [matrix @ basis for matrix in rows]


def match_neurons_by_number(
    reference: Neurons, candidate: Neurons, *, n_fitted: int, n_neurons: int, is_whitened: bool = False
) -> NeuronMatches:
    """Fit a rotation on some neurons, then find which remaining neurons have a partner with the same number.

    A neuron is certain if its partner has the same number, if gate and up together are more similar than any random
    pair would be, and if each of them exceeds :data:`LEAST_DEVIATIONS`.

    The inputs come from :func:`in_span`; the first ``n_fitted`` neurons are used for the fit. ``n_neurons``, the
    layer's size, sets the threshold for certain pairs. If ``is_whitened``, neurons are compared in coordinates in which
    strong directions, of weights or of noise, count less; this is meant for strong noise and several fitted rows for
    each channel.
    """
    fitted = [[rows[:n_fitted] for rows in model] for model in (reference, candidate)]
    fit = _whitened_maps if is_whitened else _rotation
    of_reference, of_candidate, deviation = fit(*fitted)
    by_matrix = torch.stack(
        [
            unit_rows(x[n_fitted:] @ of_reference) @ unit_rows(y[n_fitted:] @ of_candidate).T
            for x, y in zip(reference, candidate, strict=True)
        ]
    )
    cosines = by_matrix.sum(dim=0)
    rows, columns = mutual_partners(cosines.clamp(min=0.0))
    # Identical neurons tie. Breaking ties by order would favour equal numbers, so tied neurons have no partner.
    is_single = ((cosines == cosines.amax(1, keepdim=True)).sum(1) == 1) & (
        (cosines == cosines.amax(0, keepdim=True)).sum(0) == 1
    )
    is_own = torch.zeros(len(cosines), dtype=torch.bool)
    is_own[torch.from_numpy(rows[rows == columns])] = True
    is_own &= is_single.cpu()
    least_sum, least = _least_cosines(len(reference), n_neurons, deviation)
    own_cosines = by_matrix.diagonal(dim1=1, dim2=2)
    is_large = (own_cosines.sum(dim=0) > least_sum) & (own_cosines.amin(dim=0) > least)
    return NeuronMatches(is_own, is_own & is_large.cpu())


def count_in_batch(
    reference: torch.Tensor, candidate: torch.Tensor, *, n_fitted: int, n_neurons: int
) -> tuple[IntArray, IntArray]:
    """Count as :func:`match_neurons_by_number` does, for many pairs of layers at once, without whitening.

    Args:
        reference: ``(b, matrices, n, f)`` float32 rows of one layer of each pair.
        candidate: ``(b, matrices, n, f')`` rows of the other.
        n_fitted: Number of leading neurons to which each rotation is fitted.
        n_neurons: Number of neurons that sets the threshold for certain pairs.

    Returns:
        For each pair, the tested neurons whose partner has the same number, and how many of them are certain; ``(b,)``.
    """
    x, y = (rows[:, :, :n_fitted].flatten(1, 2) for rows in (reference, candidate))
    left, _, right = torch.linalg.svd(x.mT @ y, full_matrices=False)
    rotated = reference[:, :, n_fitted:] @ (left @ right)[:, None]
    first, second = (torch.nn.functional.normalize(rows, dim=-1) for rows in (rotated, candidate[:, :, n_fitted:]))
    by_matrix = first @ second.mT
    cosines = by_matrix.sum(dim=1)
    own_cosines = by_matrix.diagonal(dim1=2, dim2=3)
    own_sums = cosines.diagonal(dim1=1, dim2=2)
    is_own = own_sums > 0.0
    for axis in (1, 2):
        largest = cosines.amax(axis, keepdim=True)
        # Identical neurons tie, and tied neurons have no partner.
        is_own &= (own_sums == largest.squeeze(axis)) & ((cosines == largest).sum(axis) == 1)
    least_sum, least = _least_cosines(reference.shape[1], n_neurons, math.sqrt(1.0 / candidate.shape[3]))
    is_certain = is_own & (own_sums > least_sum) & (own_cosines.amin(dim=1) > least)
    own, certain = (flags.sum(dim=1).cpu().numpy().astype(np.int64) for flags in (is_own, is_certain))
    return own, certain


def _least_cosines(n_matrices: int, n_neurons: int, deviation: float) -> tuple[float, float]:
    """Return the least sum of cosines over the matrices, and the least cosine in each, of a certain neuron."""
    # The largest of N^2 sums of such cosines is about sqrt(2 ln N^2) standard deviations.
    least_sum = deviation * math.sqrt(n_matrices * 2.0 * math.log(n_neurons**2 / CHANNEL_ALPHA))
    return least_sum, LEAST_DEVIATIONS * deviation


def _products(x: Neurons, y: Neurons) -> torch.Tensor:
    """Return the sum of ``a.T @ b`` over matrices, without joining them, which would copy gigabytes of rows."""
    total = x[0].T @ y[0]
    for first, second in zip(x[1:], y[1:], strict=True):
        total.addmm_(first.T, second)
    return total


def _rotation(x: Neurons, y: Neurons) -> tuple[torch.Tensor, torch.Tensor, float]:
    """Return maps of both models' rows to common coordinates, and the deviation of the cosine of random directions."""
    left, _, right = torch.linalg.svd(_products(x, y), full_matrices=False)
    width = y[0].shape[1]
    return left @ right, torch.eye(width, dtype=y[0].dtype, device=y[0].device), math.sqrt(1.0 / width)


def _whitened_maps(x: Neurons, y: Neurons) -> tuple[torch.Tensor, torch.Tensor, float]:
    """Do the same with whitened coordinates (a canonical correlation analysis with a ridge).

    With symmetric whiteners W, and ``U s V^T`` the singular value decomposition of ``W_x x^T y W_y``, the coordinates
    are ``x W_x U s^(1/4)`` and ``y W_y V s^(1/4)``: whitened rows after the polar factor between them, with less weight
    on directions that agree less. A Cholesky factor serves as well as a symmetric root: the rotation between them
    cancels.
    """
    roots = []
    for rows in (x, y):
        moments = _products(rows, rows)
        ridge = WHITENING_RIDGE * moments.diagonal().mean().clamp(min=torch.finfo(moments.dtype).tiny)
        moments.diagonal().add_(ridge)
        roots.append(torch.linalg.cholesky(moments))
    half = torch.linalg.solve_triangular(roots[0], _products(x, y), upper=False)
    core = torch.linalg.solve_triangular(roots[1].T, half, upper=True, left=False)
    left, scale, right = torch.linalg.svd(core, full_matrices=False)
    of_reference, of_candidate = (
        torch.linalg.solve_triangular(root.T, vectors * scale**0.25, upper=True)
        for root, vectors in zip(roots, (left, right.T), strict=True)
    )
    # A cosine is a mean of products with weights s^(1/2); small weights hardly count.
    total = scale.sqrt().sum().clamp(min=torch.finfo(scale.dtype).tiny)
    return of_reference, of_candidate, float(scale.sum().sqrt() / total)


def log_p_own_numbers(n_own: int, n_layers: int = 1) -> float:
    """Return the natural log of the bound for k equal numbers in L pairs of layers, ``L^k / k!``; at most 0.

    Pairs of layers must be chosen without using neuron numbers, and no layer may occur twice.
    """
    return min(0.0, n_own * math.log(max(1, n_layers)) - math.lgamma(n_own + 1))
