"""The table of a report with the change of each projection of each layer: kept, moved or replaced."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Annotated, Literal

from annotated_types import Ge, Le

from mdir_hf.report.parts import Count, LayerPair, Log10P, Part
from mdir_hf.report.terms import ModuleRole, Outcome, ResidualMap

Cosine = Annotated[float, Ge(-1.0), Le(1.0)]
OfRows = Annotated[float, Ge(0.0), Le(1.0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectionResult(Part):
    """One projection of a layer of the candidate, compared with the projections of the reference.

    Attributes:
        layer: The layer of the reference that most projections of the candidate's layer agree with, and the layer of
            the candidate, counted from 0. If none agrees, the layer at the same depth.
        role: The projection.
        outcome: The change of the projection.
        share: Share of the sampled rows that agree; None if none does or it was not compared.
        cosine: Mean cosine of sampled rows with their partners; 1 minus it is the drift. If nothing agrees, the mean
            for rows of the same number. None if the projection was not compared.
        deciles: The nine deciles of those cosines, ascending; empty if it was not compared.
        log10_p: log10 of the bound of the test that found it, corrected for all tests of the table; at most 0.
        rows: Sampled rows behind ``cosine`` and ``deciles``.
        moved: Kind of rows that changed places: heads or neurons; None if none did.
        is_turned: Whether rows were rotated inside their heads.
        source: Layer of the reference that it comes from, if it differs from the one in ``layer``.
        reason: Why it was not compared; None otherwise.
    """

    layer: LayerPair
    role: ModuleRole
    outcome: Outcome
    share: OfRows | None = None
    cosine: Cosine | None = None
    deciles: tuple[Cosine, ...] = ()
    log10_p: Log10P = 0.0
    rows: Count = 0
    moved: Literal["heads", "neurons"] | None = None
    is_turned: bool = False
    source: Count | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTable(Part):
    """All projections of all layers of the candidate.

    Attributes:
        residual_map: The map from the reference's residual basis to the candidate's.
        fitted_on: The rows on which that map was fitted; None if it was not fitted.
        is_confirmed: Whether the second witness found layers related. Rows can be arranged so that they agree, so the
            table says ``kept`` and ``replaced`` only if it did; else ``rows_agree`` and ``no_agreement``. These also
            stand for a layer that resembles several layers of the reference alike.
        tests: Number of tests for which each p is corrected.
        tested_layers: Layers of the candidate that were named, and whose projections were also tested whole.
        results: One for each projection of each layer of the candidate, layer by layer.
    """

    residual_map: ResidualMap
    fitted_on: str | None
    is_confirmed: bool
    tests: Count
    results: tuple[ProjectionResult, ...]
    tested_layers: tuple[Count, ...] = ()

    def counts(self) -> dict[Outcome, int]:
        """The number of projections by outcome, in the order of the outcomes."""
        totals = Counter(result.outcome for result in self.results)
        return {outcome: totals[outcome] for outcome in Outcome if totals[outcome]}


def unconfirmed(table: LayerTable) -> LayerTable:
    """Return the table without the second witness: rows agree or not, without a statement on their history."""
    return replace(table, is_confirmed=False, results=tuple(map(without_history, table.results)))


def without_history(result: ProjectionResult) -> ProjectionResult:
    """Return a result that states whether rows agree, and not that a projection was kept, moved or replaced."""
    if result.outcome in (Outcome.NOT_COMPARED, Outcome.ROWS_AGREE, Outcome.NO_AGREEMENT):
        return result
    outcome = Outcome.NO_AGREEMENT if result.outcome is Outcome.REPLACED else Outcome.ROWS_AGREE
    return replace(result, outcome=outcome)
