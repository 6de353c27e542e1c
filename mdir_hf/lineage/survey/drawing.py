"""Draw a survey: the matrix of all pairs and the dendrogram of relatives."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from mdir_hf.lineage.fingerprints.fingerprint import Fingerprint
from mdir_hf.lineage.survey.results import NOT_NOMINATED, PairResult, SurveyReport
from mdir_hf.lineage.trees.aligning import FloatArray, align_rows
from mdir_hf.names import shown_name

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from mdir_hf.render.figures import CellGrid

MOST_DRAWN = 100
"""Largest survey with a drawn matrix, and largest group in a dendrogram."""

FamilyDistances = Sequence[tuple[tuple[str, ...], FloatArray]]
"""For each group of relatives, the models and the ``(m, m)`` distances between them."""


def family_distances(report: SurveyReport, rows: Callable[[str], Fingerprint | None]) -> FamilyDistances:
    """Measure distances between relatives: the RMS difference between aligned rows, relative to one model's RMS.

    Groups without stored rows, and groups of more than :data:`MOST_DRAWN` models, are left out.
    """
    groups = []
    for group in report.groups():
        if 1 < len(group) <= MOST_DRAWN:
            fingerprints = {name: fingerprint for name in group if (fingerprint := rows(name)) is not None}
            if len(fingerprints) < len(group):
                continue
            aligned = align_rows(fingerprints)
            if len(aligned.names) > 1:
                groups.append((aligned.names, aligned.relative_distances()))
    return groups


def draw_survey(report: SurveyReport, families: FamilyDistances = (), *, dark: bool = False) -> dict[str, Figure]:
    """Return figures keyed by name: ``matrix`` of 2 to 100 models, and ``dendrogram`` if there are families.

    Needs matplotlib.
    """
    from mdir_hf.render.figures import draw_dendrogram

    figures = {"matrix": _matrix(report, dark=dark)} if 1 < len(report.readable()) <= MOST_DRAWN else {}
    if families:
        alone = len(report.without_relatives())
        drawn_names = {name for names, _ in families for name in names}
        by_layers = sum(name not in drawn_names for group in report.groups() if len(group) > 1 for name in group)
        figures["dendrogram"] = draw_dendrogram(families, alone=alone, by_layers=by_layers, dark=dark)
    return figures


def survey_cells(
    report: SurveyReport, families: FamilyDistances, figures: Mapping[str, Figure]
) -> dict[str, tuple[CellGrid, ...]]:
    """Return the text of each cell in a survey's figures, keyed by the figure's name in :func:`draw_survey`."""
    from mdir_hf.render.figures import dendrogram_cells

    cells: dict[str, tuple[CellGrid, ...]] = {}
    if "matrix" in figures:
        cells["matrix"] = (_matrix_cells(report, figures["matrix"]),)
    if "dendrogram" in figures:
        cells["dendrogram"] = dendrogram_cells(families, figures["dendrogram"])
    return cells


def _matrix(report: SurveyReport, *, dark: bool) -> Figure:
    from mdir_hf.render.figures import draw_survey_matrix

    names = report.readable()
    verdicts: list[list[str | None]] = []
    log10_p: list[list[float]] = []
    bounds: list[list[bool]] = []
    layers: list[list[bool]] = []
    for first in names:
        row = [report.pair(first, second) for second in names]
        verdicts.append([None if pair is None else pair.verdict for pair in row])
        log10_p.append([0.0 if pair is None or pair.log10_p is None else pair.log10_p for pair in row])
        bounds.append([pair is not None and pair.log10_p is not None for pair in row])
        layers.append([pair is not None and pair.layers_compared for pair in row])
    groups = _read_groups(report)
    return draw_survey_matrix(names, log10_p, verdicts, bounds=bounds, layers=layers, groups=groups, dark=dark)


def _read_groups(report: SurveyReport) -> list[list[str]]:
    names = set(report.readable())
    groups = [[name for name in group if name in names] for group in report.groups()]
    return [group for group in groups if group]


def _matrix_cells(report: SurveyReport, figure: Figure) -> CellGrid:
    from mdir_hf.render.figures.cells import CellGrid, box_of, strips_of

    names = [name for group in _read_groups(report) for name in group]
    pairs = [[report.pair(first, second) for second in names] for first in names]
    shown_names = tuple(map(shown_name, names))
    otherwise = NOT_NOMINATED if report.is_complete else "not compared yet"
    return CellGrid(
        box=box_of(figure, 0),
        what="Matrix of models",
        sides=("", ""),
        rows=shown_names,
        columns=shown_names,
        ticks=strips_of(figure, 0, shown_names, [str(number) for number in range(1, len(names) + 1)]),
        texts=tuple(
            tuple(
                f"{shown_names[i]}: the same model on both sides"
                if i == j
                else _pair_text(shown_names[i], shown_names[j], pair, otherwise)
                for j, pair in enumerate(row)
            )
            for i, row in enumerate(pairs)
        ),
        models=tuple(
            tuple(None if pair is None else (pair.reference, pair.candidate) for pair in row) for row in pairs
        ),
    )


def _pair_text(first: str, second: str, pair: PairResult | None, otherwise: str) -> str:
    models = f"{first} and {second}"
    if pair is None:
        return f"{models}: {otherwise}"
    if pair.error is not None or pair.verdict is None:
        return f"{models}: not compared, {pair.error}"
    if pair.verdict == "homologous":
        result = f"they share weight ancestry, {pair.strength}, {pair.read_of_both}"
    else:
        is_open = pair.verdict == "inconclusive"
        result = "it could not be told whether weights are shared" if is_open else pair.not_found
    return f"{models}: {result}"
