"""Fit the outer transformation, U of the paper, and its scale: ``E' ~ s E U``.

U is a matching of channels if one is significant and fits almost as well as the polar factor; otherwise, it is
the polar factor.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from mdir_hf.method.gauge import ResidualBasisMap
from mdir_hf.method.matching import Matching, best_matching
from mdir_hf.method.polar import cross_product, polar_factor, row_factors
from mdir_hf.method.rows import PairedRows

LOG_ALPHA = math.log(1e-10)
"""Natural log of the p below which a matching of channels is accepted (the paper's p_0)."""

ROTATION_IS_BETTER, TRAINED = 3.0, 1e-3
"""A matching is rejected if its squared residual exceeds both the second value and the first value times the rotation's
squared residual. A rotation also absorbs some low-rank changes from training."""

LEAST_LOG_SCALE = 0.05
"""Fitted scales whose log is smaller than this in absolute value are attributed to training and ignored."""

TOLD = 0.1
"""Two streams are related if a rotation fitted on half of the rows explains at least this share of the other half's sum
of squares. For unrelated models, the share is close to 0, although it reaches a third on the fitted rows."""


@dataclass(frozen=True, slots=True, eq=False)
class StreamMap:
    """The residual-basis map and its scale.

    ``residual`` is ``|E' - s E U|_F / |E'|_F`` on the fitted rows.
    """

    outer: ResidualBasisMap
    scale: float
    residual: float


@dataclass(slots=True, eq=False)
class RowProducts:
    """Products of paired rows, added up block by block.

    Attributes:
        cross: ``(n_reference, n_candidate)`` float64, ``E^T E'``.
        reference: ``(n_reference,)`` sum of squares per channel.
        candidate: ``(n_candidate,)`` sum of squares per channel.
    """

    cross: torch.Tensor
    reference: torch.Tensor
    candidate: torch.Tensor

    @classmethod
    def empty(cls, n_reference: int, n_candidate: int) -> RowProducts:
        """Return products initialised to zero."""
        zeros = torch.zeros(n_reference + n_candidate, dtype=torch.float64)
        return cls(torch.zeros(n_reference, n_candidate, dtype=torch.float64), zeros[:n_reference], zeros[n_reference:])

    def __add__(self, other: RowProducts) -> RowProducts:
        """Return the products of both sets of rows."""
        return RowProducts(self.cross + other.cross, self.reference + other.reference, self.candidate + other.candidate)

    def add(self, x: torch.Tensor, y: torch.Tensor) -> None:
        """Add a block of paired rows, ``(r, n_reference)`` and ``(r, n_candidate)``."""
        x, y = x.double(), y.double()
        self.cross += x.T @ y
        self.reference += x.square().sum(dim=0)
        self.candidate += y.square().sum(dim=0)


def held_out_share(fitted: RowProducts, held_out: RowProducts, *, keeps_mean: bool) -> float:
    """Return the share of the held-out sum of squares, at most 1, that a rotation fitted on other rows explains."""
    rotation = _polar(fitted.cross, keeps_mean=keeps_mean)
    inner = float((held_out.cross * rotation).sum())
    energies = float(held_out.reference.sum()) * float(held_out.candidate.sum())
    return max(0.0, inner) ** 2 / max(energies, 1e-300)


def fit_stream(products: RowProducts, *, keeps_mean: bool, fitted_on: str = "embeddings") -> StreamMap:
    """Fit U and s to paired rows in O(n^3) time.

    If ``keeps_mean``, the norms subtract the mean (LayerNorm), so U must fix the all-ones direction. If the widths
    differ, U is always a matching.
    """
    n, n_other = products.cross.shape
    rotation = _polar(products.cross, keeps_mean=keeps_mean)
    matching = best_matching(rotation, signed=False)
    if not keeps_mean and matching is not None and matching.n_significant < min(n, n_other):
        signed = best_matching(rotation, signed=True)
        matching = signed if signed is not None and signed.log_p < matching.log_p else matching
    assert matching is not None  # without a level, best_matching always returns a matching
    turned = _with_scale(ResidualBasisMap.rotation(rotation, fitted_on=fitted_on), products)
    if n != n_other:
        return _with_scale(ResidualBasisMap.from_matching(matching, n, n_other, fitted_on=fitted_on), products)
    if matching.log_p >= LOG_ALPHA:
        return turned
    is_plain = matching.is_identity and not bool((matching.signs < 0).any())
    outer = (
        ResidualBasisMap.identity(n)
        if is_plain
        else ResidualBasisMap.from_matching(matching, n, n, fitted_on=fitted_on)
    )
    matched = _with_scale(outer, products)
    return matched if matched.residual**2 <= max(TRAINED, ROTATION_IS_BETTER * turned.residual**2) else turned


def _polar(cross: torch.Tensor, *, keeps_mean: bool) -> torch.Tensor:
    """Return the polar factor, with the all-ones direction fixed up to its sign if ``keeps_mean``."""
    if not keeps_mean or cross.shape[0] != cross.shape[1]:
        return _orthogonal(cross)
    n = len(cross)
    mean = torch.full((n, 1), 1.0 / math.sqrt(n), dtype=cross.dtype)
    inner = cross - mean @ (mean.T @ cross)
    inner = inner - (inner @ mean) @ mean.T
    sign = -1.0 if float(mean.T @ cross @ mean) < 0 else 1.0
    return _orthogonal(inner) + sign * (mean @ mean.T)


def _orthogonal(cross: torch.Tensor) -> torch.Tensor:
    if max(cross.shape) <= 2048:
        return polar_factor(cross).matrix
    u = polar_factor(cross.float()).matrix.double()
    for _ in range(2):  # Newton-Schulz: each step squares the error
        u = 1.5 * u - 0.5 * (u @ (u.T @ u))
    return u


def _with_scale(outer: ResidualBasisMap, products: RowProducts) -> StreamMap:
    """Fit the scale of a map by least squares, and measure the residual."""
    inner, energy = _inner(outer, products)
    energy_of_candidate = float(products.candidate.sum())
    scale = inner / max(energy, 1e-300)
    if scale <= 0.0 or abs(math.log(scale)) < LEAST_LOG_SCALE:
        scale = 1.0
    scale = float(f"{scale:.12g}")  # an exact factor of 2 stays exact
    squared = max(0.0, energy_of_candidate - 2.0 * scale * inner + scale**2 * energy) / max(energy_of_candidate, 1e-300)
    return StreamMap(outer, scale, math.sqrt(squared))


def _inner(outer: ResidualBasisMap, products: RowProducts) -> tuple[float, float]:
    cross = products.cross
    if outer.kind == "identity":
        return float(cross.diagonal().sum()), float(products.reference.sum())
    if outer.matrix is not None:
        return float((cross * outer.matrix).sum()), float(products.reference.sum())
    assert outer.reference is not None and outer.candidate is not None and outer.signs is not None
    entries = cross[outer.reference, outer.candidate] * outer.signs
    return float(entries.sum()), float(products.reference[outer.reference].sum())


def rotation_predicts_better(rows: PairedRows, matching: Matching) -> bool:
    """Return whether a fitted rotation predicts paired rows better than a matching of channels does.

    A rotated copy can have a significant matching, so both are compared on rows to which the rotation was not fitted.
    """
    x, y = rows.reference.double(), rows.candidate.double()
    reference, candidate = row_factors(x[::2]), row_factors(y[::2])
    core = reference.scale[:, None] * cross_product(reference.left, candidate.left) * candidate.scale[None, :]
    # Apply V_x Ortho(core) V_y^T without forming that n x n matrix.
    behind_rotation = _mean_cosine(
        x[1::2] @ reference.right @ polar_factor(core).matrix, y[1::2] @ candidate.right, y[1::2]
    )
    signs = torch.from_numpy(matching.signs).to(x)
    carried, partners = x[1::2][:, torch.from_numpy(matching.reference)] * signs, y[1::2]
    behind_matching = _mean_cosine(carried, partners[:, torch.from_numpy(matching.candidate)], partners)
    return behind_rotation > behind_matching


def matched_cosine(rows: PairedRows, matching: Matching) -> float:
    """Return the mean cosine, in [-1, 1], between paired, centred rows after matching the channels.

    Copies reach at least 0.7; unrelated models rotated to match reach at most 0.48. If the widths are equal and matched
    channels keep their numbers and signs, all channels are used.
    """
    x, y = rows.reference.double(), rows.candidate.double()
    if x.shape[1] != y.shape[1] or not matching.is_identity or matching.n_negative:
        x = x[:, torch.from_numpy(matching.reference)] * torch.from_numpy(matching.signs).to(x)
        y = y[:, torch.from_numpy(matching.candidate)]
    return _mean_cosine(x, y, y)


def _mean_cosine(carried: torch.Tensor, partners: torch.Tensor, whole: torch.Tensor) -> float:
    lengths = (carried.norm(dim=1) * whole.norm(dim=1)).clamp(min=1e-30)
    return float(((carried * partners).sum(dim=1) / lengths).mean()) if len(carried) else 0.0
