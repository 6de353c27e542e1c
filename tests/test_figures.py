"""Figures of a report: what they show is said in words, and they come out the same every time."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from mdir_hf import HomologyChecker, HomologyReport
from mdir_hf.figures import draw_figures, figure_bytes
from mdir_hf.homology.reduction import reduce_peaks
from tests.specimens import gaussian, write_model

pytest.importorskip("matplotlib")


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    base = write_model(folder / "base", gaussian(1200, 64, 0))
    copy = write_model(folder / "copy", gaussian(1200, 64, 0) + 0.3 * gaussian(1200, 64, 1))
    return HomologyChecker.from_pretrained(base).compare(copy, progress=False)


def test_every_figure_states_its_finding_as_alt_text(report):
    figures = report.figures()
    assert set(figures) == {"embedding", "null", "looks"}
    assert "identity found" in figures["embedding"].get_label()
    assert "times what would be significant" in figures["null"].get_label()
    assert "log10 p is" in figures["looks"].get_label()


@pytest.mark.parametrize("file_format", ["png", "svg"])
@pytest.mark.parametrize("dark", [False, True])
def test_the_same_report_gives_the_same_bytes(report, file_format, dark):
    one, two = (
        {name: figure_bytes(figure, file_format) for name, figure in draw_figures(report, dark=dark).items()}
        for _ in range(2)
    )
    assert one == two


def test_light_and_dark_differ(report):
    light, dark = (figure_bytes(draw_figures(report, dark=d)["looks"], "png") for d in (False, True))
    assert light != dark


def test_a_report_from_json_has_every_figure_but_the_heat_map(report):
    assert set(HomologyReport.from_json(report.to_json()).figures()) == {"null", "looks"}


def test_a_report_without_embedding_has_no_figures(report):
    assert draw_figures(dataclasses.replace(report, embedding=None, arrays={})) == {}


@pytest.mark.parametrize("shape", [(1, 1), (5, 3), (384, 384), (385, 1000), (1000, 7)])
def test_reduction_keeps_the_largest_entry_of_every_block_and_loses_no_peak(shape):
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    matrix[-1, -1] = -50.0
    reduced = reduce_peaks(matrix, max_size=384)
    assert reduced.shape == tuple(min(size, 384) for size in shape)
    assert reduced[-1, -1] == 50.0
    assert set(np.unique(reduced)) <= set(np.unique(matrix.abs().numpy()))
