"""Run tier 1: pair sampled rows by number in every pair of layers, and compare them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from mdir_hf.comparison.projections.samples import PROJECTION_ROLES, ProjectionReader, RowSample
from mdir_hf.method.gauge import ResidualBasisMap
from mdir_hf.method.matching import REMARKABLE
from mdir_hf.method.row_agreement import RowAgreement, compare_rows, share_alike_of_columns
from mdir_hf.model.roles import Role

LEAST_OWN_SHARE = 0.05
"""Two layers agree only if more than this share of their rows are mutual best matches with the row of the same number.
In unrelated layers, 1 row in 64 is, on average. A small p is not enough, because a slightly wrong map makes cosines of
-0.08 significant and neighbouring layers resemble each other."""

LEAST_SHARE_OF_COSINE = 0.6
"""Two layers agree only if their cosine is at least this share of the reference layer's largest cosine with any
candidate layer. This rules out similar neighbours, but not several copies of one layer."""

LEAST_SHARE_KEPT = 0.9
"""A projection counts as kept if at least this share of its sampled rows agrees."""

Pair = tuple[int, int]
"""Positions of a reference layer and a candidate layer in ``anatomy.layers``."""

N_TIERS = 3
"""Number of tests per projection that p is corrected for: tier 1, and searches for moved and for rotated rows."""


@dataclass(frozen=True, eq=False)
class RoleCells:
    """Agreement for one projection across all pairs of layers (cells).

    ``log_n_tests`` is the natural log of the number of tests.
    """

    sample: RowSample
    agreement: RowAgreement
    log_n_tests: float

    @cached_property
    def log_p(self) -> npt.NDArray[np.float64]:
        """``(L, L')`` natural logs of p, corrected for all tests."""
        corrected: npt.NDArray[np.float64] = np.minimum(0.0, self.agreement.log_p + self.log_n_tests)
        return corrected

    @cached_property
    def is_named(self) -> npt.NDArray[np.bool_]:
        """``(L, L')`` mask of the pairs of layers that agree, judging by p, row numbers and cosines."""
        agreement = self.agreement
        is_significant = self.log_p < math.log(REMARKABLE)
        agrees = is_significant & (agreement.own_share > LEAST_OWN_SHARE)
        cosine = np.where(agrees, np.abs(agreement.cosine), 0.0)
        named: npt.NDArray[np.bool_] = agrees & (cosine >= LEAST_SHARE_OF_COSINE * cosine.max(axis=1, keepdims=True))
        return named

    def best(self, column: int) -> int | None:
        """Return the index of the reference layer that agrees best with a candidate layer, if one stands out."""
        named_rows = np.flatnonzero(self.is_named[:, column])
        if not len(named_rows):
            return None
        cosine = np.where(self.is_named, np.abs(self.agreement.cosine), 0.0)
        own = self.agreement.own_share[named_rows, column]
        best = int(named_rows[np.lexsort((cosine[named_rows, column], np.round(own, 2)))[-1]])
        rivals = np.concatenate([np.delete(cosine[:, column], best), np.delete(cosine[best], column)])
        is_rivalled = len(rivals) > 0 and rivals.max() >= RIVAL_SHARE_OF_COSINE * cosine[best, column]
        return None if is_rivalled and cosine[best, column] < COPIED_LAYER_COSINE else best

    def at(self, pair: Pair) -> tuple[int, int] | None:
        """Return the cell (row and column) of a pair of layers; None if either lacks the projection."""
        rows, columns = self.sample.places
        if pair[0] not in rows or pair[1] not in columns:
            return None
        return rows.index(pair[0]), columns.index(pair[1])

    def is_copy_in_place(self, place: int) -> bool:
        """Return whether the layers at a position agree so closely that other similar layers do not matter."""
        cell = self.at((place, place))
        return cell is not None and bool(self.is_named[cell]) and self.agreement.cosine[cell] >= COPIED_LAYER_COSINE

    def share_kept(self, cell: tuple[int, int]) -> float:
        """Return the share of a cell's rows that match the row with the same number.

        Noise can hide matches, so two standard errors are added if that raises the share to
        :data:`LEAST_SHARE_KEPT`.
        """
        agreement = self.agreement
        own, alike = float(agreement.own_share[cell]), float(agreement.kept_share[cell])
        at_most = alike + 2.0 * float(agreement.kept_error[cell])
        of_rows = max(own, min(1.0, at_most)) if at_most >= LEAST_SHARE_KEPT else max(own, alike)
        return min(of_rows, self._share_of_columns(cell)) if self.sample.is_of_stream else of_rows

    def _share_of_columns(self, cell: tuple[int, int]) -> float:
        """Return the share of heads or neurons that kept their place, for a matrix that writes to the stream."""
        x, y = self.sample.reference[cell[0]], self.sample.candidate[cell[1]]
        width = min(x.shape[1], y.shape[1])
        share, error = share_alike_of_columns(x[:, :width], y[:, :width])
        at_most = share + 2.0 * error
        return min(1.0, at_most) if at_most >= LEAST_SHARE_KEPT else share


RIVAL_SHARE_OF_COSINE = 0.8
COPIED_LAYER_COSINE = 0.7
"""Two layers with a lower cosine are not counterparts if either has a cosine with a third layer that is at least
:data:`RIVAL_SHARE_OF_COSINE` times as large, because neighbouring layers of a model can be similar."""


@dataclass(frozen=True, eq=False)
class TierOne:
    """The results of tier 1 under one residual-basis map."""

    residual_map: ResidualBasisMap
    cells: Mapping[Role, RoleCells]

    @cached_property
    def n_named(self) -> int:
        """Number of candidate layers with an agreeing reference layer, summed over projections."""
        return sum(int(cells.is_named.any(axis=0).sum()) for cells in self.cells.values())

    @property
    def is_negative(self) -> bool:
        """Whether agreeing rows mostly have opposite signs."""
        signs = [np.sign(cells.agreement.cosine[cells.is_named]).sum() for cells in self.cells.values()]
        return float(sum(signs)) < 0.0

    def needs_search(self, role: Role, pair: Pair) -> bool:
        """Return whether a projection of a pair of layers was compared but does not agree as a whole."""
        cells = self.cells.get(role)
        cell = None if cells is None else cells.at(pair)
        if cells is None or cell is None:
            return False
        return not cells.is_named[cell] or cells.share_kept(cell) < LEAST_SHARE_KEPT

    def rivalled(self) -> set[int]:
        """Return the candidate layers that agree with a reference layer but are not clearly its counterpart."""
        counterparts = self.counterparts()
        return {
            place
            for cells in self.cells.values()
            for column, place in enumerate(cells.sample.places[1])
            if place not in counterparts and cells.is_named[:, column].any()
        }

    def counterparts(self) -> dict[int, int]:
        """Return each candidate layer's reference layer, chosen by a vote of the projections."""
        votes: dict[int, dict[int, float]] = {}
        for cells in self.cells.values():
            for column, place in enumerate(cells.sample.places[1]):
                row = cells.best(column)
                if row is not None:
                    weights = votes.setdefault(place, {})
                    source = cells.sample.places[0][row]
                    weights[source] = weights.get(source, 0.0) + float(cells.agreement.own_share[row, column])
        return {place: max(weights, key=lambda source: weights[source]) for place, weights in votes.items()}


def compare_own_places(reader: ProjectionReader, residual_map: ResidualBasisMap) -> TierOne | None:
    """Compare only layers at the same position, for models that kept all layers in place.

    Return None unless most projections of every layer match as closely as copies would. Each p is corrected for all
    pairs of layers.
    """
    places = [(reader.places(0, role), reader.places(1, role)) for role in PROJECTION_ROLES]
    if any(first != second for first, second in places):
        return None
    reader.fetch_ahead(residual_map)
    outcome = TierOne(residual_map, cells_of(reader, residual_map, _log_n_tests(reader, 1), own_places=True))
    n_agreeing = [
        sum(cells.is_copy_in_place(place) for cells in outcome.cells.values())
        for place in range(len(reader.models[1].anatomy.layers))
    ]
    return outcome if all(2 * n > len(outcome.cells) for n in n_agreeing) else None


def compare_in_place(reader: ProjectionReader, residual_maps: Sequence[ResidualBasisMap]) -> list[TierOne]:
    """Compare sampled rows of all layers, paired by number, under each map; correct p for the number of maps.

    Rows are read once for all maps that are not rotations.
    """
    log_n = _log_n_tests(reader, len(residual_maps))
    outcomes = []
    for residual_map in residual_maps:
        reader.fetch_ahead(residual_map)
        outcome = TierOne(residual_map, cells_of(reader, residual_map, log_n))
        if outcome.is_negative:
            outcome = TierOne(residual_map.negated, cells_of(reader, residual_map.negated, log_n))
        outcomes.append(outcome)
    return outcomes


def _log_n_tests(reader: ProjectionReader, n_maps: int) -> float:
    shapes = [[len(reader.places(side, role)) for side in (0, 1)] for role in PROJECTION_ROLES]
    return math.log(max(1, N_TIERS * max(1, n_maps) * sum(n * m for n, m in shapes)))


def cells_of(
    reader: ProjectionReader,
    residual_map: ResidualBasisMap,
    log_n: float,
    *,
    own_places: bool = False,
    roles: Sequence[Role] = PROJECTION_ROLES,
) -> dict[Role, RoleCells]:
    """Compare sampled rows of each projection under one map; ``log_n`` is the natural log of the number of tests."""
    cells: dict[Role, RoleCells] = {}
    for role in roles:
        sample = reader.sample(role, residual_map)
        if sample is None or len(sample.numbers) < 2 or (own_places and sample.places[0] != sample.places[1]):
            continue
        width = min(sample.reference.shape[2], sample.candidate.shape[2])
        rows = sample.reference[..., :width], sample.candidate[..., :width]
        agreement = compare_rows(*rows, own_places=own_places)
        cells[role] = RoleCells(sample, agreement, log_n)
    return cells
