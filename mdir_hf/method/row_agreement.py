"""Test whether sampled rows of two layers match at the same positions (tier 1) or after reordering (tier 2).

**Tier 1.** X and Y are k rows of two projections, with the same row numbers, chosen independently of the weights. They
are scaled to unit length and centred. For ``U = A f(S) B^T`` with the SVD ``X Y^T = A S B^T``,

    ln p <= ln 2 - (k - 1) c^2 / (2 |U|_F^2),    c = |tr U|.

**Tier 2.** Each search for moved rows is corrected for all of its possible outcomes: maps of heads, or matchings of k
rows among m (times 2^k with signs). A map found on another projection needs no correction.

docs/method/layers.md gives the null hypothesis and the proofs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from mdir_hf.method.assignment import best_assignment
from mdir_hf.method.blocks import FloatArray, IntArray
from mdir_hf.method.neurons import unit_rows
from mdir_hf.method.significance import log_n_matchings

QUINTIC = (3.4445, -4.7750, 2.0315)
"""The coefficients of s, s^3 and s^5 in each step of :func:`flattened`."""

N_STEPS = 2
"""Number of steps of :func:`flattened`, fixed in advance. Two steps bring singular values above 0.1 close to 1 and keep
small ones small. For exact copies, the test is as powerful as with the polar factor. Under noise, it is more powerful,
because the polar factor gives noise directions the same weight as all others."""

VALUES_AT_ONCE, VALUES_AT_ONCE_ELSEWHERE = 1 << 19, 1 << 23
"""Number of product entries per batch, on CPUs and on other devices; 2 MiB of float32 fit in a CPU's cache."""


@dataclass(frozen=True, slots=True, eq=False)
class RowAgreement:
    """Agreement between sampled rows with the same number, for all ``(L, L')`` pairs of layers.

    Attributes:
        log_p: Natural log of the bound for each pair alone.
        cosine: Mean cosine between uncentred rows with the same number.
        own_share: Share of rows whose mutual best match is the row with the same number.
        kept_share: Estimated share, in [0, 1], of rows that resemble the row with the same number, assuming that the
            remaining rows are unrelated to their counterparts.
        kept_error: Standard error of ``kept_share``.
        row_cosines: ``(L, L', k)`` float32 cosines of rows with the same number.
    """

    log_p: FloatArray
    cosine: FloatArray
    own_share: FloatArray
    kept_share: FloatArray
    kept_error: FloatArray
    row_cosines: npt.NDArray[np.float32]


def flattened(cross: torch.Tensor) -> torch.Tensor:
    """Return ``A f(S) B^T`` for a ``(..., k, l)`` batch of products ``X Y^T = A S B^T``, with a fixed odd polynomial f.

    f applies :data:`N_STEPS` quintic steps to the singular values divided by the Frobenius norm.
    """
    is_tall = cross.shape[-2] > cross.shape[-1]
    factor = (cross.mT if is_tall else cross).reshape(-1, *sorted(cross.shape[-2:]))
    factor = factor / factor.norm(dim=(-2, -1), keepdim=True).clamp(min=torch.finfo(factor.dtype).tiny)
    first, third, fifth = QUINTIC
    for _ in range(N_STEPS):
        gram = factor @ factor.mT
        higher = torch.baddbmm(gram, gram, gram, beta=third, alpha=fifth)
        factor = torch.baddbmm(factor, higher, factor, beta=first)
    return (factor.mT if is_tall else factor).reshape(cross.shape)


def centred_rows(rows: torch.Tensor) -> torch.Tensor:
    """Scale rows ``(..., k, n)`` to unit length, then subtract the mean row of each sample."""
    unit: torch.Tensor = unit_rows_of_batch(rows)
    return unit - unit.mean(dim=-2, keepdim=True)


def unit_rows_of_batch(rows: torch.Tensor) -> torch.Tensor:
    """Scale the rows of a batch ``(..., k, n)`` to unit length; zero rows stay zero."""
    flat: torch.Tensor = unit_rows(rows.reshape(-1, rows.shape[-1]))
    return flat.view(rows.shape)


def rows_at_once(n_values: int, device: torch.device) -> int:
    """Return how many reference layers to process per batch if each adds ``n_values`` entries."""
    return max(1, (VALUES_AT_ONCE if device.type == "cpu" else VALUES_AT_ONCE_ELSEWHERE) // n_values)


def log_p_fixed(trace: npt.ArrayLike, energy: npt.ArrayLike, n_rows: int, *, log_n_choices: float) -> FloatArray:
    """Bound the probability that a fixed matching of ``n_rows`` centred rows reaches a trace.

    ``trace`` is c and ``energy`` is ``|U|_F^2``.

    Returns:
        Natural logs, at most 0; 0 if U is zero or there are fewer than two rows.
    """
    c, e = np.asarray(trace, dtype=np.float64), np.asarray(energy, dtype=np.float64)
    exponent = 0.5 * max(0, n_rows - 1) * c**2 / np.maximum(e, 1e-300)
    bound: FloatArray = np.where(e > 0.0, np.minimum(0.0, log_n_choices - exponent), 0.0)
    return bound


def compare_rows(reference: torch.Tensor, candidate: torch.Tensor, *, own_places: bool = False) -> RowAgreement:
    """Compare the sampled rows of two models for all pairs of layers.

    The inputs are rows with the same numbers, ``(L, k, n)`` and ``(L', k, n)``, of any norms, in one residual basis.
    With ``own_places``, compare only layers in the same position: L must equal L', and results for other pairs are 0.
    """
    n_rows = reference.shape[1]
    sides = [_Prepared.of(rows) for rows in (reference, candidate)]
    width = 1 if own_places else len(candidate)
    at_once = rows_at_once(width * n_rows * n_rows, reference.device)
    parts = []
    for start in range(0, len(reference), at_once):
        here = slice(start, start + at_once)
        parts.append(_measured(sides[0].at(here), sides[1].at(here) if own_places else sides[1], own_places=own_places))
    values = torch.cat(parts).double().cpu().numpy()
    if own_places:
        diagonal = values
        values = np.zeros((len(reference), len(candidate), values.shape[2]))
        values[np.arange(len(diagonal)), np.arange(len(diagonal))] = diagonal[:, 0]
    rows = values[:, :, 5:]
    return RowAgreement(
        log_p=log_p_fixed(values[:, :, 0], values[:, :, 1], n_rows, log_n_choices=math.log(2.0)),
        cosine=rows.mean(axis=2),
        own_share=values[:, :, 2],
        kept_share=values[:, :, 3],
        kept_error=values[:, :, 4],
        row_cosines=rows.astype(np.float32),
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Prepared:
    units: torch.Tensor
    centred: torch.Tensor
    lengths: torch.Tensor

    @classmethod
    def of(cls, rows: torch.Tensor) -> _Prepared:
        units = unit_rows_of_batch(rows)
        centred = units - units.mean(dim=1, keepdim=True)
        return cls(units, centred, centred.norm(dim=2).clamp(min=1e-30))

    def at(self, here: slice) -> _Prepared:
        return _Prepared(self.units[here], self.centred[here], self.lengths[here])


def _measured(first: _Prepared, second: _Prepared, *, own_places: bool) -> torch.Tensor:
    """Return ``(i, j, 5 + k)``: trace, energy, own share, kept share and its error, and row cosines."""
    if own_places:
        cross = (first.centred @ second.centred.mT)[:, None]
        lengths = (first.lengths[:, :, None] * second.lengths[:, None, :])[:, None]
        row_cosines = (first.units * second.units).sum(dim=2)[:, None]
    else:
        cross = torch.einsum("ikn,jln->ijkl", first.centred, second.centred).contiguous()
        lengths = first.lengths[:, None, :, None] * second.lengths[None, :, None, :]
        row_cosines = torch.einsum("ikn,jkn->ijk", first.units, second.units)
    factor = flattened(cross)
    trace = factor.diagonal(dim1=2, dim2=3).sum(dim=2)
    sign = torch.where(trace < 0.0, -1.0, 1.0).to(trace)
    own_share, alike_share, error = _shares(cross / lengths * sign[..., None, None])
    numbers = torch.stack((trace, factor.square().sum(dim=(2, 3)), own_share, alike_share, error), dim=2)
    return torch.cat((numbers, row_cosines), dim=2)


def _shares(cosines: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the own share, the kept share and its error, as in :class:`RowAgreement`, from ``(..., k, k)`` cosines."""
    n_rows = cosines.shape[-1]
    own_cosines = cosines.diagonal(dim1=-2, dim2=-1)
    # Tied rows and zero rows have no partner.
    is_row_best = (own_cosines >= cosines.amax(dim=-1)) & ((cosines >= own_cosines[..., None]).sum(dim=-1) == 1)
    is_column_best = (own_cosines >= cosines.amax(dim=-2)) & ((cosines >= own_cosines[..., None, :]).sum(dim=-2) == 1)
    own_share = (is_row_best & is_column_best).to(cosines.dtype).mean(dim=-1)
    # If a share s of the rows has cosine a and the others 0, with noise of variance v (estimated from the other
    # entries), the mean is s a and the mean square is s a^2 + v.
    mean, mean_square = own_cosines.mean(dim=-1), own_cosines.square().mean(dim=-1)
    total = cosines.square().sum(dim=(-2, -1))
    noise = (total - own_cosines.square().sum(dim=-1)) / max(1, n_rows * (n_rows - 1))
    signal = (mean_square - noise).clamp(min=1e-12)
    alike = (mean.clamp(min=0.0).square() / signal).clamp(max=1.0)
    of_mean = 4.0 * noise / mean.square().clamp(min=1e-12)
    of_signal = (2.0 * noise.square() + 4.0 * mean.square() * noise) / signal.square()
    error = alike * ((of_mean + of_signal) / n_rows).sqrt()
    return own_share, alike, error.clamp(max=1.0)


def share_alike_of_columns(reference: torch.Tensor, candidate: torch.Tensor) -> tuple[float, float]:
    """Estimate the share of columns of two ``(k, m)`` samples that match at the same position, and its standard error.

    In matrices that write to the stream, moved heads or neurons make all rows less similar, so columns are compared.
    Noise is estimated from columns at different positions.
    """
    first, second = (unit_rows(side.T) for side in (reference, candidate))
    own_cosines = (first * second).sum(dim=1)
    others = torch.stack([(first * second.roll(shift, 0)).sum(dim=1) for shift in SHIFTS])
    n_columns = len(own_cosines)
    mean, mean_square, noise = (
        float(value) for value in (own_cosines.mean(), own_cosines.square().mean(), others.square().mean())
    )
    signal = max(mean_square - noise, 1e-12)
    share = min(1.0, max(0.0, mean) ** 2 / signal)
    variance = 4.0 * noise / max(mean * mean, 1e-12)
    variance += (2.0 * noise * noise + 4.0 * mean * mean * noise) / signal**2
    return share, min(1.0, share * math.sqrt(variance / n_columns))


SHIFTS = (1, 3, 7, 11)
"""Offsets between columns that are compared to estimate the similarity of unrelated columns."""


def deciles(row_cosines: npt.ArrayLike) -> tuple[float, ...]:
    """Return the nine deciles of a sample's row cosines, ascending."""
    return tuple(float(value) for value in np.quantile(np.asarray(row_cosines, dtype=np.float64), DECILES))


DECILES: Sequence[float] = tuple(tenth / 10.0 for tenth in range(1, 10))


@dataclass(frozen=True, slots=True, eq=False)
class HeadAgreement:
    """Agreement between sampled rows under the best map of heads, for every pair of layers.

    Attributes:
        log_p: ``(L, L')`` natural log of the bound for each pair alone.
        reference: ``(L, L', g)`` matched heads, ascending, where g is the smaller number of heads.
        candidate: ``(L, L', g)`` partner of each reference head.
    """

    log_p: FloatArray
    reference: IntArray
    candidate: IntArray


def match_heads(reference: torch.Tensor, candidate: torch.Tensor, *, n_heads: tuple[int, int]) -> HeadAgreement:
    """Compare the rows of two models for all pairs of layers, under the best map of heads.

    Rows are ``(L, H r, n)`` and ``(L', H' r, n)`` in one residual basis, at the same r positions in each head.
    """
    (h, h_other), (n_rows, n_columns) = n_heads, (reference.shape[1], candidate.shape[1])
    r = n_rows // h
    first, second = centred_rows(reference), centred_rows(candidate)
    shape = (len(reference), len(candidate), h, h_other)
    traces, row_energy, column_energy = np.zeros(shape), np.zeros((*shape[:2], h)), np.zeros((*shape[:2], h_other))
    at_once = rows_at_once(len(candidate) * n_rows * n_columns, reference.device)
    for start in range(0, len(reference), at_once):
        here = slice(start, start + at_once)
        factor = flattened(torch.einsum("ikn,jln->ijkl", first[here], second))
        blocks = factor.reshape(*factor.shape[:2], h, r, h_other, r)
        squares = blocks.square()
        values = torch.cat(
            (
                blocks.diagonal(dim1=3, dim2=5).sum(dim=4).flatten(2),
                squares.sum(dim=(3, 4, 5)),
                squares.sum(dim=(2, 3, 5)),
            ),
            dim=2,
        )
        cpu_values = values.double().cpu().numpy()
        traces[here] = cpu_values[:, :, : h * h_other].reshape(-1, *shape[1:])
        row_energy[here] = cpu_values[:, :, h * h_other : h * h_other + h]
        column_energy[here] = cpu_values[:, :, h * h_other + h :]
    few, many = sorted(n_heads)
    log_n = log_n_matchings(few, many, few) + math.log(2.0)
    log_p = np.zeros(shape[:2])
    pairs = np.zeros((2, *shape[:2], few), dtype=np.int64)
    for i, j in np.ndindex(*shape[:2]):
        best = max(
            (best_assignment(sign * traces[i, j]) for sign in (1.0, -1.0)),
            key=lambda assignment: abs(traces[i, j][assignment].sum()),
        )
        pairs[:, i, j] = best
        c = float(traces[i, j][best].sum())
        energies = float(row_energy[i, j][best[0]].sum()), float(column_energy[i, j][best[1]].sum())
        log_p[i, j] = _log_p(c, energies, (n_rows, n_columns), log_n)
    return HeadAgreement(log_p, pairs[0], pairs[1])


@dataclass(frozen=True, slots=True, eq=False)
class FoundRows:
    """Partners of k sampled rows among all rows of another layer, with signs of +1 or -1, each ``(k,)``.

    ``log_p`` is the natural log of the bound for this pair alone.
    """

    partners: IntArray
    signs: IntArray
    log_p: float


def search_rows(sample: torch.Tensor, every: torch.Tensor, *, is_signed: bool) -> FoundRows:
    """Find partners of sampled rows, ``(k, n)``, among all rows of another layer, ``(m, n)``, in one residual basis.

    k is at most m. If ``is_signed``, partners may have opposite signs.

    Returns:
        The matching with the largest trace.
    """
    factor = flattened(centred_rows(sample) @ centred_rows(every).T)
    weights = (factor.abs() if is_signed else factor).double().cpu().numpy()
    rows, columns = best_assignment(weights)
    values = factor.double().cpu().numpy()
    entries = values[rows, columns]
    energies = float(np.square(values).sum()), float(np.square(values[:, columns]).sum())
    k, m = values.shape
    log_n = log_n_matchings(k, m, k, signed=is_signed)
    signs = np.where(entries < 0.0, -1, 1).astype(np.int64) if is_signed else np.ones(k, dtype=np.int64)
    log_p = _log_p(float(weights[rows, columns].sum()), energies, (k, m), log_n)
    return FoundRows(columns.astype(np.int64), signs, log_p)


def _log_p(trace: float, energies: tuple[float, float], n_rows: tuple[int, int], log_n: float) -> float:
    """Return the weaker of the bounds from each model's invariance, for a matching of centred rows."""
    if min(energies) <= 0.0 or min(n_rows) < 2:
        return 0.0
    # The rows of the reference are matched; if the candidate is invariant, it rotates in n_rows[1] - 1 dimensions.
    rate = min((n_rows[1] - 1) / energies[0], (n_rows[0] - 1) / energies[1])
    return min(0.0, log_n - 0.5 * trace * trace * rate)
