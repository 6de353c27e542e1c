"""Makes the table of a report, one line for each projection of each layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy.typing as npt

from mdir_hf.comparison.projections.findings import Finding
from mdir_hf.comparison.projections.samples import PROJECTION_ROLES, ProjectionReader
from mdir_hf.comparison.projections.tier_one import LEAST_SHARE_KEPT, Pair, RoleCells, TierOne
from mdir_hf.method.row_agreement import deciles
from mdir_hf.method.significance import LN10
from mdir_hf.model.roles import Role
from mdir_hf.report import LayerPair, ModuleRole, Outcome, ProjectionResult

LEAST_GAIN = 0.1
"""Rows that agree in part are explained by a search, or by another layer, only if it explains this share of them
more."""


@dataclass(frozen=True, eq=False)
class Records:
    """Makes the lines of the table; each p is corrected by ``log_n_tests``."""

    reader: ProjectionReader
    tier_one: TierOne
    findings: Mapping[Pair, Mapping[Role, Finding]]
    log_n_tests: float

    def results(self, pairs: Sequence[Pair]) -> tuple[ProjectionResult, ...]:
        """One line for each projection, layer by layer."""
        return tuple(self._result(pair, role) for pair in pairs for role in PROJECTION_ROLES if self._has(pair, role))

    def _has(self, pair: Pair, role: Role) -> bool:
        models = self.reader.models
        return any(role in model.anatomy.layers[place].parts for model, place in zip(models, pair, strict=True))

    def _result(self, pair: Pair, role: Role) -> ProjectionResult:
        cells = self.tier_one.cells.get(role)
        cell = None if cells is None else cells.at(pair)
        if cells is None or cell is None:
            return self._not_compared(pair, role)
        column = cell[1]
        is_named, share = bool(cells.is_named[cell]), cells.share_kept(cell)
        found = self.findings.get(pair, {}).get(role)
        if found is not None and found.moved is not None and is_named and found.share > share >= LEAST_SHARE_KEPT:
            return self._found(pair, role, found)  # few of the sampled rows lie in heads that moved
        if is_named and share >= LEAST_SHARE_KEPT:
            return self._in_place(pair, role, cells, cell, Outcome.KEPT, share)
        row = cells.best(column)
        elsewhere = None if row is None or row == cell[0] else cells.share_kept((row, column))
        explained = share if is_named else 0.0
        if found is not None and found.share >= explained + LEAST_GAIN and found.share >= (elsewhere or 0.0):
            return self._found(pair, role, found)
        if row is not None and elsewhere is not None and elsewhere >= explained + LEAST_GAIN:
            source = cells.sample.places[0][row]
            return self._in_place(pair, role, cells, (row, column), Outcome.FROM_LAYER, elsewhere, source=source)
        if is_named:
            return self._in_place(pair, role, cells, cell, Outcome.KEPT_IN_PART, share)
        return self._in_place(pair, role, cells, cell, Outcome.REPLACED, None)

    def _in_place(
        self,
        pair: Pair,
        role: Role,
        cells: RoleCells,
        cell: tuple[int, int],
        outcome: Outcome,
        share: float | None,
        *,
        source: int | None = None,
    ) -> ProjectionResult:
        cosines = cells.agreement.row_cosines[cell]
        return ProjectionResult(
            layer=LayerPair(*pair),
            role=ModuleRole(role.value),
            outcome=outcome,
            share=share,
            cosine=_cosine(float(cosines.mean())),
            deciles=_deciles(cosines),
            log10_p=float(cells.log_p[cell]) / LN10,
            rows=len(cosines),
            source=source,
        )

    def _found(self, pair: Pair, role: Role, found: Finding) -> ProjectionResult:
        if found.is_turned:
            outcome = Outcome.ROTATED_IN_HEADS
        elif found.moved is not None:
            outcome = Outcome.PERMUTED
        else:
            outcome = Outcome.KEPT if found.share >= LEAST_SHARE_KEPT else Outcome.KEPT_IN_PART
        return ProjectionResult(
            layer=LayerPair(*pair),
            role=ModuleRole(role.value),
            outcome=outcome,
            share=found.share,
            cosine=_cosine(found.cosine),
            deciles=_deciles(found.row_cosines),
            log10_p=min(0.0, found.log_p + self.log_n_tests) / LN10,
            rows=len(found.row_cosines),
            moved=found.moved,
            is_turned=found.is_turned,
        )

    def _not_compared(self, pair: Pair, role: Role) -> ProjectionResult:
        lacking = [
            name
            for name, model, place in zip(("reference", "candidate"), self.reader.models, pair, strict=True)
            if role not in model.anatomy.layers[place].parts
        ]
        known = {**self.reader.failures, **self.reader.left_out}
        reason = f"the layer of the {lacking[0]} has none" if lacking else known.get(role, "it could not be read")
        return ProjectionResult(
            layer=LayerPair(*pair), role=ModuleRole(role.value), outcome=Outcome.NOT_COMPARED, reason=reason
        )


def _cosine(value: float) -> float:
    """A cosine without the rounding that takes it past 1."""
    return max(-1.0, min(1.0, value))


def _deciles(cosines: npt.ArrayLike) -> tuple[float, ...]:
    return tuple(map(_cosine, deciles(cosines)))
