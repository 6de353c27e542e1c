"""Heat maps of the polar factor keep every peak, and put every channel at its number."""

import base64
import io
import re

import numpy as np
import pytest

from mdir_hf.render.figures import figure_bytes
from mdir_hf.render.figures.theme import LIGHT, colour_map
from mdir_hf.report import MatrixArrays, ReportArrays
from tests.render.figures.drawn_reports import a_matrix, a_model, a_report

pytest.importorskip("matplotlib")
Image = pytest.importorskip("PIL.Image")


def one_peak(shape, row, column):
    picture = np.zeros(shape, dtype=np.float32)
    picture[row, column] = 1.0
    return picture


@pytest.mark.parametrize(
    ("sizes", "shape", "at"),
    [
        ((1, 1), (1, 1), (0, 0)),
        ((256, 256), (256, 256), (255, 0)),
        ((4096, 4096), (256, 256), (100, 200)),
        ((896, 4096), (256, 256), (3, 250)),
        ((5000, 40), (256, 40), (255, 39)),
    ],
)
def test_a_single_peak_is_seen_at_its_channels(sizes, shape, at):
    models = {
        "reference": a_model(hidden_size=sizes[0]),
        "candidate": a_model("me/tuned", hidden_size=sizes[1]),
    }
    report = a_report(**models, arrays=ReportArrays(MatrixArrays(one_peak(shape, *at))), layers=None, modules=None)
    figure = report.figures()["embedding"]
    axes = figure.axes[0]
    # Axes count channels, even if a cell has several.
    assert axes.get_xlim() == (0, sizes[1]) and axes.get_ylim() == (sizes[0], 0)

    png = np.asarray(Image.open(io.BytesIO(figure_bytes(figure, "png"))).convert("RGB")).astype(int)
    centre = [(place + 0.5) / n * size for place, n, size in zip(at, shape, sizes, strict=True)]
    x, y = axes.transData.transform((centre[1], centre[0])) * 160 / figure.dpi
    darkest = (255 * np.array(colour_map(LIGHT)(1.0)[:3])).round()
    assert np.abs(png[png.shape[0] - 1 - int(y), int(x)] - darkest).max() <= 2

    # The SVG embeds the cells unscaled.
    svg = figure_bytes(figure, "svg").decode()
    embedded = [
        np.asarray(Image.open(io.BytesIO(base64.b64decode(data))).convert("RGB")).astype(int)
        for data in re.findall(r'data:image/png;base64,\s*([^"]+)"', svg)
    ]
    (cells,) = [image for image in embedded if image.shape[:2] == shape]
    # An SVG image has its first row at the top, or at the bottom if a transform flips it.
    dark = np.argwhere(np.abs(cells - darkest).max(axis=2) <= 2)
    assert dark.tolist() in ([list(at)], [[shape[0] - 1 - at[0], at[1]]])


@pytest.mark.parametrize(
    ("transformation", "title"),
    [
        ("identity", "24 of 24 channels matched, in the same place"),
        ("permutation", "24 of 24 channels matched, in another order"),
        ("signed_permutation", "24 of 24 channels matched, signs turned"),
        ("rotation", "Rotated: no channel keeps an axis of its own"),
        ("none", "No channel has a partner"),
    ],
)
def test_the_title_says_what_was_found(transformation, title):
    parts = {"unembedding": None, "layers": None, "modules": None}
    figure = a_report(embedding=a_matrix(transformation=transformation), **parts).figures()["embedding"]

    assert figure.texts[0].get_text() == title

    wide = {"reference": a_model(hidden_size=16_384), "candidate": a_model(hidden_size=16_384)}
    matrix = a_matrix(transformation=transformation, matched_channels=16_384)
    figures = a_report(**wide, **parts, embedding=matrix).figures()
    for figure in (figures[name] for name in ("embedding", "embedding_matched")):
        assert "…" not in figure.texts[0].get_text() + figure.texts[1].get_text()
