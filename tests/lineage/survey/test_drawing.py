"""Texts and links of the cells in a survey's figures."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from mdir_hf import SurveyReport
from mdir_hf.lineage.survey.drawing import draw_survey, survey_cells
from mdir_hf.lineage.survey.results import ModelResult, PairResult
from mdir_hf.report import ModelSummary

pytest.importorskip("matplotlib")

NAMES = ("o/stranger", "o/base", "o/tuned", "o/broken", "o/absent")


@pytest.fixture(scope="module")
def report():
    summary = ModelSummary("o/base", None, None, "llama", 8, 1, 8)
    models = {name: ModelResult(name, summary) for name in NAMES[:-1]}
    models["o/absent"] = ModelResult("o/absent", None, "o/absent was not found")
    pairs = {pair: PairResult(*pair, "no_evidence", None, -0.4, 2048) for pair in itertools.combinations(NAMES[:3], 2)}
    pairs["o/base", "o/tuned"] = PairResult(
        "o/base", "o/tuned", "homologous", None, -3211.7, settled_by="number", agreement="all neurons match"
    )
    pairs["o/base", "o/broken"] = PairResult("o/base", "o/broken", None, error="the rows have other widths")
    return SurveyReport(NAMES, models, pairs)


def test_a_cell_names_both_models_and_leads_to_the_pair(report):
    figures = draw_survey(report)
    assert set(figures) == {"matrix"}
    (grid,) = survey_cells(report, (), figures)["matrix"]
    assert grid.rows == grid.columns == ("o/base", "o/tuned", "o/stranger", "o/broken")  # families first
    related = "o/base and o/tuned: they share weight ancestry, p ≤ 10⁻³²¹¹, by neurons of four layers"
    assert grid.texts[0][1] == related
    assert grid.texts[1][2] == ("o/tuned and o/stranger: not found by neurons of four layers; not compared in full")
    assert grid.texts[3][0] == "o/broken and o/base: not compared, the rows have other widths"
    assert grid.texts[3][2] == "o/broken and o/stranger: not compared yet"
    assert grid.texts[2][2] == "o/stranger: the same model on both sides"
    assert grid.models[1][0] == grid.models[0][1] == ("o/base", "o/tuned")
    assert grid.models[1][2] == ("o/stranger", "o/tuned")  # in the order of the list
    assert grid.models[0][0] is None and grid.models[3][2] is None


def test_a_cell_shows_p_only_if_it_is_a_bound(report):
    agreement = "63 of 64 tested neurons match"
    pair = PairResult("o/base", "o/tuned", "homologous", settled_by="keys", agreement=agreement, layers_compared=True)
    found = replace(report, pairs={**report.pairs, ("o/base", "o/tuned"): pair})
    figures = draw_survey(found)
    (grid,) = survey_cells(found, (), figures)["matrix"]
    assert grid.texts[0][1] == f"o/base and o/tuned: they share weight ancestry, {agreement}, by the full comparison"
    written = [text.get_text() for text in figures["matrix"].axes[0].texts]
    assert "3211" not in written and "3211" in [text.get_text() for text in draw_survey(report)["matrix"].axes[0].texts]


def test_the_cells_lie_on_the_axes_and_a_family_has_its_tree(report):
    families = [(("o/base", "o/tuned"), np.array([[0.0, 0.01], [0.01, 0.0]]))]
    figures = draw_survey(report, families)
    cells = survey_cells(report, families, figures)
    assert set(cells) == {"matrix", "dendrogram"}
    place = figures["matrix"].axes[0].get_position()
    assert cells["matrix"][0].box == pytest.approx((place.x0, 1.0 - place.y1, place.width, place.height))
    (tree,) = cells["dendrogram"]
    assert set(tree.rows) == {"o/base", "o/tuned"} and tree.is_merged
