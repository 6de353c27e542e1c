"""Measure how far a matrix's axes stand out, which the formula for p assumes they do not (docs/method/bound.md)."""

from __future__ import annotations

import math

import torch

from mdir_hf.processor import all_cores

COLUMNS_AT_ONCE = 256


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
