"""The strip of modules: a letter, a dot or hatching for each role of a pair, by its test and result."""

from __future__ import annotations

from typing import get_args, get_type_hints

import pytest
from matplotlib.patches import Rectangle
from mdir_hf.method.modules import ModuleEvidence, Test

from mdir_hf.report import ModuleRole, ModuleTest
from tests.render.figures.drawn_reports import a_module, a_report, modules_of

pytest.importorskip("matplotlib")


def strip(modules, layers=None):
    return a_report(modules=tuple(modules), layers=layers).figures()["modules"]


def cells(axes):
    """Return the text by (row, column), and the hatched cells."""
    texts = {}
    for text in axes.texts:
        x, y = text.get_position()
        if text.get_text() not in ("", "reference\ncandidate"):
            texts[int(y), int(x)] = text.get_text()
    hatched = {(int(p.get_y()), int(p.get_x())) for p in axes.patches if isinstance(p, Rectangle) and p.get_hatch()}
    return texts, hatched


def test_not_run_not_significant_and_significant_look_different():
    figure = strip(
        [
            a_module((0, 0), "q", "permutation", -40.0),
            a_module((0, 0), "k", "planes", -2.9),
            a_module((1, 4), "q", "planes", 0.0),
        ]
    )
    texts, hatched = cells(figure.axes[0])

    assert texts == {(0, 0): "P 40", (1, 0): "·", (0, 1): "·"}
    assert hatched == {(1, 1)}
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["q", "k"]
    assert [label.get_text() for label in figure.axes[0].get_xticklabels()] == ["0\n0", "1\n4"]


def test_experts_show_how_many_have_an_origin():
    figure = strip(modules_of([(0, 0)]))
    texts, _ = cells(figure.axes[0])
    roles = [label.get_text() for label in figure.axes[0].get_yticklabels()]

    assert texts[roles.index("experts"), 0] == "2/3"


def test_every_test_and_role_has_a_word_in_reports():
    roles = get_args(get_type_hints(ModuleEvidence)["role"])
    only_in_the_table_of_projections = {"mixer_gate", "ssm_in", "ssm_out"}
    assert {*roles, "experts", *only_in_the_table_of_projections} == {role.value for role in ModuleRole}
    assert {test.value for test in ModuleTest} == set(get_args(Test))
    assert len({test.letter for test in ModuleTest}) == len({test.words for test in ModuleTest}) == len(ModuleTest)
