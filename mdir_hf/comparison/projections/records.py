"""Build a report's table of projections, with one line for each projection of each layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from mdir_hf.comparison.projections.expert_rows import MLP_ROLES, ExpertCells
from mdir_hf.comparison.projections.findings import Finding
from mdir_hf.comparison.projections.samples import PROJECTION_ROLES, ProjectionReader
from mdir_hf.comparison.projections.tier_one import LEAST_SHARE_KEPT, Pair, RoleCells, TierOne
from mdir_hf.method.row_agreement import deciles
from mdir_hf.method.significance import LN10
from mdir_hf.model.roles import Role
from mdir_hf.report import ComparedExpert, LayerPair, ModuleRole, Outcome, ProjectionResult

NO_EXPERT_AGREES = "no compared expert agrees, and renumbered neurons of experts were not searched"

LEAST_GAIN = 0.1
"""Minimum difference in explained rows, as a share, for a finding elsewhere to be preferred to agreement in place."""


@dataclass(frozen=True, eq=False)
class Records:
    """Builder of the table's lines; each p is corrected for ``log_n_tests``."""

    reader: ProjectionReader
    tier_one: TierOne
    findings: Mapping[Pair, Mapping[Role, Finding]]
    log_n_tests: float
    experts: Mapping[Pair, ExpertCells]

    def results(self, pairs: Sequence[Pair]) -> tuple[ProjectionResult, ...]:
        """Return one line for each projection, layer by layer."""
        return tuple(self._result(pair, role) for pair in pairs for role in PROJECTION_ROLES if self._has(pair, role))

    def _has(self, pair: Pair, role: Role) -> bool:
        if pair in self.experts and role in MLP_ROLES:
            experts = self.experts[pair]
            return role in experts.cells or role in experts.failures
        models = self.reader.models
        return any(role in model.anatomy.layers[place].parts for model, place in zip(models, pair, strict=True))

    def _result(self, pair: Pair, role: Role) -> ProjectionResult:
        cells = self.tier_one.cells.get(role)
        cell = None if cells is None else cells.at(pair)
        if cells is None or cell is None:
            has_experts = pair in self.experts and role in MLP_ROLES
            return self._of_experts(pair, role) if has_experts else self._not_compared(pair, role)
        column = cell[1]
        is_named, share = bool(cells.is_named[cell]), cells.share_kept(cell)
        finding = self.findings.get(pair, {}).get(role)
        if finding is not None and finding.moved is not None and is_named and finding.share > share >= LEAST_SHARE_KEPT:
            return self._of_finding(pair, role, finding)  # few of the sampled rows lie in heads that moved
        if is_named and share >= LEAST_SHARE_KEPT:
            return self._in_place(pair, role, cells, cell, Outcome.KEPT, share)
        row = cells.best(column)
        elsewhere = None if row is None or row == cell[0] else cells.share_kept((row, column))
        explained = share if is_named else 0.0
        if finding is not None and finding.share >= explained + LEAST_GAIN and finding.share >= (elsewhere or 0.0):
            return self._of_finding(pair, role, finding)
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

    def _of_finding(self, pair: Pair, role: Role, finding: Finding) -> ProjectionResult:
        if finding.is_turned:
            outcome = Outcome.ROTATED_IN_HEADS
        elif finding.moved is not None:
            outcome = Outcome.PERMUTED
        else:
            outcome = Outcome.KEPT if finding.share >= LEAST_SHARE_KEPT else Outcome.KEPT_IN_PART
        return ProjectionResult(
            layer=LayerPair(*pair),
            role=ModuleRole(role.value),
            outcome=outcome,
            share=finding.share,
            cosine=_cosine(finding.cosine),
            deciles=_deciles(finding.row_cosines),
            log10_p=min(0.0, finding.log_p + self.log_n_tests) / LN10,
            rows=len(finding.row_cosines),
            moved=finding.moved,
            is_turned=finding.is_turned,
        )

    def _of_experts(self, pair: Pair, role: Role) -> ProjectionResult:
        experts = self.experts[pair]
        result = ProjectionResult(layer=LayerPair(*pair), role=ModuleRole(role.value), outcome=Outcome.NOT_COMPARED)
        if role not in experts.cells:
            return replace(result, reason=experts.failures.get(role, "it could not be read"))
        cells, names = experts.cells[role], experts.compared(role)
        partners = {column: experts.partner(role, column) for column in range(len(names[1]))}
        paired = {column: (row, column) for column, row in partners.items() if row is not None}
        compared_experts = [ComparedExpert(name, None, None) for name in names[1]]
        for column, cell in paired.items():
            cosine = _cosine(float(cells.agreement.cosine[cell]))
            compared_experts[column] = ComparedExpert(names[1][column], names[0][cell[0]], cosine)
        result = replace(result, experts=tuple(compared_experts), unread_experts=experts.n_unread(role))
        if not paired:
            return replace(result, reason=NO_EXPERT_AGREES)
        cosines = np.concatenate([cells.agreement.row_cosines[cell] for cell in paired.values()])
        share = sum(map(cells.share_kept, paired.values())) / len(compared_experts)
        has_moved = any(
            expert.candidate != expert.reference is not None for expert in compared_experts if expert.cosine is not None
        )
        kept_outcome = Outcome.PERMUTED if has_moved else Outcome.KEPT
        return replace(
            result,
            outcome=kept_outcome if share >= LEAST_SHARE_KEPT else Outcome.KEPT_IN_PART,
            share=share,
            cosine=_cosine(float(cosines.mean())),
            deciles=_deciles(cosines),
            log10_p=min(float(cells.log_p[cell]) for cell in paired.values()) / LN10,
            rows=len(cosines),
            moved="experts" if has_moved else None,
        )

    def _not_compared(self, pair: Pair, role: Role) -> ProjectionResult:
        lacking = [
            name
            for name, model, place in zip(("reference", "candidate"), self.reader.models, pair, strict=True)
            if role not in model.anatomy.layers[place].parts
        ]
        reasons = {**self.reader.failures, **self.reader.left_out}
        reason = f"the layer of the {lacking[0]} has none" if lacking else reasons.get(role, "it could not be read")
        return ProjectionResult(
            layer=LayerPair(*pair), role=ModuleRole(role.value), outcome=Outcome.NOT_COMPARED, reason=reason
        )


def _cosine(value: float) -> float:
    return max(-1.0, min(1.0, value))


def _deciles(cosines: npt.ArrayLike) -> tuple[float, ...]:
    return tuple(map(_cosine, deciles(cosines)))
