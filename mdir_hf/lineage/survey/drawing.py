"""The pictures of a survey: the matrix of all pairs and the dendrogram of relatives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from mdir_hf.lineage.fingerprints.fingerprint import Fingerprint
from mdir_hf.lineage.survey.results import PairResult, SurveyReport
from mdir_hf.lineage.trees.aligning import FloatArray, align_rows
from mdir_hf.names import shown_name

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from mdir_hf.render.figures import CellGrid

FamilyDistances = Sequence[tuple[tuple[str, ...], FloatArray]]
"""Of each group of relatives its models, and the ``(m, m)`` distances between them."""


def family_distances(report: SurveyReport, fingerprints: Mapping[str, Fingerprint]) -> FamilyDistances:
    """Measure how far the relatives of a survey are apart: RMS difference of aligned rows over their RMS.

    Args:
        report: The survey.
        fingerprints: Rows that were kept, by name; groups that have them all are measured.

    Cost: O(tokens m^2 n) for each group.
    """
    groups = []
    for group in report.groups():
        if len(group) > 1 and all(name in fingerprints for name in group):
            aligned = align_rows({name: fingerprints[name] for name in group})
            if len(aligned.names) > 1:
                groups.append((aligned.names, aligned.relative_distances()))
    return groups


def draw_survey(report: SurveyReport, families: FamilyDistances = (), *, dark: bool = False) -> dict[str, Figure]:
    """Draw the matrix of all pairs, and the dendrogram of each group of relatives; needs matplotlib.

    Args:
        report: The survey, or as much of it as is done.
        families: From :func:`family_distances`.
        dark: For a dark page.

    Returns:
        ``matrix`` where two models or more were read, ``dendrogram`` where there are families.
    """
    from mdir_hf.render.figures import draw_dendrogram

    figures = {"matrix": _matrix(report, dark)} if len(report.readable()) > 1 else {}
    if families:
        alone = len(report.without_relatives())
        drawn = {name for names, _ in families for name in names}
        by_layers = sum(name not in drawn for group in report.groups() if len(group) > 1 for name in group)
        figures["dendrogram"] = draw_dendrogram(families, alone=alone, by_layers=by_layers, dark=dark)
    return figures


def survey_cells(
    report: SurveyReport, families: FamilyDistances, figures: Mapping[str, Figure]
) -> dict[str, tuple[CellGrid, ...]]:
    """Return what the cells of the figures of a survey say, by figure.

    A cell of the matrix names two models, what was found and log10 p, rounded up, where that bounds a chance. Of the
    dendrogram a leaf names its nearest
    model, and a branch its models and the distance at which they are joined.

    Args:
        report: The survey.
        families: As they were drawn.
        figures: What :func:`draw_survey` gave of these.
    """
    from mdir_hf.render.figures import dendrogram_cells

    cells: dict[str, tuple[CellGrid, ...]] = {}
    if "matrix" in figures:
        cells["matrix"] = (_matrix_cells(report, figures["matrix"]),)
    if "dendrogram" in figures:
        cells["dendrogram"] = dendrogram_cells(families, figures["dendrogram"])
    return cells


def _matrix(report: SurveyReport, dark: bool) -> Figure:
    from mdir_hf.render.figures import draw_survey_matrix

    names = report.readable()
    verdicts: list[list[str | None]] = []
    log10_p: list[list[float]] = []
    bounds: list[list[bool]] = []
    layers: list[list[bool]] = []
    for first in names:
        row = [_pair(report, first, second) for second in names]
        verdicts.append([None if found is None else found.verdict for found in row])
        log10_p.append([0.0 if found is None or found.log10_p is None else found.log10_p for found in row])
        bounds.append([found is not None and found.p_is_bound for found in row])
        layers.append([found is not None and found.layers_compared for found in row])
    groups = _read_groups(report)
    return draw_survey_matrix(names, log10_p, verdicts, bounds=bounds, layers=layers, groups=groups, dark=dark)


def _read_groups(report: SurveyReport) -> list[list[str]]:
    names = set(report.readable())
    groups = [[name for name in group if name in names] for group in report.groups()]
    return [group for group in groups if group]


def _pair(report: SurveyReport, first: str, second: str) -> PairResult | None:
    return report.pairs.get((first, second)) or report.pairs.get((second, first))


def _matrix_cells(report: SurveyReport, figure: Figure) -> CellGrid:
    from mdir_hf.render.figures.cells import CellGrid, box_of

    names = [name for group in _read_groups(report) for name in group]
    found = [[_pair(report, first, second) for second in names] for first in names]
    shown = tuple(map(shown_name, names))
    return CellGrid(
        box=box_of(figure, 0),
        what="Matrix of models",
        sides=("", ""),
        rows=shown,
        columns=shown,
        texts=tuple(
            tuple(
                f"{shown[i]}: the same model on both sides" if i == j else _said(shown[i], shown[j], pair)
                for j, pair in enumerate(row)
            )
            for i, row in enumerate(found)
        ),
        models=tuple(
            tuple(None if pair is None else (pair.reference, pair.candidate) for pair in row) for row in found
        ),
    )


def _said(one: str, other: str, pair: PairResult | None) -> str:
    models = f"{one} and {other}"
    if pair is None:
        return f"{models}: not compared yet"
    if pair.error is not None or pair.verdict is None:
        return f"{models}: not compared, {pair.error}"
    if pair.verdict == "homologous":
        found = f"they share weight ancestry, {pair.strength}"
    else:
        is_open = pair.verdict == "inconclusive"
        found = "it could not be told whether weights are shared" if is_open else pair.not_found
    return f"{models}: {found}, {pair.read_of_both}"
