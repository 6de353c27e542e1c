"""Run control tests (placebos and privileged axes) that affect the verdict but not p (docs/method/rows.md)."""

from __future__ import annotations

import math

import torch

from mdir_hf.method.matching import CHANNEL_ALPHA, ROWS_AT_ONCE, Matching, best_matching, line_energies
from mdir_hf.method.polar import RowFactors, polar_factor_of_rows, row_factors
from mdir_hf.method.rows import PairedRows
from mdir_hf.method.significance import LN10
from mdir_hf.processor import all_cores
from mdir_hf.report import PlaceboResult, Placebos

MAX_PLACEBO_ROWS = 512
MAX_PLACEBO_CHANNELS = 1024
"""Maximum number of channels in a placebo. A thousand random channels are enough to reveal scale artefacts."""
COLUMNS_AT_ONCE = 256


def calibrate(
    rows: PairedRows, *, generator: torch.Generator, factors: tuple[RowFactors, RowFactors] | None = None
) -> Placebos:
    """Compute placebos and privileged-basis scores from centred, normalised rows of both models.

    Placebos use at most 512 rows and 1024 channels per model. ``factors`` are the factorisations of both
    models' rows, if known.
    """
    x = _subset(rows.reference, generator)
    y = _subset(rows.candidate, generator)
    shuffled = torch.randperm(len(y), generator=generator).to(y.device)
    is_whole = x is rows.reference and y is rows.candidate
    reference, candidate = factors if factors is not None and is_whole else (row_factors(x), row_factors(y))
    re_paired = RowFactors(candidate.left[shuffled], candidate.scale, candidate.right)
    rotated = RowFactors(candidate.left, candidate.scale, _haar_frame(candidate.right, generator))
    return Placebos(
        re_paired=_placebo(reference, re_paired),
        rotated=_placebo(reference, rotated),
        privileged_basis_z=(
            privileged_basis_z(rows.reference, generator=generator),
            privileged_basis_z(rows.candidate, generator=generator),
        ),
    )


def count_off_match_channels(polar: torch.Tensor, matching: Matching) -> int:
    """Count the narrower model's channels with an individually significant entry outside the matching.

    Entries may have either sign. Related models have almost no such channels.
    """
    n_reference, n_candidate = polar.shape
    row_energy, column_energy = (torch.from_numpy(energy).to(polar.device) for energy in line_energies(polar))
    # Threshold for one entry (log_p_entry) under either side's invariance, at 1% over all entries and both signs.
    nats = math.log(2 * polar.numel() / CHANNEL_ALPHA)
    least_square = (2 * nats / n_candidate * row_energy, 2 * nats / n_reference * column_energy)
    partner = torch.full((n_reference,), -1)
    partner[torch.from_numpy(matching.reference)] = torch.from_numpy(matching.candidate)
    partner = partner.to(polar.device)
    hits_of_row, hits_of_column = [], torch.zeros(n_candidate, dtype=torch.bool, device=polar.device)
    for start in range(0, n_reference, ROWS_AT_ONCE):
        block = slice(start, start + ROWS_AT_ONCE)
        is_hit = polar[block].double().square() > torch.maximum(least_square[0][block, None], least_square[1])
        has_partner = torch.nonzero(partner[block] >= 0)[:, 0]
        is_hit[has_partner, partner[block][has_partner]] = False
        hits_of_row.append(is_hit.any(dim=1))
        hits_of_column |= is_hit.any(dim=0)
    return int((torch.cat(hits_of_row) if n_reference <= n_candidate else hits_of_column).sum())


def privileged_basis_z(rows: torch.Tensor, *, generator: torch.Generator, n_directions: int = 512) -> float:
    """Measure how much the coordinate axes differ from random directions.

    The columns of E, ``(r, n)`` centred unit rows, are compared with ``E q`` for random unit vectors q, using mean
    excess kurtosis and the spread of log norms.

    Returns:
        The z-score with the larger absolute value; |z| below 3 is unremarkable.
    """
    if len(rows) < 8:
        return 0.0
    n = rows.shape[1]
    directions = torch.randn(n, n_directions, dtype=rows.dtype, generator=generator).to(rows.device)
    with all_cores(2.0 * rows.numel() * n_directions, rows.device):
        turned = rows @ (directions / directions.norm(dim=0))
    scores = []
    for of_columns, of_directions in zip(_shape(rows), _shape(turned), strict=True):
        spread = of_directions.std() * math.sqrt(1.0 / len(of_columns) + 1.0 / n_directions)
        scores.append(float((of_columns.mean() - of_directions.mean()) / spread.clamp(min=1e-12)))
    return max(scores, key=abs)


N_ROTATIONS = 39
"""Number of random rotations compared with the axes; the smallest possible p is 1 / 40."""


def log_p_of_axes(rows: torch.Tensor, *, generator: torch.Generator) -> float:
    """Test exactly whether the coordinate axes stand out from randomly rotated axes.

    If the distribution of the rows, ``(r, n)``, is rotation invariant, their largest column variance has a uniform rank
    among its values under 39 Haar rotations.

    Returns:
        Natural log of p, at least ln(1/40). Uses at most 1024 axes and 512 rows.
    """
    sample = _subset(rows, generator).float()
    if len(sample) < 8:
        return 0.0

    def largest_share(columns: torch.Tensor) -> float:
        variances = (columns - columns.mean(dim=0)).square().mean(dim=0)
        return float(variances.max() / variances.mean().clamp(min=1e-30))

    of_axes = largest_share(sample)
    square = sample.new_empty(sample.shape[1], sample.shape[1])
    n_larger = sum(largest_share(sample @ _haar_frame(square, generator)) >= of_axes for _ in range(N_ROTATIONS))
    return math.log((1 + n_larger) / (1 + N_ROTATIONS))


def _haar_frame(like: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Draw a random matrix with orthonormal columns, shaped like ``like``."""
    q, r = torch.linalg.qr(torch.randn(like.shape, dtype=like.dtype, generator=generator).to(like.device))
    # The signs of R from LAPACK depend on the data, so q alone is not Haar (Mezzadri 2007).
    signs: torch.Tensor = torch.where(r.diagonal() < 0, -1.0, 1.0).to(q.dtype)
    return torch.mul(q, signs)


def _shape(columns: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    variances, fourth_moments = [], []
    # Powers of all columns at once would take three times the memory of the rows.
    for block in torch.split(columns, COLUMNS_AT_ONCE, dim=1):
        centred = block - block.mean(dim=0)
        variances.append((centred**2).mean(dim=0))
        fourth_moments.append((centred**4).mean(dim=0))
    variance = torch.cat(variances).clamp(min=1e-30)
    kurtosis = torch.cat(fourth_moments) / variance**2 - 3.0
    log_norm = 0.5 * variance.log()
    return kurtosis, (log_norm - log_norm.mean()).abs()


def _subset(rows: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    rows = rows if len(rows) <= MAX_PLACEBO_ROWS else rows[:MAX_PLACEBO_ROWS]
    n = rows.shape[1]
    if n <= MAX_PLACEBO_CHANNELS:
        return rows
    return rows[:, torch.randperm(n, generator=generator)[:MAX_PLACEBO_CHANNELS].to(rows.device)]


def _placebo(reference: RowFactors, candidate: RowFactors) -> PlaceboResult:
    factor = polar_factor_of_rows(reference, candidate, whitened=False)
    matching = best_matching(factor.matrix, signed=False)
    assert matching is not None  # without a level, best_matching always returns a matching
    return PlaceboResult(matching.trace, matching.threshold, matching.log_p / LN10, channels=min(factor.matrix.shape))
