"""Findings of tier 2 searches, and code that the searches share."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch

from mdir_hf.comparison.layer_weights import IntArray
from mdir_hf.comparison.projections.samples import ProjectionReader
from mdir_hf.comparison.projections.tier_one import TierOne
from mdir_hf.method.blocks import FloatArray
from mdir_hf.method.gauge import ResidualBasisMap
from mdir_hf.method.matching import REMARKABLE
from mdir_hf.method.neurons import unit_rows
from mdir_hf.method.row_agreement import centred_rows, flattened, log_p_fixed, share_alike_of_columns
from mdir_hf.model.roles import Role

LEAST_SHARE_OF_LIKENESS = 0.5
"""A row resembles its partner if their cosine is at least this share of the upper quartile of all such cosines."""

Moved = Literal["heads", "neurons", "channels"]


@dataclass(frozen=True, eq=False)
class Finding:
    """Outcome of a search for one projection in a pair of layers.

    Attributes:
        log_p: Natural log of the bound on p for this search alone, corrected for the choices that it makes.
        row_cosines: ``(k,)`` cosines of the sampled rows with their partners.
        share: Share of sampled rows that resemble their partners.
        moved: The kind of rows that moved; None if no row moved.
    """

    log_p: float
    row_cosines: FloatArray
    share: float
    moved: Moved | None
    is_turned: bool = False

    @property
    def cosine(self) -> float:
        """Mean cosine of the rows with their partners."""
        return float(np.mean(self.row_cosines)) if len(self.row_cosines) else 0.0


@dataclass(eq=False)
class FoundMaps:
    """Maps of heads and neurons inside one pair of layers.

    Attributes:
        heads: ``(2, g)`` reference heads and their partners, for each projection.
        turns: ``(g, d', d)`` matrices that map the reference's rows of those heads to the candidate's, for each
            projection.
        neurons: ``(3, k)`` sampled reference neurons, their partners, and the signs of up; or None.
        sign: -1 if gates show that the residual-basis map has the wrong overall sign, else 1.
    """

    heads: dict[Role, IntArray] = field(default_factory=dict)
    turns: dict[Role, torch.Tensor] = field(default_factory=dict)
    neurons: IntArray | None = None
    sign: int = 1


@dataclass
class Search:
    """Base class for tier 2 searches, which compare two models under one residual-basis map.

    Each p is corrected for ``log_n_tests``.
    """

    reader: ProjectionReader
    tier_one: TierOne
    log_n_tests: float

    @property
    def residual_map(self) -> ResidualBasisMap:
        """The map from the reference's residual basis to the candidate's."""
        return self.tier_one.residual_map

    def is_significant(self, log_p: float) -> bool:
        """Return whether a search is significant at 0.1% after all corrections."""
        return log_p + self.log_n_tests < math.log(REMARKABLE)

    def rows(self, side: int, role: Role, place: int, numbers: IntArray) -> torch.Tensor:
        """Read rows of a layer in the order of ``numbers``."""
        order = np.argsort(numbers)
        return self.reader.rows_of_one(side, role, place, numbers[order])[torch.from_numpy(np.argsort(order))]


def row_cosines(first: torch.Tensor, second: torch.Tensor) -> FloatArray:
    """Return the cosines of paired rows ``(k, n)``."""
    cosines: FloatArray = (unit_rows(first) * unit_rows(second)).sum(dim=1).double().cpu().numpy()
    return cosines


def oriented(cosines: FloatArray) -> FloatArray:
    """Flip the sign of all cosines if their sum is negative, since the residual-basis map may have either sign."""
    return -cosines if float(cosines.sum()) < 0.0 else cosines


def is_alike(cosines: FloatArray) -> npt.NDArray[np.bool_]:
    """Return a mask of the rows that resemble their partners; see :data:`LEAST_SHARE_OF_LIKENESS`."""
    typical = float(np.quantile(cosines, 0.75)) if len(cosines) else 0.0
    alike: npt.NDArray[np.bool_] = (cosines >= LEAST_SHARE_OF_LIKENESS * typical) & (typical > 0.0)
    return alike


def share_alike(cosines: FloatArray) -> float:
    """Return the share of rows that resemble their partners."""
    return float(is_alike(cosines).mean()) if len(cosines) else 0.0


def share_of_columns(first: torch.Tensor, second: torch.Tensor) -> float:
    """Estimate from paired channels the share of heads or neurons that agree, and add two standard errors."""
    share, error = share_alike_of_columns(first, second)
    return min(1.0, share + 2.0 * error)


def log_p_in_order(first: torch.Tensor, second: torch.Tensor) -> float:
    """Return the natural log of the bound on p for rows paired by number."""
    factor = flattened(centred_rows(first) @ centred_rows(second).T)
    numbers = torch.stack((factor.diagonal().sum(), factor.square().sum())).double().cpu().numpy()
    return float(log_p_fixed(numbers[0], numbers[1], len(first), log_n_choices=math.log(2.0)))
